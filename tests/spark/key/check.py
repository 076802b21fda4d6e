"""Compares the output of a run with the truth."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from tests.spark.key import answers_events as events
from tests.spark.key import answers_failover as failover
from tests.spark.key import answers_samples as samples
from tests.spark.key.expected import Comparison, Key, Row, keyed, numbered
from tests.spark.key.files import Known, Written
from tests.spark.key.world import HOUR_MS, MINUTE_MS, Plan

EDGE_MS = MINUTE_MS
"""The end of the run's time is where most writers end, in minutes."""
MOMENT_MS = 2_000
"""An hour of which no more is missing counts to its end."""

_Group: TypeAlias = tuple[Known, Sequence[Row]]
"""What is known of a group, and its rows of master_rows()."""


def compare(out: Path, written: Written, plan: Plan) -> Comparison:
    """Compares the roll-ups and the newest run tables below `out` with the truth."""
    found = Comparison()
    run = max((out / "tables").glob("run=*"), key=lambda each: int(each.name.removeprefix("run=")))
    to_ts = _edge(run, plan, found)
    groups = [(known, samples.master_rows(known)) for known in written.groups]
    for width in samples.WIDTHS:
        _rollups(out, run, groups, width, to_ts, found)
    _run_tables(run, groups, to_ts, found)
    _quality(_rows(run / "data_quality"), written, to_ts, found)
    return found


def compare_minutes(live: Path, written: Written, to_ts: int, plan: Plan) -> Comparison:
    """Compares the minutes of the live tables with the truth up to `to_ts`, the end of their data."""
    found = Comparison()
    found.check("the data ends within a minute of the last record", True, abs(to_ts - plan.end) <= EDGE_MS)
    expected: dict[str, dict[Key, Row]] = defaultdict(dict)
    for known in written.groups:
        rows = samples.master_rows(known)
        minimum = samples.minimum_changes(known, rows, by_hour=True)
        expected["lag"] |= samples.lag(known, rows, MINUTE_MS)
        expected["replica_lag"] |= samples.replica_lag(known, rows, MINUTE_MS)
        expected["group_state"] |= events.group_state(known, minimum, to_ts, MINUTE_MS)
    for name, key in (("lag", ()), ("replica_lag", ("broker_id",)), ("group_state", ())):
        rows_found = keyed(_rows(live / "rollup" / name), ("broker_name", "window_ts", *key))
        found.add(f"live {name}", expected[name], rows_found)
    return found


def _edge(run: Path, plan: Plan, found: Comparison) -> int:
    """Returns where the run ends; the numbers up to there are compared exactly."""
    rows = [row for row in _rows(run / "data_quality") if row["broker_name"] is None]
    to_ts: int = max(row["to_ts"] for row in rows)
    found.check("the run ends within a minute of the last record", True, abs(to_ts - plan.end) <= EDGE_MS)
    return to_ts


def _rollups(
    out: Path, run: Path, groups: Sequence[_Group], width: int, to_ts: int, found: Comparison
) -> None:
    expected: dict[str, dict[Key, Row]] = defaultdict(dict)
    missing_ms = -to_ts % HOUR_MS
    hours_end = to_ts + missing_ms if missing_ms <= MOMENT_MS else to_ts
    for known, rows in groups:
        minimum = samples.minimum_changes(known, rows, by_hour=True)
        expected["lag"] |= samples.lag(known, rows, width)
        expected["replica_lag"] |= samples.replica_lag(known, rows, width)
        expected["filled"] |= samples.filled(known, rows, width, to_ts)
        expected["consumer_lag"] |= samples.consumer_lag(known, width)
        expected["group_state"] |= events.group_state(known, minimum, hours_end, width)
        expected["replica_state"] |= events.replica_state(known, hours_end, width)
        if width == HOUR_MS:
            expected["lag_histogram"] |= samples.lag_histogram(rows)
            expected["minimum"] |= numbered(minimum, ("broker_name", "hour_ts"), "window_ts")
    folder = out / "rollup"
    of_width = f"window={width}"
    keys = {
        "lag": (), "replica_lag": ("broker_id",), "consumer_lag": ("consumer_group", "topic"),
        "group_state": (),
        "replica_state": ("broker_id",),
    }  # fmt: skip
    for name, more in keys.items():
        rows_found = keyed(_rows(folder / name / of_width), ("broker_name", "window_ts", *more))
        found.add(f"{name} {width // 1000} s", expected[name], rows_found)
    filled = _rows(run / "replica_lag" / of_width)
    found.add(f"replica_lag, filled {width // 1000} s", expected["filled"],
              keyed(filled, ("broker_name", "window_ts", "broker_id")))  # fmt: skip
    if width == HOUR_MS:
        of_hours = _rows(folder / "lag_histogram" / of_width)
        found.add("lag_histogram", expected["lag_histogram"],
                  keyed(of_hours, ("broker_name", "window_ts", "unit", "bucket")))  # fmt: skip
        changes = [
            row | {"hour_ts": row["window_ts"] // HOUR_MS * HOUR_MS} for row in _rows(folder / "minimum")
        ]
        found.add("minimum", _only(expected["minimum"], ("window_ts", "min_in_sync_replicas")),
                  numbered(changes, ("broker_name", "hour_ts"), "window_ts"))  # fmt: skip


def _run_tables(run: Path, groups: Sequence[_Group], to_ts: int, found: Comparison) -> None:
    expected: dict[str, dict[Key, Row]] = defaultdict(dict)
    skew: list[Row] = []
    for known, rows in groups:
        minimum = samples.minimum_changes(known, rows, by_hour=False)
        expected["membership"] |= events.membership(known, to_ts)
        expected["sync_state_set_changes"] |= events.sync_state_set_changes(known)
        expected["failovers"] |= failover.failovers(known)
        expected["group_totals"] |= failover.group_totals(known, minimum, to_ts)
        skew += failover.clock_skew(known)
    keys = {
        "membership": ("broker_name", "broker_id", "from_ts"), "group_totals": ("broker_name",),
        "sync_state_set_changes": ("broker_name", "log", "event_id"),
        "failovers": ("broker_name", "log", "event_id"),
    }  # fmt: skip
    for name, key in keys.items():
        found.add(name, expected[name], keyed(_rows(run / name), key))
    measured = [row for row in _rows(run / "clock_skew") if row["source"] == "clock_sample"]
    of_piece = ("broker_name", "broker_id")
    found.add("clock_skew", numbered(skew, of_piece, "from_ts"), numbered(measured, of_piece, "from_ts"))


def _quality(rows: Sequence[Row], written: Written, to_ts: int, found: Comparison) -> None:
    of_files = [row for row in rows if row["broker_name"] is None]
    found.add("data_quality, files", failover.quality_of_files(written), keyed(of_files, ("record",)))
    by_group: dict[str, dict[str, Row]] = defaultdict(dict)
    for row in rows:
        by_group[row["broker_name"]][row["record"]] = row
    where = {
        "stale_master": "ha_sample", "confirm_above_max": "ha_sample", "epoch_gaps": "controller_event",
        "logs": "controller_event", "unknown_ms": "controller_event", "skew_max_ms": "clock_sample",
        "skew_unknown": "clock_sample",
    }  # fmt: skip
    for known in written.groups:
        mine, truth = by_group[known.group.name], failover.quality_of_group(known, to_ts)
        computed: Row = {name: mine.get(record, {}).get(name) or 0 for name, record in where.items()}
        computed["stale_roles"] = mine.get("role_change", {}).get("stale_master") or 0
        found.add("data_quality, groups", {(known.group.name,): truth}, {(known.group.name,): computed})


def _rows(folder: Path) -> list[Row]:
    """Returns the rows of all Parquet files in a folder and below."""
    paths = sorted(path for path in folder.rglob("*.parquet") if not path.name.startswith((".", "_")))
    tables: Iterable[pa.Table] = (pq.ParquetFile(path).read() for path in paths)
    return [row for table in tables for row in table.to_pylist()]


def _only(rows: Mapping[Key, Row], names: Sequence[str]) -> dict[Key, Any]:
    return {key: {name: row[name] for name in names} for key, row in rows.items()}
