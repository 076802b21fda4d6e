"""Which samples are of the current master, and a number for each group's hour.

A master that was replaced goes on sampling until it hears of it; its numbers are right for its own log and
wrong for the group. A sample is stale if a higher masterEpoch began at or before its time. What is known of
that within an hour: the views in the controllers' events, snapshots among them, and the samples' own epochs.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from analytics.tables import GROUP
from analytics.windows import window_of

HOUR_MS = 3_600_000


def terms(master_samples: DataFrame, events: DataFrame) -> DataFrame:
    """Returns a row per group, hour and masterEpoch seen in it: GROUP, hour_ts, master_epoch, stale_from_ts,
    gid.

    `stale_from_ts`: from when on a sample with this epoch is stale; NULL: never. `gid`: 1, 2, ... for each
    group and hour; an aggregate over it costs half of one over names.
    """
    seen = master_samples.select(*GROUP, "ts", "master_epoch")
    before, after = (events.select(*GROUP, "ts", f"{view}.master_epoch") for view in ("before", "after"))
    began = (
        seen.unionByName(before)
        .unionByName(after)
        .where("master_epoch IS NOT NULL")
        .groupBy(*GROUP, hour_of(F.col("ts")).alias("hour_ts"), "master_epoch")
        .agg(F.min("ts").alias("began_ts"))
    )
    by_hour = Window.partitionBy(*GROUP, "hour_ts").orderBy(F.desc("master_epoch"))
    higher = by_hour.rowsBetween(Window.unboundedPreceding, -1)
    gid = F.dense_rank().over(Window.orderBy(*GROUP, "hour_ts"))
    return began.select(
        *GROUP,
        "hour_ts",
        "master_epoch",
        F.min("began_ts").over(higher).alias("stale_from_ts"),
        gid.cast("long").alias("gid"),
    )


def in_terms(samples: DataFrame, of: DataFrame) -> DataFrame:
    """Returns the samples with gid and is_stale in place of GROUP and master_epoch. `of`: of terms()."""
    on = [*GROUP, "hour_ts", "master_epoch"]
    joined = samples.withColumn("hour_ts", hour_of(F.col("ts"))).join(F.broadcast(of), on)
    is_stale = F.coalesce(F.col("ts") >= F.col("stale_from_ts"), F.lit(False))
    return joined.withColumn("is_stale", is_stale).drop("stale_from_ts", *on)


def with_names(rows: DataFrame, of: DataFrame) -> DataFrame:
    """Returns the rows with GROUP and hour_ts in place of gid."""
    names = of.select(*GROUP, "hour_ts", "gid").dropDuplicates(["gid"])
    return rows.join(F.broadcast(names), "gid").drop("gid")


def hour_of(ts: Column) -> Column:
    """Returns the start of the UTC hour that `ts` is in."""
    return window_of(ts, HOUR_MS)
