"""Records as the DataFrames of the compacted tables, without compaction: for tests of single queries."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from analytics.tables import CLOCK_SAMPLE, CONTROLLER_EVENT, MASTER_SAMPLE, ROLE_CHANGE, SEND_GAP, Table
from keelmq.remoting.records import ClockSample, ControllerEvent, HaSample, Record, RoleChange, SendGap

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TABLES: Mapping[type[Record], Table] = {
    ControllerEvent: CONTROLLER_EVENT,
    RoleChange: ROLE_CHANGE,
    SendGap: SEND_GAP,
    ClockSample: CLOCK_SAMPLE,
    HaSample: MASTER_SAMPLE,
}


def rows_of(record: type[Record], records: Iterable[Record]) -> list[dict[str, Any]]:
    """The rows of that kind. An ha_sample counts if its broker is a master."""
    mine = (each for each in records if type(each) is record)
    names = TABLES[record].schema.names
    rows = (msgspec.to_builtins(each) for each in mine if getattr(each, "role", "") not in ("slave", "none")
            or record is not HaSample)  # fmt: skip
    return [{name: row.get(name) for name in names if "_us" not in name} for row in rows]


def frames_of(
    spark: "SparkSession", folder: Path, records: Sequence[Record]
) -> "dict[type[Record], DataFrame]":
    """One frame per kind, each from one Parquet file in `folder`."""
    found = {}
    for record, table in TABLES.items():
        path = folder / f"{table.name}.parquet"
        pq.write_table(pa.Table.from_pylist(rows_of(record, records), schema=table.schema), path)
        found[record] = spark.read.parquet(f"file://{path}")
    return found


def rows_by_group(frame: "DataFrame") -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in frame.collect():
        found.setdefault(row["broker_name"], []).append(row.asDict(recursive=True))
    return found


def chain(lists: Iterable[Sequence[Record]]) -> list[Record]:
    return list(itertools.chain.from_iterable(lists))
