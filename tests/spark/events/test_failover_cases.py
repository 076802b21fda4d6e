"""Fail-overs: the cases that decide a definition."""

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from analytics.queries.event_log import group_history
from analytics.queries.failover import elections, failovers, with_ready
from analytics.queries.kept import kept
from analytics.queries.quality import stale_role_changes
from analytics.queries.skew import clock_bounds, clock_pieces, clock_skew
from keelmq.remoting.records import ClockSample, ControllerEvent, Record, RoleChange, SendGap
from tests.spark.events.cases import (
    START_TS,
    alter,
    clock,
    election,
    event,
    gap,
    life,
    named,
    ready,
    snapshot,
    view,
)  # fmt: skip
from tests.spark.frames import frames_of, rows_by_group

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

Table = dict[str, list[dict[str, Any]]]
ONE, TWO, THREE = view(1, 1), view(2, 2), view(1, 3)
WITH_ONE = view(2, 2, 1, 2, set_epoch=3)
LOST = election(30, ONE, TWO, ts=1_000, last_heartbeat_ts=200, detected_ts=950)

CASES: dict[str, list[Record]] = {
    "plain": [
        *life(),
        LOST,
        ready(2, 2, ts=1_040),
        ready(2, 2, ts=9_000),  # said again, by a restart
        ready(3, 2, ts=1_005),  # another broker
        gap(1, started=600, ended=1_060),
        gap(2, started=600, ended=1_060),  # another broker's
    ],
    "cleared": [
        *life(),
        election(30, ONE, view(None, 2), ts=1_000, last_heartbeat_ts=100, detected_ts=900),
        event(31, "cleanBrokerData", view(None, 2), view(None, 2, replicas=(1, 2)), ts=2_000),
        election(32, view(None, 2, replicas=(1, 2)), view(1, 3), ts=5_000),
        election(33, view(1, 3), view(2, 4), ts=9_000),
    ],
    "first": [*life(), ready(1, 1, ts=5)],
    "unknown": [snapshot(29, view(None, 2), ts=0), election(31, view(None, 2), view(2, 3), ts=500)],
    "gaps": [
        *life(),
        election(30, ONE, TWO, ts=1_000),
        election(31, TWO, THREE, ts=1_500),
        election(32, THREE, view(2, 4), ts=2_000),
        gap(1, started=900, ended=2_500),
        gap(1, started=400, ended=2_600),
        gap(2, started=11_500, ended=11_600),  # 10 s after the election: still its own
        gap(2, started=11_501, ended=11_601),  # too late
    ],
    "controllers' clocks": [
        *life(), election(30, ONE, TWO, ts=1_000, last_heartbeat_ts=1_300, detected_ts=1_200)
    ],
    "broker behind": [*life(), LOST, ready(2, 2, ts=1_040 - 5_000)],
    "broker behind, known": [
        *life(), LOST, ready(2, 2, ts=1_040 - 5_000),
        *(clock(2, 5_000 + noise, ts=minute * 60_000) for minute, noise in enumerate((9, 0, 2)))
    ],
    "broker ahead": [*life(), LOST, ready(2, 2, ts=6_040), alter(31, TWO, WITH_ONE, ts=3_000)],
    "broker ahead, known": [*life(), LOST, ready(2, 2, ts=6_040), clock(2, -5_000, ts=30_000)],
    "close bounds": [
        *life(), LOST, ready(2, 2, ts=6_040), alter(31, TWO, WITH_ONE, ts=1_140)
    ],
    "a step": [  # behind by 5 s, then right: what lies between fits only the second
        *life(), LOST, ready(2, 2, ts=70_000), election(31, TWO, THREE, ts=71_000), ready(1, 3, ts=71_050),
        clock(2, 5_000, ts=60_000), clock(2, 0, ts=120_000),
        clock(1, 5_000, ts=60_000), clock(1, 0, ts=120_000),
    ],
    "producer ahead": [*life(), LOST, ready(2, 2, ts=1_040), gap(1, started=5_600, ended=6_060)],
    "producer behind": [*life(), LOST, ready(2, 2, ts=1_040), gap(1, started=-4_400, ended=-3_940)],
    "unnamed": [*life(), LOST, ready(2, 2, ts=1_040), gap(0, started=600, ended=1_060)],
    "cut off": [*life(), LOST, ready(2, 2, ts=1_040), ready(1, 1, ts=200_000)],
    "rebuilt": [  # the same epochs again, two hours later; nothing shows when the second one was ready
        *life(), LOST, ready(2, 2, ts=1_040),
        *life(ts=7_200_000), election(3, ONE, TWO, ts=7_201_000),
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def frames(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, DataFrame]:
    found = frames_of(spark, tmp_path_factory.mktemp("cases"), named(CASES))
    elected = kept(elections(kept(group_history(found[ControllerEvent]))))
    pieces = kept(clock_pieces(found[ClockSample]))
    return {
        "failovers": failovers(with_ready(elected, found[RoleChange], pieces), found[SendGap]),
        "skew": clock_skew(pieces, clock_bounds(elected, found[RoleChange])),
        "stale": stale_role_changes(elected, found[RoleChange]),
    }


@pytest.fixture(scope="module")
def table(frames: dict[str, DataFrame]) -> Table:
    """The fail-overs of every case, in order."""
    return rows_by_group(frames["failovers"].orderBy("n"))


def parts(row: dict[str, Any]) -> tuple[int | None, int | None, int | None]:
    return row["detect_ms"], row["elect_ms"], row["ready_ms"]


def test_a_failover_from_its_records(table: Table) -> None:
    (row,) = table["plain"]
    assert (row["old_master"], row["new_master"], row["master_epoch"]) == (1, 2, 2)
    assert parts(row) == (350, 50, 40)
    assert (row["killed_program"], row["gap_ms"]) == ("broker-1", 460)


def test_after_a_cleared_master(table: Table) -> None:
    """Nobody could be elected: the loss was detected with the clearing. The old master may be the new one."""
    first, second = table["cleared"]
    assert (first["old_master"], first["new_master"], first["elected_ts"]) == (1, 1, START_TS + 5_000)
    assert parts(first) == (800, 4_100, None)
    assert second["detected_ts"] is None, "a hand-over: nothing was detected"


def test_the_first_election_is_none(table: Table) -> None:
    assert "first" not in table


def test_an_old_master_before_the_history(table: Table) -> None:
    """The files begin when the group had no master: who it was is not known."""
    (row,) = table["unknown"]
    assert (row["old_master"], row["new_master"], row["gap_ms"]) == (None, 2, None)


def test_the_nearest_gap_wins_and_counts_once(table: Table) -> None:
    """Two fail-overs of the same broker within one gap; two producers at one fail-over; clocks 10 s apart."""
    assert {row["event_id"]: row["gap_ms"] for row in table["gaps"]} == {30: 1_600, 31: 100, 32: None}


def test_controllers_that_contradict_each_other_make_unknown(table: Table) -> None:
    (row,) = table["controllers' clocks"]
    assert parts(row) == (None, None, None)


@pytest.mark.parametrize("case", ["broker behind", "broker ahead"])
def test_a_broker_5_s_off_without_clock_samples_is_unknown(table: Table, case: str) -> None:
    """Ready before its election, or after the first change that it asked for."""
    (row,) = table[case]
    assert (row["ready_ts"], row["ready_ms"]) == (None, None)


@pytest.mark.parametrize("case", ["broker behind, known", "broker ahead, known"])
def test_a_broker_5_s_off_is_corrected(table: Table, case: str) -> None:
    (row,) = table[case]
    assert (row["ready_ts"] - START_TS, row["ready_ms"]) == (1_040, 40)
    assert row["ready_uncertain_ms"] == (9 if "behind" in case else 0)


def test_close_bounds_correct_it(table: Table) -> None:
    """After the election at 1,000 and before its request at 1,140: 120 ± 120."""
    (row,) = table["close bounds"]
    assert (row["ready_ms"], row["ready_uncertain_ms"]) == (120, 120)


def test_near_a_step_what_fits_counts(table: Table) -> None:
    """70,000 + 5,000 is after the end of that master at 71,000; 71,050 fits both ways: unknown."""
    first, second = table["a step"]
    assert first["ready_ms"] == 69_000
    assert second["ready_ms"] is None


@pytest.mark.parametrize("case", ["producer ahead", "producer behind"])
def test_a_producer_5_s_off_keeps_its_gap(table: Table, case: str) -> None:
    (row,) = table[case]
    assert (row["killed_program"], row["gap_ms"], row["fault_ts"]) == ("broker-1", 460, None)
    assert parts(row) == (750, 50, 40), "detected: counted from the last heartbeat"


def test_a_producer_that_does_not_know_the_master(table: Table) -> None:
    (row,) = table["unnamed"]
    assert (row["gap_ms"], row["fault_ts"] - START_TS, row["old_master"]) == (460, 600, 1)


def test_a_master_that_was_cut_off(table: Table, frames: dict[str, DataFrame]) -> None:
    (row,) = table["cut off"]
    assert row["ready_ms"] == 40
    stale = rows_by_group(frames["stale"])
    assert [(each["broker_id"], each["master_epoch"]) for each in stale.pop("cut off")] == [(1, 1)]
    assert stale.keys() <= {"plain"}  # ready of broker 3, which is not the master


def test_epochs_that_start_again(table: Table) -> None:
    first, second = table["rebuilt"]
    assert (first["ready_ms"], second["ready_ms"]) == (40, None)
    assert second["elected_ts"] == START_TS + 7_201_000


def test_the_table_of_skews(frames: dict[str, DataFrame]) -> None:
    rows = rows_by_group(frames["skew"])

    def of(case: str) -> list[tuple[Any, ...]]:
        columns = ("broker_id", "offset_ms", "samples", "source", "uncertain_ms", "least_ms", "most_ms")
        return [tuple(row[name] for name in columns) for row in rows[case]]

    assert of("broker behind, known")[0] == (2, 5_000, 3, "clock_sample", 9, None, None)
    assert (2, None, 1, "bounds", None, 4_960, None) in of("broker behind")
    assert (2, None, 1, "bounds", None, -5_040, -2_940) in of("broker ahead")
    assert (2, -4_920, 1, "bounds", 120, -5_040, -4_800) in of("close bounds")
    assert [row[1] for row in of("a step") if row[0] == 2] == [5_000, 0]
