"""keelmq repair: the options for a replica that stopped copying, and for damaged ConsumeQueues. Shows what
each one would lose or write; --yes carries it out."""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from broker.admin.repair import (
    Loss,
    RepairError,
    StoreReport,
    inspect_store,
    loss_of,
    refuse_running,
    resync,
    wipe_after,
)
from broker.backup.queue_repair import BATCH_ENTRY_BYTES, ENTRY_BYTES, Repaired, repair_queues
from cli.backup.store import each_step
from cli.command_line import (
    EpochFileOption,
    OptionalNamesrvAddr,
    Refused,
    print,
)
from cli.credentials import CredentialsOption
from cli.mqadmin.shell import exit_code_of, explain
from cli.repair_group import RepairTarget, check_whole_copy, group_of
from cli.repair_lost import (
    AloneOption,
    BrokerIdOption,
    BrokerNameOption,
    ControllersOption,
    GoneOption,
    LostOption,
    ask_group,
    show_lost,
)
from keelmq.client.admin import AdminClient, AdminError
from keelmq.health.findings import plural
from keelmq.runtime.config import in_words

CAUTION = (
    "What is removed here must be on another replica, and sound there: being in the SyncStateSet does not "
    "say that, nor being master; `keelmq verify -n NAMESRV` (while this broker runs) and `keelmq verify "
    "--from-dir DIR` do. A message that only this store has is lost by a cut; after --resync it is still in "
    "the folder moved aside."
)

QueueFileBytesOption = Annotated[
    int | None,
    typer.Option(
        "--queue-file-bytes",
        metavar="BYTES",
        min=ENTRY_BYTES,
        help="mappedFileSizeConsumeQueue, for --queues, if the files do not show it",
    ),
]
BatchQueueFileBytesOption = Annotated[
    int | None,
    typer.Option(
        "--batch-queue-file-bytes",
        metavar="BYTES",
        min=BATCH_ENTRY_BYTES,
        help="mapperFileSizeBatchConsumeQueue, for --queues: rewrites queues of batches with other files",
    ),
]


def repair(
    store: Annotated[
        Path, typer.Option("--store", metavar="DIR", help="storePathRootDir of a stopped broker")
    ],
    epoch_file: EpochFileOption = None,
    wipe: Annotated[
        int | None,
        typer.Option("--wipe-after", metavar="EPOCH", help="Cut off what was written after this epoch"),
    ] = None,
    anew: Annotated[
        bool,
        typer.Option(
            "--resync", help="Move the log aside: the broker copies its master's log from the start"
        ),
    ] = False,
    queues: Annotated[
        bool,
        typer.Option("--queues", help="Rewrite damaged or missing entries of ConsumeQueues from the log"),
    ] = False,
    queue_file_bytes: QueueFileBytesOption = None,
    batch_queue_file_bytes: BatchQueueFileBytesOption = None,
    lost: LostOption = None,
    controllers: ControllersOption = None,
    namesrv: OptionalNamesrvAddr = None,
    broker_name: BrokerNameOption = None,
    broker_id: BrokerIdOption = None,
    gone: GoneOption = None,
    alone: AloneOption = False,
    credentials: CredentialsOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without this flag nothing is changed")] = False,
) -> None:
    """Repair a replica that stopped copying (no common epoch, a damaged epoch file), or damaged queues."""
    if [wipe is not None, anew, queues, lost is not None].count(True) > 1:
        raise typer.BadParameter("choose one of --wipe-after, --resync, --queues and --mark-lost")
    if (gone or alone) and lost is None:
        raise typer.BadParameter("--gone and --alone are for --mark-lost")
    target = RepairTarget(controllers, namesrv, broker_name, broker_id)
    _check_size("--queue-file-bytes", queue_file_bytes, ENTRY_BYTES, queues=queues)
    _check_size("--batch-queue-file-bytes", batch_queue_file_bytes, BATCH_ENTRY_BYTES, queues=queues)
    try:
        found = inspect_store(store.expanduser().resolve(), epoch_file)
        _show(found)
        if queues:
            _repair_queues(found, queue_file_bytes, batch_queue_file_bytes, yes)
        elif lost is not None:
            show_lost(found, lost, target, credentials, gone or [], alone=alone, yes=yes)
        elif yes and anew:
            refuse_running(found)
            told = ask_group(lambda admin: _whole_copy(admin, found, target), credentials)
            print(f"\n{told}")
            _do(found, None)
        elif yes and wipe is not None:
            _do(found, wipe)
        else:
            _offer(found, wipe, anew)
    except (RepairError, Refused, OSError) as error:
        print(f"keelmq repair: {in_words(error)}", file=sys.stderr)
        raise typer.Exit(1) from error
    except AdminError as error:
        print(f"keelmq repair: {explain(error)}", file=sys.stderr)
        raise typer.Exit(exit_code_of(error)) from error


async def _whole_copy(admin: AdminClient, store: StoreReport, target: RepairTarget) -> str:
    return await check_whole_copy(admin, store, await group_of(admin, store, target))


def _check_size(option: str, size: int | None, entry_bytes: int, *, queues: bool) -> None:
    if size is not None and (not queues or size % entry_bytes):
        raise typer.BadParameter(f"{option} is a multiple of {entry_bytes}, and for --queues only")


def _show(found: StoreReport) -> None:
    pairs = ", ".join(f"{epoch}@{start}" for epoch, start in found.epochs.pairs) or "none"
    print(f"store   {found.root}{' (a broker works in it)' if found.is_running else ''}")
    print(f"log     {found.min_offset}..{found.max_offset}")
    if found.epoch_fault is not None:
        print(f"epochs  DAMAGED: {found.epoch_fault}")
        print(f"        before the last change: {pairs}")
    else:
        print(f"epochs  {pairs}")


def _offer(found: StoreReport, wipe: int | None, anew: bool) -> None:
    """Prints what each option would do, or only the chosen one."""
    print()
    cuts = found.cuts if wipe is None else {wipe: found.cut_after(wipe)}
    if not anew:
        for epoch, cut in sorted(cuts.items(), reverse=True):
            print(f"--wipe-after {epoch}  {_told(loss_of(found, cut))}")
    if wipe is None:
        print("--resync  moves the log aside and deletes nothing; the broker copies its master's log; --yes")
        print("          needs -a CONTROLLERS, without controllers -n NAMESRV, to ask for a sound copy")
    if wipe is None and not anew:
        print("--queues  reads the log, and writes entries of queues that are damaged; removes nothing")
        print("--mark-lost all  shows damaged ranges of the log, and lets consumers pass those nobody has")
    print(f"\n{CAUTION}\nNothing was changed: add --yes to do one of them while the broker is stopped.")


def _told(loss: Loss) -> str:
    if loss.first_stored_ms is None or loss.last_stored_ms is None:
        return f"ends the log at {loss.cut}: {loss.byte_count} bytes are removed, no message"
    return (
        f"ends the log at {loss.cut}: {loss.messages} messages ({loss.byte_count} bytes) are removed,"
        f" stored from {_when(loss.first_stored_ms)} to {_when(loss.last_stored_ms)}"
    )


def _when(ms: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ms / 1000))


def _do(found: StoreReport, wipe: int | None) -> None:
    if wipe is None:
        aside = resync(found)
        print(
            f"\nmoved aside to {aside}; keep it until the replica is in sync again and keelmq verify finds "
            "all replicas equal. Start the broker now."
        )
        return
    loss = loss_of(found, found.cut_after(wipe))
    backup = wipe_after(found, wipe)
    print(f"\nThe log ends at {loss.cut} now: {loss.messages} messages ({loss.byte_count} bytes) are gone.")
    print(f"The previous epoch file is {backup}. Start the broker now.")


def _repair_queues(
    store: StoreReport, file_bytes: int | None, batch_file_bytes: int | None, yes: bool
) -> None:
    found = Repaired()
    print()
    steps = repair_queues(store, found, writes=yes, file_bytes=file_bytes, batch_file_bytes=batch_file_bytes)
    each_step(steps, "read", 0, as_json=False)
    for queue in found.resized:
        did = "was rewritten" if yes else "has files of another size"
        print(f"queue {queue.topic} {queue.queue_id}: {did}")
    if found.resized and not yes:
        print(
            "Nothing was changed: add --yes to rewrite them, and to check all entries, on the stopped broker."
        )
        return
    for queue, count in sorted(found.entries.items()):
        print(f"queue {queue.topic} {queue.queue_id}: {_entries(count)}")
    for queue, why in sorted(found.left.items()):
        print(f"queue {queue.topic} {queue.queue_id}: cannot be repaired: {why}")
    for queue, path in sorted(found.without_file.items()):
        print(
            f"queue {queue.topic} {queue.queue_id}: has records and no file. If its topic was not deleted, "
            f"make an empty file and repair again: {path}"
        )
    entries, files = _entries(found.count), plural(found.files, "file")
    if found.resized and not found.count and not found.files:
        print(f"{plural(len(found.resized), 'queue')} got files of another size. Start the broker now.")
    elif not found.count and not found.files:
        print("The log has no record whose entry is damaged or missing. Nothing was changed.")
    elif yes:
        print(f"{entries} and {files} were written. Start the broker now.")
    else:
        print(
            f"{entries} and {files} are damaged or missing.\n"
            "Nothing was changed: add --yes to write them while the broker is stopped."
        )
    if found.left:
        raise RepairError("some queues cannot be repaired, see above")


def _entries(count: int) -> str:
    return "1 entry" if count == 1 else f"{count} entries"
