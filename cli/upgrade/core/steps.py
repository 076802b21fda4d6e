"""The next step of an upgrade, of nothing but a view of the cluster. Pure.

The state of an upgrade is the cluster itself: which server reports which version. So an upgrade can be
interrupted anywhere, and the next run goes on. Invariant: a server is never older than those that send it
requests. Brokers send them to controllers and name servers, so

1. brokers that are newer than the target come first,
2. then controllers and name servers: followers, then the leader, once a follower of the target leads,
3. then brokers that are older than the target.

Brokers follow group by group: slaves, then the master, once a slave of the target has taken over.
At any time one server is down at most: a step begins when the cluster is whole.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cli.upgrade.core.view import NO_VERSION, Group, Kind, Server, View, rank, shown, summary

CONTROLLERS = "controllers"
"""The value of `only` for controllers and name servers; any other one is a brokerName."""
CONTROLLERS_MIN = 3
"""The smallest number of which one can be down."""


@dataclass(frozen=True, slots=True)
class Restart:
    """Restart this process with the target version."""

    server: Server


@dataclass(frozen=True, slots=True)
class HandOver:
    """Move the mastership of a group to another replica."""

    cluster: str
    group: str
    from_id: int
    to_id: int


@dataclass(frozen=True, slots=True)
class TransferLeader:
    """Make another controller the leader."""

    from_id: str
    to_id: str


@dataclass(frozen=True, slots=True)
class Wait:
    """The cluster is not whole; it may become so without the operator."""

    reason: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Nothing more may be done before the operator has decided. is_gap: allow_gap would allow it."""

    reasons: tuple[str, ...]
    is_gap: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """Every server in question has the target version."""


Step = Restart | HandOver | TransferLeader | Wait | Stop | Done
Deed = Restart | HandOver | TransferLeader


def is_at(server: Server, target: str) -> bool:
    """Returns whether all parts of the process report the target version."""
    return bool(server.versions) and all(rank(each) == rank(target) for each in server.versions)


def next_step(view: View, target: str, *, only: str | None = None, allow_gap: bool = False) -> Step:
    """Returns what is to be done now. target: "" for a version that is not reported. only: CONTROLLERS, or
    the brokerName of the one group that is upgraded. allow_gap: restart also what sends or elections cannot
    do without."""
    if view.faults:
        return Wait(summary(view.faults))
    if only not in (None, CONTROLLERS, *(each.name for each in view.groups)):
        return Stop((f"no group is named {only}, and it is not {CONTROLLERS!r}",))
    pending = [each for each in view.servers if not is_at(each, target) and _is_in(each, view, only)]
    if not pending:
        return Done()
    if not allow_gap and (reasons := tuple(dict.fromkeys(gaps(view, pending)))):
        return Stop(reasons, is_gap=True)
    newer = [each for each in pending if each.has_brokers and _is_newer(each, target)]
    others = [each for each in pending if not each.has_brokers]
    if newer:
        step = _of_brokers(view, newer, target)
    elif others:
        step = _of_controllers(view, others, target)
    else:
        step = _of_brokers(view, pending, target)
    if isinstance(step, Restart) and (wrong := _breaks_order(view, step.server, target)):
        return Stop((wrong,))
    return step


def _is_newer(server: Server, target: str) -> bool:
    return any(rank(each) > rank(target) for each in server.versions)


def _is_in(server: Server, view: View, only: str | None) -> bool:
    if only is None:
        return True
    if only == CONTROLLERS:
        return not server.has_brokers
    return any(group.name == only for group in _groups_in(server, view))


def _groups_in(server: Server, view: View) -> list[Group]:
    return (
        [each for each in view.groups if server.address in each.servers.values()]
        if server.has_brokers
        else []
    )


def _masters_in(server: Server, view: View) -> list[Group]:
    return [
        each
        for each in _groups_in(server, view)
        if each.master is not None and each.servers.get(each.master) == server.address
    ]


def _breaks_order(view: View, server: Server, target: str) -> str:
    """Returns why this server must wait for others, which `only` leaves out; "": it need not."""
    name = target or NO_VERSION
    if server.has_brokers:
        older = [
            each
            for each in view.servers
            if not each.has_brokers and any(rank(version) < rank(target) for version in each.versions)
        ]
        if older:
            return (
                f"{older[0].label} has {shown(older[0].versions)}, and brokers of {name} need controllers "
                f"and name servers that are not older: first --only {CONTROLLERS}"
            )
    elif _is_newer(server, target):
        newer = [each for each in view.servers if each.has_brokers and _is_newer(each, target)]
        if newer:
            return (
                f"{newer[0].label} has {shown(newer[0].versions)}, and needs controllers and name servers "
                f"that are not older: first bring all brokers to {name}"
            )
    return ""


def _of_controllers(view: View, pending: Sequence[Server], target: str) -> Deed:
    def order(server: Server) -> tuple[bool, bool, str, str]:
        leads = bool(server.controller) and server.controller == view.leader
        return leads, bool(server.controller), server.name, server.address

    first = min(pending, key=order)
    if first.controller and first.controller == view.leader:
        ready = sorted(each.controller for each in view.servers if each.controller and is_at(each, target))
        if ready:
            return TransferLeader(first.controller, ready[0])
    return Restart(first)


def _of_brokers(view: View, pending: Sequence[Server], target: str) -> Deed:
    waiting = {each.address for each in pending}
    group = min(
        (each for each in view.groups if waiting & set(each.servers.values())),
        key=lambda each: (each.cluster, each.name),
    )

    def order(server: Server) -> tuple[bool, bool, int]:
        masters = _masters_in(server, view)
        ids = [id_ for id_, address in group.servers.items() if address == server.address]
        return bool(masters), group in masters, min(ids)

    inside = [each for each in pending if each.address in group.servers.values()]
    first = min(inside, key=order)
    for mastered in sorted(_masters_in(first, view), key=lambda each: (each.cluster, each.name)):
        successor = _successor(view, mastered, first, target)
        if successor is not None and mastered.master is not None:
            return HandOver(mastered.cluster, mastered.name, mastered.master, successor)
    return Restart(first)


def _successor(view: View, group: Group, server: Server, target: str) -> int | None:
    """Returns the replica outside of this process that becomes master. One of the target version, if there is
    one: of containers, the first one has none. None: no replica can."""
    if not group.has_controllers:
        return None
    at_target = {each.address for each in view.servers if is_at(each, target)}
    able = [each for each in group.in_sync if group.servers.get(each) not in (None, server.address)]
    return min(able, key=lambda each: (group.servers[each] not in at_target, each), default=None)


def gaps(view: View, pending: Sequence[Server]) -> Iterator[str]:
    """Yields what does not work while one of these servers restarts."""
    for server in pending:
        for group in _groups_in(server, view):
            yield from _gaps_of(group, server)
    if any(each.controller for each in pending) and 0 < len(view.controllers) < CONTROLLERS_MIN:
        count = len(view.controllers)
        yield (
            f"{count} controller{'s' if count > 1 else ''}: while one restarts, no majority is left, and no "
            f"lost master is replaced; {CONTROLLERS_MIN} have one"
        )
    name_servers = [each for each in view.servers if each.kind is Kind.NAME_SERVER]
    if len(name_servers) == 1 and name_servers[0] in pending:
        yield "1 name server: while it restarts, clients that start find no brokers"


def _gaps_of(group: Group, server: Server) -> Iterator[str]:
    others = [each for each, address in group.servers.items() if address != server.address]
    name, count = group.name, len(group.servers)
    if not others:
        where = "one replica" if count == 1 else f"all {count} replicas in one process"
        yield f"{name} has {where}: no message is sent to it or received from it during the restart"
    elif len(others) < group.min_in_sync:
        yield (
            f"{name} has {count} replicas and minInSyncReplicas={group.min_in_sync}: sends are refused while "
            "one restarts"
        )
    elif (
        not group.has_controllers
        and group.master is not None
        and group.servers[group.master] == server.address
    ):
        yield f"{name} has no controllers, so no slave takes over: sends fail while its master restarts"


def after(view: View, step: Deed, target: str) -> View:
    """Returns the view after a step that succeeded."""
    match step:
        case Restart(server):
            done = replace(server, versions=frozenset({target}))
            return replace(view, servers=tuple(done if each == server else each for each in view.servers))
        case HandOver(cluster, name, _, to_id):
            groups = tuple(
                replace(each, master=to_id) if (each.cluster, each.name) == (cluster, name) else each
                for each in view.groups
            )
            return replace(view, groups=groups)
        case TransferLeader(_, to_id):
            return replace(view, leader=to_id)


def _as_whole(view: View) -> View:
    groups = tuple(
        replace(each, in_sync=frozenset(each.servers), master=min(each.servers, default=None))
        if each.master not in each.servers
        else replace(each, in_sync=frozenset(each.servers))
        for each in view.groups
    )
    return replace(view, groups=groups, faults=())


def plan(view: View, target: str, *, only: str | None = None, allow_gap: bool = False) -> list[Step]:
    """Returns all steps from here, if the cluster becomes whole and each of them succeeds. The last one is
    Done or Stop."""
    view, steps = _as_whole(view), list[Step]()
    while True:
        step = next_step(view, target, only=only, allow_gap=allow_gap)
        steps.append(step)
        if isinstance(step, Done | Stop | Wait):
            return steps
        view = after(view, step, target)
