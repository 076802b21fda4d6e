"""The roll-up tables that come from the controllers' events.

An hour's rows depend on that hour's records alone: each controller writes a snapshot of every group at the
beginning of each file, so the state at the beginning of an hour is among them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from analytics.queries.availability import group_state
from analytics.queries.event_log import group_history
from analytics.queries.kept import kept
from analytics.queries.sync_state_set import group_spans, replica_state
from analytics.queries.windows import window_of
from analytics.rollup.tables import RollUp
from analytics.rollup.window_counts import HOUR_MS
from analytics.tables import CONTROLLER_EVENT, GROUP, Table


@dataclass
class Hours:
    """The controllers' events of some hours, and what several roll-up tables need of them.

    `minimum`: the roll-up of these hours. `windows`: widths in ms, ascending.
    """

    read: Callable[[Table], DataFrame]
    minimum: DataFrame
    windows: Sequence[int]
    ends: Mapping[int, int] = field(default_factory=dict)
    """Up to when each hour has rows, by its beginning; an hour that is not here, to its end."""
    _kept: dict[str, DataFrame] = field(default_factory=dict)

    def kept(self, name: str, make: Callable[[], DataFrame]) -> DataFrame:
        """Returns what `make` returned first; it is kept for several tables."""
        if name not in self._kept:
            self._kept[name] = kept(make())
        return self._kept[name]

    def close(self) -> None:
        """Frees what was kept."""
        for frame in self._kept.values():
            frame.unpersist()
        self._kept.clear()


@dataclass(frozen=True)
class EventRollUp(RollUp):
    """`roll` makes the rows of the table, with a column `window`, of all windows."""

    roll: Callable[[Hours], DataFrame]


def hour_of(ts: Column) -> Column:
    """Returns the start of the UTC hour that `ts` is in."""
    return window_of(ts, HOUR_MS)


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
    ts = F.col("window_ts")
    minimum = hours.minimum.select(
        *GROUP, hour_of(ts).alias("hour_ts"), ts.alias("ts"), "min_in_sync_replicas"
    )
    return group_state(history, spans, minimum, hours.windows)


def _replica_state(hours: Hours) -> DataFrame:
    history, spans = _spans(hours)
    return replica_state(history, spans, hours.windows)


EVENT_TABLES: Mapping[str, EventRollUp] = {
    each.name: each
    for each in (
        EventRollUp(
            "group_state",
            (*GROUP, "window_ts", "below_min_ms", "unknown_ms", "no_master_ms", "shrinks", "expands", "flaps",
             "elections", "unclean_elections"),
            3,
            (CONTROLLER_EVENT,),
            _group_state,
        ),
        EventRollUp(
            "replica_state",
            (*GROUP, "window_ts", "broker_id", "master_ms", "in_sync_ms", "out_ms", "flaps"),
            4,
            (CONTROLLER_EVENT,),
            _replica_state,
        ),
    )
}  # fmt: skip
