"""The replicas of a group per window, as its master sees them, and the lag of a replica that is down: it
keeps its last acknowledgement, so its lag grows."""

from collections.abc import Sequence

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from analytics.queries.windows import all_rows, in_widths, last_order, window_of
from analytics.tables import GROUP

_WINDOW = (*GROUP, "window", "window_ts", "broker_id")
_CARRIED = ("ms_max", "last_ack_offset", "last_ts")
REPLICA_COLUMNS = ("samples", "bytes_max", "ms_max", "samples_out", "last_ack_offset", "last_ts")


def replica_lag(samples: DataFrame, windows: Sequence[int]) -> DataFrame:
    """Returns a row per group, window and replica with a sample: GROUP, window (its width in ms), window_ts,
    broker_id, REPLICA_COLUMNS.

    `samples`: rows of replica_sample with is_stale. `windows`: widths in ms, ascending, each a multiple of
    the first.
    """
    behind = F.greatest(F.col("max_offset") - F.col("ack_offset"), F.lit(0))
    order = last_order()
    base = (
        samples.where("NOT is_stale")
        .groupBy(
            *GROUP,
            F.lit(windows[0]).alias("window"),
            window_of(F.col("ts"), windows[0]).alias("window_ts"),
            F.col("replica_id").alias("broker_id"),
        )
        .agg(
            F.count(F.lit(1)).alias("samples"),
            F.max(behind).alias("bytes_max"),
            F.max(F.coalesce("lag_ms", F.lit(0))).alias("ms_max"),
            F.sum(F.coalesce((~F.col("in_sync")).cast("bigint"), F.lit(0))).alias("samples_out"),
            F.max_by("ack_offset", order).alias("last_ack_offset"),
            F.max(order).alias("last"),
            F.max("ts").alias("last_ts"),
        )
    )
    wider = in_widths(base, windows[1:]).withColumn(
        "window_ts", window_of(F.col("window_ts"), F.col("window"))
    )
    found = base.unionByName(_summed(wider)) if windows[1:] else base
    return found.select(*_WINDOW, *REPLICA_COLUMNS)


def filled(lag: DataFrame, replicas: DataFrame) -> DataFrame:
    """Returns the rows of `replicas` and those of replicas that are down, with a column is_filled.

    `lag` and `replicas`: rows of lag() and replica_lag() of a whole run, of any widths. A row is added for
    each window, after a replica's first one, in which its group has a master and the replica has no sample:
    is_filled, samples 0. Its lag in bytes is the master's max_offset without the replica's last ack, and in
    ms its last one and the time since its last sample, up to the window's end. A window without a sample of
    the current master has no row.
    """
    group = (*GROUP, "window")
    masters = lag.where("max_offset IS NOT NULL").select(*group, "window_ts", "max_offset")
    first = replicas.groupBy(*group, "broker_id").agg(F.min("window_ts").alias("first_ts"))
    asked = masters.join(first, [*group]).where("window_ts >= first_ts").drop("first_ts")
    every = (
        all_rows([replicas.select(*_WINDOW, *REPLICA_COLUMNS), asked])
        .groupBy(*_WINDOW)
        .agg(*(F.max(name).alias(name) for name in (*REPLICA_COLUMNS, "max_offset")))
    )
    until = Window.partitionBy(*group, "broker_id").orderBy("window_ts")
    until = until.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    known = every.withColumns(
        {f"known_{name}": F.last(name, ignorenulls=True).over(until) for name in _CARRIED}
    )
    is_filled = F.col("samples").isNull()
    behind = F.greatest(F.col("max_offset") - F.col("known_last_ack_offset"), F.lit(0))
    waited = F.col("window_ts") + F.col("window") - F.col("known_last_ts")
    grown = F.when(behind == 0, 0).otherwise(F.col("known_ms_max") + waited)
    columns = {
        "samples": F.coalesce("samples", F.lit(0)),
        "bytes_max": F.when(is_filled, behind).otherwise(F.col("bytes_max")),
        "ms_max": F.when(is_filled, grown).otherwise(F.col("ms_max")),
        "samples_out": F.coalesce("samples_out", F.lit(0)),
        "last_ack_offset": F.col("known_last_ack_offset"),
        "last_ts": F.col("known_last_ts"),
    }
    return known.select(
        *_WINDOW,
        *(columns[name].cast("bigint").alias(name) for name in REPLICA_COLUMNS),
        is_filled.alias("is_filled"),
    )


def newest(replicas: DataFrame) -> DataFrame:
    """Returns the last row of each replica, which filled() needs for the windows that follow."""
    latest = Window.partitionBy(*GROUP, "window", "broker_id").orderBy(F.desc("window_ts"))
    return replicas.withColumn("_place", F.row_number().over(latest)).where("_place = 1").drop("_place")


def _summed(rows: DataFrame) -> DataFrame:
    """Returns the totals of wider windows."""
    highest = ("bytes_max", "ms_max", "last", "last_ts")
    return rows.groupBy(*_WINDOW).agg(
        *(F.sum(name).alias(name) for name in ("samples", "samples_out")),
        *(F.max(name).alias(name) for name in highest),
        F.max_by("last_ack_offset", "last").alias("last_ack_offset"),
    )
