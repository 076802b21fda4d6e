"""What to send of a new ClusterStatus to a client that has the previous one. Pure."""

from pydantic import Field

from keelmq.health.status import (
    ClusterStatus,
    ControllerStatus,
    GroupStatus,
    NameServerStatus,
    Problem,
    Verdict,
)
from keelmq.remoting.operation import Wire


class GroupName(Wire):
    """A group by its cluster and its name."""

    cluster: str
    broker_name: str


class StatusChange(Wire):
    """Of a status against the one before. groups: only those that changed or are new. name_servers,
    controllers, problems: the whole list, or null if it is as before."""

    taken_ms: int
    took_ms: int
    verdict: Verdict
    groups: list[GroupStatus] = Field(default_factory=list)
    removed_groups: list[GroupName] = Field(default_factory=list)
    name_servers: list[NameServerStatus] | None = None
    controllers: list[ControllerStatus] | None = None
    problems: list[Problem] | None = None
    brokers_not_asked: int = 0


def changes(before: ClusterStatus, after: ClusterStatus) -> StatusChange:
    """Returns what differs; applied() makes `after` of it."""
    old = {_key(each): each for each in before.groups}
    new = {_key(each): each for each in after.groups}
    return StatusChange(
        taken_ms=after.taken_ms,
        took_ms=after.took_ms,
        verdict=after.verdict,
        groups=[each for key, each in new.items() if old.get(key) != each],
        removed_groups=[GroupName(cluster=key[0], broker_name=key[1]) for key in old if key not in new],
        name_servers=None if before.name_servers == after.name_servers else after.name_servers,
        controllers=None if before.controllers == after.controllers else after.controllers,
        problems=None if before.problems == after.problems else after.problems,
        brokers_not_asked=after.brokers_not_asked,
    )


def applied(before: ClusterStatus, change: StatusChange) -> ClusterStatus:
    """Returns the status after a change, as the page computes it. Groups are in the order of their names."""
    gone = {(each.cluster, each.broker_name) for each in change.removed_groups}
    groups = {_key(each): each for each in before.groups if _key(each) not in gone}
    groups |= {_key(each): each for each in change.groups}
    return ClusterStatus(
        taken_ms=change.taken_ms,
        took_ms=change.took_ms,
        verdict=change.verdict,
        name_servers=before.name_servers if change.name_servers is None else change.name_servers,
        controllers=before.controllers if change.controllers is None else change.controllers,
        groups=[groups[key] for key in sorted(groups)],
        problems=before.problems if change.problems is None else change.problems,
        brokers_not_asked=change.brokers_not_asked,
    )


def _key(group: GroupStatus) -> tuple[str, str]:
    return group.cluster, group.broker_name
