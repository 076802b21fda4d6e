"""Buckets are those of keelmq.runtime.log_buckets, for every number."""

import random
from typing import TYPE_CHECKING

import pytest

from keelmq.runtime.log_buckets import BUCKETS, EDGES, bucket_of
from keelmq.runtime.log_buckets import bucket_top as top_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
LONG_MAX = (1 << 63) - 1


def test_every_edge_and_any_number(spark: "SparkSession") -> None:
    from pyspark.sql import functions as F

    from analytics.queries.histogram import bucket

    around = {edge + off for edge in EDGES for off in (-3, -2, -1, 0, 1) if edge + off <= LONG_MAX}
    dice = random.Random(1)
    anywhere = {dice.getrandbits(dice.randint(1, 63)) for _ in range(2_000)}
    values = sorted(around | anywhere | {LONG_MAX, -1, -LONG_MAX, -LONG_MAX - 1})
    rows = spark.createDataFrame([(value,) for value in values], "value bigint")
    found = rows.select("value", bucket(F.col("value")).alias("bucket")).collect()
    assert {row.value: row.bucket for row in found} == {value: bucket_of(value) for value in values}


def test_the_top_of_every_bucket(spark: "SparkSession") -> None:
    from pyspark.sql import functions as F

    from analytics.queries.histogram import bucket_top

    rows = spark.createDataFrame([(number,) for number in range(BUCKETS)], "number int")
    found = rows.select("number", bucket_top(F.col("number")).alias("top")).collect()
    assert {row.number: row.top for row in found} == {number: top_of(number) for number in range(BUCKETS)}
