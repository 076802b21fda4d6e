"""SyncStateSet statistics of random histories, group by group against the plain-Python model."""

from typing import Any

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from analytics.inputs import good, read_records
from analytics.lag import min_in_sync_replicas
from analytics.sync_state_set import (
    group_history,
    group_totals,
    intervals,
    membership,
    replica_out_of_sync,
    sync_state_set_changes,
)
from keelmq.remoting.records import ControllerEvent, GroupView, HaSample
from tests.spark import model
from tests.spark.conftest import World, put_records, rows_by_group
from tests.spark.histories import CLUSTER, START_TS, History, random_history

pytestmark = pytest.mark.spark

WINDOW_MS = 60_000


@pytest.fixture(scope="module")
def spans(world: World) -> DataFrame:
    return intervals(world.group_history, F.lit(world.until_ts)).persist()


@pytest.fixture(scope="module")
def members(spans: DataFrame) -> DataFrame:
    return membership(spans).persist()


def spans_of(rows: list[dict[str, Any]]) -> dict[int, list[tuple[int, int, str]]]:
    found: dict[int, list[tuple[int, int, str]]] = {}
    for row in sorted(rows, key=lambda row: (row["broker_id"], row["from_ts"])):
        found.setdefault(row["broker_id"], []).append((row["from_ts"], row["to_ts"], row["state"]))
    return found


def test_the_histories_are_worth_it(world: World) -> None:
    """Everything that is counted happens, often."""
    totals = [model.counts(history) for history in world.histories]
    for name in ("shrinks", "expands", "elections", "unclean_elections", "flaps"):
        assert sum(each[name] for each in totals) > 20, name
    cleans = [each for history in world.histories for each in history.events if is_clean(each)]
    assert len(cleans) > 20
    assert sum(is_change(each) for each in cleans) > 10
    assert any(each.before and each.before.master_broker_id in cleaned(each) for each in cleans)


def test_each_event_is_there_once(world: World) -> None:
    rows = rows_by_group(world.group_history.where("type != 'snapshot'"))
    for history in world.histories:
        mine = sorted(rows[history.broker_name], key=lambda row: row["event_id"])
        assert [row["event_id"] for row in mine] == [event.event_id for event in history.events]
        assert [row["from_ts"] for row in mine] == model.times_of(history.events)


def test_a_complete_history_has_no_gap_and_needs_no_snapshot(world: World) -> None:
    assert world.group_history.where("is_gap OR type = 'snapshot'").count() == 0


def test_membership_spans(world: World, members: DataFrame) -> None:
    rows = rows_by_group(members)
    for history in world.histories:
        expected = model.membership(history, world.until_ts, WINDOW_MS)
        assert spans_of(rows.get(history.broker_name, [])) == expected, history.broker_name


def test_out_of_sync_per_replica_and_window(world: World, members: DataFrame) -> None:
    rows = rows_by_group(replica_out_of_sync(members, WINDOW_MS))
    for history in world.histories:
        found = {
            (row["broker_id"], row["window_ts"]): row["out_ms"] for row in rows.get(history.broker_name, [])
        }
        assert found == model.out_of_sync(history, world.until_ts, WINDOW_MS), history.broker_name


def test_totals(world: World, spans: DataFrame) -> None:
    minimum = min_in_sync_replicas(world.frames[HaSample])
    rows = rows_by_group(group_totals(world.group_history, spans, minimum))
    for history in world.histories:
        (row,) = rows[history.broker_name]
        needed = model.newest_minimum(history.samples)
        expected = model.counts(history)
        expected["below_min_ms"] = model.below_min_ms(history, world.until_ts, needed, WINDOW_MS)
        assert {name: row[name] for name in expected} == expected, history.broker_name


def test_changes(world: World) -> None:
    rows = rows_by_group(sync_state_set_changes(world.group_history))
    for history in world.histories:
        found = sorted(rows[history.broker_name], key=lambda row: row["event_id"])
        expected = [event for event in history.events if is_change(event)]
        assert [row["event_id"] for row in found] == [event.event_id for event in expected]
        for row, event in zip(found, expected, strict=True):
            assert event.before is not None and event.after is not None
            old, new = set(event.before.sync_state_set), set(event.after.sync_state_set)
            assert (set(row["left"]), set(row["joined"])) == (old - new, new - old)
            assert tuple(row["sync_state_set"]) == event.after.sync_state_set
            assert row["master_broker_id"] == event.after.master_broker_id
            assert (row["ts"], row["reason"]) == (event.ts, event.reason)


def is_clean(event: ControllerEvent) -> bool:
    return event.type == "cleanBrokerData"


def cleaned(event: ControllerEvent) -> set[int]:
    assert event.before is not None and event.after is not None
    return set(event.before.replicas) - set(event.after.replicas)


def is_change(event: ControllerEvent) -> bool:
    assert event.after is not None
    if event.before is None or event.type == "applyBrokerId":
        return False
    return (event.before.sync_state_set, event.before.master_broker_id) != (
        event.after.sync_state_set,
        event.after.master_broker_id,
    )


# ---------------------------------------------------------------------- files that are not complete
CUT_SEEDS = range(40, 60)


def cut(history: History) -> tuple[History, ControllerEvent]:
    """The second half of the events, and a snapshot of the group before them; some were written too late."""
    position = len(history.events) // 2
    last = history.events[position]
    late = 10_000 if position % 2 else 0
    snapshot = msgspec.structs.replace(last, type="snapshot", before=None, ts=last.ts + late)
    return History(history.broker_name, events=history.events[position + 1 :]), snapshot


def with_a_hole(name: str) -> tuple[ControllerEvent, list[ControllerEvent]]:
    """A missing change, and the events around it, of a group of that name."""
    events = [msgspec.structs.replace(each, broker_name=name) for each in random_history(7, steps=20).events]
    position = next(number for number, each in enumerate(events) if number > 6 and is_change(each))
    return events[position], events[:position] + events[position + 1 :]


@pytest.fixture(scope="module")
def incomplete(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    events = []
    for kept, snapshot in map(cut, map(random_history, CUT_SEEDS)):
        events += [snapshot, *kept.events]
    events += with_a_hole("hole")[1]
    missing, rest = with_a_hole("hole with a snapshot")
    events += [msgspec.structs.replace(missing, type="snapshot", before=None), *rest]
    root = put_records(tmp_path_factory.mktemp("incomplete"), *events)
    return group_history(good(read_records(spark, [str(root)], ControllerEvent))).persist()


def test_a_history_that_begins_with_a_snapshot(incomplete: DataFrame) -> None:
    """Older files are gone: from the snapshot on everything is as it was."""
    until_ts = max(event.ts for seed in CUT_SEEDS for event in random_history(seed).events)
    rows = rows_by_group(membership(intervals(incomplete, F.lit(until_ts))))
    for kept, snapshot in map(cut, map(random_history, CUT_SEEDS)):
        as_event = msgspec.structs.replace(snapshot, ts=min(snapshot.ts, kept.events[0].ts))
        whole = History(kept.broker_name, events=[as_event, *kept.events])
        assert spans_of(rows.get(kept.broker_name, [])) == model.membership(whole, until_ts, WINDOW_MS)


def test_a_hole_is_a_gap(incomplete: DataFrame) -> None:
    """Events are missing: seen at the next event, or at the snapshot that shows the group as it is."""
    rows = rows_by_group(incomplete.where("is_gap"))
    missing, rest = with_a_hole("hole")
    after = next(each for each in rest if each.event_id > missing.event_id)
    assert {name: [row["event_id"] for row in found] for name, found in rows.items()} == {
        "hole": [after.event_id],
        "hole with a snapshot": [missing.event_id],
    }


# ---------------------------------------------------------------------- replicas that were cleaned
def group_event(
    event_id: int, type: str, before: GroupView | None, after: GroupView | None
) -> ControllerEvent:
    return ControllerEvent(
        ts=START_TS + event_id * 1_000,
        cluster_name=CLUSTER,
        broker_name="cleaned",
        event_id=event_id,
        type=type,
        controller_id="n0",
        before=before,
        after=after,
    )


def group_view(
    master: int | None, epoch: int, members: tuple[int, ...], set_epoch: int, *replicas: int
) -> GroupView:
    return GroupView(
        master_broker_id=master,
        master_epoch=epoch,
        sync_state_set=members,
        sync_state_set_epoch=set_epoch,
        replicas=replicas,
    )


@pytest.fixture(scope="module")
def cleaned_group(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    """The master is cleaned, then a slave that was out, then everybody; then the name is used again."""
    three = group_view(1, 1, (1, 2), 3, 1, 2, 3)
    two = group_view(None, 2, (2,), 4, 2, 3)
    one = group_view(None, 2, (2,), 4, 2)
    again = group_view(None, 3, (), 5, 4)
    events = [
        group_event(1, "alterSyncStateSet", group_view(1, 1, (1,), 2, 1, 2, 3), three),
        group_event(2, "cleanBrokerData", three, two),
        group_event(3, "cleanBrokerData", two, one),
        group_event(4, "cleanBrokerData", one, None),
        group_event(7, "applyBrokerId", None, again),
        group_event(8, "electMaster", again, group_view(4, 4, (4,), 6, 4)),
    ]
    root = put_records(tmp_path_factory.mktemp("cleaned"), *events)
    return group_history(good(read_records(spark, [str(root)], ControllerEvent))).persist()


def test_a_clean_that_shrinks_a_set_or_clears_a_master_is_a_change(cleaned_group: DataFrame) -> None:
    rows = sync_state_set_changes(cleaned_group).orderBy("event_id").collect()
    assert [(row.event_id, row.type, row.left, row.master_broker_id) for row in rows] == [
        (1, "alterSyncStateSet", [], 1),
        (2, "cleanBrokerData", [1], None),
        (4, "cleanBrokerData", [2], None),
        (8, "electMaster", [], 4),
    ]
    assert not any(row.is_shrink or row.is_expand for row in rows[1:])  # no master asked for it


def test_a_group_that_was_cleaned_is_no_more(cleaned_group: DataFrame) -> None:
    """Until its name is used again, which is no gap; a group that is gone is not below its minimum."""
    until_ts = START_TS + 10_000
    spans = intervals(cleaned_group, F.lit(until_ts))
    found = spans_of([row.asDict() for row in membership(spans).collect()])
    seconds = {
        broker_id: [(start - START_TS, end - START_TS, state) for start, end, state in mine]
        for broker_id, mine in found.items()
    }
    assert seconds == {
        1: [(1_000, 2_000, "master")],
        2: [(1_000, 4_000, "in_sync")],
        3: [(1_000, 3_000, "out")],
        4: [(7_000, 8_000, "out"), (8_000, 10_000, "master")],
    }
    assert cleaned_group.where("is_gap").count() == 0
    minimum = cleaned_group.select("cluster_name", "broker_name").distinct()
    (totals,) = group_totals(
        cleaned_group, spans, minimum.withColumn("min_in_sync_replicas", F.lit(2))
    ).collect()
    assert totals.below_min_ms == 5_000  # seconds 2 to 4, and 7 to 10
    assert (totals.shrinks, totals.expands, totals.elections) == (0, 1, 1)
