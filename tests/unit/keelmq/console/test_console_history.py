"""The history in memory: bounded, and unknown values stay unknown."""

import sys
from array import array

from keelmq.console.core.history import (
    COARSE_STEP_MS,
    COARSE_STEPS,
    FINE_STEP_MS,
    FINE_STEPS,
    GROUP_BYTES,
    GROUPS_MAX,
    SERIES,
    History,
    Ring,
)
from keelmq.console.examples import STATUS
from keelmq.health.status import GroupStatus

GROUP = STATUS.groups[0]
KEY = GROUP.cluster, GROUP.broker_name
HOUR_MS = 3_600_000


def named(number: int) -> GroupStatus:
    return GROUP.model_copy(update={"broker_name": f"broker-{number}"})


def test_the_last_value_of_a_step_counts() -> None:
    history = History()
    history.add(100_000, [GROUP])
    history.add(109_999, [GROUP.model_copy(update={"max_offset": 5})])
    history.add(110_000, [GROUP.model_copy(update={"max_offset": None})])
    read = history.read(KEY, 0, 110_000)
    assert read is not None
    assert read.times_ms == [100_000, 110_000]
    assert read.values["maxOffset"] == [5, None]
    assert read.values["masterId"] == [1, 1]
    assert set(read.values) == set(SERIES)


def test_old_steps_are_overwritten_and_gaps_are_absent() -> None:
    history = History()
    for step in (0, 1, FINE_STEPS - 1, FINE_STEPS):
        history.add(step * FINE_STEP_MS, [GROUP])
    end_ms = FINE_STEPS * FINE_STEP_MS
    read = history.read(KEY, FINE_STEP_MS, end_ms)
    assert read is not None
    assert read.times_ms == [FINE_STEP_MS, (FINE_STEPS - 1) * FINE_STEP_MS, end_ms]


def test_a_long_time_is_shown_in_minutes() -> None:
    history = History()
    for at_ms in range(0, 2 * HOUR_MS, FINE_STEP_MS):
        history.add(at_ms, [GROUP])
    read = history.read(KEY, 0, 2 * HOUR_MS)
    assert read is not None
    assert (read.step_ms, len(read.times_ms)) == (COARSE_STEP_MS, 120)
    thinned = history.read(KEY, 0, 2 * HOUR_MS, 10 * COARSE_STEP_MS)
    assert thinned is not None
    assert (thinned.step_ms, len(thinned.times_ms)) == (10 * COARSE_STEP_MS, 12)


def test_no_more_groups_than_the_limit() -> None:
    history = History(groups_max=2)
    history.add(0, [named(1), named(2), named(3)])
    assert (len(history), history.not_kept) == (2, 1)
    assert history.read((GROUP.cluster, "broker-3"), 0, 1) is None
    # A group that was not seen for as long as anything is kept gives its place away.
    later_ms = COARSE_STEP_MS * COARSE_STEPS
    history.add(later_ms - 1, [named(1), named(3)])
    assert history.not_kept == 1
    history.add(later_ms, [named(1), named(3)])
    assert history.not_kept == 0
    assert history.read((GROUP.cluster, "broker-2"), 0, later_ms) is None


def test_the_memory_of_a_group_is_bounded_before_anything_is_seen() -> None:
    def size(ring: Ring) -> int:
        arrays = [each for each in vars(ring).values() if isinstance(each, array)]
        arrays += [each for kept in vars(ring).values() if isinstance(kept, dict) for each in kept.values()]
        return sum(sys.getsizeof(each) for each in arrays)

    fine, coarse = Ring(FINE_STEP_MS, FINE_STEPS), Ring(COARSE_STEP_MS, COARSE_STEPS)
    before = size(fine) + size(coarse)
    for step in range(5_000):
        fine.add(step * FINE_STEP_MS, {"maxOffset": step})
        coarse.add(step * COARSE_STEP_MS, {"maxOffset": step})
    assert size(fine) + size(coarse) == before <= GROUP_BYTES * 1.1
    assert GROUPS_MAX * GROUP_BYTES <= 64 << 20
