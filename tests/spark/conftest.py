"""One Spark session per test run, and many random groups in one frame: a query runs once for all."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from keelmq.remoting.records import HaSample, Record, name_of
from tests.spark.histories import write_telemetry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

if importlib.util.find_spec("pyspark") is None:  # pytest.importorskip here would stop pytest itself
    collect_ignore_glob = ["*"]


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    import pyspark

    if importlib.util.find_spec("pysail") and not Path(pyspark.__file__).with_name("jars").is_dir():
        yield from _embedded()
        return
    from analytics.session import spark_session

    with spark_session(quick=True) as session:
        yield session


def _embedded() -> "Iterator[SparkSession]":
    from pysail.spark import SparkConnectServer
    from pyspark.sql import SparkSession

    server = SparkConnectServer()
    server.start()
    _, port = server.listening_address
    session = SparkSession.builder.remote(f"sc://127.0.0.1:{port}").getOrCreate()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    session.conf.set("spark.sql.ansi.enabled", "false")
    try:
        yield session
    finally:
        session.stop()
        server.stop()


def put_records(root: Path, *records: Record) -> Path:
    return write_telemetry(root, records)


def add_line(root: Path, line: bytes, record: type[Record] = HaSample) -> None:
    """At the end of that kind's file, which must be there."""
    (path,) = (root / name_of(record)).rglob("*.jsonl*")
    with path.open("ab") as file:
        file.write(line)
