"""Spark's buckets are those of keelmq.runtime.log_buckets, at every edge."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from analytics.rollup.buckets import bucket, bucket_top
from keelmq.runtime.log_buckets import BUCKETS, EDGES, bucket_of
from keelmq.runtime.log_buckets import bucket_top as top_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

LONG_MAX = (1 << 63) - 1
AROUND_EDGES = {edge + off for edge in EDGES for off in (-3, -2, -1, 0, 1) if -2 <= edge + off <= LONG_MAX}


def check(spark: SparkSession, values: list[int]) -> None:
    frame = spark.createDataFrame([(value,) for value in values], "value long")
    rows = frame.select("value", bucket(F.col("value")).alias("bucket")).collect()
    assert {row["value"]: row["bucket"] for row in rows} == {value: bucket_of(value) for value in values}


def test_every_edge(spark: SparkSession) -> None:
    check(spark, sorted(AROUND_EDGES | {LONG_MAX, -LONG_MAX}))


@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(-(1 << 63), LONG_MAX), min_size=500, max_size=500))
def test_any_number(spark: SparkSession, values: list[int]) -> None:
    check(spark, values)


def test_tops(spark: SparkSession) -> None:
    frame = spark.range(BUCKETS - 1).select("id", bucket_top(F.col("id").cast("smallint")).alias("top"))
    assert {row["id"]: row["top"] for row in frame.collect()} == {
        number: top_of(number) for number in range(BUCKETS - 1)
    }
