"""Random hours, rolled up without Spark, against plain Python: whatever batches the rows come in."""

import random
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import pyarrow as pa
import pytest

from analytics.rollup.hour import roll_hour
from analytics.tables import CONSUMER_LAG, CONTROLLER_EVENT, MASTER_SAMPLE, REPLICA_SAMPLE, Table
from tests.spark import model_samples as model
from tests.spark.model_samples import HOUR_TS, Life, Row, mark_stale

WINDOWS = (5_000, model.MINUTE_MS, model.HOUR_MS)


class Rows:
    """The rows of an hour, in the order of the key, in batches of `size`."""

    def __init__(self, rows: dict[str, list[Row]], size: int) -> None:
        self._rows, self._size = rows, size

    def batches(self, table: Table, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        rows = sorted(self._rows[table.name], key=lambda row: tuple(row[name] for name in table.key))
        names = list(dict.fromkeys(each.partition(".")[0] for each in columns))
        plain = [{name: row.get(name) for name in table.schema.names} for row in rows]
        whole = pa.Table.from_pylist(plain, table.schema).select(names)
        yield from whole.combine_chunks().to_batches(max_chunksize=self._size)


@pytest.fixture(scope="module")
def hour() -> dict[str, list[Row]]:
    """With minima that change now and then, and samples of older brokers, which have none."""
    lives, dice = [Life(seed, 1) for seed in range(24)], random.Random(1)
    masters = [row for life in lives for row in life.masters]
    for row in masters:
        row["min_in_sync_replicas"] = dice.choice([None, 1, 1, 1, 2])
    return {
        MASTER_SAMPLE.name: masters,
        REPLICA_SAMPLE.name: [row for life in lives for row in life.replicas],
        CONTROLLER_EVENT.name: [row for life in lives for row in life.events],
        CONSUMER_LAG.name: [row for life in lives for row in life.consumers],
    }


def marked(hour: dict[str, list[Row]], table: Table) -> list[Row]:
    return mark_stale(hour[table.name], hour[MASTER_SAMPLE.name], hour[CONTROLLER_EVENT.name])


def found(hour: dict[str, list[Row]], size: int, name: str) -> dict[int, list[dict[str, Any]]]:
    """By width of windows."""
    rolled = roll_hour(Rows(hour, size), HOUR_TS, WINDOWS, {name})
    return {window_ms: rows.to_pylist() for _, window_ms, rows in rolled}


def by_key(rows: list[dict[str, Any]], *more: str) -> dict[Any, dict[str, Any]]:
    names = ("cluster_name", "broker_name", "window_ts", *more)
    of = {tuple(row[name] for name in names[1:]): row for row in rows}
    assert len(of) == len(rows)
    assert list(of) == sorted(of)
    return {key: {name: row[name] for name in row if name not in names} for key, row in of.items()}


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_each_table(hour: dict[str, list[Row]], size: int) -> None:
    replicas = [row for row in marked(hour, REPLICA_SAMPLE) if not row["is_stale"]]
    masters = marked(hour, MASTER_SAMPLE)
    of_lag, of_replicas = found(hour, size, "lag"), found(hour, size, "replica_lag")
    of_consumers = found(hour, size, "consumer_lag")
    assert set(of_lag) == set(of_replicas) == set(of_consumers) == {*WINDOWS}
    for width in WINDOWS:
        lags = by_key(of_lag[width])
        for row in lags.values():
            del row["covered_ms"]
        assert lags == {key: model.lag_row(rows) for key, rows in model.windows(masters, width).items()}
        expected = model.windows(replicas, width, "replica_id")
        assert by_key(of_replicas[width], "broker_id") == {
            key: model.replica_row(rows) for key, rows in expected.items()
        }
        expected = model.windows(hour[CONSUMER_LAG.name], width, "consumer_group", "topic")
        assert by_key(of_consumers[width], "consumer_group", "topic") == {
            key: model.consumer_row(rows) for key, rows in expected.items()
        }
    assert any(row["is_stale"] for row in masters)


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_the_minimum_and_its_changes(hour: dict[str, list[Row]], size: int) -> None:
    rows = [row for row in marked(hour, MASTER_SAMPLE) if not row["is_stale"]]
    known = [row for row in rows if row["min_in_sync_replicas"] is not None]
    known.sort(key=lambda row: (row["broker_name"], row["ts"], row["broker_id"]))
    expected = [
        (*key, next(same)["ts"], minimum)
        for key, of_group in groupby(known, key=lambda row: (row["cluster_name"], row["broker_name"]))
        for minimum, same in groupby(of_group, key=lambda row: row["min_in_sync_replicas"])
    ]
    (rolled,) = found(hour, size, "minimum").values()
    assert [tuple(row.values()) for row in rolled] == expected
    assert len(expected) > len({row[1] for row in expected})


@pytest.mark.parametrize(("is_elected", "stale"), [(False, 4), (True, 3)])
def test_a_master_that_was_cut_off_before_the_hour(is_elected: bool, stale: int) -> None:
    """Its first sample may come before the first record of the hour that knows of its successor."""
    group = {"cluster_name": "c", "broker_name": "b"}
    sample = {**group, "max_offset": 9, "confirm_offset": 9, "lag_ms": 0, "lag_ms_max": 0, "lag_bytes_max": 0}
    rows: dict[str, list[Row]] = {table.name: [] for table in (REPLICA_SAMPLE, CONSUMER_LAG)}
    rows[MASTER_SAMPLE.name] = [
        {**sample, "ts": HOUR_TS + second * 1_000 + 400 * broker, "broker_id": broker, "master_epoch": broker}
        for second in range(4)
        for broker in (1, 2)
    ]
    before = {"master_epoch": 1} if is_elected else None
    event = {**group, "ts": HOUR_TS + 500, "event_id": 1, "type": "", "controller_id": "n0", "log_id": ""}
    rows[CONTROLLER_EVENT.name] = [{**event, "before": before, "after": {"master_epoch": 2}}]
    (row,) = found(rows, 100, "lag")[model.HOUR_MS]
    assert (row["samples"], row["stale_master"]) == (8 - stale, stale)


def test_an_hour_without_samples(hour: dict[str, list[Row]]) -> None:
    nothing = {name: [] for name in hour}
    assert list(roll_hour(Rows(nothing, 7), HOUR_TS, WINDOWS)) == []
    alone = nothing | {REPLICA_SAMPLE.name: hour[REPLICA_SAMPLE.name]}
    assert list(roll_hour(Rows(alone, 7), HOUR_TS, WINDOWS)) == [], "nobody knows whose masters these are"


def rebuilt(log_id: str) -> dict[str, list[Row]]:
    """Broker 1 is master of epoch 5. At 12 s the controllers begin anew; at 13 s broker 2 is master of epoch
    1, and samples from 14 s on. Broker 1 goes on until 17 s, and so does a controller of the old log."""
    group = {"cluster_name": "c", "broker_name": "b"}
    sample = {**group, "max_offset": 9, "confirm_offset": 9, "lag_ms": 0, "lag_ms_max": 0, "lag_bytes_max": 0}

    def event(second: int, log: str, before: int | None, after: int) -> Row:
        views = {
            "before": None if before is None else {"master_epoch": before},
            "after": {"master_epoch": after},
        }
        fields = {"event_id": second, "type": "", "controller_id": "n0", "log_id": log, **views}
        return {**group, "ts": HOUR_TS + second * 1_000, **fields}

    rows: dict[str, list[Row]] = {table.name: [] for table in (REPLICA_SAMPLE, CONSUMER_LAG)}
    rows[MASTER_SAMPLE.name] = [
        {**sample, "ts": HOUR_TS + second * 1_000 + 500, "broker_id": broker, "master_epoch": epoch}
        for broker, epoch, seconds in ((1, 5, range(17)), (2, 1, range(14, 20)))
        for second in seconds
    ]
    rows[CONTROLLER_EVENT.name] = [
        event(0, "a", None, 5), event(12, log_id, None, 0), event(13, log_id, 0, 1), event(17, "a", None, 5)
    ]  # fmt: skip
    return rows


def test_controllers_that_were_built_anew() -> None:
    """Epochs of the new log are newer, although they are smaller."""
    rows = rebuilt("b")
    (row,) = found(rows, 100, "lag")[model.HOUR_MS]
    assert (row["samples"], row["stale_master"]) == (13 + 6, 4)
    in_one_log = rebuilt("a")
    (row,) = found(in_one_log, 100, "lag")[model.HOUR_MS]
    assert (row["samples"], row["stale_master"]) == (17, 6)


def test_controllers_that_were_built_anew_and_that_brokers_do_not_follow() -> None:
    """A broker that runs on keeps its epoch: no sample has one of the new log."""
    rows = rebuilt("b")
    rows[MASTER_SAMPLE.name] = [each for each in rows[MASTER_SAMPLE.name] if each["broker_id"] == 1]
    (row,) = found(rows, 100, "lag")[model.HOUR_MS]
    assert (row["samples"], row["stale_master"]) == (17, 0)


@pytest.mark.parametrize("first", ["a", "b"])
def test_what_a_controller_of_the_old_log_writes_later(first: str) -> None:
    """In an hour after that, both logs have a snapshot only, in any order."""
    rows = rebuilt("b")
    rows[MASTER_SAMPLE.name] = [each for each in rows[MASTER_SAMPLE.name] if each["broker_id"] == 2]
    snapshot = rows[CONTROLLER_EVENT.name][0]
    rows[CONTROLLER_EVENT.name] = [
        {**snapshot, "log_id": log, "after": {"master_epoch": epoch}, "ts": HOUR_TS + 300 * (log != first)}
        for log, epoch in (("a", 5), ("b", 1))
    ]
    (row,) = found(rows, 100, "lag")[model.HOUR_MS]
    assert (row["samples"], row["stale_master"]) == (6, 0)
