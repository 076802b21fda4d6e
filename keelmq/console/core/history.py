"""The history of every group in memory: some numbers per group in rings of a fixed size. Pure.

Each group has two rings: the last hour in steps of 10 s, and the last ten hours in steps of one minute. A
step keeps the last values that were seen in it; NaN: unknown. The arrays of a group are allocated at once, so
the memory is bounded by GROUPS_MAX * GROUP_BYTES, whatever is polled.
"""

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from keelmq.health.status import GroupStatus

SERIES: Final = {
    "maxOffset": "d",
    "confirmOffset": "d",
    "lagBytes": "d",
    "lagMs": "f",
    "messagesInPerS": "f",
    "messagesOutPerS": "f",
    "inSync": "f",
    "replicasAlive": "f",
    "masterId": "f",
    "masterEpoch": "f",
}
"""Name -> type code of the array. Offsets need 53 bits; an epoch above 2**24 would be rounded."""
FINE_STEP_MS: Final = 10_000
FINE_STEPS: Final = 360
COARSE_STEP_MS: Final = 60_000
COARSE_STEPS: Final = 600
STEP_BYTES: Final = 8 + sum(array(code).itemsize for code in SERIES.values())
GROUP_BYTES: Final = (FINE_STEPS + COARSE_STEPS) * STEP_BYTES
GROUPS_MAX: Final = 1_100
"""Groups that have a history; more than these have none. About 64 MiB."""

UNKNOWN_FROM: Final = 2**63
"""No server has such a number, and a larger one may have no float."""

GroupKey = tuple[str, str]
"""Cluster, broker name."""


class Ring:
    """The last `size` steps of one group. A step is the time divided by step_ms."""

    def __init__(self, step_ms: int, size: int) -> None:
        self.step_ms, self._size = step_ms, size
        self._steps = array("q", [-1]) * size
        self._values = {name: array(code, [math.nan]) * size for name, code in SERIES.items()}

    def add(self, at_ms: int, values: Mapping[str, float]) -> None:
        """Records values; the last ones of a step count. Values older than the ring are ignored."""
        step = at_ms // self.step_ms
        place = step % self._size
        if self._steps[place] > step:
            return
        self._steps[place] = step
        for name, kept in self._values.items():
            kept[place] = values.get(name, math.nan)

    def read(self, from_ms: int, to_ms: int) -> Iterator[tuple[int, dict[str, float]]]:
        """Yields (start of the step in ms, values) of the steps in [from_ms, to_ms], oldest first."""
        first, last = from_ms // self.step_ms, to_ms // self.step_ms
        first = max(first, last - self._size + 1, 0)
        for step in range(first, last + 1):
            place = step % self._size
            if self._steps[place] == step:
                yield step * self.step_ms, {name: kept[place] for name, kept in self._values.items()}


class Read(msgspec.Struct, frozen=True):
    """A part of a group's history: values[name][i] was seen at times_ms[i]; None: unknown then."""

    step_ms: int
    times_ms: list[int]
    values: dict[str, list[float | None]]


class History:
    """The rings of all groups. A group that was not seen for as long as its rings reach gives its place to a
    new one."""

    def __init__(self, groups_max: int = GROUPS_MAX) -> None:
        self._groups_max = groups_max
        self._rings: dict[GroupKey, tuple[Ring, Ring]] = {}
        self._seen_ms: dict[GroupKey, int] = {}
        self.not_kept = 0
        """Groups of the last add() that have no history, because there are too many."""

    def __len__(self) -> int:
        """How many groups have a history."""
        return len(self._rings)

    def add(self, at_ms: int, groups: Iterable[GroupStatus]) -> None:
        """Records one status."""
        self.not_kept = 0
        for group in groups:
            key = group.cluster, group.broker_name
            rings = self._rings.get(key) or self._new(key, at_ms)
            if rings is None:
                self.not_kept += 1
                continue
            self._seen_ms[key] = at_ms
            values = values_of(group)
            for ring in rings:
                ring.add(at_ms, values)

    def read(self, key: GroupKey, from_ms: int, to_ms: int, step_ms: int = 0) -> Read | None:
        """Returns the history of a group between two times, in steps of about step_ms; 0: as fine as there
        is. None: the group has no history."""
        rings = self._rings.get(key)
        if rings is None:
            return None
        fine, coarse = rings
        is_fine = step_ms < COARSE_STEP_MS and to_ms - from_ms <= FINE_STEP_MS * FINE_STEPS
        ring = fine if is_fine else coarse
        every = max(1, round(step_ms / ring.step_ms))
        rows = [row for at, row in enumerate(ring.read(from_ms, to_ms)) if at % every == 0]
        return Read(
            ring.step_ms * every,
            [at_ms for at_ms, _ in rows],
            {name: [_known(values[name]) for _, values in rows] for name in SERIES},
        )

    def _new(self, key: GroupKey, at_ms: int) -> tuple[Ring, Ring] | None:
        if len(self._rings) >= self._groups_max and not self._drop_old(at_ms):
            return None
        self._rings[key] = Ring(FINE_STEP_MS, FINE_STEPS), Ring(COARSE_STEP_MS, COARSE_STEPS)
        return self._rings[key]

    def _drop_old(self, at_ms: int) -> bool:
        oldest = min(self._seen_ms, key=self._seen_ms.__getitem__)
        if at_ms - self._seen_ms[oldest] < COARSE_STEP_MS * COARSE_STEPS:
            return False
        del self._seen_ms[oldest], self._rings[oldest]
        return True


def values_of(group: GroupStatus) -> dict[str, float]:
    """Returns the numbers of a group that its history keeps; those that are unknown are absent. Lag: of the
    worst living replica. Messages in: at the master; out: at all replicas."""
    alive = [each for each in group.replicas if each.is_alive]
    master = next((each for each in group.replicas if each.broker_id == group.master_id), None)
    out = [each.messages_out_per_s for each in alive if each.messages_out_per_s is not None]
    found: dict[str, float | None] = {
        "maxOffset": group.max_offset,
        "confirmOffset": group.confirm_offset,
        "lagBytes": max((each.lag_bytes for each in alive if each.lag_bytes is not None), default=None),
        "lagMs": max((each.lag_ms for each in alive if each.lag_ms is not None), default=None),
        "messagesInPerS": None if master is None else master.messages_in_per_s,
        "messagesOutPerS": sum(out) if out else None,
        "inSync": len(group.sync_state_set) or sum(each.is_in_sync for each in alive),
        "replicasAlive": len(alive),
        "masterId": group.master_id,
        "masterEpoch": group.master_epoch,
    }
    return {
        name: float(each) for name, each in found.items() if each is not None and abs(each) < UNKNOWN_FROM
    }


def _known(value: float) -> float | None:
    if math.isnan(value):
        return None
    return int(value) if value.is_integer() else round(value, 3)
