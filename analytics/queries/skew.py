"""By how much a broker's clock differs from the active controller's: measured, else bounded by causality.

`offset_ms` is what must be added to a broker's time to get the controller's. Clocks drift and step, so it
holds for a piece of time only.

* clock_sample: controllers compare each heartbeat. The least offset of a piece counts: the others had a
  longer way. A piece ends where the offset steps by STEP_MS, another controller is active, or the hour ends.
* bounds: a role change of epoch e came after the election of e, and, as a master's first one, before the
  first change of the SyncStateSet that it asked for. Thus an offset lies between two limits, in an hour.

A producer's clock is never known.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from analytics.compaction.times import STEP_MS
from analytics.queries.event_log import HOUR_MS
from analytics.queries.windows import all_rows, window_of
from analytics.tables import GROUP

SAMPLE_MS = 60_000
"""A clock sample covers this much time before its ts."""
REACH_MS = 180_000
"""A piece is not used for a moment farther away than this."""
SKEW_MAX_MS = 60_000
"""Without samples, a record that far before its cause belongs to something else."""
UNCERTAIN_MAX_MS = 500
"""Limits farther apart than this are not used for corrections."""
ASKED_SLACK_MS = 100
"""A new master may ask for a change of the SyncStateSet this long before it writes that it is ready."""


def clock_pieces(samples: DataFrame, *, from_ts: int | None = None, to_ts: int | None = None) -> DataFrame:
    """Returns one row per broker and piece of time [from_ts, to_ts], within an hour (hour_ts).

    offset_ms, samples, uncertain_ms (what the samples differ by), controller_id. An hour's pieces depend on
    that hour's samples alone.
    """
    of_time = samples.where(F.col("ts") >= from_ts) if from_ts is not None else samples
    of_time = of_time.where(F.col("ts") < to_ts) if to_ts is not None else of_time
    timed = of_time.withColumn("hour_ts", window_of(F.col("ts"), HOUR_MS))
    in_order = Window.partitionBy(*GROUP, "broker_id", "hour_ts").orderBy("ts", "controller_id", "offset_ms")
    stepped = (F.lag("controller_id").over(in_order) != F.col("controller_id")) | (
        F.abs(F.col("offset_ms") - F.lag("offset_ms").over(in_order)) > STEP_MS
    )
    return (
        timed.withColumn("_begins", F.coalesce(stepped, F.lit(False)).cast("int"))
        .withColumn("_piece", F.sum("_begins").over(in_order))
        .groupBy(*GROUP, "broker_id", "hour_ts", "controller_id", "_piece")
        .agg(
            (F.min("ts") - SAMPLE_MS).alias("from_ts"),
            F.max("ts").alias("to_ts"),
            F.min("offset_ms").alias("offset_ms"),
            F.count("*").alias("samples"),
            (F.max("offset_ms") - F.min("offset_ms")).alias("uncertain_ms"),
        )
        .drop("_piece")
    )


def clock_bounds(elections: DataFrame, role_changes: DataFrame) -> DataFrame:
    """Returns one row per broker and hour with a role change: least_ms, most_ms (NULL: no upper limit),
    samples (role changes), offset_ms and uncertain_ms if the limits are close.

    `elections`: see failover.elections(); elected_ts, until_ts, asked_ts. `role_changes`: with own_ts, if
    their ts is corrected: limits are about the broker's own clock, hours and elections about the
    controllers'.
    """
    own = F.col("own_ts") if "own_ts" in role_changes.columns else F.col("ts")
    columns = (*GROUP, "broker_id", "role", "master_epoch", F.col("ts").alias("_ts"), own.alias("_own"))
    pairs = role_changes.select(*columns).join(elections, [*GROUP, "master_epoch"])
    pairs = pairs.where(_is_near(F.col("_ts")))
    is_ready = (F.col("role") == "master") & (F.col("broker_id") == F.col("master_broker_id"))
    first_ts = F.min(F.when(is_ready, F.col("_ts"))).over(Window.partitionBy(*GROUP, "n"))
    most = F.when(is_ready & (F.col("_ts") == first_ts), F.col("asked_ts") - F.col("_own") + ASKED_SLACK_MS)
    found = (
        pairs.withColumn("_most", most)
        .groupBy(*GROUP, "broker_id", window_of(F.col("_ts"), HOUR_MS).alias("hour_ts"))
        .agg(
            F.max(F.col("elected_ts") - F.col("_own")).alias("least_ms"),
            F.min("_most").alias("most_ms"),
            F.count("*").alias("samples"),
        )
    )
    least, most = F.col("least_ms"), F.col("most_ms")
    is_close = (most - least).between(0, UNCERTAIN_MAX_MS)
    return found.withColumns(
        {
            "offset_ms": F.when(is_close, F.floor((least + most) / 2)),
            "uncertain_ms": F.when(is_close, F.ceil((most - least) / 2)),
        }
    )


def clock_skew(pieces: DataFrame, bounds: DataFrame) -> DataFrame:
    """Returns one row per broker and piece of time: offset_ms (NULL: unknown), samples, uncertain_ms,
    source: "clock_sample", or, for hours without any, "bounds" with least_ms and most_ms."""
    measured = pieces.select(*GROUP, "broker_id", "hour_ts").distinct()
    only_bounds = bounds.join(measured, [*GROUP, "broker_id", "hour_ts"], "left_anti").withColumns(
        {
            "from_ts": F.col("hour_ts"),
            "to_ts": F.col("hour_ts") + HOUR_MS,
            "source": F.lit("bounds"),
        }
    )
    return all_rows(
        [pieces.withColumn("source", F.lit("clock_sample")), only_bounds], strings=["controller_id"]
    ).select(
        *GROUP, "broker_id", "from_ts", "to_ts", "offset_ms", "uncertain_ms", "samples", "source",
        "controller_id", "least_ms", "most_ms",
    )  # fmt: skip


def ready_moments(
    elections: DataFrame, role_changes: DataFrame, pieces: DataFrame, bounds: DataFrame
) -> DataFrame:
    """Returns one row per election that has a role change of its master: ready_ts, by the controller's clock,
    and uncertain_ms.

    Where pieces are near, one of them must put the role change into the time of the master, and those that
    do must agree. Else the broker's time counts as it is if the bounds allow that, or corrected by them.
    ready_ts NULL: the clocks contradict each other. uncertain_ms NULL: nothing shows the offset.
    """
    ready = role_changes.where("role = 'master'").select(
        *GROUP, F.col("broker_id").alias("master_broker_id"), "master_epoch", F.col("ts").alias("_ts")
    )
    pairs = elections.join(ready, [*GROUP, "master_broker_id", "master_epoch"]).select(
        *GROUP, "n", "elected_ts", "until_ts", "master_broker_id", "_ts"
    )
    near = pieces.select(
        *GROUP,
        F.col("broker_id").alias("master_broker_id"),
        *(F.col(name).alias(f"_{name}") for name in ("from_ts", "to_ts", "offset_ms", "uncertain_ms")),
    )
    moment = F.col("_ts") + F.col("_offset_ms")
    distance = F.greatest(F.col("_from_ts") - moment, moment - F.col("_to_ts"), F.lit(0))
    tolerance = F.col("_uncertain_ms") + 5
    fits = (moment >= F.col("elected_ts") - tolerance) & (
        moment <= F.coalesce(F.col("until_ts") + tolerance, moment)
    )
    usable = F.col("_offset_ms").isNotNull() & (distance <= REACH_MS)  # greatest() skips NULL
    of_fitting = F.when(usable & fits, F.col("_offset_ms"))
    nearest = F.struct(distance.alias("distance"), moment.alias("moment"), F.col("_uncertain_ms").alias("ms"))
    measured = (
        pairs.join(near, [*GROUP, "master_broker_id"], "left")
        .groupBy(*GROUP, "n", "elected_ts", "until_ts", "master_broker_id", "_ts")
        .agg(
            F.count_if(usable).alias("_pieces"),
            (F.max(of_fitting) - F.min(of_fitting)).alias("_spread"),
            F.min(F.when(usable & fits, nearest)).alias("_nearest"),
        )
    )
    of_hour = bounds.select(
        *GROUP, F.col("broker_id").alias("master_broker_id"), "hour_ts", "least_ms", "most_ms", "offset_ms",
        "uncertain_ms",
    )  # fmt: skip
    judged = (
        measured.withColumn("hour_ts", window_of(F.col("_ts"), HOUR_MS))
        .join(of_hour, [*GROUP, "master_broker_id", "hour_ts"], "left")
        .where(
            (F.col("_pieces") > 0) & F.col("_nearest").isNotNull()
            | (F.col("_pieces") == 0) & _is_near(F.col("_ts"))
        )
    )
    return _earliest(judged)


def _earliest(pairs: DataFrame) -> DataFrame:
    agree = F.coalesce(F.col("_spread") <= STEP_MS, F.lit(False))
    may_be_equal = (F.col("least_ms") <= 0) & (F.coalesce("most_ms", F.lit(0)) >= 0)
    is_measured = F.col("_pieces") > 0
    moment = (
        F.when(is_measured, F.when(agree, F.col("_nearest.moment")))
        .when(may_be_equal, F.col("_ts"))
        .otherwise(F.col("_ts") + F.col("offset_ms"))
    )
    uncertain = F.when(is_measured, F.when(agree, F.col("_nearest.ms"))).when(
        ~may_be_equal, F.col("uncertain_ms")
    )
    first = Window.partitionBy(*GROUP, "n").orderBy("_ts")
    return (
        pairs.withColumn("_first", F.row_number().over(first))
        .where("_first = 1")
        .select(
            *GROUP,
            "n",
            F.when(moment.isNotNull(), F.greatest(moment, F.col("elected_ts"))).alias("ready_ts"),
            uncertain.alias("ready_uncertain_ms"),
        )
    )


def _is_near(ts: Column) -> Column:
    """Returns whether a role change can belong to an election by a clock whose offset is unknown."""
    return ts.between(F.col("elected_ts") - SKEW_MAX_MS, F.coalesce(F.col("until_ts") + SKEW_MAX_MS, ts))
