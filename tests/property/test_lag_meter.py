"""LagMeter against a list that remembers every byte, over random histories with cuts of the log."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.core.lag import POINTS_MAX, LagMeter
from tests.support.items import items_held
from tests.support.slices import share


class EveryByte:
    """The dumb one: when each byte was first seen."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.ms_max = self.bytes_max = 0

    def tick(self, now_ms: int, max_offset: int, confirm_offset: int) -> int:
        del self.seen[max_offset:]
        self.seen += [now_ms] * (max_offset - len(self.seen))
        lag_ms = now_ms - self.seen[confirm_offset] if confirm_offset < max_offset else 0
        self.ms_max = max(self.ms_max, lag_ms)
        self.bytes_max = max(self.bytes_max, max_offset - confirm_offset)
        return lag_ms


class History:
    """A log that grows, is confirmed in jumps or not at all for a while, and is cut now and then."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.cuts = self.dice.choice([0.0, 0.05])
        self.now_ms = self.dice.randrange(1_000)
        self.max_offset = self.confirm_offset = self.stuck_ticks = 0

    def step(self, elapsed_ms: int) -> tuple[int, int, int]:
        dice = self.dice
        self.now_ms += elapsed_ms
        if dice.random() < self.cuts:
            self.max_offset = dice.randrange(self.max_offset + 1)
            self.confirm_offset = min(self.confirm_offset, self.max_offset)
        elif dice.random() < 0.8:
            self.max_offset += dice.randrange(5)
        self.stuck_ticks -= 1
        if self.stuck_ticks < 0:
            self.confirm_offset = dice.randint(self.confirm_offset, self.max_offset)
            if dice.random() < 0.05:
                self.stuck_ticks = dice.choice([3, 30, 300])
        return self.now_ms, self.max_offset, self.confirm_offset


seeds = st.integers(0, 1 << 32)


@settings(max_examples=share(200), deadline=None)
@given(seeds)
def test_exact_at_the_pace_of_the_ticks(seed: int) -> None:
    history, meter, model = History(seed), LagMeter(), EveryByte()
    for number in range(400):
        now_ms, max_offset, confirm_offset = history.step(history.dice.choice([0, 90, 100]))
        expected = model.tick(now_ms, max_offset, confirm_offset)
        if number % 10 < 9:
            lag_ms = meter.tick(now_ms, max_offset=max_offset, confirm_offset=confirm_offset)
            assert lag_ms == expected
            continue
        lag = meter.read(now_ms, max_offset=max_offset, confirm_offset=confirm_offset)
        assert (lag.ms, lag.ms_max, lag.bytes_max) == (expected, model.ms_max, model.bytes_max)
        model.ms_max = model.bytes_max = 0


@pytest.mark.slow
@settings(max_examples=share(200), deadline=None)
@given(seeds, st.sampled_from([8, 32]))
def test_a_small_ring_errs_a_little_and_only_upwards(seed: int, points: int) -> None:
    history, meter, model = History(seed), LagMeter(points), EveryByte()
    longest = 0
    for _ in range(1_500):
        now_ms, max_offset, confirm_offset = history.step(100)
        expected = model.tick(now_ms, max_offset, confirm_offset)
        longest = max(longest, expected)
        lag_ms = meter.tick(now_ms, max_offset=max_offset, confirm_offset=confirm_offset)
        assert expected <= lag_ms <= expected + 8 * longest // points + 100
        assert (lag_ms == 0) == (expected == 0)
        assert items_held(meter) <= points


def test_an_hour_without_confirmation_is_told_to_the_tenth_of_a_second() -> None:
    meter = LagMeter()
    for tick in range(36_001):
        lag_ms = meter.tick(tick * 100, max_offset=tick + 1, confirm_offset=0)
        assert lag_ms == tick * 100
    assert items_held(meter) <= POINTS_MAX
    half = meter.tick(3_600_000, max_offset=36_001, confirm_offset=18_000)
    assert 1_800_000 <= half <= 1_800_000 * 1.01
    assert meter.tick(3_600_100, max_offset=36_001, confirm_offset=36_001) == 0
    assert meter.tick(3_600_200, max_offset=36_002, confirm_offset=36_001) == 0, "first seen now"


def test_a_confirm_offset_above_the_log_is_no_lag() -> None:
    """Possible on a slave whose log was just cut."""
    meter = LagMeter()
    meter.tick(0, max_offset=10, confirm_offset=0)
    lag = meter.read(50, max_offset=3, confirm_offset=5)
    assert (lag.ms, lag.ms_max, lag.bytes_max) == (0, 0, 10)
