"""Lag percentiles of random samples against exact ones, and the histograms that they are made of."""

from collections import Counter, defaultdict
from collections.abc import Sequence

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from analytics.lag import RANKS, STEPS, bucket, bucket_top, confirm_offset_lag, lag_histogram, replica_lag
from keelmq.remoting.records import HaSample
from tests.spark import model
from tests.spark.conftest import World, rows_by_group

pytestmark = pytest.mark.spark

WINDOW_MS = 60_000
BOUND = 2 ** (1 / STEPS)


@pytest.fixture(scope="module")
def histogram(world: World) -> DataFrame:
    return lag_histogram(world.frames[HaSample], WINDOW_MS).persist()


def masters(samples: Sequence[HaSample]) -> list[HaSample]:
    return [each for each in samples if each.role == "master" and each.confirm_offset <= each.max_offset]


def by_window(samples: Sequence[HaSample]) -> dict[int, list[HaSample]]:
    found: dict[int, list[HaSample]] = defaultdict(list)
    for sample in samples:
        found[sample.ts // WINDOW_MS * WINDOW_MS].append(sample)
    return found


def lag_bytes(sample: HaSample) -> int:
    return sample.max_offset - sample.confirm_offset


def test_percentiles(world: World, histogram: DataFrame) -> None:
    rows = rows_by_group(confirm_offset_lag(histogram))
    windows = 0
    for history in world.histories:
        found = {row["window_ts"]: row for row in rows.get(history.broker_name, [])}
        expected = by_window(masters(history.samples))
        assert found.keys() == expected.keys()
        for window_ts, samples in expected.items():
            row = found[window_ts]
            assert row["samples"] == len(samples)
            sizes, times = [lag_bytes(each) for each in samples], [each.lag_ms for each in samples]
            worst_bytes = max([*sizes, *(each.lag_bytes_max for each in samples)])
            worst_ms = max([*times, *(each.lag_ms_max for each in samples)])
            assert (row["bytes_max"], row["ms_max"]) == (worst_bytes, worst_ms)
            for name, rank in RANKS.items():
                assert row[f"bytes_{name}"] == model.from_buckets(sizes, rank, worst_bytes)
                assert row[f"ms_{name}"] == model.from_buckets(times, rank, worst_ms)
                for unit, values in (("bytes", sizes), ("ms", times)):
                    true = model.exact(values, rank)
                    assert true <= row[f"{unit}_{name}"] < (true + 1) * BOUND
            windows += 1
    assert windows > 200


def test_histograms_add_up(world: World, histogram: DataFrame) -> None:
    """Minutes summed are the hour, so late data is one more addition."""
    key = ("broker_name", "hour", "unit", "bucket")
    hour = 3_600_000
    summed: Counter[tuple[object, ...]] = Counter()
    for row in histogram.collect():
        name = (row["broker_name"], row["window_ts"] // hour * hour, row["unit"], row["bucket"])
        summed[name] += row["n"]
    hours = lag_histogram(world.frames[HaSample], hour).withColumnRenamed("window_ts", "hour")
    assert {tuple(row[each] for each in key): row["n"] for row in hours.collect()} == dict(summed)


def test_replica_lag(world: World) -> None:
    rows = rows_by_group(replica_lag(world.frames[HaSample], WINDOW_MS))
    for history in world.histories:
        expected: dict[tuple[int, int], list[int]] = {}
        for sample in history.samples:
            for replica in sample.replicas:
                key = replica.broker_id, sample.ts // WINDOW_MS * WINDOW_MS
                behind = max(sample.max_offset - replica.ack_offset, 0)
                entry = expected.setdefault(key, [0, 0, 0, 0])
                entry[:2] = max(entry[0], behind), max(entry[1], replica.lag_ms)
                entry[2] += 1
                entry[3] += not replica.in_sync
        found = {
            (row["broker_id"], row["window_ts"]): [
                row[name] for name in ("bytes_max", "ms_max", "samples", "samples_out")
            ]
            for row in rows.get(history.broker_name, [])
        }
        assert found == expected


def test_a_power_of_two_is_in_the_upper_bucket(spark: SparkSession) -> None:
    """log2 must not round below the whole number; the top of a bucket is its last whole number."""
    values = sorted({max((1 << power) + off, 0) for power in range(39) for off in (-2, -1, 0, 1)})
    frame = spark.createDataFrame([(value,) for value in values], "value long")
    rows = frame.select(
        "value", bucket(F.col("value")).alias("b"), bucket_top(bucket(F.col("value"))).alias("top")
    )
    for row in rows.collect():
        assert row["b"] == model.bucket(row["value"])
        assert row["top"] == model.EDGES[row["b"] + 1] - 2
        assert row["value"] <= row["top"]
