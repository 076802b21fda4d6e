"""What a group's master knows of its replicas per window, and the lag of a replica that is down."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from analytics.tables import GROUP
from analytics.windows import at_of


def replica_counts(samples: DataFrame, base_ms: int) -> DataFrame:
    """Returns one row per gid, at and replica. `samples`: rows of replica_sample by in_terms().

    Samples of a replaced master are left out; a window with no others has no row.
    """
    behind = F.greatest(F.col("max_offset") - F.col("ack_offset"), F.lit(0))
    last = F.col("ts") * 1024 + F.pmod("broker_id", F.lit(1024))
    return (
        samples.where(~F.col("is_stale"))
        .groupBy("gid", at_of(F.col("ts"), base_ms).alias("at"), F.col("replica_id").alias("broker_id"))
        .agg(
            F.count("*").alias("samples"),
            F.max(behind).alias("bytes_max"),
            F.max("lag_ms").alias("ms_max"),
            F.count_if(~F.col("in_sync")).alias("samples_out"),
            F.max_by("ack_offset", last).alias("last_ack_offset"),
            F.max("ts").alias("last_ts"),
        )
    )


def replica_lag(base: DataFrame, window_ms: int, base_ms: int) -> DataFrame:
    """Returns gid, window, at and the columns of the table, from windows of `base_ms`."""
    at = F.expr(f"at div {window_ms // base_ms}").alias("at")
    wide = base.groupBy("gid", at, "broker_id").agg(
        F.sum("samples").alias("samples"),
        F.max("bytes_max").alias("bytes_max"),
        F.max("ms_max").alias("ms_max"),
        F.sum("samples_out").alias("samples_out"),
        F.max_by("last_ack_offset", "last_ts").alias("last_ack_offset"),
        F.max("last_ts").alias("last_ts"),
    )
    return wide.withColumn("window", F.lit(window_ms))


def replica_lag_filled(lag: DataFrame, replicas: DataFrame, window_ms: int) -> DataFrame:
    """Returns the rows of `replicas` (the table replica_lag), and one for each later window in which its
    group has a master and the replica has no sample: `is_filled`, `samples` 0.

    A replica that is down keeps its last acknowledgement, so its lag in bytes grows with its master's
    max_offset, and in ms with the time since its last sample, up to the window's end. A window without a
    sample of the current master has no row. `lag`: the table of the same windows, over all hours of a run.
    """
    first = replicas.groupBy(*GROUP, "broker_id").agg(F.min("window_ts").alias("first_ts"))
    masters = lag.where("max_offset IS NOT NULL").select(*GROUP, "window_ts", "max_offset")
    expected = masters.join(first, list(GROUP)).where("window_ts >= first_ts").drop("first_ts")
    every = expected.join(replicas, [*GROUP, "broker_id", "window_ts"], "full")
    before = (
        Window.partitionBy(*GROUP, "broker_id")
        .orderBy("window_ts")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    known = every.withColumn("is_filled", F.col("samples").isNull()).withColumns(
        {
            name: F.last(name, ignorenulls=True).over(before)
            for name in ("last_ack_offset", "last_ts", "ms_max")
        }
    )
    behind = F.greatest(F.col("max_offset") - F.col("last_ack_offset"), F.lit(0))
    waited = F.col("window_ts") + window_ms - F.col("last_ts")
    is_filled = F.col("is_filled")
    return known.select(
        *GROUP,
        "broker_id",
        "window_ts",
        F.coalesce("samples", F.lit(0)).alias("samples"),
        F.when(is_filled, behind).otherwise(F.col("bytes_max")).alias("bytes_max"),
        F.when(is_filled & (behind == 0), 0)
        .when(is_filled, F.col("ms_max") + waited)
        .otherwise(F.col("ms_max"))
        .alias("ms_max"),
        F.coalesce("samples_out", F.lit(0)).alias("samples_out"),
        "last_ack_offset",
        "last_ts",
        "is_filled",
    )
