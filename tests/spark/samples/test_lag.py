"""Windows of lag: hand-made samples, and random hours against plain Python."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest

from analytics.queries.consumers import consumer_lag
from analytics.queries.lag import lag, lag_cells, lag_histogram
from analytics.queries.replicas import replica_lag
from analytics.tables import CONSUMER_LAG
from keelmq.runtime.log_buckets import bucket_of, bucket_top
from tests.spark import model_samples as model
from tests.spark.model_samples import HOUR_MS, HOUR_TS, MINUTE_MS, Life, mark_stale
from tests.spark.samples.frames import GROUP, Row, Samples, by_window, frame, rows_of, samples_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

BASE_MS = 5_000
WINDOWS = (BASE_MS, MINUTE_MS, HOUR_MS)


@pytest.fixture(scope="module")
def lives() -> list[Life]:
    return [Life(seed, 2) for seed in range(24)]


@pytest.fixture(scope="module")
def samples(spark: "SparkSession", lives: list[Life]) -> Samples:
    masters, replicas, events = (
        [row for life in lives for row in getattr(life, kind)] for kind in ("masters", "replicas", "events")
    )
    return samples_of(spark, masters, replicas, events)


def marked(lives: list[Life], kind: str) -> list[Row]:
    return [row for life in lives for row in mark_stale(getattr(life, kind), life.masters, life.events)]


@pytest.mark.parametrize("windows", [WINDOWS, (MINUTE_MS,), (MINUTE_MS, 5 * MINUTE_MS, HOUR_MS)], ids=str)
def test_lag(lives: list[Life], samples: Samples, windows: Sequence[int]) -> None:
    found, rows = by_window(lag(samples.masters, windows)), marked(lives, "masters")
    for width in windows:
        expected = {key: model.lag_row(some) for key, some in model.windows(rows, width).items()}
        covered = Counter[Any]()
        for (name, ts), ms in model.covered_ms(rows, min(width, MINUTE_MS)).items():
            covered[name, ts // width * width] += ms
        for key, row in expected.items():
            row["covered_ms"] = covered[key]
        assert found[width] == expected
        assert any(row["stale_master"] for row in expected.values())
        assert any(row["above_max"] for row in expected.values())


def test_kept_cells_give_the_same_lag(samples: Samples) -> None:
    cells = lag_cells(samples.masters, BASE_MS)
    assert by_window(lag(samples.masters, WINDOWS, cells)) == by_window(lag(samples.masters, WINDOWS))


def test_the_histogram_of_an_hour(lives: list[Life], samples: Samples) -> None:
    expected: dict[Any, tuple[int, int]] = {}
    for key, rows in model.windows(marked(lives, "masters"), HOUR_MS).items():
        counts = [row for row in rows if not row["is_stale"] and not model.is_above(row)]
        for unit, buckets in model.counted(counts).items():
            for bucket, n in buckets.items():
                worst = [each for row in counts if (each := worst_of(row, unit, bucket)) is not None]
                expected[(*key, unit, bucket)] = n, max(worst, default=bucket_top(bucket))
    found = rows_of(lag_histogram(lag_cells(samples.masters, BASE_MS)))
    names = ("broker_name", "window_ts", "unit", "bucket")
    assert {tuple(row[name] for name in names): (row["n"], row["worst"]) for row in found} == expected


def worst_of(row: Row, unit: str, bucket: int) -> int | None:
    if unit == "bytes" and bucket_of(row["max_offset"] - row["confirm_offset"]) == bucket:
        return int(max(row["max_offset"] - row["confirm_offset"], row["lag_bytes_max"]))
    if unit == "ms" and bucket_of(row["lag_ms"]) == bucket:
        return int(max(row["lag_ms"], row["lag_ms_max"]))
    return None


def test_replica_lag(lives: list[Life], samples: Samples) -> None:
    rows = [row for row in marked(lives, "replicas") if not row["is_stale"]]
    found = by_window(replica_lag(samples.replicas, WINDOWS), "broker_id")
    assert found == {
        width: {
            key: model.replica_row(some) for key, some in model.windows(rows, width, "replica_id").items()
        }
        for width in WINDOWS
    }


def test_consumer_lag(spark: "SparkSession", lives: list[Life]) -> None:
    rows = [row for life in lives for row in life.consumers]
    names = ("consumer_group", "topic")
    found = by_window(consumer_lag(frame(spark, CONSUMER_LAG, rows), WINDOWS), *names)
    assert found == {
        width: {key: model.consumer_row(some) for key, some in model.windows(rows, width, *names).items()}
        for width in WINDOWS
    }


def sample(second: int, lag_bytes: int = 0, broker_id: int = 1, name: str = "b", **more: Any) -> Row:
    row = GROUP | {"broker_name": name, "ts": HOUR_TS + second * 1_000, "broker_id": broker_id}
    return row | {"master_epoch": 1, "max_offset": 1_000, "confirm_offset": 1_000 - lag_bytes} | more


def test_a_sample_covers_the_next_second_of_its_own_group_only(spark: "SparkSession") -> None:
    """Also in the next window, but not in the next hour."""
    rows = [sample(9), sample(10), sample(19), sample(21, name="c"), sample(3_599), sample(3_601)]
    found = by_window(lag(samples_of(spark, rows).masters, (10_000, MINUTE_MS)))
    covered = {
        width: {(name, (ts - HOUR_TS) // 1_000): row["covered_ms"] for (name, ts), row in of_width.items()}
        for width, of_width in found.items()
    }
    later = {("b", 3_600): 2_000}
    assert covered == {
        10_000: {("b", 0): 1_000, ("b", 10): 3_000, ("c", 20): 2_000, ("b", 3_590): 1_000, **later},
        MINUTE_MS: {("b", 0): 5_000, ("c", 0): 2_000, ("b", 3_540): 1_000, **later},
    }


@pytest.mark.parametrize("lags", [(800, 801), (801, 800)])
def test_the_worst_of_a_bucket(spark: "SparkSession", lags: tuple[int, int]) -> None:
    """Both are in one bucket, whose worst value is the highest, not the first."""
    rows = [sample(second, each) for second, each in enumerate(lags)]
    (row,) = rows_of(lag(samples_of(spark, rows).masters, (MINUTE_MS,)))
    assert (row["bytes_p99"], row["bytes_max"]) == (801, 801)


def test_what_older_brokers_do_not_write(spark: "SparkSession") -> None:
    (row,) = rows_of(lag(samples_of(spark, [sample(0, 7)]).masters, (MINUTE_MS,)))
    assert (row["samples"], row["bytes_max"], row["ms_max"]) == (1, 7, 0)
    assert (row["lag_us_p99"], row["confirm_us_max"], row["confirms"]) == (None, None, None)


def test_a_lag_below_zero_is_none(spark: "SparkSession") -> None:
    (row,) = rows_of(lag(samples_of(spark, [sample(0, lag_ms=-3, lag_ms_max=-2)]).masters, (MINUTE_MS,)))
    assert (row["ms_p50"], row["ms_max"]) == (0, 0)


def test_two_masters_in_one_millisecond(spark: "SparkSession") -> None:
    """The last sample is of the broker with the higher brokerId."""
    rows = [sample(0, broker_id=2, max_offset=500, confirm_offset=400), sample(0, 0, broker_id=1)]
    (row,) = rows_of(lag(samples_of(spark, rows).masters, (MINUTE_MS,)))
    assert row["max_offset"] == 500
