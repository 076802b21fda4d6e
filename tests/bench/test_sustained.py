"""The figures of sustained full load, from samples."""

import pytest

from tests.bench.native import BenchError
from tests.bench.sustained import Sample, results_of


def samples(behind: tuple[int, ...], kib: tuple[float, ...], *, per_s: int = 1_000) -> list[Sample]:
    return [
        Sample(float(t), t * per_s, each, own) for t, (each, own) in enumerate(zip(behind, kib, strict=True))
    ]


def test_a_backlog_is_told_as_time_at_the_rate_of_the_log() -> None:
    flat = (10.0,) * 8
    results = results_of(
        {"a": samples((0,) * 8, flat), "b": samples((0, 0, 0, 500, 0, 0, 0, 0), flat)}, queued=70
    )
    assert results["backlog_max_ms"].value == 500 and results["backlog_max_ms"].ratio == 0.5
    assert results["backlog_p50_ms"].value == 0 and results["memory_growth"].value == 1
    assert results["load_mb_per_s"].value == 0.001 and results["messages"].value == 70


def test_memory_that_grows_in_one_broker_breaks_the_promise() -> None:
    results = results_of(
        {
            "a": samples((0,) * 8, (10.0,) * 8),
            "b": samples((0,) * 8, (1.0, 1.0, 10.0, 12.0, 12.0, 12.0, 22.0, 22.0)),
        },
        queued=1,
    )
    assert results["memory_growth"].value == 2 and results["memory_growth"].ratio > 1


def test_a_run_without_quarters_is_refused() -> None:
    with pytest.raises(BenchError, match="too short"):
        results_of({"a": samples((0,) * 7, (1.0,) * 7)}, queued=0)
