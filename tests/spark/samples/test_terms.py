"""Samples of replaced masters: hand-made hours, and random ones against plain Python."""

from typing import TYPE_CHECKING, Any

import pytest

from analytics.queries.minimum import minimum
from tests.spark.model_samples import HOUR_TS
from tests.spark.samples.frames import GROUP, Row, rows_of, samples_of
from tests.spark.samples.model_terms import Hour, Hours, hour_of, random_hours

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def counts(spark: "SparkSession", masters: list[Row], events: list[Row]) -> tuple[int, int]:
    """How many samples are of current masters, and of replaced ones."""
    found = [row["is_stale"] for row in rows_of(samples_of(spark, masters, events=events).masters)]
    return found.count(False), found.count(True)


def event(second: float, log: str, before: int | None, after: int) -> Row:
    views = {
        "before": None if before is None else {"master_epoch": before},
        "after": {"master_epoch": after},
    }
    fields = {"event_id": 1, "type": "", "controller_id": "n0", "log_id": log, **views}
    return GROUP | {"ts": HOUR_TS + int(second * 1_000)} | fields


def sample(ts: int, broker_id: int, epoch: int) -> Row:
    return GROUP | {
        "ts": ts,
        "broker_id": broker_id,
        "master_epoch": epoch,
        "max_offset": 9,
        "confirm_offset": 9,
    }


@pytest.mark.parametrize(("is_elected", "stale"), [(False, 4), (True, 3)])
def test_a_master_that_was_cut_off_before_the_hour(
    spark: "SparkSession", is_elected: bool, stale: int
) -> None:
    """Its first sample may come before the first record of the hour that knows of its successor."""
    masters = [
        sample(HOUR_TS + second * 1_000 + 400 * broker, broker, broker)
        for second in range(4)
        for broker in (1, 2)
    ]
    events = [event(0.5, "", 1 if is_elected else None, 2)]
    assert counts(spark, masters, events) == (8 - stale, stale)


def rebuilt(log: str) -> tuple[list[Row], list[Row]]:
    """Broker 1 is master of epoch 5. At 12 s the controllers begin anew; at 13 s broker 2 is master of epoch
    1, and samples from 14 s on. Broker 1 goes on until 17 s, and so does a controller of the old log."""
    masters = [
        sample(HOUR_TS + second * 1_000 + 500, broker, epoch)
        for broker, epoch, seconds in ((1, 5, range(17)), (2, 1, range(14, 20)))
        for second in seconds
    ]
    return masters, [
        event(0, "a", None, 5),
        event(12, log, None, 0),
        event(13, log, 0, 1),
        event(17, "a", None, 5),
    ]


@pytest.mark.parametrize(("log", "expected"), [("b", (13 + 6, 4)), ("a", (17, 6))])
def test_controllers_that_were_built_anew(spark: "SparkSession", log: str, expected: tuple[int, int]) -> None:
    """Epochs of the new log are newer, although they are smaller."""
    assert counts(spark, *rebuilt(log)) == expected


def test_controllers_that_were_built_anew_and_that_brokers_do_not_follow(spark: "SparkSession") -> None:
    """A broker that runs on keeps its epoch: no sample has one of the new log."""
    masters, events = rebuilt("b")
    assert counts(spark, [each for each in masters if each["broker_id"] == 1], events) == (17, 0)


@pytest.mark.parametrize("first", ["a", "b"])
def test_what_a_controller_of_the_old_log_writes_later(spark: "SparkSession", first: str) -> None:
    """In an hour after that, both logs have a snapshot only, in any order."""
    masters = [each for each in rebuilt("b")[0] if each["broker_id"] == 2]
    events = [event(0.3 * (log != first), log, None, epoch) for log, epoch in (("a", 5), ("b", 1))]
    assert counts(spark, masters, events) == (6, 0)


def test_nobody_knows_whose_masters_these_are(spark: "SparkSession") -> None:
    replica = sample(HOUR_TS, 1, 1) | {"replica_id": 2, "ack_offset": 9, "in_sync": True}
    assert rows_of(samples_of(spark, [], [replica]).replicas) == []


def test_random_hours(spark: "SparkSession") -> None:
    """Replicas' samples of an unknown masterEpoch are left out."""
    masters, replicas, events = random_hours(seed=1, groups=150)
    hours = Hours(masters, events)
    found = samples_of(spark, masters, replicas, events)
    for rows, query in ((masters, found.masters), (replicas, found.replicas)):
        answers = [(row, hours.is_stale(row)) for row in rows]
        names = ("cluster_name", "broker_name", "ts", "broker_id", "master_epoch")
        expected = [(*map(row.get, names), stale) for row, stale in answers if stale is not None]
        assert sorted(tuple(row[name] for name in (*names, "is_stale")) for row in rows_of(query)) == sorted(
            expected
        )
        assert {stale for _, stale in answers} == ({True, False} if rows is masters else {True, False, None})


def test_the_minimum_and_its_changes(spark: "SparkSession") -> None:
    masters, _, events = random_hours(seed=2, groups=60)
    hours = Hours(masters, events)
    expected: list[tuple[Any, ...]] = []
    last: dict[Hour, int] = {}
    for row in sorted(masters, key=lambda row: (row["ts"], row["broker_id"])):
        value = row["min_in_sync_replicas"]
        if value is not None and not hours.is_stale(row) and last.get(hour_of(row)) != value:
            last[hour_of(row)] = value
            expected.append((*hour_of(row)[:2], row["ts"], value))
    found = [
        tuple(row.values()) for row in rows_of(minimum(samples_of(spark, masters, events=events).masters))
    ]
    assert sorted(found) == sorted(expected)
    assert len(expected) > len(last)
