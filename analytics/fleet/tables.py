"""The tables of the fleet's page, of a generated fleet: made by the same queries as those of a real one."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from analytics.fleet.plan import Fleet
from analytics.queries.fleet import fleet_tables, groups_of, shown
from analytics.queries.incidents import WINDOW_MS, FleetFrames
from analytics.queries.reading import read_files
from analytics.rollup.tables import TABLES

_COLUMNS: Mapping[str, str] = {
    "failovers": "old_master, fault_ts, last_heartbeat_ts, elected_ts, ready_ts, gap_ms",
    "clock_skew": "broker_id, from_ts, to_ts, offset_ms",
    "membership": "broker_id, state, from_ts, to_ts",
    "sync_state_set_changes": "ts, type, master_epoch",
    "group_totals": "below_min_ms, availability, elections, unclean_elections, shrinks, flaps",
}
"""Columns that are read of each table of the run; write_rollups() leaves out those that it has no values
for."""
_TYPES = {"state": pa.string(), "type": pa.string(), "availability": pa.float64()}


def write_fleet_tables(spark: SparkSession, fleet: Fleet, out: Path) -> None:
    """Writes incidents, fleet and heat of a fleet whose other tables write_rollups() has written."""
    run = out / "tables" / f"run={fleet.to_ts}"
    frames = {}
    for each in (field.name for field in fields(FleetFrames)):
        is_of_run = each in _COLUMNS
        folder = run / each if is_of_run else out / "rollup" / each / f"window={WINDOW_MS}"
        files = [f"file://{path.absolute()}" for path in sorted(folder.rglob("*.parquet"))]
        frames[each] = read_files(spark, files, _schema(each) if is_of_run else TABLES[each].schema)
    from_ts, to_ts, cell_ms = shown(fleet.from_ts, fleet.to_ts)
    groups = groups_of(frames["group_totals"])
    tables = fleet_tables(FleetFrames(**frames), groups, from_ts=from_ts, to_ts=to_ts, cell_ms=cell_ms)
    for name, frame in tables.items():
        (run / name).mkdir(parents=True)
        pq.write_table(frame.toArrow(), run / name / "part.parquet", compression="zstd")


def _schema(name: str) -> pa.Schema:
    names = [each.strip() for each in _COLUMNS[name].split(",")]
    columns = [(each, _TYPES.get(each, pa.int64())) for each in names]
    return pa.schema([("cluster_name", pa.string()), ("broker_name", pa.string()), *columns])
