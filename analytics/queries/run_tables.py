"""The tables of a run that are made of controllers' events, from the whole history. Those of an hour are in
analytics/rollup/tables.py."""

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame

from analytics.queries.availability import group_totals, minimum_changes
from analytics.queries.clocks import corrected, offsets
from analytics.queries.event_log import group_history
from analytics.queries.failover import elections, failovers, with_ready
from analytics.queries.kept import kept
from analytics.queries.quality import data_quality, stale_role_changes
from analytics.queries.skew import clock_bounds, clock_pieces, clock_skew
from analytics.queries.sync_state_set import group_spans, membership, sync_state_set_changes


@dataclass(frozen=True)
class EventFrames:
    """Compacted tables. `samples`: rows of master_sample that count, of masters of the present epoch."""

    controller_event: DataFrame
    role_change: DataFrame
    send_gap: DataFrame
    clock_sample: DataFrame
    samples: DataFrame


def run_tables(
    frames: EventFrames,
    read: DataFrame,
    lag: DataFrame,
    *,
    from_ts: int,
    to_ts: int,
    kept: Callable[[DataFrame], DataFrame] = kept,
) -> dict[str, DataFrame]:
    """Returns the run tables by name. `read`: see quality.READ_SCHEMA; `lag`: hours of that roll-up."""
    history = kept(group_history(frames.controller_event, from_ts=from_ts, to_ts=to_ts))
    spans = kept(group_spans(history, from_ts=from_ts, to_ts=to_ts))
    elected = kept(elections(history))
    pieces = kept(clock_pieces(frames.clock_sample, from_ts=from_ts, to_ts=to_ts))
    ready = kept(with_ready(elected, frames.role_change, pieces))
    roles = kept(corrected(frames.role_change, offsets(pieces)))
    skew = kept(clock_skew(pieces, clock_bounds(elected, roles)))
    stale = stale_role_changes(elected, roles)
    return {
        "membership": membership(spans),
        "sync_state_set_changes": sync_state_set_changes(history),
        "failovers": failovers(ready, frames.send_gap),
        "group_totals": group_totals(history, spans, minimum_changes(frames.samples), ready),
        "clock_skew": skew,
        "data_quality": data_quality(read, lag, history, spans, skew, stale),
    }
