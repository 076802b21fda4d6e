"""States and counts of random groups against the model, for the whole time and hour by hour."""

from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analytics.queries.availability import group_state, minimum_changes
from analytics.queries.event_log import group_history
from analytics.queries.kept import kept
from analytics.queries.sync_state_set import group_spans, membership, replica_state
from keelmq.remoting.records import ControllerEvent, HaSample
from tests.spark.events import model
from tests.spark.events.conftest import Fleet
from tests.spark.events.fleet import HOUR_MS
from tests.spark.frames import rows_by_group

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

MINUTE_MS = 60_000
TIMES = ("unknown_ms", "below_min_ms", "no_master_ms")


def state_of(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in (*TIMES, *model.COUNTS)}


def expected_of(state: model.State) -> dict[str, Any]:
    counts = {name: state.counts[name] for name in model.COUNTS}
    return {name: getattr(state, name) for name in TIMES} | counts


def test_the_lives_are_worth_it(fleet: Fleet) -> None:
    """Everything that is counted happens, often."""
    found = [model.entries_of(life, fleet.from_ts, fleet.to_ts) for life in fleet.lives]
    assert sum(entry.is_gap for entries in found for entry in entries) > 2
    assert sum(entry.is_restart for entries in found for entry in entries) > 15
    states = [model.group_state(life, fleet.from_ts, fleet.to_ts, 1 << 50) for life in fleet.lives]
    for name in model.COUNTS:
        assert sum(state.counts[name] for each in states for state in each.values()) > 3, name
    for name in ("unknown_ms", "below", "no_master", "with_minimum_ms"):
        assert sum(getattr(state, name) > 0 for each in states for state in each.values()) > 3, name


def test_each_record_has_its_place(fleet: Fleet) -> None:
    rows = rows_by_group(fleet.history)
    for life in fleet.lives:
        expected = model.entries_of(life, fleet.from_ts, fleet.to_ts)
        found = sorted(rows.get(life.broker_name, []), key=lambda row: row["n"])
        assert [
            (row["type"], row["event_id"], row["from_ts"], row["is_gap"], row["is_restart"]) for row in found
        ] == [
            (each.event.type, each.event.event_id, each.time, each.is_gap, each.is_restart)
            for each in expected
        ], life.broker_name


def test_membership(fleet: Fleet) -> None:
    rows = rows_by_group(membership(fleet.spans))
    for life in fleet.lives:
        entries = model.entries_of(life, fleet.from_ts, fleet.to_ts)
        expected = model.membership(model.steps_of(entries, fleet.from_ts, fleet.to_ts, HOUR_MS))
        found: dict[int, list[tuple[int, int, str]]] = {}
        for row in sorted(rows.get(life.broker_name, []), key=lambda row: row["from_ts"]):
            found.setdefault(row["broker_id"], []).append((row["from_ts"], row["to_ts"], row["state"]))
        assert found == expected, life.broker_name


def test_group_state_of_the_whole_time(fleet: Fleet) -> None:
    window_ms = 1_000_000  # no divisor of an hour
    rows = rows_by_group(group_state(fleet.history, fleet.spans, fleet.minimum, [window_ms]))
    for life in fleet.lives:
        expected = model.group_state(life, fleet.from_ts, fleet.to_ts, window_ms)
        found = {row["window_ts"]: state_of(row) for row in rows.get(life.broker_name, [])}
        assert found == {ts: expected_of(state) for ts, state in expected.items()}, life.broker_name


@pytest.fixture(scope="module")
def hourly(fleet: Fleet) -> tuple[DataFrame, DataFrame, DataFrame]:
    """History, spans and minimum of every hour, each from its own records, in one frame."""
    return hourly_of(fleet, fleet.frames[ControllerEvent], fleet.frames[HaSample])


def hourly_of(fleet: Fleet, events: DataFrame, samples: DataFrame) -> tuple[DataFrame, DataFrame, DataFrame]:
    history = kept(group_history(events, from_ts=fleet.from_ts, to_ts=fleet.to_ts, by_hour=True))
    spans = kept(group_spans(history, from_ts=fleet.from_ts, to_ts=fleet.to_ts))
    return history, spans, minimum_changes(samples, by_hour=True)


def test_hour_by_hour(fleet: Fleet, hourly: tuple[DataFrame, DataFrame, DataFrame]) -> None:
    history, spans, minimum = hourly
    rows = rows_by_group(group_state(history, spans, minimum, [MINUTE_MS]))
    replicas = rows_by_group(replica_state(history, spans, [MINUTE_MS]))
    for life in fleet.lives:
        expected = model.by_hours(life, fleet.from_ts, fleet.to_ts, MINUTE_MS)
        found = {row["window_ts"]: state_of(row) for row in rows.get(life.broker_name, [])}
        assert found == {ts: expected_of(state) for ts, state in expected.items()}, life.broker_name
        of_replicas = {
            (row["window_ts"], row["broker_id"], name): row[name]
            for row in replicas.get(life.broker_name, [])
            for name in ("master_ms", "in_sync_ms", "out_ms", "flaps")
            if row[name]
        }
        assert of_replicas == {
            (ts, *key): value for ts, state in expected.items() for key, value in state.replicas.items()
        }


def test_an_hour_alone_gives_the_same_rows(
    fleet: Fleet, hourly: tuple[DataFrame, DataFrame, DataFrame]
) -> None:
    """Whatever other hours are computed with it."""
    start = fleet.from_ts + HOUR_MS
    of_hour = F.col("ts").between(start, start + HOUR_MS - 1)
    events, samples = (fleet.frames[record].where(of_hour) for record in (ControllerEvent, HaSample))
    alone = group_state(*hourly_of(fleet, events, samples), [MINUTE_MS])
    together = group_state(*hourly, [MINUTE_MS]).where(F.col("window_ts").between(start, start + HOUR_MS - 1))
    order = ["broker_name", "window_ts"]
    found = alone.orderBy(*order).collect()
    assert len(found) > 500
    assert found == together.orderBy(*order).collect()


def test_hours_add_up_to_the_whole(fleet: Fleet, hourly: tuple[DataFrame, DataFrame, DataFrame]) -> None:
    """Of groups without gaps: an hour without a row is unknown, the others are equal, but for what only the
    whole can know: the minimum before the first sample of an hour, and flaps from one hour to the next."""
    whole = rows_by_group(group_state(fleet.history, fleet.spans, fleet.minimum, [HOUR_MS]))
    by_hour = rows_by_group(group_state(*hourly, [HOUR_MS]))
    compared = 0
    for life in fleet.lives:
        entries = model.entries_of(life, fleet.from_ts, fleet.to_ts)
        if any(entry.is_gap or entry.is_restart for entry in entries) or life.lost != (0, 0):
            continue
        hours = {row["window_ts"]: state_of(row) for row in by_hour.get(life.broker_name, [])}
        for row in whole.get(life.broker_name, []):
            state, of_hour = state_of(row), hours.pop(row["window_ts"], None)
            if of_hour is None:
                assert state["unknown_ms"] == min(HOUR_MS, fleet.to_ts - row["window_ts"])
                assert state["below_min_ms"] is None
                continue
            assert of_hour.pop("flaps") <= state.pop("flaps")
            if (
                of_hour["below_min_ms"] is None
                or len({each.min_in_sync_replicas for each in life.samples}) > 1
            ):
                del of_hour["below_min_ms"], state["below_min_ms"]
            assert of_hour.items() <= state.items()
            compared += 1
        assert not hours
    assert compared > 15
