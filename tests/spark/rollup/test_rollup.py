"""Each roll-up table against the plain-Python model, at three widths of windows."""

from collections import Counter
from typing import Any

import pytest

from tests.spark import model_samples as model
from tests.spark.rollup.conftest import BASE_MS, Compacted, read_rollup

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

WINDOWS = (BASE_MS, model.MINUTE_MS, model.HOUR_MS)
NAMES = ("cluster_name", "broker_name", "window_ts")


def by_key(rows: list[dict[str, Any]], *more: str) -> dict[Any, dict[str, Any]]:
    names = (*NAMES, *more)
    found = {
        tuple(row[name] for name in names[1:]): {key: row[key] for key in row if key not in names}
        for row in rows
    }
    assert len(found) == len(rows)
    return found


@pytest.mark.parametrize("window_ms", WINDOWS)
def test_lag(compacted: Compacted, window_ms: int) -> None:
    found = by_key(read_rollup(compacted.out, "lag", window_ms))
    expected = {key: model.lag_row(rows) for key, rows in model.windows(compacted.masters, window_ms).items()}
    covered = Counter[Any]()
    for (name, ts), ms in model.covered_ms(compacted.masters, min(window_ms, model.MINUTE_MS)).items():
        covered[name, ts // window_ms * window_ms] += ms
    for key, row in expected.items():
        row["covered_ms"] = covered[key]
    assert found == expected
    assert any(row["stale_master"] for row in found.values())
    assert any(row["above_max"] for row in found.values())


def test_the_histogram_of_an_hour(compacted: Compacted) -> None:
    found = by_key(read_rollup(compacted.out, "lag_histogram", model.HOUR_MS), "unit", "bucket")
    expected: dict[Any, int] = {}
    for key, rows in model.windows(compacted.masters, model.HOUR_MS).items():
        kept = [row for row in rows if not row["is_stale"] and not model.is_above(row)]
        for unit, buckets in model.counted(kept).items():
            expected |= {(*key, unit, bucket): n for bucket, n in buckets.items()}
    assert {key: row["n"] for key, row in found.items()} == expected
    assert all(row["worst"] is not None for row in found.values())


@pytest.mark.parametrize("window_ms", WINDOWS)
def test_replica_lag(compacted: Compacted, window_ms: int) -> None:
    found = by_key(read_rollup(compacted.out, "replica_lag", window_ms), "broker_id")
    kept = [row for row in compacted.replicas if not row["is_stale"]]
    expected = model.windows(kept, window_ms, "replica_id")
    assert found == {key: model.replica_row(rows) for key, rows in expected.items()}


@pytest.mark.parametrize("window_ms", WINDOWS)
def test_consumer_lag(compacted: Compacted, window_ms: int) -> None:
    found = by_key(read_rollup(compacted.out, "consumer_lag", window_ms), "consumer_group", "topic")
    expected = model.windows(compacted.consumers, window_ms, "consumer_group", "topic")
    assert found == {key: model.consumer_row(rows) for key, rows in expected.items()}


def test_rows_are_sorted(compacted: Compacted) -> None:
    rows = read_rollup(compacted.out, "lag", model.HOUR_MS)
    order = [(row["window_ts"], row["cluster_name"], row["broker_name"]) for row in rows]
    assert order == sorted(order)
