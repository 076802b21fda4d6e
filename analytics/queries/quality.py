"""Counts of read records and of faults in them, so that a page can explain its gaps."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from analytics.queries.skew import SKEW_MAX_MS
from analytics.queries.windows import all_rows
from analytics.tables import GROUP

_EVER = 1 << 53

READ = ("rows", "duplicates", "bad_lines", "outliers", "unread_files")
"""Counts of compaction, per kind of record."""
READ_SCHEMA = f"record string, {', '.join(f'{name} bigint' for name in READ)}, from_ts bigint, to_ts bigint"
"""What job.py passes, summed up from the manifests of the run's hours; outliers: rows of left-out hours."""
FOUND = (
    "stale_master", "confirm_above_max", "epoch_gaps", "logs", "unknown_ms", "skew_max_ms", "skew_unknown",
)  # fmt: skip
"""The columns with findings about a group."""


def data_quality(
    read: DataFrame,
    lag: DataFrame,
    history: DataFrame,
    spans: DataFrame,
    skew: DataFrame,
    stale_roles: DataFrame,
) -> DataFrame:
    """Returns one row per kind of record with what compaction counted (group NULL), and one per kind and
    group with what was found in it. A count that does not apply to a row is NULL.

    ha_sample: stale_master and confirm_above_max, samples that were left out, by hours of the roll-up `lag`.
    role_change: stale_master. controller_event: epoch_gaps (places where events are missing), logs (1: the
    controllers were never built anew), unknown_ms. clock_sample: skew_max_ms, the largest offset, and
    skew_unknown, brokers whose role changes contradict the controllers' clock by an unknown offset.
    """
    frames = [
        read.select("record", *READ, "from_ts", "to_ts"),
        _found(lag, "ha_sample", stale_master=F.sum("stale_master"), confirm_above_max=F.sum("above_max")),
        _found(stale_roles, "role_change", stale_master=F.count("*")),
        _found(
            history,
            "controller_event",
            epoch_gaps=F.count_if("is_gap"),
            logs=F.count_if("is_restart") + 1,
            from_ts=F.min("ts"),
            to_ts=F.max("ts"),
        ),
        _found(
            spans.where("view IS NULL"),
            "controller_event",
            unknown_ms=F.sum(F.col("to_ts") - F.col("from_ts")),
        ),
        _found(
            skew,
            "clock_sample",
            skew_max_ms=F.max(F.abs("offset_ms")),
            skew_unknown=F.count_distinct(F.when(_is_contradiction(), F.col("broker_id"))),
        ),
    ]
    return (
        all_rows(frames, strings=GROUP)
        .groupBy("record", *GROUP)
        .agg(
            *(F.sum(name).alias(name) for name in (*READ, *FOUND)),
            F.min("from_ts").alias("from_ts"),
            F.max("to_ts").alias("to_ts"),
        )
    )


def stale_role_changes(elected: DataFrame, role_changes: DataFrame) -> DataFrame:
    """Returns role changes to master of an epoch of the group in which that broker was not, or no longer, its
    master: those of a master that was cut off.

    `elected`: see failover.elections().
    """
    ts = F.col("_ts")
    of_epoch = elected.select(*GROUP, "master_epoch").distinct()
    masters = role_changes.where("role = 'master'").withColumnRenamed("ts", "_ts")
    reigns = elected.select(
        *GROUP,
        "master_epoch",
        F.col("master_broker_id").alias("broker_id"),
        F.coalesce(F.col("until_ts") + SKEW_MAX_MS, F.lit(_EVER)).alias("_until_ts"),
    )
    last = reigns.groupBy(*GROUP, "master_epoch", "broker_id").agg(F.max("_until_ts").alias("_until_ts"))
    return (
        masters.join(of_epoch, [*GROUP, "master_epoch"], "left_semi")
        .join(last, [*GROUP, "master_epoch", "broker_id"], "left")
        .where(F.col("_until_ts").isNull() | (ts > F.col("_until_ts")))
        .drop("_until_ts")
        .withColumnRenamed("_ts", "ts")
    )


def _is_contradiction() -> Column:
    """Returns whether the limits of an unknown offset exclude 0."""
    return (
        (F.col("source") == "bounds")
        & F.col("offset_ms").isNull()
        & ((F.col("least_ms") > 0) | (F.col("most_ms") < 0))
    )


def _found(rows: DataFrame, record: str, **counts: Column) -> DataFrame:
    return (
        rows.groupBy(*GROUP)
        .agg(*(each.alias(name) for name, each in counts.items()))
        .withColumn("record", F.lit(record))
    )
