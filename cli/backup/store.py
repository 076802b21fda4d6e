"""keelmq backup store, keelmq restore store: the messages and the metadata of one broker."""

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from broker.backup.manifest import BackupError, Manifest, read_manifest
from broker.backup.offline import backup_stopped
from broker.backup.restore import check_backup, check_target, restore_store
from cli.backup.shell import JsonOption, run_requests, run_steps, show
from cli.command_line import EpochFileOption, Refused, checked_addresses, print
from cli.credentials import CredentialsOption
from cli.mqadmin.shell import DONE, dump
from keelmq.client.admin import AdminClient
from keelmq.runtime.program import version_line

MIB = 1 << 20
RATE_DEFAULT_MIB = 64.0
POLL_S = 0.5
LINE_EVERY_S = 5.0

RateOption = Annotated[
    float, typer.Option("--rate", min=0, metavar="MIB", help="MiB per second at most; 0: no limit")
]


def backup_store(
    target: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="Name of the new directory below backupPath; with --from-dir its path"
        ),
    ],
    broker_addr: Annotated[
        str | None,
        typer.Option("-b", "--brokerAddr", callback=checked_addresses, help="A running broker, host:port"),
    ] = None,
    from_dir: Annotated[
        Path | None,
        typer.Option("--from-dir", metavar="DIR", help="storePathRootDir of a stopped broker, on this host"),
    ] = None,
    epoch_file: EpochFileOption = None,
    rate_mib: RateOption = RATE_DEFAULT_MIB,
    detach: Annotated[
        bool, typer.Option("--detach", help="With -b: start the backup, and do not wait for its end")
    ] = False,
    credentials: CredentialsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy the store of a broker: up to confirmOffset for a running broker, all of it for a stopped one."""
    if (broker_addr is None) == (from_dir is None):
        raise typer.BadParameter("give -b ADDRESS of a broker that runs, or --from-dir of a stopped one")
    if from_dir is not None:
        root = from_dir.expanduser().resolve()
        path = Path(target).expanduser()

        def steps() -> int:
            copied = backup_stopped(root, path, program=version_line("keelmq"), epoch_path=epoch_file)
            each_step(copied, "copied", rate_mib, as_json=as_json)
            _tell_backup(path, read_manifest(path), as_json=as_json)
            return DONE

        run_steps(lambda: _refusing(steps))
        return
    run_requests(
        lambda admin: _of_running(admin, broker_addr or "", target, rate_mib, detach=detach, as_json=as_json),
        credentials,
    )


async def _of_running(
    admin: AdminClient, address: str, name: str, rate_mib: float, *, detach: bool, as_json: bool
) -> int:
    found = await admin.store_copies.start_store_backup(address, name, bytes_per_second=round(rate_mib * MIB))
    line = ProgressLine("copied", as_json=as_json)
    try:
        while found.state == "copying" and not detach:
            line.tell(found.bytes_done, found.bytes_total)
            await asyncio.sleep(POLL_S)
            found = await admin.store_copies.store_backup(address)
            if not found.name:
                raise Refused(f"{address} was restarted before backup {name} was complete: begin it again")
            if found.name != name:
                raise Refused(
                    f"{address} has begun another backup, {found.name}: look for {name} at its host"
                )
    except asyncio.CancelledError:
        await admin.store_copies.cancel_store_backup(address)
        print("keelmq: interrupted: the broker deletes what it has written", file=sys.stderr)
        raise
    line.end()
    if found.state in ("failed", "cancelled"):
        if as_json:
            show(as_json, dump(found), "")
        raise Refused(f"backup {name} at {address}: {found.state}: {found.error}")
    text = f"{found.path} at {address}: log {found.min_offset}..{found.end_offset}, {found.bytes_total} bytes"
    if detach:
        text += "; it goes on, and the broker's log says how it ends"
    show(as_json, dump(found), text)
    return DONE


def restore_store_command(
    backup: Annotated[
        Path, typer.Argument(metavar="BACKUP", help="Directory that keelmq backup store wrote")
    ],
    store: Annotated[Path, typer.Argument(metavar="DIR", help="storePathRootDir: new, or empty")],
    with_identity: Annotated[
        bool,
        typer.Option(
            "--with-identity",
            help="Keep the brokerId: only if its broker will never run again and no replica has a longer log",
        ),
    ] = False,
    epoch_file: EpochFileOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check backup and DIR, and write nothing")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Create the store of a new broker from a backup; every checksum is verified."""

    def steps() -> int:
        manifest = read_manifest(backup)
        root = store.expanduser().absolute()
        if dry_run:
            check_target(backup, root, manifest, with_identity=with_identity)
            copied = check_backup(backup)
        else:
            copied = restore_store(backup, root, with_identity=with_identity, epoch_path=epoch_file)
        each_step(copied, "checked" if dry_run else "restored", 0, as_json=as_json)
        value = _value(backup, manifest) | {
            "store": None if dry_run else str(root),
            "withIdentity": with_identity,
        }
        lines = [f"{backup} is whole: {_told(manifest)}"]
        if not dry_run:
            who = f"brokerId {manifest.broker_id}" if with_identity else "a new brokerId"
            lines = [
                f"{root}: {_told(manifest)}, {who}",
                "start the broker; its first start reads the whole log and builds the queues",
            ]
        show(as_json, value, "\n".join(lines))
        return DONE

    run_steps(lambda: _refusing(steps))


def _refusing(steps: Callable[[], int]) -> int:
    try:
        return steps()
    except BackupError as error:
        raise Refused(str(error)) from None


def _tell_backup(path: Path, manifest: Manifest, *, as_json: bool) -> None:
    show(as_json, _value(path, manifest), f"{path}: {_told(manifest)}, {manifest.byte_count} bytes")


def _value(path: Path, manifest: Manifest) -> dict[str, object]:
    return {
        "backup": str(path),
        "cluster": manifest.cluster_name,
        "brokerName": manifest.broker_name,
        "brokerId": manifest.broker_id,
        "takenMs": manifest.taken_ms,
        "minOffset": manifest.min_offset,
        "endOffset": manifest.end_offset,
        "confirmOffset": manifest.confirm_offset,
        "epochs": [list(each) for each in manifest.epochs],
        "files": len(manifest.files),
        "bytes": manifest.byte_count,
    }


def _told(manifest: Manifest) -> str:
    name = f"{manifest.broker_name or 'a broker without an identity'}"
    number = "" if manifest.broker_id is None else f" {manifest.broker_id}"
    return f"{name}{number}, log {manifest.min_offset}..{manifest.end_offset}"


def each_step(steps: Iterator[tuple[int, int]], verb: str, rate_mib: float, *, as_json: bool) -> None:
    """Runs the steps at a rate, and shows how far they are."""
    line, began, before = ProgressLine(verb, as_json=as_json), time.monotonic(), 0
    for done, total in steps:
        line.tell(done, total)
        if rate_mib:
            time.sleep(max(before / (rate_mib * MIB) - (time.monotonic() - began), 0))
        before = done
    line.end()


@dataclass
class ProgressLine:
    """A line on standard error with the progress of a copy: updated in place on a terminal, repeated every
    few seconds in a log, absent with --json."""

    verb: str
    as_json: bool
    _shown_at: float = field(default_factory=time.monotonic)
    _is_shown: bool = False

    def tell(self, done: int, total: int) -> None:
        """Shows the line, if it is due."""
        now, is_terminal = time.monotonic(), sys.stderr.isatty()
        if self.as_json or now - self._shown_at < (POLL_S / 2 if is_terminal else LINE_EVERY_S):
            return
        self._shown_at, self._is_shown = now, is_terminal
        share = 100 * done // total if total else 100
        text = f"{self.verb} {done >> 20} of {total >> 20} MiB, {share} %"
        sys.stderr.write(f"\r{text}\033[K" if is_terminal else f"{text}\n")
        sys.stderr.flush()

    def end(self) -> None:
        """Removes the line."""
        if self._is_shown:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
