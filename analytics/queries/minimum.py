"""min_in_sync_replicas in an hour: at its beginning, and every change of it."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from analytics.tables import GROUP

_HOUR = (*GROUP, "hour_ts")


def minimum(samples: DataFrame) -> DataFrame:
    """Returns GROUP, window_ts (of the sample), min_in_sync_replicas of each group's first sample in an hour
    and of those that differ from the one in front.

    `samples`: rows of master_sample with hour_ts and is_stale. A sample without a minimum, of an older
    broker, is not used; neither is one of a replaced master.
    """
    known = samples.where("NOT is_stale AND min_in_sync_replicas IS NOT NULL").select(
        *_HOUR, "ts", "broker_id", "min_in_sync_replicas"
    )
    # Few hours have a change: only their samples are sorted.
    value = F.col("min_in_sync_replicas")
    hours = known.groupBy(*_HOUR).agg(
        F.min("ts").alias("window_ts"), F.min(value).alias("least"), F.max(value).alias("most")
    )
    constant = hours.where("least = most").select(
        *GROUP, "window_ts", F.col("least").alias("min_in_sync_replicas")
    )
    before = F.lag("min_in_sync_replicas").over(Window.partitionBy(*_HOUR).orderBy("ts", "broker_id"))
    changed = (
        known.join(F.broadcast(hours.where("least < most").select(*_HOUR)), [*_HOUR], "leftsemi")
        .withColumn("before", before)
        .where("before IS NULL OR before <> min_in_sync_replicas")
        .select(*GROUP, F.col("ts").alias("window_ts"), "min_in_sync_replicas")
    )
    return constant.unionByName(changed)
