"""The fail-over table: each election that replaced a master, its three parts, and the gap that a producer
saw.

    fault ── detect_ms ──► detected ── elect_ms ──► elected ── ready_ms ──► takes messages

When the fault happened is known from a producer's send_gap, if there is one; else the time of the last
heartbeat is used, which the master may have survived by up to a heartbeat interval.

Three programs' clocks are compared. Controllers' and brokers' clocks are aligned (skew.py, and here). A
producer's clock is unknown: its gap is a duration and stays valid, but its fault_ts counts only if it lies
between the last heartbeat and the detection. A part is NULL if a moment is not known, or if the moments
contradict each other. It is never negative, and never 0 instead of unknown.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from analytics.queries.event_log import ALTER, CLEAN, ELECT
from analytics.queries.skew import clock_bounds, ready_moments
from analytics.queries.sync_state_set import is_election
from analytics.tables import GROUP

HEARTBEAT_SLACK_MS = 1_000
"""A heartbeat may be on its way, or a fault may take effect, for this long."""
PRODUCER_SKEW_MS = 10_000
"""A producer's clock may differ from the controllers' by this much; if it differs by more, its gap belongs to
no fail-over."""

_REIGN = ("log", "master_broker_id", "master_epoch")


def elections(history: DataFrame) -> DataFrame:
    """Returns one row per broker that became master, in the order of `n`.

    elected_ts; until_ts: when that master was replaced or cleared (NULL: it was not); asked_ts: its first
    change of the SyncStateSet (NULL: it asked for none); old_master, last_heartbeat_ts and detected_ts.
    While no broker could be elected, the group had no master: the events before it name the lost master and
    the time of its loss.
    """
    in_order = Window.partitionBy(*GROUP).orderBy("n")
    earlier = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow - 1)
    after, before = F.col("after"), F.col("before")
    is_clearing = after.master_broker_id.isNull() & before.master_broker_id.isNotNull()
    nothing = F.struct(
        *(F.lit(None).cast("bigint").alias(name) for name in ("last_heartbeat_ts", "detected_ts"))
    )
    loss = F.when(is_clearing, F.struct("last_heartbeat_ts", "detected_ts")).when(
        after.master_broker_id.isNotNull(), nothing
    )
    asked = (
        history.where(F.col("type") == ALTER)
        .groupBy(
            *GROUP,
            "log",
            after.master_broker_id.alias("master_broker_id"),
            after.master_epoch.alias("master_epoch"),
        )
        .agg(F.min("ts").alias("asked_ts"))
    )
    changes_master = F.col("type").isin(ELECT, CLEAN) & (
        ~after.master_broker_id.eqNullSafe(before.master_broker_id)
        | ~after.master_epoch.eqNullSafe(before.master_epoch)
    )
    was_master = F.coalesce(after.master_broker_id, before.master_broker_id)
    was_cleared = before.master_broker_id.isNull()
    return (
        history.where(changes_master | F.col("is_restart"))
        .withColumns(
            {
                "until_ts": F.lead("ts").over(in_order),
                "old_master": F.coalesce(
                    before.master_broker_id, F.last(was_master, ignorenulls=True).over(earlier)
                ),
                "loss": F.when(was_cleared, F.last(loss, ignorenulls=True).over(earlier)),
            }
        )
        .where(is_election())
        .select(
            *GROUP,
            "n",
            "log",
            "event_id",
            "ts",
            "from_ts",
            "old_master",
            after.master_broker_id.alias("master_broker_id"),
            after.master_epoch.alias("master_epoch"),
            "reason",
            "unclean",
            F.coalesce("last_heartbeat_ts", "loss.last_heartbeat_ts").alias("last_heartbeat_ts"),
            F.coalesce("detected_ts", "loss.detected_ts").alias("detected_ts"),
            F.col("ts").alias("elected_ts"),
            "until_ts",
            (before.master_epoch > 0).alias("had_master"),
        )
        .join(asked, [*GROUP, *_REIGN], "left")
    )


def with_ready(elected: DataFrame, role_changes: DataFrame, pieces: DataFrame) -> DataFrame:
    """Returns the elections with ready_ts and ready_uncertain_ms: see skew.ready_moments()."""
    bounds = clock_bounds(elected, role_changes)
    ready = ready_moments(elected, role_changes, pieces, bounds)
    return elected.join(ready, [*GROUP, "n"], "left")


def failovers(ready: DataFrame, send_gaps: DataFrame) -> DataFrame:
    """Returns one row per fail-over. The first election of a group is not one. `ready`: see with_ready()."""
    replaced = ready.where("had_master").withColumnRenamed("master_broker_id", "new_master")
    seen = _seen_by_producers(replaced, send_gaps)
    return (
        replaced.drop("had_master", "asked_ts", "from_ts", "until_ts")
        .join(seen, [*GROUP, "n"], "left")
        .withColumns(
            {
                "detect_ms": _between(F.coalesce("fault_ts", "last_heartbeat_ts"), F.col("detected_ts")),
                "elect_ms": _between(F.col("detected_ts"), F.col("elected_ts")),
                "ready_ms": _between(F.col("elected_ts"), F.col("ready_ts")),
            }
        )
    )


def _seen_by_producers(elected: DataFrame, send_gaps: DataFrame) -> DataFrame:
    """Returns the send gap of each fail-over: the nearest one with the same lost master around the election.

    A gap of broker 0 is of whatever master was lost then. An election within the gap is nearer than any
    other. fault_ts NULL: the producer's clock contradicts.
    """
    gaps = send_gaps.select(
        *GROUP,
        "broker_id",
        F.col("program").alias("killed_program"),
        "gap_ms",
        "started_ts",
        F.col("ts").alias("ended_ts"),
    )
    at, started, ended = F.col("elected_ts"), F.col("started_ts"), F.col("ended_ts")
    outside = F.greatest(started - at, at - ended, F.lit(0))
    pairs = (
        elected.join(gaps, [*GROUP])
        .where((F.col("broker_id") == 0) | (F.col("broker_id") == F.col("old_master")))
        .withColumns({"_outside": outside, "_from_start": F.abs(at - started)})
        .where(F.col("_outside") <= PRODUCER_SKEW_MS)
    )
    distance = ("_outside", "_from_start")
    of_gap = Window.partitionBy(*GROUP, "broker_id", "started_ts", "killed_program", "gap_ms")
    of_election = Window.partitionBy(*GROUP, "n")
    fits = started.between(
        F.coalesce(F.col("last_heartbeat_ts") - HEARTBEAT_SLACK_MS, started),
        F.coalesce("detected_ts", "elected_ts"),
    )
    return (
        pairs.withColumn("near_gap", F.row_number().over(of_gap.orderBy(*distance, "n")))
        .where("near_gap = 1")
        .withColumn(
            "near_election",
            F.row_number().over(of_election.orderBy(*distance, F.desc("gap_ms"), "killed_program")),
        )
        .where("near_election = 1")
        .select(*GROUP, "n", F.when(fits, started).alias("fault_ts"), "killed_program", "gap_ms")
    )


def _between(start: Column, end: Column) -> Column:
    """Returns the difference; NULL if a moment is not known, or if they contradict each other."""
    passed = end - start
    return F.when(passed >= 0, passed)
