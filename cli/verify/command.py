"""keelmq verify: are the replicas of a group equal? Are the files of a stopped broker, or of a backup, whole?

Exit codes: 0 equal, or whole; 1 a difference, a fault, a replica that could not be compared (also one that
only the controllers list), controllers that do not answer, or nothing to compare; 2 usage; 3 no answer.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from broker.backup.manifest import MANIFEST_NAME, BackupError, read_manifest
from broker.backup.offline_check import StoreCheck, check_stopped
from broker.backup.restore import check_backup
from cli.backup.shell import JsonOption, run_requests, run_steps, show
from cli.backup.store import MIB, RATE_DEFAULT_MIB, ProgressLine, RateOption, each_step
from cli.command_line import EpochFileOption, OptionalNamesrvAddr, Refused
from cli.credentials import CredentialsOption
from cli.mqadmin.shell import DONE, NO_ANSWER, REFUSED, explain
from cli.verify.core.compare import Difference
from cli.verify.core.verdict import KEEP
from cli.verify.group import GroupComparison, GroupReport
from cli.verify.members import unlisted_members
from keelmq.client.admin import AdminClient, AdminError
from keelmq.health.findings import plural
from keelmq.remoting.operations.route import BrokerData
from keelmq.runtime.config import ConfigError
from keelmq.runtime.program import raise_open_files_limit

KINDS: Final = ("epochs", "log", "queue", "metadata")
SHOWN_MAX: Final = 10
"""Differences of one kind."""


def verify(
    namesrv_addr: OptionalNamesrvAddr = None,
    group: Annotated[
        str | None, typer.Option("--group", metavar="NAME", help="Only this broker group (a brokerName)")
    ] = None,
    from_dir: Annotated[
        Path | None,
        typer.Option(
            "--from-dir", metavar="DIR", help="Check the store of a stopped broker, or a backup, on this host"
        ),
    ] = None,
    epoch_file: EpochFileOption = None,
    rate_mib: RateOption = RATE_DEFAULT_MIB,
    credentials: CredentialsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare the replicas of each group while it runs: log, epochs, queues, metadata. Changes nothing."""
    if (namesrv_addr is None) == (from_dir is None):
        raise typer.BadParameter("give -n NAMESRV to compare replicas, or --from-dir DIR to check files")
    if namesrv_addr is not None and epoch_file is not None:
        raise typer.BadParameter("--epoch-file checks a stopped broker: use it with --from-dir")
    if from_dir is not None and group is not None:
        raise typer.BadParameter("--group selects running brokers: use it with -n")
    if from_dir is not None:
        root = from_dir.expanduser().resolve()
        run_steps(lambda: _files(root, epoch_file, rate_mib, as_json=as_json))
    else:
        run_requests(
            lambda admin: _replicas(admin, namesrv_addr or "", group, rate_mib, as_json=as_json), credentials
        )


# -- replicas ----------------------------------------------------------------------------------------------


async def _replicas(
    admin: AdminClient, namesrv_addr: str, group: str | None, rate_mib: float, *, as_json: bool
) -> int:
    info = await admin.name_servers.cluster_info(namesrv_addr)
    brokers = [each for name, each in sorted(info.broker_addr_table.items()) if group in (None, name)]
    if not brokers:
        known = ", ".join(sorted(info.broker_addr_table)) or "none"
        raise Refused(f"no group is named {group}; the name servers know: {known}" if group else "no group")
    unlisted, why = await _unlisted(admin, namesrv_addr, brokers)
    reports = [
        await _group(admin, each, unlisted.get(each.broker_name, []), rate_mib, as_json=as_json)
        for each in brokers
    ]
    lines = [line for report in reports for line in lines_of(report)]
    lines += [f"the members of the groups are not known: {why}"] if why else []
    value = {"groups": [each.value() for each in reports], "membersNotKnown": why}
    show(as_json, value, "\n".join(lines))
    if all(not each.compared and not each.incomparable for each in reports):
        return NO_ANSWER
    return DONE if not why and all(each.is_well for each in reports) else REFUSED


async def _unlisted(
    admin: AdminClient, namesrv_addr: str, brokers: Sequence[BrokerData]
) -> tuple[dict[str, list[str]], str]:
    """Returns the replicas that the controllers know and no route has, by brokerName; and why they are not
    known, or ""."""
    try:
        return await unlisted_members(admin, namesrv_addr, brokers), ""
    except AdminError as error:
        return {}, explain(error)


async def _group(
    admin: AdminClient, broker: BrokerData, unlisted: Sequence[str], rate_mib: float, *, as_json: bool
) -> GroupReport:
    line = ProgressLine(f"{broker.broker_name}: compared", as_json=as_json)

    def tell(what: str, done: int, total: int) -> None:
        if what == "log":
            line.tell(done, total)

    comparison = GroupComparison(admin, broker.broker_name, bytes_per_second=rate_mib * MIB, tell=tell)
    listed = [broker.broker_addrs[each] for each in sorted(broker.broker_addrs)]
    report = await comparison.run([*listed, *unlisted])
    line.end()
    return report


def lines_of(report: GroupReport) -> list[str]:
    """Returns the text about a group."""
    lines = [f"{report.name}: {address}: {why}" for address, why in sorted(report.silent.items())]
    if len(report.compared) < 2:
        return [
            *lines,
            f"{report.name}: nothing to compare: {plural(len(report.compared), 'replica')} answered",
        ]
    if not report.differences:
        lines.append(
            f"{report.name}: {plural(len(report.compared), 'replica')} are equal: log "
            f"{report.start}..{report.end}, {plural(report.queues, 'queue')} with "
            f"{report.entries} entries, metadata"
        )
    for kind in KINDS:
        found = [each for each in report.differences if each.kind == kind]
        for each in found[:SHOWN_MAX]:
            lines.append(f"{report.name}: DIFFERENT {kind}: {', '.join(each.brokers)}: {each.text}")
        if len(found) > SHOWN_MAX:
            lines.append(
                f"{report.name}: DIFFERENT {kind}: and {len(found) - SHOWN_MAX} more (--json has all)"
            )
        if kind == "log":
            lines += [f"  next: {each.text}" for each in report.log_steps()]
        elif kind != "epochs" and found:
            lines.append(f"  next: {next_step(report, kind, found)}")
    return lines


def next_step(report: GroupReport, kind: str, differences: Sequence[Difference]) -> str:
    """Returns what to do about differences of the queues, or of the metadata."""
    if kind == "queue":
        if report.verdicts:
            return "first see to the log, from which queues are made"
        return (
            "stop one replica after the other: keelmq verify --from-dir DIR shows whether its queues agree "
            "with its own log, keelmq repair --store DIR --queues what it would write anew from the log"
        )
    if not all(each.is_decided for each in differences):
        return (
            f"{KEEP}: nothing tells which table is right; compare what they have (keelmq backup metadata "
            "FILE -b ADDRESS), and make the change that is missing again at the master"
        )
    if report.master is None:
        return "start a master first: a replica gets all tables of its master when it starts"
    if any(report.master in each.brokers for each in differences):
        return (
            f"do not restart the others: their master, {report.master}, has older tables, and they would get "
            "those; keelmq backup metadata FILE -b ADDRESS saves the newest, keelmq restore metadata brings "
            "them back"
        )
    return "look at the log of that replica, and restart it: it gets its master's tables, which are newer"


# -- files -------------------------------------------------------------------------------------------------


def _files(root: Path, epoch_file: Path | None, rate_mib: float, *, as_json: bool) -> int:
    try:
        if (root / MANIFEST_NAME).exists():
            each_step(check_backup(root), "checked", rate_mib, as_json=as_json)
            manifest = read_manifest(root)
            value: dict[str, Any] = {"backup": str(root), "bytes": manifest.byte_count, "faults": []}
            show(as_json, value, f"{root}: the backup is whole, {manifest.byte_count} bytes")
            return DONE
        found = StoreCheck(root)
        raise_open_files_limit()
        each_step(check_stopped(root, found, epoch_file), "checked", rate_mib, as_json=as_json)
    except (BackupError, ConfigError) as error:
        raise Refused(str(error)) from None
    show(as_json, _value(found), "\n".join(_store_lines(found)))
    return REFUSED if found.faults else DONE


def _value(found: StoreCheck) -> dict[str, Any]:
    return {
        "store": str(found.root),
        "running": found.is_running,
        "minOffset": found.min_offset,
        "maxOffset": found.max_offset,
        "epochs": [list(each) for each in found.epochs],
        "records": found.records,
        "unqueued": found.unqueued,
        "firstBadOffset": found.first_bad_offset,
        "faults": found.faults,
    }


def _store_lines(found: StoreCheck) -> list[str]:
    lines = [f"{found.root}: log {found.min_offset}..{found.max_offset}, {plural(found.records, 'record')}"]
    if found.is_running:
        lines.append(
            "a broker uses it: its newest records may seem damaged; stop the broker, and run this again"
        )
    if found.unqueued:
        adds = (
            "the next start adds those that no FAULT line names"
            if found.is_queue_damaged
            else "the next start adds them"
        )
        lines.append(f"{plural(found.unqueued, 'record')} without an entry in a queue: {adds}")
    lines += [f"FAULT: {each}" for each in found.faults]
    if found.is_queue_damaged and found.first_bad_offset is None:
        lines.append("next: keelmq repair --store DIR --queues shows what it would write anew from the log")
    elif found.first_bad_offset is not None:
        lines.append(
            "next: keep this store, the rest of it may be the only sound copy; keelmq verify -n NAMESRV, or "
            "--from-dir at the other replicas, says whether one of them has sound copies of all it has. If "
            "so, keelmq repair --store DIR --resync shows how to copy its log; otherwise restore a backup "
            "to another directory"
        )
    elif found.faults:
        lines.append("next: keelmq repair --store DIR shows the possible repairs")
    return lines
