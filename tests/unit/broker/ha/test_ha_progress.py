"""ReplicationProgress: the rate of a catch-up, and when it ends. Growth and limits, which decide its pace."""

import pytest

from broker.ha.core.progress import WINDOW_MS, RateMeter, ReplicationProgress
from broker.ha.core.throttle import Throttle
from tests.support.items import items_held


def filled(*readings: tuple[int, int, int]) -> ReplicationProgress:
    progress = ReplicationProgress()
    for now_ms, has, of in readings:
        progress.read(now_ms, has=has, of=of)
    return progress


def test_nothing_is_known_at_first() -> None:
    assert (
        ReplicationProgress().bytes_behind,
        ReplicationProgress().bytes_per_second,
        ReplicationProgress().eta_ms,
    ) == (0, 0, 0)
    first = filled((0, 100, 1_000))
    assert (first.bytes_behind, first.bytes_per_second, first.eta_ms) == (900, 0, None)


def test_a_log_that_stands_still() -> None:
    progress = filled((0, 0, 1_000), (1_000, 200, 1_000))
    assert (progress.bytes_behind, progress.bytes_per_second, progress.eta_ms) == (800, 200, 4_000)


@pytest.mark.parametrize(("grown", "eta_ms"), [(100, 9_000), (200, None), (300, None)])
def test_a_log_that_grows_meanwhile(grown: int, eta_ms: int | None) -> None:
    """200 bytes a second against what producers write."""
    assert filled((0, 0, 1_000), (1_000, 200, 1_000 + grown)).eta_ms == eta_ms


def test_nothing_is_missing() -> None:
    progress = filled((0, 0, 1_000), (1_000, 1_000, 1_000))
    assert (progress.bytes_behind, progress.eta_ms) == (0, 0)


def test_the_window_forgets() -> None:
    progress = filled((0, 0, 10**9))
    for second in range(1, 100):
        progress.read(second * 1_000, has=10**6 + second * 100, of=10**9)
    assert progress.bytes_per_second == 100
    assert items_held(progress) <= WINDOW_MS // 1_000 + 2


def test_many_readings_are_few() -> None:
    progress = ReplicationProgress()
    for now_ms in range(0, 60_000, 10):
        progress.read(now_ms, has=now_ms, of=10**9)
    assert items_held(progress) < 30
    assert progress.bytes_per_second == 1_000


def test_a_cut_begins_anew() -> None:
    progress = filled((0, 500, 1_000), (1_000, 900, 1_000), (2_000, 100, 1_000))
    assert (progress.bytes_behind, progress.bytes_per_second, progress.eta_ms) == (900, 0, None)


def test_the_growth_of_a_log() -> None:
    rate_meter = RateMeter()
    assert rate_meter.read(0, 10**9) == 0, "what was there before is no growth"
    assert rate_meter.read(100, 10**9 + 1_000) == 5_000
    for tick in range(2, 20):
        rate = rate_meter.read(tick * 100, 10**9 + tick * 1_000)
    assert rate == pytest.approx(10_000, rel=0.01)
    assert rate_meter.read(2_000, 10**9 + 19_000) == pytest.approx(5_000, rel=0.1), "a pause shows"
    assert rate_meter.read(2_100, 500) == 0, "a log that was cut"


def test_another_limit_keeps_the_debt() -> None:
    throttle = Throttle(1_000, now_ms=0)
    throttle.spend(1_200)
    throttle.limit(10_000, 0)
    assert not throttle.is_open(99)
    assert throttle.is_open(101)
    throttle.limit(0, 101)
    assert throttle.is_open(101)
