"""Which masters move, so that masters are spread evenly over hosts. Pure.

The result has the least possible sum of squares of masters per host, among all assignments of masters to
replicas that may become master; so the busiest host has as few as possible, then the next one. Among those it
has the fewest moves. It is found as a flow of least cost: groups are added one after the other, each by the
cheapest path of a group that goes to a host and others that make room for it there.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Group:
    """One broker group. master: its broker id. replicas: broker id -> host. eligible: ids that may become
    master, which are in the SyncStateSet and alive; the master stays possible even if it is not in there."""

    cluster: str
    name: str
    master: int
    replicas: Mapping[int, str]
    eligible: frozenset[int]

    @property
    def host(self) -> str:
        """The host that its master is on now."""
        return self.replicas[self.master]

    def candidate(self, host: str) -> int | None:
        """Returns the id that would be master there: the present master, or the lowest id; None: no replica
        may."""
        if host == self.host:
            return self.master
        return min((each for each in self.eligible if self.replicas.get(each) == host), default=None)

    @property
    def hosts(self) -> list[str]:
        """The hosts that its master can be on, sorted."""
        return sorted({self.host} | {self.replicas[each] for each in self.eligible & self.replicas.keys()})


class Move(NamedTuple):
    """One planned hand-over."""

    cluster: str
    group: str
    from_id: int
    to_id: int
    from_host: str
    to_host: str


@dataclass(frozen=True, slots=True)
class Plan:
    """moves: in the order in which they shall be made. before, after: masters per host, every host that has a
    replica included, sorted by host."""

    moves: tuple[Move, ...]
    before: Mapping[str, int]
    after: Mapping[str, int]


class _Cost(NamedTuple):
    """Compared in this order: the growth of the sum of squares, and the number of groups that leave their
    hosts."""

    squares: int
    moves: int

    def plus(self, squares: int, moves: int) -> "_Cost":
        return _Cost(self.squares + squares, self.moves + moves)


def plan_moves(groups: Sequence[Group], fixed: Mapping[str, int] | None = None) -> Plan:
    """Returns the moves that spread the masters of `groups` evenly. fixed: masters per host that cannot move,
    and count. The order of moves never raises the number of masters of the busiest host."""
    groups = sorted(groups, key=lambda each: (each.cluster, each.name))
    loads = Counter(dict(fixed or {}))
    loads.update({host: 0 for each in groups for host in each.replicas.values()})
    before = loads + Counter(each.host for each in groups)
    assigned: list[str] = []
    for number in range(len(groups)):
        _assign(groups, assigned, loads, number)
    moves = [
        Move(group.cluster, group.name, group.master, to_id, group.host, host)
        for group, host in zip(groups, assigned, strict=True)
        if host != group.host and (to_id := group.candidate(host)) is not None
    ]
    return Plan(_ordered(moves, before), _counts(before, loads), _counts(loads, loads))


def _assign(groups: Sequence[Group], assigned: list[str], loads: Counter[str], number: int) -> None:
    """Adds groups[number] to `assigned` at the least cost; others may have to make room.

    A path goes from the new group to a host, and then from host to host, each time with one group of the
    former host. The load grows only at its end. Bellman-Ford, because moving a group back costs -1.
    """
    new = groups[number]
    costs = {host: _Cost(0, int(host != new.host)) for host in new.hosts}
    came: dict[str, tuple[int, str] | None] = dict.fromkeys(costs)
    steps = _steps(groups, assigned)
    while True:
        is_changed = False
        for (origin, target), (index, extra) in steps.items():
            cost = costs[origin].plus(0, extra) if origin in costs else None
            if cost is not None and (target not in costs or cost < costs[target]):
                costs[target], came[target], is_changed = cost, (index, origin), True
        if not is_changed:
            break
    end = min(costs, key=lambda host: (costs[host].plus(2 * loads[host] + 1, 0), host))
    loads[end] += 1
    host = end
    while (step := came[host]) is not None:
        index, origin = step
        assigned[index], host = host, origin
    assigned.append(host)


def _steps(groups: Sequence[Group], assigned: Sequence[str]) -> dict[tuple[str, str], tuple[int, int]]:
    """Returns (from host, to host) -> the assigned group that is cheapest to move, and the cost in moves."""
    steps: dict[tuple[str, str], tuple[int, int]] = {}
    for index, at in enumerate(assigned):
        group = groups[index]
        for host in group.hosts:
            extra = int(host != group.host) - int(at != group.host)
            if host != at and ((at, host) not in steps or extra < steps[at, host][1]):
                steps[at, host] = index, extra
    return steps


def _ordered(moves: Sequence[Move], before: Counter[str]) -> tuple[Move, ...]:
    """Returns the moves, each to the emptiest host at its time: then no move raises the number of masters of
    the busiest host, because moves of a plan with the fewest moves form no circle."""
    loads, left, ordered = Counter(before), list(moves), []
    while left:
        move = min(left, key=lambda each: (loads[each.to_host], -loads[each.from_host], each))
        left.remove(move)
        loads[move.from_host] -= 1
        loads[move.to_host] += 1
        ordered.append(move)
    return tuple(ordered)


def _counts(loads: Counter[str], hosts: Counter[str]) -> dict[str, int]:
    return {host: loads[host] for host in sorted(hosts)}
