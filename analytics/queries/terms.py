"""Which samples are of the current master.

A master that was replaced continues sampling until it is notified; its numbers are right for its own log and
wrong for the group. A sample is stale if a higher masterEpoch began at or before its time. The evidence
within an hour: the views in the controllers' events and snapshots, and the samples' own epochs. An epoch that
is seen in the first EARLY_MS of an hour, in which no election began it, is of the hour before.

Controllers that are built anew count from 1 again, in a log with another name. Only events name their log. A
sample is of the newest log that has named its epoch by then, else of the first; every epoch of a newer log is
higher than all of an older one. A log without a sample does not count: it is left over, or the brokers run on
with the epochs of the log before. Lines of older writers name no log. In an hour with one log, which is
nearly every one, nothing changes.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from analytics.queries.windows import HOUR_MS, window_of
from analytics.tables import GROUP

EARLY_MS = 3_000
"""Each master samples once a second, and controllers write their snapshots as late."""
_HOUR = (*GROUP, "hour_ts")
_EPOCH = (*_HOUR, "master_epoch")


def terms(samples: DataFrame, events: DataFrame) -> DataFrame:
    """Returns the terms of masters in each hour of a group: GROUP, hour_ts, master_epoch, place, from_ts,
    to_ts, stale_from_ts.

    `samples`: rows of master_sample with hour_ts. `events`: rows of controller_event. `place`: of the log,
    from 0. A sample with this epoch is of the term if it is in [from_ts, to_ts), where NULL is no bound, and
    stale at or after stale_from_ts; NULL: it is not stale in this hour. One small row per term: keep them.
    """
    seen = _seen_in_events(events)
    every = _seen_in_samples(samples, seen).unionByName(seen.drop("to_ts"))
    last_ts = F.max("last_ts").over(Window.partitionBy(*_EPOCH))
    is_hit = F.col("is_of_log") & F.coalesce(last_ts >= F.col("first_ts"), F.lit(False))
    is_sampled = F.max(F.col("is_hit").cast("int")).over(Window.partitionBy(*_HOUR, "log_id")) == 1
    counts = ~F.col("is_of_log") | F.col("is_sampled")
    found = (
        every.withColumn("is_hit", is_hit)
        .withColumn("is_sampled", is_sampled)
        .groupBy(*_EPOCH, "place")
        .agg(
            F.min(F.when(counts, F.col("first_ts"))).alias("first_ts"),
            F.max(F.when(counts, F.col("elected"))).alias("elected"),
            F.min(F.when(F.col("is_of_log") & (F.col("place") > 0), F.col("first_ts"))).alias("from_ts"),
        )
        .withColumn("to_ts", _least_after("from_ts", _EPOCH, "place"))
        .where("first_ts IS NOT NULL")
    )
    is_early = (F.col("first_ts") - F.col("hour_ts") < EARLY_MS) & (F.col("elected") == 0)
    began = F.when(is_early, F.col("hour_ts")).otherwise(F.col("first_ts"))
    stale_from = _least_after("began_ts", _HOUR, "place", "master_epoch")
    return (
        found.withColumn("began_ts", began)
        .withColumn("stale_from_ts", stale_from)
        .select(*_EPOCH, "place", "from_ts", "to_ts", "stale_from_ts")
    )


def current(samples: DataFrame, terms: DataFrame) -> DataFrame:
    """Returns samples with a column is_stale: master_sample or replica_sample, with hour_ts.

    A sample whose masterEpoch is of no term is left out: only a replica's sample can have such an epoch.
    """
    term = terms.select(
        *(F.col(each).alias(f"term_{each}") for each in (*_EPOCH, "from_ts", "to_ts", "stale_from_ts"))
    )
    same = [F.col(each) == F.col(f"term_{each}") for each in _EPOCH]
    same += _is_in(F.col("ts"), F.col("term_from_ts"), F.col("term_to_ts"))
    is_stale = F.coalesce(F.col("ts") >= F.col("term_stale_from_ts"), F.lit(False))
    return samples.join(F.broadcast(term), same).select(
        *(F.col(each) for each in samples.columns), is_stale.alias("is_stale")
    )


def _seen_in_events(events: DataFrame) -> DataFrame:
    """Returns when each log named an epoch first: _EPOCH, log_id, place, is_of_log, first_ts, last_ts,
    elected, to_ts. `is_of_log`: whether the hour has several logs and the row is of one of them."""
    events = events.withColumn("hour_ts", window_of(F.col("ts"), HOUR_MS))
    # The embedded engine reads a field of a STRUCT that is NULL as 0 if the rows came from an Arrow table.
    before, after = (
        F.when(F.col(view).isNotNull(), F.col(f"{view}.master_epoch")) for view in ("before", "after")
    )
    begins = F.when(before < after, 1).otherwise(0)  # a snapshot has no view before
    log = F.coalesce("log_id", F.lit("")).alias("log_id")
    views = [
        events.select(*_HOUR, "ts", log, epoch.alias("master_epoch"), elected.alias("elected"))
        for epoch, elected in ((before, F.lit(0)), (after, begins))
    ]
    is_named = (F.col("log_id") != "") & (F.col("master_epoch") > 0)  # 0: without a master
    began = F.min("first_ts").over(Window.partitionBy(*_HOUR, "log_id", "is_named"))
    order = Window.partitionBy(*_HOUR, "is_named").orderBy("began_ts", "log_id")
    place = F.when(F.col("is_named"), F.dense_rank().over(order) - 1).otherwise(0)
    is_of_log = F.col("is_named") & (F.max("place").over(Window.partitionBy(*_HOUR)) > 0)
    return (
        views[0]
        .unionByName(views[1])
        .where("master_epoch IS NOT NULL")
        .groupBy(*_EPOCH, "log_id")
        .agg(
            F.min("ts").alias("first_ts"),
            F.max("elected").alias("elected"),
        )
        .withColumn("last_ts", F.lit(None).cast("bigint"))
        .withColumn("is_named", is_named)
        .withColumn("began_ts", began)
        .withColumn("place", place)
        .withColumn("is_of_log", is_of_log)
        .withColumn("to_ts", _least_after("first_ts", (*_EPOCH, "is_named"), "place"))
        .drop("is_named", "began_ts")
    )


def _seen_in_samples(samples: DataFrame, seen: DataFrame) -> DataFrame:
    """Returns the columns of `seen` but to_ts, of samples: from when to when each epoch of a log was
    sampled."""
    newer = seen.where("is_of_log AND place > 0").select(
        *(F.col(each).alias(f"log_{each}") for each in (*_EPOCH, "place", "first_ts", "to_ts"))
    )
    same = [F.col(each) == F.col(f"log_{each}") for each in _EPOCH]
    same += _is_in(F.col("ts"), F.col("log_first_ts"), F.col("log_to_ts"))
    return (
        samples.select(*_EPOCH, "ts")
        .join(F.broadcast(newer), same, "left")
        .groupBy(*_EPOCH, F.coalesce("log_place", F.lit(0)).alias("place"))
        .agg(F.min("ts").alias("first_ts"), F.max("ts").alias("last_ts"))
        .withColumns({"log_id": F.lit(None).cast("string"), "is_of_log": F.lit(False), "elected": F.lit(0)})
    )


def _is_in(ts: Column, from_ts: Column, to_ts: Column) -> list[Column]:
    return [from_ts.isNull() | (ts >= from_ts), to_ts.isNull() | (ts < to_ts)]


def _least_after(name: str, keys: tuple[str, ...], *order: str) -> Column:
    """Returns the least value of a column in the rows behind this one, of equal keys."""
    behind = Window.partitionBy(*keys).orderBy(*order).rowsBetween(1, Window.unboundedFollowing)
    return F.min(name).over(behind)
