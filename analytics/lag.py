"""confirmOffset lag, in bytes and in time: histograms that add up, and percentiles from them.

A lag is counted into one of STEPS buckets per doubling, so a percentile is at most 2 ** (1 / STEPS) - 1,
9.05 %, above the exact one. Histograms of minutes added up are the histogram of the hour; percentiles are
never averaged.

Only a master knows what is confirmed, so only its samples count. After a truncation confirm_offset may be
above max_offset for a moment, which is not a lag but a defect of the sample; is_above_max() finds such rows.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from analytics.schema import GROUP
from analytics.windows import window_of

STEPS = 8
RANKS = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
UNITS = ("bytes", "ms")


def bucket(value: Column) -> Column:
    """Returns the bucket of a whole number >= 0."""
    return F.floor(F.log2(value + 1) * STEPS).cast("smallint")


def bucket_top(number: Column) -> Column:
    """Returns the largest whole number in a bucket."""
    return F.ceil(F.pow(F.lit(2.0), (number + 1) / STEPS)) - 2


def is_above_max() -> Column:
    """Returns the condition for a master's sample whose confirm_offset is above its max_offset."""
    return (F.col("role") == "master") & (F.col("confirm_offset") > F.col("max_offset"))


def lag_histogram(samples: DataFrame, window_ms: int) -> DataFrame:
    """Returns one row per group, window, unit and bucket: `n` samples; `worst` includes spikes between
    samples."""
    lag_bytes = F.col("max_offset") - F.col("confirm_offset")
    measured = F.array(
        _measured("bytes", lag_bytes, F.col("lag_bytes_max")),
        _measured("ms", F.greatest("lag_ms", F.lit(0)), F.col("lag_ms_max")),
    )
    return (
        samples.where((F.col("role") == "master") & ~is_above_max())
        .select(
            *GROUP, window_of(F.col("ts"), window_ms).alias("window_ts"), F.explode(measured).alias("lag")
        )
        .groupBy(
            *GROUP, "window_ts", F.col("lag.unit").alias("unit"), bucket(F.col("lag.value")).alias("bucket")
        )
        .agg(F.count("*").alias("n"), F.max("lag.worst").alias("worst"))
    )


def _measured(unit: str, value: Column, worst: Column) -> Column:
    return F.struct(F.lit(unit).alias("unit"), value.alias("value"), F.greatest(value, worst).alias("worst"))


def confirm_offset_lag(histogram: DataFrame) -> DataFrame:
    """Returns one row per group and window: samples, and p50, p95, p99 and max of bytes and ms.

    The percentile of rank q is the top of the first bucket up to which at least q of the samples lie, and
    never more than the worst value seen.
    """
    by_unit = Window.partitionBy(*GROUP, "window_ts", "unit")
    counted = histogram.withColumns(
        {
            "up_to": F.sum("n").over(by_unit.orderBy("bucket")),
            "total": F.sum("n").over(by_unit),
            "worst": F.max("worst").over(by_unit),
        }
    )
    columns = [F.max("total").alias("samples")]
    for unit in UNITS:
        of_unit = F.col("unit") == unit
        worst = F.max(F.when(of_unit, F.col("worst")))
        for name, rank in RANKS.items():
            reached = of_unit & (F.col("up_to") >= F.col("total") * rank)
            first = F.min(F.when(reached, F.col("bucket")))
            columns.append(F.least(bucket_top(first), worst).alias(f"{unit}_{name}"))
        columns.append(worst.alias(f"{unit}_max"))
    return counted.groupBy(*GROUP, "window_ts").agg(*columns)


def replica_lag(samples: DataFrame, window_ms: int) -> DataFrame:
    """Returns one row per group, replica and window: its greatest lag behind the master."""
    behind = F.greatest(F.col("max_offset") - F.col("replica.ack_offset"), F.lit(0))
    return (
        samples.where(F.col("role") == "master")
        .select(
            *GROUP,
            window_of(F.col("ts"), window_ms).alias("window_ts"),
            "max_offset",
            F.explode("replicas").alias("replica"),
        )
        .groupBy(*GROUP, F.col("replica.broker_id").alias("broker_id"), "window_ts")
        .agg(
            F.count("*").alias("samples"),
            F.max(behind).alias("bytes_max"),
            F.max("replica.lag_ms").alias("ms_max"),
            F.count_if(~F.col("replica.in_sync")).alias("samples_out"),
        )
    )


def min_in_sync_replicas(samples: DataFrame) -> DataFrame:
    """Returns the newest setting of each group, from its masters' samples."""
    newest = F.max_by("min_in_sync_replicas", "ts").alias("min_in_sync_replicas")
    return samples.where(F.col("role") == "master").groupBy(*GROUP).agg(newest)
