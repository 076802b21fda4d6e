"""The state of a cluster on one screen: take_status() asks the servers, status_of() judges a snapshot."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from keelmq.health.findings import Finding, Level, merged
from keelmq.health.group_summary import group_statuses
from keelmq.health.groups import groups
from keelmq.health.memory import Memory
from keelmq.health.reach import Reach, Silent
from keelmq.health.snapshot import ClusterSnapshot, NameServer, peers_of, take_snapshot
from keelmq.health.status import (
    ClusterStatus,
    ControllerStatus,
    GroupStatus,
    NameServerStatus,
    Problem,
    Verdict,
)
from keelmq.health.verdict import verdict
from keelmq.remoting.operations.controller import ControllerMetadata

VERDICT_OF = {Level.OK: Verdict.OK, Level.WARNING: Verdict.WARNING, Level.FAILED: Verdict.FAILED}
WORST_FIRST = (Verdict.FAILED, Verdict.WARNING, Verdict.OK)


async def take_status(
    reach: Reach,
    name_servers: Sequence[str],
    controllers: Sequence[str] = (),
    http: Mapping[str, str] | None = None,
    memory: Memory | None = None,
    containers: Sequence[str] = (),
) -> ClusterStatus:
    """Returns the state of the cluster that the given servers lead to. Servers that do not answer in the time
    of `reach` are silent in it; it never fails as a whole. A caller that repeats this keeps one `reach`
    (calling its begin() before) and one `memory`, so that a round costs two requests for each broker."""
    return status_of(await take_snapshot(reach, name_servers, controllers, http or {}, memory, containers))


def status_of(snapshot: ClusterSnapshot) -> ClusterStatus:
    """Returns what a screen shows of a snapshot."""
    statuses = group_statuses(snapshot)
    problems = problems_of(merged([*verdict(snapshot), *groups(snapshot, statuses)]))
    by_subject = _by_subject(problems)
    return ClusterStatus(
        taken_ms=snapshot.taken_ms,
        took_ms=snapshot.took_ms,
        verdict=worst(problems),
        name_servers=[_name_server(at, each) for at, each in snapshot.name_servers.items()],
        controllers=list(_controllers(snapshot)),
        groups=[_with_problems(each, problems, by_subject) for each in statuses.values()],
        problems=problems,
        brokers_not_asked=snapshot.not_asked,
    )


def of_one_group(found: ClusterStatus, name: str) -> ClusterStatus:
    """Returns the status with one group only: its problems, and those of no group. No group is left: there is
    none of this name."""
    chosen = [each for each in found.groups if each.broker_name == name]
    others = [each for group in found.groups if group.broker_name != name for each in group.problems]
    problems = (
        [each for each in found.problems if each not in others or each in chosen[0].problems]
        if chosen
        else []
    )
    return found.model_copy(update={"groups": chosen, "problems": problems, "verdict": worst(problems)})


def problems_of(findings: Sequence[Finding]) -> list[Problem]:
    """Returns the findings that are not OK, the worst first, otherwise in their order."""
    found = [
        Problem(
            level=VERDICT_OF[each.level],
            check=each.check,
            subject=each.subject,
            text=each.text,
            next_step=each.next_step,
            command=each.command,
        )
        for each in findings
        if each.level is not Level.OK
    ]
    return sorted(found, key=lambda each: WORST_FIRST.index(each.level))


def worst(problems: Sequence[Problem]) -> Verdict:
    """Returns the level of the worst problem; OK: there is none."""
    return min((each.level for each in problems), key=WORST_FIRST.index, default=Verdict.OK)


def _name_server(address: str, server: NameServer | Silent) -> NameServerStatus:
    if isinstance(server, Silent):
        return NameServerStatus(address=address, is_up=server.is_refusal, problem=str(server))
    table = server.cluster.broker_addr_table
    return NameServerStatus(
        address=address,
        is_up=True,
        brokers=sum(len(each.broker_addrs) for each in table.values()),
        groups=len(table),
        topics=None if server.topics is None else len(server.topics),
        keelmq_version=server.keelmq_version,
    )


def _controllers(snapshot: ClusterSnapshot) -> Iterator[ControllerStatus]:
    views = [view for view in snapshot.controllers.values() if isinstance(view, ControllerMetadata)]
    members = {at: member for view in views for member, at in peers_of(view).items()}
    rafts = {str(plugin.get("address")): _raft(plugin) for _, plugin in snapshot.plugins}
    for address, answer in snapshot.controllers.items():
        raft, member = rafts.get(address, {}), members.get(address, "")
        if isinstance(answer, Silent):
            yield ControllerStatus(address=address, member=member, role="silent", problem=str(answer))
            continue
        yield ControllerStatus(
            address=address,
            member=answer.self_id or member,
            role="leader" if answer.is_leader else "follower",
            term=_int(raft, "term"),
            commit_index=_int(raft, "commitIndex"),
            last_applied=_int(raft, "lastApplied"),
            keelmq_version=answer.keelmq_version or "",
        )


def _raft(plugin: Mapping[str, Any]) -> Mapping[str, Any]:
    raft = plugin.get("raft")
    return raft if isinstance(raft, dict) else {}


def _int(values: Mapping[str, Any], key: str) -> int | None:
    value = values.get(key)
    return value if isinstance(value, int) else None


def _by_subject(problems: Sequence[Problem]) -> dict[str, list[int]]:
    """Returns subject -> positions of its problems; a problem may have several subjects."""
    found: dict[str, list[int]] = defaultdict(list)
    for position, each in enumerate(problems):
        for subject in each.subject.split(", "):
            found[subject].append(position)
    return found


def _with_problems(
    status: GroupStatus, problems: Sequence[Problem], by_subject: Mapping[str, list[int]]
) -> GroupStatus:
    """Returns the group with its own problems and those of its brokers."""
    subjects = {status.broker_name, *(each.address for each in status.replicas)}
    positions = {position for each in subjects for position in by_subject.get(each, ())}
    own = [problems[each] for each in sorted(positions)]
    return status.model_copy(update={"problems": own, "verdict": worst(own)})
