"""One Spark session per test run, and many random groups in one frame: a query runs once for all."""

import importlib.util
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from keelmq.remoting.records import RECORDS, HaSample, Record, name_of
from tests.spark.histories import History, random_history, write_telemetry

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

if importlib.util.find_spec("pyspark") is None:  # pytest.importorskip here would stop pytest itself
    collect_ignore_glob = ["test_*.py"]

CLEAN_SEEDS = range(60)
MESSY_SEEDS = range(1_000, 1_060)


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    from analytics.session import spark_session

    with spark_session(quick=True) as session:
        yield session


@dataclass(frozen=True)
class World:
    """All groups' truth, and one frame of good records per kind."""

    histories: Sequence[History]
    frames: "dict[type[Record], DataFrame]"
    group_history: "DataFrame"
    until_ts: int


@pytest.fixture(scope="session")
def world(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> World:
    from analytics.inputs import good, read_records
    from analytics.sync_state_set import group_history
    from keelmq.remoting.records import ControllerEvent

    histories = [random_history(seed) for seed in CLEAN_SEEDS]
    histories += [random_history(seed, is_messy=True) for seed in MESSY_SEEDS]
    records = list(itertools.chain(*(history.records() for history in histories)))
    root = write_telemetry(tmp_path_factory.mktemp("world"), records)
    frames = {record: good(read_records(spark, [str(root)], record)).persist() for record in RECORDS}
    return World(
        histories,
        frames,
        group_history(frames[ControllerEvent]).persist(),
        max(record.ts for record in records),
    )


def rows_by_group(frame: "DataFrame") -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in frame.collect():
        found.setdefault(row["broker_name"], []).append(row.asDict(recursive=True))
    return found


def put_records(root: Path, *records: Record) -> Path:
    return write_telemetry(root, records)


def add_line(root: Path, line: bytes, record: type[Record] = HaSample) -> None:
    """At the end of that kind's file, which must be there."""
    (path,) = (root / name_of(record)).rglob("*.jsonl*")
    with path.open("ab") as file:
        file.write(line)
