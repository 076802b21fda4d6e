"""One session per test run, of the engine that is tested, and many random groups in one frame: a query runs
once for all."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from keelmq.remoting.records import HaSample, Record, name_of
from tests.spark.engine import engine_session
from tests.spark.histories import write_telemetry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

if importlib.util.find_spec("pyspark") is None:  # pytest.importorskip here would stop pytest itself
    collect_ignore_glob = ["*"]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """Of the engine that TESTS_ENGINE names (tests/spark/engine.py). What is computed meanwhile uses this
    session."""
    with engine_session(tmp_path_factory.mktemp("engine")) as session:
        yield session


def put_records(root: Path, *records: Record) -> Path:
    return write_telemetry(root, records)


def add_line(root: Path, line: bytes, record: type[Record] = HaSample) -> None:
    """At the end of that kind's file, which must be there."""
    (path,) = (root / name_of(record)).rglob("*.jsonl*")
    with path.open("ab") as file:
        file.write(line)
