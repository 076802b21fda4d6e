"""The fail-over table: each election that replaced a master, its three parts, and the gap that a producer
saw.

    fault ── detect_ms ──► detected ── elect_ms ──► elected ── ready_ms ──► takes messages

When the fault happened is known from a producer's send_gap, if there is one; else the last heartbeat stands
for it, which the master may have survived by up to a heartbeat interval.

Three programs' clocks are compared: what they disagree by never makes a part negative.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from analytics.schema import GROUP
from analytics.sync_state_set import CLEAN, ELECT

CLOCK_SLACK_MS = 1_000


def failovers(history: DataFrame, role_changes: DataFrame, send_gaps: DataFrame) -> DataFrame:
    """Returns one row per fail-over. The first election of a group is not one."""
    elected = _replacements(history)
    ready = (
        role_changes.where("role = 'master'")
        .groupBy(*GROUP, F.col("broker_id").alias("new_master"), "master_epoch")
        .agg(F.min("ts").alias("ready_ts"))
    )
    seen = _seen_by_producers(elected, send_gaps)
    return (
        elected.join(ready, [*GROUP, "new_master", "master_epoch"], "left")
        .join(seen, [*GROUP, "event_id"], "left")
        .withColumns(
            {
                "detect_ms": _between(F.coalesce("fault_ts", "last_heartbeat_ts"), F.col("detected_ts")),
                "elect_ms": _between(F.col("detected_ts"), F.col("elected_ts")),
                "ready_ms": _between(F.col("elected_ts"), F.col("ready_ts")),
            }
        )
    )


def _replacements(history: DataFrame) -> DataFrame:
    """Returns the elections of groups that had a master before.

    While nobody could be elected the master was cleared: who it was, and when it was lost, stands in the
    events in front.
    """
    earlier = (
        Window.partitionBy(*GROUP)
        .orderBy("event_id")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow - 1)
    )
    cleared = F.col("type").isin(ELECT, CLEAN) & F.col("after.master_broker_id").isNull()
    loss = F.when(cleared, F.struct("last_heartbeat_ts", "detected_ts"))
    was_cleared = F.col("before.master_broker_id").isNull()
    found = history.withColumns(
        {
            "old_master": F.coalesce(
                "before.master_broker_id", F.last("after.master_broker_id", ignorenulls=True).over(earlier)
            ),
            "loss": F.when(was_cleared, F.last(loss, ignorenulls=True).over(earlier)),
        }
    )
    new_master = F.col("after.master_broker_id")
    return found.where(
        (F.col("type") == ELECT)
        & new_master.isNotNull()
        & (F.col("before.master_epoch") > 0)
        & ~new_master.eqNullSafe(F.col("before.master_broker_id"))
    ).select(
        *GROUP,
        "event_id",
        "ts",
        "old_master",
        new_master.alias("new_master"),
        "after.master_epoch",
        "reason",
        "unclean",
        F.coalesce("last_heartbeat_ts", "loss.last_heartbeat_ts").alias("last_heartbeat_ts"),
        F.coalesce("detected_ts", "loss.detected_ts").alias("detected_ts"),
        F.col("ts").alias("elected_ts"),
    )


def _seen_by_producers(elected: DataFrame, send_gaps: DataFrame) -> DataFrame:
    """Returns the send gap of each fail-over: the nearest one with the same lost master around the
    election."""
    gaps = send_gaps.select(
        *GROUP,
        F.col("broker_id").alias("old_master"),
        F.col("program").alias("killed_program"),
        "gap_ms",
        (F.col("started_ts") - CLOCK_SLACK_MS).alias("earliest"),
        (F.col("ts") + CLOCK_SLACK_MS).alias("latest"),
        "started_ts",
    )
    pairs = (
        elected.join(gaps, [*GROUP, "old_master"])
        .where("elected_ts BETWEEN earliest AND latest")
        .withColumn("distance", F.abs(F.col("elected_ts") - F.col("started_ts")))
    )
    of_gap = Window.partitionBy(*GROUP, "old_master", "started_ts", "killed_program", "gap_ms")
    of_election = Window.partitionBy(*GROUP, "event_id")
    return (
        pairs.withColumn("near_gap", F.row_number().over(of_gap.orderBy("distance", "event_id")))
        .where("near_gap = 1")
        .withColumn("near_election", F.row_number().over(of_election.orderBy("distance", F.desc("gap_ms"))))
        .where("near_election = 1")
        .select(*GROUP, "event_id", F.col("started_ts").alias("fault_ts"), "killed_program", "gap_ms")
    )


def _between(start: Column, end: Column) -> Column:
    """Returns the difference; NULL if one of the moments is not known."""
    passed = end - start
    return F.when(passed.isNotNull(), F.greatest(passed, F.lit(0)))
