"""The answer key itself: it rejects what is wrong, and its truth is that of a history by hand."""

from dataclasses import replace

import pytest

from tests.spark.key import answers_events, answers_failover, answers_samples
from tests.spark.key.expected import Comparison, Near, numbered
from tests.spark.key.files import Known
from tests.spark.key.samples import Replica, Sample
from tests.spark.key.world import HOUR_MS, REPLICAS, START_TS, Event, Features, Gap, Group, Ready, View

pytestmark = pytest.mark.spark

NOBODY = View(None, 0, (), 0, REPLICAS)
FIRST = View(1, 1, (1,), 1, REPLICAS)
WHOLE = View(1, 1, (1, 2, 3), 2, REPLICAS)
SECOND = View(2, 2, (2,), 3, REPLICAS)
LOSS_TS, END_TS = START_TS + 600_000, START_TS + HOUR_MS


def known_by_hand() -> Known:
    """A master that is killed ten minutes after its group's birth, and cut off from everybody before."""
    group = Group("hand", Features())
    group.events = [
        Event(START_TS + 1_000, 0, 1, "applyBrokerId", None, NOBODY),
        Event(START_TS + 2_000, 0, 2, "electMaster", NOBODY, FIRST, "the first master"),
        Event(START_TS + 5_000, 0, 3, "alterSyncStateSet", FIRST, WHOLE, "caught_up"),
        Event(LOSS_TS + 900, 0, 4, "electMaster", WHOLE, SECOND, "master 1 is not active",
              heard=LOSS_TS - 100, detected=LOSS_TS + 850),
    ]  # fmt: skip
    group.ready = [Ready(START_TS + 2_100, 1, "master", 0, 1), Ready(LOSS_TS + 1_000, 2, "master", 0, 2)]
    group.gaps = [Gap(LOSS_TS, LOSS_TS + 1_200, 1, "broker-1", 0)]
    group.clocks = {each: [(0, 0)] for each in REPLICAS}
    group.log_starts = [START_TS]
    known = Known(group, record_hours={START_TS})
    ack = Replica(3, 90, 5, in_sync=True)
    known.samples = [
        Sample(START_TS + 10_500, 1, "master", 0, 1, 100, 93, minimum=2, replicas=(ack,)),
        Sample(LOSS_TS + 1_500, 2, "master", 0, 2, 200, 200, minimum=2),
        Sample(LOSS_TS + 3_500, 1, "master", 0, 1, 150, 90, minimum=3),
    ]
    return known


def test_a_difference_is_found() -> None:
    found = Comparison()
    rows = {(1,): {"n": 5}, (2,): {"n": Near(10, 2)}}
    found.add("t", rows, {(1,): {"n": 5, "more": 1}, (2,): {"n": 12}})
    assert str(found) == "2 comparisons, no difference"
    found.add("t", rows, {(1,): {"n": 6}, (2,): {"n": 13}, (3,): {}})
    found.add("t", rows, {(1,): {}, (2,): {"n": None}})
    found.add("t", rows, {})
    assert [each.partition(":")[0] for each in found.differences] == [
        "t (1,) n", "t (2,) n", "t (3,)", "t (1,) n", "t (2,) n", "t (1,)", "t (2,)",
    ]  # fmt: skip
    assert (found.values, found.by_table) == (9, {"t": 9})


def test_rows_whose_times_have_a_tolerance() -> None:
    rows = [{"g": "a", "ts": Near(7, 3)}, {"g": "a", "ts": 2}]
    assert numbered(rows, ("g",), "ts") == {("a", 0): rows[1], ("a", 1): rows[0]}


def test_samples_by_hand() -> None:
    known = known_by_hand()
    rows = answers_samples.master_rows(known)
    assert [each["is_stale"] for each in rows] == [False, False, True]
    hour = answers_samples.lag(known, rows, HOUR_MS)["hand", START_TS]
    assert (hour["samples"], hour["stale_master"], hour["bytes_max"], hour["covered_ms"]) == (2, 1, 7, 4_000)
    (own,) = answers_samples.replica_lag(known, rows, HOUR_MS).values()
    assert (own["bytes_max"], own["last_ack_offset"]) == (10, 90)
    filled = answers_samples.filled(known, rows, 60_000, END_TS)
    late = filled["hand", LOSS_TS, 3]
    assert (late["is_filled"], late["bytes_max"]) == (True, 110)
    assert late["ms_max"] == 5 + LOSS_TS + 60_000 - START_TS - 10_500
    assert [
        row["min_in_sync_replicas"] for row in answers_samples.minimum_changes(known, rows, by_hour=True)
    ] == [2]


def test_events_by_hand() -> None:
    known = known_by_hand()
    minimum = answers_samples.minimum_changes(known, answers_samples.master_rows(known), by_hour=True)
    (hour,) = answers_events.group_state(known, minimum, END_TS, HOUR_MS).values()
    below_ms = 3_000 + END_TS - LOSS_TS - 900
    assert (hour["below_min_ms"], hour["elections"], hour["expands"]) == (below_ms, 2, 1)
    (totals,) = answers_failover.group_totals(known, minimum, END_TS).values()
    assert totals["known_ms"] == END_TS - START_TS - 2_000
    assert totals["available_ms"].value == LOSS_TS - 100 - START_TS - 5_000
    (switch,) = answers_failover.failovers(known).values()
    assert (switch["detect_ms"], switch["elect_ms"], switch["gap_ms"]) == (850, 50, 1_200)
    assert switch["ready_ms"] == 100
    assert answers_events.membership(known, END_TS)["hand", 1, LOSS_TS + 900] == {
        "to_ts": END_TS,
        "state": "out",
    }


def test_events_that_are_lost() -> None:
    known = known_by_hand()
    known.group.events[2] = replace(known.group.events[2], recorded=False)
    (hour,) = answers_events.group_state(known, [], END_TS, HOUR_MS).values()
    assert hour["unknown_ms"] == LOSS_TS + 900 - START_TS - 2_000
    assert (hour["expands"], hour["below_min_ms"]) == (0, None)
    assert answers_events.epoch_gaps(known) == 1
