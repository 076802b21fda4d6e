"""The screen of `keelmq status`: lines of 80 columns, more on a wide terminal. Words carry the meaning;
colours repeat it. Commands are never broken, so that they can be copied."""

import textwrap
from collections.abc import Iterator, Sequence

from rich.text import Text

from keelmq.health.findings import plural
from keelmq.health.status import (
    ClusterStatus,
    ControllerStatus,
    GroupStatus,
    LastElection,
    NameServerStatus,
    Problem,
    ReplicaStatus,
    Verdict,
)
from keelmq.remoting.codes import MASTER_ID

PROBLEMS_SHOWN = 10
WIDTH_MIN, WIDE, MIN_TEXT = 60, 110, 20
UNKNOWN = "-"
UNITS = "KMGTPE"
WORDS = {Verdict.OK: "OK", Verdict.WARNING: "WARNING", Verdict.FAILED: "FAILED"}
STYLES = {Verdict.OK: "bold green", Verdict.WARNING: "bold yellow", Verdict.FAILED: "bold red"}


def screen(found: ClusterStatus, width: int = 80) -> Iterator[Text]:
    """Yields the lines: the verdict and what to do, then groups, controllers, name servers."""
    width = max(width, WIDTH_MIN)
    yield from _verdict(found, width)
    for group in found.groups:
        yield Text()
        yield from group_lines(group, found.taken_ms, width)
    if found.brokers_not_asked:
        yield Text(f"{found.brokers_not_asked} more brokers were not asked")
    if found.controllers:
        yield Text()
        yield from _controllers(found.controllers, width)
    if found.name_servers:
        yield Text()
        yield from _name_servers(found.name_servers, width)


def _verdict(found: ClusterStatus, width: int) -> Iterator[Text]:
    failed = sum(each.level is Verdict.FAILED for each in found.problems)
    warnings = len(found.problems) - failed
    counts = [f"{failed} failed"] if failed else []
    counts += [plural(warnings, "warning")] if warnings else []
    seen = [
        plural(len(found.groups), "group"),
        plural(sum(len(each.replicas) for each in found.groups), "broker"),
        plural(len(found.controllers), "controller"),
        plural(len(found.name_servers), "name server"),
    ]
    line = Text(WORDS[found.verdict], STYLES[found.verdict])
    what = ", ".join(counts) or "nothing is wrong"
    yield line.append(f"  {what}; {', '.join(seen)}", "none")
    for problem in found.problems[:PROBLEMS_SHOWN]:
        yield from _problem(problem, width)
    if (more := len(found.problems) - PROBLEMS_SHOWN) > 0:
        yield Text(f"  and {more} more: --json shows all")


def _problem(problem: Problem, width: int) -> Iterator[Text]:
    """The word, the subject and the text; what to do; the command."""
    word = WORDS[problem.level]
    wrapped = textwrap.wrap(
        f"{problem.subject}: {problem.text}", width - 10, break_long_words=False, break_on_hyphens=False
    )
    for number, line in enumerate(wrapped):
        head = Text(f"  {word:<8}" if number == 0 else " " * 10, STYLES[problem.level])
        yield head.append(line, "none")
    for number, line in enumerate(
        textwrap.wrap(problem.next_step, width - 16, break_long_words=False, break_on_hyphens=False)
    ):
        yield Text(f"{'          next: ' if number == 0 else ' ' * 16}{line}")
    if problem.command:
        yield Text(f"          $ {problem.command}", "bold")


def group_lines(group: GroupStatus, now_ms: int, width: int) -> Iterator[Text]:
    """Yields the lines of one group."""
    head = Text(f"GROUP {group.broker_name}", "bold")
    yield head.append(f"  {group.cluster}  ", "none").append(WORDS[group.verdict], STYLES[group.verdict])
    for text in (_master(group), _in_sync(group), _election(group.last_election, now_ms)):
        for number, line in enumerate(textwrap.wrap(text, width - 2)):
            yield Text(f"  {line}" if number == 0 else f"    {line}")
    yield Text(
        "  " + _row(("ID", "ADDRESS", "ROLE", "IN SYNC", "LAG", "FOR", "EPOCH", "IN/S", "DISK"), width)
    )
    for replica in group.replicas:
        style = "" if replica.role != "silent" and replica.is_alive else "red"
        yield Text("  " + _row(_cells(replica), width), style)
        if replica.problem:
            yield Text("     " + _shortened(replica.problem, width - 5))
        if replica.grpc_port is not None:
            yield Text(
                f"     gRPC at port {replica.grpc_port}: {plural(replica.grpc_clients or 0, 'client')}"
            )
    for text in group.disagreements:
        for number, line in enumerate(textwrap.wrap(f"disagreement: {text}", width - 4)):
            yield Text(f"  {line}" if number == 0 else f"    {line}", "yellow")


def _master(group: GroupStatus) -> str:
    if group.master_id is None:
        return "no master" + ("" if group.master_epoch is None else f", masterEpoch {group.master_epoch}")
    is_unknown = group.has_controllers and group.master_id == MASTER_ID  # ids of controllers begin at 1
    parts = [f"master {'of unknown id' if is_unknown else group.master_id} at {group.master_address}"]
    if group.master_epoch is not None:
        parts.append(f"masterEpoch {group.master_epoch}")
    if not group.has_controllers:
        parts.append("without controllers")
    return ", ".join(parts)


def _in_sync(group: GroupStatus) -> str:
    ids = ", ".join(map(str, group.sync_state_set)) or "nobody"
    epoch = "" if group.sync_state_set_epoch is None else f" (epoch {group.sync_state_set_epoch})"
    parts = [f"in sync {len(group.sync_state_set)} of {len(group.replicas)}: {ids}{epoch}"]
    if group.min_in_sync is not None:
        parts.append(f"at least {group.min_in_sync} needed")
    if group.confirm_offset is not None:
        parts.append(f"confirmOffset {group.confirm_offset}")
    return ", ".join(parts)


def _election(last: LastElection | None, now_ms: int) -> str:
    if last is None:
        return ""
    who = "nobody was elected" if last.broker_id < 0 else f"broker {last.broker_id} elected"
    before = "" if last.before is None else f" after broker {last.before}"
    gap = (
        "" if last.without_master_ms is None else f"; {last.without_master_ms / 1000:.1f} s without a master"
    )
    return f"last election {age(now_ms - last.time_ms)} ago: {who}{before}: {last.reason}{gap}"


def _cells(replica: ReplicaStatus) -> Sequence[str]:
    role = replica.role if replica.is_alive or replica.role == "silent" else "dead"
    return (
        str(replica.broker_id),
        replica.address,
        role,
        "yes" if replica.is_in_sync else "no",
        UNKNOWN if replica.lag_bytes is None else size(replica.lag_bytes),
        UNKNOWN if replica.lag_ms is None else f"{replica.lag_ms / 1000:.1f} s",
        UNKNOWN if replica.epoch is None else str(replica.epoch),
        UNKNOWN if replica.messages_in_per_s is None else f"{replica.messages_in_per_s:.0f}",
        UNKNOWN if replica.disk_used is None else f"{replica.disk_used:.0%}",
    )


def _row(cells: Sequence[str], width: int) -> str:
    """The address gets the rest of 80 columns; a longer one moves its own line only."""
    address = 21 if width < WIDE else 40
    number, at, role, in_sync, lag, since, epoch, rate, disk = cells
    return (
        f"{number:<3}{at:<{address}} {role:<7}{in_sync:<8}{lag:>10} {since:>8}{epoch:>6}{rate:>7}{disk:>5}"
    ).rstrip()


def _controllers(controllers: Sequence[ControllerStatus], width: int) -> Iterator[Text]:
    leader = next((each for each in controllers if each.role == "leader"), None)
    who = "none leads" if leader is None else f"{leader.member or leader.address} leads"
    yield Text("CONTROLLERS", "bold").append(f"  {who}", "none")
    for each in controllers:
        raft = "" if each.term is None else f"  term {each.term}"
        if each.last_applied is not None and each.commit_index is not None:
            raft += f", {each.last_applied} of {each.commit_index} entries applied"
        style = "red" if each.role == "silent" else ""
        head = f"  {each.member or UNKNOWN:<5}{each.address:<22}{each.role:<9}"
        yield Text(head + _shortened(each.problem or raft.strip(), width - len(head)), style)


def _name_servers(servers: Sequence[NameServerStatus], width: int) -> Iterator[Text]:
    yield Text("NAME SERVERS", "bold")
    for each in servers:
        counts = [
            plural(count, noun)
            for count, noun in ((each.groups, "group"), (each.brokers, "broker"), (each.topics, "topic"))
            if count is not None
        ]
        head = f"  {each.address:<27}{'up' if each.is_up or not each.problem else 'down':<6}"
        told = _shortened(each.problem or ", ".join(counts), width - len(head))
        yield Text(head + told, "" if not each.problem else "red")


def _shortened(text: str, width: int) -> str:
    """A long address may leave little room. The whole text is in the problems."""
    return textwrap.shorten(text, max(width, MIN_TEXT), placeholder=" ...")


def size(count: int) -> str:
    """Returns bytes as text of at most ten characters: 1536 -> "1.5 KiB"."""
    if count < 1024:
        return f"{count} B"
    power = min((count.bit_length() - 1) // 10, len(UNITS))
    return f"{count / 1024**power:.1f} {UNITS[power - 1]}iB"


def age(duration_ms: int) -> str:
    """Returns a duration in its largest unit."""
    seconds = max(duration_ms, 0) // 1000
    for unit, length in (("day", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            count = seconds // length
            return f"{count} {unit}{'s' if unit == 'day' and count > 1 else ''}"
    return f"{seconds} s"
