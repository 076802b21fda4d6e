"""Histories: controllers built anew, older writers, missing files, clocks, cleaned groups."""

from typing import Any

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession

from analytics.queries.availability import group_state, minimum_changes
from analytics.queries.event_log import group_history
from analytics.queries.kept import kept
from analytics.queries.sync_state_set import flaps, group_spans, membership, sync_state_set_changes
from keelmq.remoting.records import ControllerEvent, HaSample, Record
from tests.spark.events.cases import START_TS, alter, election, event, life, named, sample, snapshot, view
from tests.spark.frames import frames_of, rows_by_group

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

Table = dict[str, list[dict[str, Any]]]
HOUR_MS = 3_600_000
HOURS = 6
ONE, TWO = view(1, 1), view(2, 2)
PAIR = view(1, 1, 1, 2, set_epoch=2)


def first_log(**more: Any) -> list[ControllerEvent]:
    """Ids 11 to 15; broker 1 is master of epoch 1, then 2 of epoch 2, at 0, 10, ... s."""
    return [
        *life(ts=0, start_id=11, **more),
        alter(13, ONE, PAIR, ts=20_000, **more),
        alter(14, PAIR, view(1, 1, set_epoch=3), ts=30_000, **more),
        election(15, view(1, 1, set_epoch=3), TWO, ts=40_000, **more),
    ]


def second_log(**more: Any) -> list[ControllerEvent]:
    """An hour and 10 min later; ids 1 to 3, smaller epochs."""
    return [*life(ts=4_200_000, **more), alter(3, ONE, PAIR, ts=4_230_000, **more)]


def times(records: list[ControllerEvent], count: int) -> list[ControllerEvent]:
    """The copies of `count` controllers."""
    return [
        msgspec.structs.replace(each, controller_id=f"n{number}")
        for number in range(count)
        for each in records
    ]


CLEAN = [
    alter(1, view(1, 1, set_epoch=2), view(1, 1, 1, 2, set_epoch=3), ts=1_000),
    event(2, "cleanBrokerData", view(1, 1, 1, 2, set_epoch=3),
          view(None, 2, 2, set_epoch=4, replicas=(2, 3)), ts=2_000),
    event(3, "cleanBrokerData", view(None, 2, 2, set_epoch=4, replicas=(2, 3)),
          view(None, 2, 2, set_epoch=4, replicas=(2,)), ts=3_000),
    event(4, "cleanBrokerData", view(None, 2, 2, set_epoch=4, replicas=(2,)), None, ts=4_000),
    event(7, "applyBrokerId", None, view(None, 3, set_epoch=5, replicas=(4,)), ts=7_000),
    election(8, view(None, 3, set_epoch=5, replicas=(4,)), view(4, 4, set_epoch=6, replicas=(4,)), ts=8_000),
]  # fmt: skip

CASES: dict[str, list[Record]] = {
    "rebuilt": [*times(first_log(log_id="a"), 3), *times(second_log(log_id="b"), 3)],
    "rebuilt, old writers": [*times(first_log(), 3), *times(second_log(), 2)],
    "upgraded": [*times(first_log()[:3], 3), *times(first_log()[3:], 1),
                 *times(first_log(log_id="a")[3:], 2)],
    "left over": [  # one controller of the old log still runs, and writes what it knows at each hour
        *first_log(log_id="a"), *second_log(log_id="b"),
        *(snapshot(15, TWO, ts=hour * HOUR_MS, log_id="a", controller_id="n9") for hour in (2, 3)),
        *(snapshot(3, PAIR, ts=hour * HOUR_MS + 5, log_id="b") for hour in (2, 3, 4, 5)),
    ],
    "clocks": [  # the next active controller is 40 s behind
        *first_log(), alter(16, TWO, view(2, 2, 1, 2, set_epoch=3), ts=0),
        election(17, view(2, 2, 1, 2, set_epoch=3), view(1, 3), ts=9_000),
    ],
    "no files": [  # of the hours 1 and 2; the snapshot of hour 3 shows that nothing has changed
        *first_log(), snapshot(15, TWO, ts=3 * HOUR_MS + 10), sample(2, ts=0)
    ],
    "one hour": [*first_log(), snapshot(15, TWO, ts=2 * HOUR_MS + 10)],
    "a hole": [  # nothing is known between 20 s and 60 s
        *first_log()[:3], sample(2, ts=0),
        alter(16, view(2, 2, set_epoch=7), view(2, 2, 1, 2, set_epoch=8), ts=60_000),
    ],
    "no minimum": first_log(),
    "another minimum": [*first_log()[:3], sample(1, ts=0), sample(2, ts=15_000), sample(3, ts=50_000)],
    "outliers": [
        *first_log(), *life(ts=-START_TS + 5, start_id=1), alter(99, TWO, view(2, 2, 2, 3), ts=1 << 45)
    ],
    "cleaned": CLEAN,
}  # fmt: skip

TO_TS = START_TS + HOURS * HOUR_MS


@pytest.fixture(scope="module")
def frames(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, DataFrame]:
    found = frames_of(spark, tmp_path_factory.mktemp("cases"), named(CASES))
    bounds = {"from_ts": START_TS, "to_ts": TO_TS}
    history = kept(group_history(found[ControllerEvent], **bounds))
    spans = kept(group_spans(history, **bounds))
    return {
        "history": history,
        "spans": spans,
        "flaps": flaps(history),
        "changes": sync_state_set_changes(history),
        "members": membership(spans),
        "state": group_state(history, spans, minimum_changes(found[HaSample]), [HOURS * HOUR_MS]),
    }


@pytest.fixture(scope="module")
def history(frames: dict[str, DataFrame]) -> Table:
    return rows_by_group(frames["history"].orderBy("n"))


@pytest.fixture(scope="module")
def spans(frames: dict[str, DataFrame]) -> Table:
    return rows_by_group(frames["spans"].orderBy("from_ts"))


@pytest.fixture(scope="module")
def state(frames: dict[str, DataFrame]) -> dict[str, dict[str, Any]]:
    return {name: row for name, (row,) in rows_by_group(frames["state"]).items()}


def shown(rows: list[dict[str, Any]]) -> list[tuple[int, int, int | None]]:
    """From and to, in seconds, and the master's epoch; None: unknown."""
    return [
        ((row["from_ts"] - START_TS) // 1_000, (row["to_ts"] - START_TS) // 1_000,
         row["view"] and row["view"]["master_epoch"])
        for row in rows
    ]  # fmt: skip


@pytest.mark.parametrize("case", ["rebuilt", "rebuilt, old writers"])
def test_controllers_that_were_built_anew(
    history: Table, state: dict[str, dict[str, Any]], spans: Table, case: str
) -> None:
    """Each event once, the logs one after the other, no gap, no time twice or backwards."""
    rows = history[case]
    assert [row["event_id"] for row in rows] == [11, 12, 13, 14, 15, 1, 2, 3]
    assert [row["is_restart"] for row in rows] == [False] * 5 + [True, False, False]
    assert not any(row["is_gap"] for row in rows)
    assert [row["from_ts"] for row in rows] == sorted(row["ts"] for row in rows)
    counts = state[case]
    assert (counts["shrinks"], counts["expands"], counts["elections"]) == (1, 2, 3)
    assert shown(spans[case]) == [
        (0, 20, 1), (20, 30, 1), (30, 40, 1), (40, 3_600, 2), (3_600, 4_200, None), (4_200, 4_230, 1),
        (4_230, 7_200, 1), (7_200, 21_600, None),
    ]  # fmt: skip


def test_writers_that_were_upgraded_in_between(history: Table) -> None:
    """Some write the log's name, some not yet: it is one log."""
    rows = history["upgraded"]
    assert [row["event_id"] for row in rows] == [11, 12, 13, 14, 15]
    assert not any(row["is_gap"] or row["is_restart"] for row in rows)


def test_what_is_left_of_an_old_log(spans: Table, history: Table) -> None:
    assert [row["event_id"] for row in history["left over"]][:8] == [11, 12, 13, 14, 15, 1, 2, 3]
    assert shown(spans["left over"])[-1] == (5 * 3_600, 6 * 3_600, 1)
    assert sum(row["is_restart"] for row in history["left over"]) == 1


def test_clocks_of_controllers_in_one_log(history: Table) -> None:
    """Time stands still until the later clock is reached; it is no other log."""
    rows = history["clocks"]
    assert [row["event_id"] for row in rows] == [11, 12, 13, 14, 15, 16, 17]
    assert [row["from_ts"] - START_TS for row in rows[-3:]] == [40_000] * 3
    assert not any(row["is_gap"] or row["is_restart"] for row in rows)


def test_hours_without_files_are_unknown(spans: Table, state: dict[str, dict[str, Any]]) -> None:
    """Never 0 ms below the minimum."""
    hour = 3_600
    assert shown(spans["no files"])[3:] == [
        (40, hour, 2), (hour, 3 * hour, None), (3 * hour, 3 * hour, 2), (3 * hour, 4 * hour, 2),
        (4 * hour, 6 * hour, None),
    ]  # fmt: skip
    found = state["no files"]
    assert found["unknown_ms"] == 4 * HOUR_MS
    assert found["below_min_ms"] == 2 * HOUR_MS - 10_000 - 10, "two were in the set from 20 s to 30 s"


def test_one_hour_without_files_is_unknown(spans: Table) -> None:
    assert shown(spans["one hour"])[3:6] == [(40, 3_600, 2), (3_600, 7_200, None), (7_200, 7_200, 2)]


def test_in_front_of_a_gap_is_unknown(spans: Table, state: dict[str, dict[str, Any]]) -> None:
    assert shown(spans["a hole"]) == [(0, 20, 1), (20, 60, None), (60, 3_600, 2), (3_600, 6 * 3_600, None)]
    assert state["a hole"]["unknown_ms"] == 40_000 + 5 * HOUR_MS
    assert state["a hole"]["below_min_ms"] == 20_000 - 10, "alone, from the election to the first change"


def test_without_a_minimum_nothing_is_below_it(state: dict[str, dict[str, Any]]) -> None:
    assert state["no minimum"]["below_min_ms"] is None


def test_the_minimum_over_time(state: dict[str, dict[str, Any]]) -> None:
    """The set: broker 1 alone from 10 ms on, two from 20 s; the minimum: 1, 2 from 15 s, 3 from 50 s."""
    assert state["another minimum"]["below_min_ms"] == 5_000 + HOUR_MS - 50_000


def test_outliers_are_left_out(history: Table) -> None:
    assert [row["event_id"] for row in history["outliers"]] == [11, 12, 13, 14, 15]


def test_a_clean_that_shrinks_a_set_or_clears_a_master_is_a_change(frames: dict[str, DataFrame]) -> None:
    rows = sorted(rows_by_group(frames["changes"])["cleaned"], key=lambda row: row["n"])
    assert [(row["event_id"], row["type"], row["left"], row["master_broker_id"]) for row in rows] == [
        (1, "alterSyncStateSet", [], 1),
        (2, "cleanBrokerData", [1], None),
        (4, "cleanBrokerData", [2], None),
        (8, "electMaster", [], 4),
    ]
    assert not any(row["is_shrink"] or row["is_expand"] for row in rows[1:])  # no master asked for it


def test_a_group_that_was_cleaned_is_no_more(frames: dict[str, DataFrame], history: Table) -> None:
    """Until its name is used again, which is no gap."""
    found: dict[int, list[tuple[int, int, str]]] = {}
    for row in sorted(rows_by_group(frames["members"])["cleaned"], key=lambda row: row["from_ts"]):
        span = ((row["from_ts"] - START_TS) // 1_000, (row["to_ts"] - START_TS) // 1_000, row["state"])
        found.setdefault(row["broker_id"], []).append(span)
    assert found == {
        1: [(0, 2, "master")],
        2: [(0, 1, "out"), (1, 4, "in_sync")],
        3: [(0, 3, "out")],
        4: [(7, 8, "out"), (8, 3_600, "master")],
    }
    assert not any(row["is_gap"] for row in history["cleaned"])
