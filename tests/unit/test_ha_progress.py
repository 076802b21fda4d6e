"""Progress: the pace of a catch-up, and when it ends."""

import pytest

from broker.ha.core.progress import WINDOW_MS, Progress


def filled(*readings: tuple[int, int, int]) -> Progress:
    progress = Progress()
    for now_ms, has, of in readings:
        progress.read(now_ms, has=has, of=of)
    return progress


def test_nothing_is_known_at_first() -> None:
    assert (Progress().bytes_behind, Progress().bytes_per_second, Progress().eta_ms) == (0, 0, 0)
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
    assert len(progress._readings) <= WINDOW_MS // 1_000 + 2


def test_many_readings_are_few() -> None:
    progress = Progress()
    for now_ms in range(0, 60_000, 10):
        progress.read(now_ms, has=now_ms, of=10**9)
    assert len(progress._readings) < 30
    assert progress.bytes_per_second == 1_000


def test_a_cut_begins_anew() -> None:
    progress = filled((0, 500, 1_000), (1_000, 900, 1_000), (2_000, 100, 1_000))
    assert (progress.bytes_behind, progress.bytes_per_second, progress.eta_ms) == (900, 0, None)
