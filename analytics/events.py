"""All tables that are made of controllers' events, from the compacted tables: in one call per stage.

hour_tables() serves the roll-up: a row depends on the records of its hour alone. run_tables() sees the whole
history. Both read small tables; only `samples` is large, and is read for min_in_sync_replicas once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame

from analytics.availability import group_state, group_totals, minimum_changes
from analytics.event_log import group_history
from analytics.failover import elections, failovers, with_ready
from analytics.kept import kept
from analytics.quality import data_quality, stale_role_changes
from analytics.skew import clock_bounds, clock_pieces, clock_skew
from analytics.sync_state_set import group_spans, membership, replica_state, sync_state_set_changes


@dataclass(frozen=True)
class EventFrames:
    """Compacted tables. `samples`: rows of master_sample that count, of masters of the present epoch."""

    controller_event: DataFrame
    role_change: DataFrame
    send_gap: DataFrame
    clock_sample: DataFrame
    samples: DataFrame


def hour_tables(
    controller_event: DataFrame, samples: DataFrame, windows_ms: Sequence[int], *, from_ts: int, to_ts: int
) -> dict[tuple[str, int], DataFrame]:
    """Returns group_state and replica_state by (name, window_ms), of any number of whole hours.

    [from_ts, to_ts): bounds of the run; a window must divide the hour.
    """
    history = kept(group_history(controller_event, from_ts=from_ts, to_ts=to_ts, by_hour=True))
    spans = kept(group_spans(history, from_ts=from_ts, to_ts=to_ts))
    minimum = kept(minimum_changes(samples, by_hour=True))
    found = {}
    for window_ms in windows_ms:
        found["group_state", window_ms] = group_state(history, spans, minimum, window_ms)
        found["replica_state", window_ms] = replica_state(history, spans, window_ms)
    return found


def run_tables(
    frames: EventFrames, read: DataFrame, lag: DataFrame, *, from_ts: int, to_ts: int
) -> dict[str, DataFrame]:
    """Returns the run tables by name. `read`: see quality.READ_SCHEMA; `lag`: hours of that roll-up."""
    history = kept(group_history(frames.controller_event, from_ts=from_ts, to_ts=to_ts))
    spans = kept(group_spans(history, from_ts=from_ts, to_ts=to_ts))
    elected = kept(elections(history))
    pieces = kept(clock_pieces(frames.clock_sample, from_ts=from_ts, to_ts=to_ts))
    ready = kept(with_ready(elected, frames.role_change, pieces))
    skew = kept(clock_skew(pieces, clock_bounds(elected, frames.role_change)))
    stale = stale_role_changes(elected, frames.role_change)
    return {
        "membership": membership(spans),
        "sync_state_set_changes": sync_state_set_changes(history),
        "failovers": failovers(ready, frames.send_gap),
        "group_totals": group_totals(history, spans, minimum_changes(frames.samples), ready),
        "clock_skew": skew,
        "data_quality": data_quality(read, lag, history, spans, skew, stale),
    }
