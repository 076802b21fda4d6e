"""A generated fleet: groups and their incidents, from a seed.

The plan is a value. `rollup` makes roll-ups of it and `records` makes records, so tests can
compare the results of analytics with the planted incidents. The same seed gives the same plan.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from keelmq.web.page_files import Incident

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
REPLICAS = (1, 2, 3)
MASTER = 1
MIN_IN_SYNC = 2
GROUPS_MAX, HOURS_MAX = 100_000, 24 * 366
PER_KIND = 100
"""One in this many groups has an incident of a kind, and at least one of each kind is planted."""

MINUTES = {
    "lag": (8, 40),
    "flap": (20, 40),
    "failover": (1, 1),
    "unclean": (1, 1),
    "below-min": (12, 60),
    "stale-master": (3, 10),
    "skew": (0, 0),
    "dead-replica": (60, 300),
    "gap": (12, 60),
}
"""Kinds of incidents, and how many minutes they last; 0: all the time."""
KINDS = tuple(MINUTES)


@dataclass(frozen=True, slots=True)
class Planted:
    """An incident of group number `group`. `replica`: 0 for the whole group. `size`: 0 to 1."""

    kind: str
    group: int
    replica: int
    from_ts: int
    to_ts: int
    size: float


@dataclass(frozen=True, slots=True)
class Fleet:
    """`names`: (cluster, broker name) by group number. Times are ms UTC; the end is exclusive."""

    seed: int
    from_ts: int
    to_ts: int
    names: tuple[tuple[str, str], ...]
    planted: tuple[Planted, ...]
    by_group: dict[int, tuple[Planted, ...]] = field(compare=False)

    def incidents(self) -> list[Incident]:
        """Returns what analytics must find, by time. A stale master is left behind by a fail-over."""
        found = [self._incident(each, each.kind) for each in self.planted]
        found += [self._incident(each, "failover") for each in self.planted if each.kind == "stale-master"]
        return sorted(found, key=lambda each: (each.from_ts, each.cluster_name, each.broker_name, each.kind))

    def _incident(self, planted: Planted, kind: str) -> Incident:
        cluster, broker = self.names[planted.group]
        return Incident(
            kind=kind, cluster_name=cluster, broker_name=broker, replica=planted.replica or None,
            from_ts=planted.from_ts, to_ts=planted.to_ts,
        )  # fmt: skip

    def random_of(self, group: int, purpose: str) -> random.Random:
        """Returns the random generator of a group, independent of every other group's."""
        return random.Random(f"{self.seed}/{group}/{purpose}")


def plan(seed: int, *, groups: int, hours: int, kinds: Sequence[str], from_ts: int) -> Fleet:
    """Returns the fleet. At most one incident per group, so each has one cause. Raises ValueError: a kind is
    unknown, or there are fewer groups than kinds."""
    unknown = sorted(set(kinds) - set(KINDS))
    if unknown:
        raise ValueError(f"unknown incidents: {', '.join(unknown)}; known are {', '.join(KINDS)}")
    if not (1 <= groups <= GROUPS_MAX and 1 <= hours <= HOURS_MAX):
        raise ValueError(f"give 1 to {GROUPS_MAX} groups and 1 to {HOURS_MAX} hours")
    if len(kinds) > groups:
        raise ValueError(f"{len(kinds)} kinds of incidents need as many groups; there are {groups}")
    dice = random.Random(f"{seed}/plan")
    to_ts = from_ts + hours * HOUR_MS
    each = max(1, min(groups // PER_KIND, groups // max(len(kinds), 1)))
    chosen = dice.sample(range(groups), each * len(kinds))
    planted = []
    for number, group in enumerate(chosen):
        kind = kinds[number % len(kinds)]
        planted.append(_incident(dice, kind, group, from_ts, hours * 60))
    clusters = max(1, groups // 250)
    names = tuple((f"Cluster{i % clusters + 1}", f"broker-{i:04d}") for i in range(groups))
    ordered = tuple(sorted(planted, key=lambda one: (one.from_ts, one.group)))
    by_group: dict[int, tuple[Planted, ...]] = {one.group: (one,) for one in ordered}
    return Fleet(seed, from_ts, to_ts, names, ordered, by_group)


def _incident(dice: random.Random, kind: str, group: int, from_ts: int, minutes: int) -> Planted:
    least, most = MINUTES[kind]
    length = min(dice.randint(least, most), minutes) if most else minutes
    # Not in the first and the last two minutes, where there is nothing to compare with.
    start = dice.randint(2, minutes - length - 2) if most and minutes > length + 4 else 0
    begins = from_ts + start * MINUTE_MS
    of_replica = kind in ("flap", "skew", "dead-replica")
    replica = dice.choice(REPLICAS[1:]) if of_replica else 0
    return Planted(kind, group, replica, begins, begins + length * MINUTE_MS, dice.random())
