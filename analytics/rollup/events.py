"""The roll-up tables that come from the controllers' events.

An hour's rows depend on that hour's records alone: each controller writes a snapshot of every group at the
beginning of each file, so the state at the beginning of an hour is among them.
"""

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from analytics.availability import group_state, minimum_changes
from analytics.event_log import group_history
from analytics.rollup.masters import HOUR_MS
from analytics.rollup.tables import Hours, RollUp, union
from analytics.sync_state_set import group_spans, replica_state
from analytics.tables import CONTROLLER_EVENT, GROUP, MASTER_SAMPLE


def _minimum(hours: Hours) -> DataFrame:
    """Returns min_in_sync_replicas at the beginning of each hour, and its changes."""
    return _minimum_changes(hours).select(
        *GROUP, F.col("ts").alias("window_ts"), "min_in_sync_replicas", F.lit(HOUR_MS).alias("window")
    )


def _minimum_changes(hours: Hours) -> DataFrame:
    def make() -> DataFrame:
        current = hours.master_samples.where("NOT is_stale")
        return hours.with_group(minimum_changes(current, group=("gid",)))

    return hours.kept("minimum", make)


def _spans(hours: Hours) -> tuple[DataFrame, DataFrame]:
    history = hours.kept("history", lambda: group_history(hours.read(CONTROLLER_EVENT), by_hour=True))
    spans = hours.kept("spans", lambda: group_spans(history, from_ts=0, to_ts=_end(hours.ends)))
    return history, spans


def _end(ends: Mapping[int, int]) -> Column:
    """Returns how far an hour's records reach: of an hour that is not over, not to its end."""
    whole = F.col("hour_ts") + HOUR_MS
    short = [(hour_ts, end) for hour_ts, end in sorted(ends.items()) if end < hour_ts + HOUR_MS]
    if not short:
        return whole
    known = F.create_map(*(F.lit(value).cast("long") for pair in short for value in pair))
    return F.coalesce(known[F.col("hour_ts")], whole)


def _group_state(hours: Hours) -> DataFrame:
    history, spans = _spans(hours)
    minimum = _minimum_changes(hours)
    return union(
        group_state(history, spans, minimum, window_ms).withColumn("window", F.lit(window_ms))
        for window_ms in hours.windows
    )


def _replica_state(hours: Hours) -> DataFrame:
    history, spans = _spans(hours)
    return union(
        replica_state(history, spans, window_ms).withColumn("window", F.lit(window_ms))
        for window_ms in hours.windows
    )


EVENT_TABLES: Mapping[str, RollUp] = {
    each.name: each
    for each in (
        RollUp("minimum", (*GROUP, "window_ts", "min_in_sync_replicas"), 3, _minimum, (MASTER_SAMPLE,)),
        RollUp(
            "group_state",
            (*GROUP, "window_ts", "below_min_ms", "unknown_ms", "no_master_ms", "shrinks", "expands", "flaps",
             "elections", "unclean_elections"),
            3,
            _group_state,
            (CONTROLLER_EVENT,),
        ),
        RollUp(
            "replica_state",
            (*GROUP, "window_ts", "broker_id", "master_ms", "in_sync_ms", "out_ms", "flaps"),
            4,
            _replica_state,
            (CONTROLLER_EVENT,),
        ),
    )
}  # fmt: skip
