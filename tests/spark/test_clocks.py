"""One time axis: rows of brokers with wrong clocks, by the controllers' clock."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import pytest

from analytics.compaction.times import HOLD_MS, OFFSET_MAX_MS, STEP_MS
from analytics.queries.clocks import MINUTE_MS, corrected, offsets
from analytics.queries.skew import clock_pieces

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

HOUR_MS = 3_600_000
START = 1_767_225_600_000
CLOCKS = """cluster_name string, broker_name string, ts bigint, broker_id bigint, controller_id string,
    offset_ms bigint, heartbeats bigint"""
ROWS = "cluster_name string, broker_name string, ts bigint, broker_id bigint, true_ts bigint"

Clock = Callable[[int], int]
"""The offset of a broker's clock at a moment, both in ms."""


def samples(broker_id: int, clock: Clock, *, minutes: Iterable[int] = range(120)) -> list[tuple[object, ...]]:
    """A controller's samples, one a minute at its 30th second: the least offset of the minute before."""
    found: list[tuple[object, ...]] = []
    for minute in minutes:
        ts = START + minute * MINUTE_MS + 30_000
        least = min(clock(each) for each in range(ts - MINUTE_MS + 1_000, ts + 1, 1_000))
        found.append(("c", "g", ts, broker_id, "n1", least, 60))
    return found


def wrong_by(
    spark: "SparkSession",
    clocks: dict[int, Clock],
    *,
    minutes: Iterable[int] = range(120),
    seconds: range = range(7_200),
) -> dict[int, dict[int, set[int]]]:
    """What is left of the brokers' errors, in ms: for each, the seconds (since START) at which it is so."""
    heard = [row for broker, clock in clocks.items() for row in samples(broker, clock, minutes=minutes)]
    true = [(broker, START + second * 1_000) for broker in clocks for second in seconds]
    rows = [("c", "g", ts - clocks[broker](ts), broker, ts) for broker, ts in true]
    frame = spark.createDataFrame(rows, ROWS)
    found: dict[int, dict[int, set[int]]] = {broker: {} for broker in clocks}
    for row in corrected(frame, offsets(clock_pieces(spark.createDataFrame(heard, CLOCKS)))).collect():
        errors = found[row["broker_id"]]
        errors.setdefault(row["ts"] - row["true_ts"], set()).add((row["true_ts"] - START) // 1_000)
    return found


def only(clock: int) -> Clock:
    return lambda _: clock


def test_steady_clocks(spark: "SparkSession") -> None:
    clocks = {1: only(0), 2: only(90_000), 3: only(-90_000), 4: only(-HOUR_MS - 70), 5: only(STEP_MS)}
    found = wrong_by(spark, clocks)
    assert {broker: [*errors] for broker, errors in found.items()} == {1: [0], 2: [0], 3: [0], 4: [0],
                                                                     5: [-STEP_MS]}  # fmt: skip


def test_a_clock_that_is_farther_away_than_a_day_is_left_alone(spark: "SparkSession") -> None:
    found = wrong_by(spark, {1: only(OFFSET_MAX_MS), 2: only(OFFSET_MAX_MS + 1)}, seconds=range(60))
    assert [[*errors] for errors in found.values()] == [[0], [-OFFSET_MAX_MS - 1]]


def test_a_clock_that_steps_forward_in_an_hour(spark: "SparkSession") -> None:
    """No row is of both times. The sample of the step's minute says what was true after it."""
    step = START + 1_810_000
    found = wrong_by(
        spark, {1: lambda ts: 0 if ts < step else -90_000, 2: lambda ts: 0 if ts < step else -HOUR_MS}
    )
    assert found == {1: {0: {*range(7_200)}}, 2: {0: {*range(7_200)}}}


def test_a_clock_that_is_set_back_repeats_minutes(spark: "SparkSession") -> None:
    """Only rows of the repeated minutes can get the offset of the other time."""
    step = START + 1_810_000
    (errors,) = wrong_by(spark, {1: lambda ts: 0 if ts < step else 90_000}).values()
    assert set(errors) == {0, -90_000, 90_000}
    assert errors[90_000] == {*range(1_800, 1_810)}, "own minute 30 is mostly of the time after the step"
    assert errors[-90_000] == {*range(1_810, 1_890)}, "own minutes 28 and 29 are mostly of the time before"


def test_an_offset_holds_while_controllers_are_silent(spark: "SparkSession") -> None:
    minutes = [*range(10), *range(50, 60)]
    found = wrong_by(spark, {1: only(-HOUR_MS), 2: only(90_000)}, minutes=minutes, seconds=range(7_400))
    held_until = {broker: max(errors[0]) for broker, errors in found.items()}
    last = 59 * 60 + 30 + HOLD_MS // 1_000
    assert all(last <= each < last + 60 for each in held_until.values())
    assert found[1][HOUR_MS] == {*range(held_until[1] + 1, 7_400)}


def test_a_broker_without_samples_keeps_its_own_time(spark: "SparkSession") -> None:
    heard = clock_pieces(spark.createDataFrame(samples(1, only(90_000)), CLOCKS))
    frame = spark.createDataFrame([("c", "g", START, 2, 0), ("c", "h", START, 1, 0)], ROWS)
    assert [row["ts"] for row in corrected(frame, offsets(heard)).collect()] == [START, START]


def test_moments_of_a_role_change(spark: "SparkSession") -> None:
    heard = clock_pieces(spark.createDataFrame(samples(1, only(90_000)), CLOCKS))
    frame = spark.createDataFrame([("c", "g", START, 1, START - 5)], ROWS.replace("true_ts", "started_ts"))
    (row,) = corrected(frame, offsets(heard)).collect()
    assert row.asDict() == {
        "cluster_name": "c",
        "broker_name": "g",
        "ts": START + 90_000,
        "broker_id": 1,
        "started_ts": START - 5 + 90_000,
        "own_ts": START,
    }


def test_offsets_depend_on_pieces_nearby_only(spark: "SparkSession") -> None:
    """So an hour can be computed from the samples of the hours around it."""
    step = START + 5 * HOUR_MS
    heard = samples(1, lambda ts: -90_000 if ts < step else 4_000, minutes=range(600))

    def by_minute(rows: list[tuple[object, ...]]) -> dict[int, int]:
        found = offsets(clock_pieces(spark.createDataFrame(rows, CLOCKS))).collect()
        return {row["own_minute"]: row["offset_ms"] for row in found}

    everything = by_minute(heard)
    some = by_minute([row for row in heard if 3 * HOUR_MS <= int(str(row[2])) - START < 7 * HOUR_MS])
    of_hour = {START + 5 * HOUR_MS + minute * MINUTE_MS for minute in range(-30, 90)}
    assert {each: everything[each] for each in of_hour} == {each: some[each] for each in of_hour}
    assert {*everything.values()} == {-90_000, 4_000}
