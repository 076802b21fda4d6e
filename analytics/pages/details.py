"""group.json: all data of a group except series: membership spans, changes, fail-overs, totals, clocks, data
quality."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from msgspec import json, to_builtins

from analytics.pages.grid import GroupName, naming, newest_run
from keelmq.web.page_files import GROUP as GROUP_FILE
from keelmq.web.page_files import Incident, escaped, packed

Row = Mapping[str, Any]
ROWS_MAX = 1_000
"""Limit of changes, of fail-overs, and of a replica's spans in one file: the newest stay."""
TABLES = ("membership", "sync_state_set_changes", "failovers", "group_totals", "clock_skew", "data_quality")
FLEET_TABLES = ("incidents", "fleet")


def read_run_tables(out: Path) -> dict[str, list[dict[str, Any]]]:
    """Returns the rows of the newest run's tables; no run: no rows."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in (*TABLES, *FLEET_TABLES)}
    for name, rows in found.items():
        for path in run_files(out, name):
            with naming(path), pq.ParquetFile(path) as file:
                rows += file.read().to_pylist()
    return found


def run_files(out: Path, name: str) -> list[Path]:
    """Returns the files of a table of the newest run."""
    run = newest_run(out)
    return [] if run is None else sorted((run / name).glob("*.parquet"))


def by_group(rows: Sequence[Row]) -> dict[GroupName, list[Row]]:
    """Returns the rows of each group; rows that name no group are under ("", "")."""
    found: dict[GroupName, list[Row]] = defaultdict(list)
    for row in rows:
        found[row.get("cluster_name") or "", row.get("broker_name") or ""].append(row)
    return found


def write_details(
    to: Path,
    tables: Mapping[str, Sequence[Row]],
    groups: Sequence[GroupName],
    incidents: Mapping[GroupName, Sequence[Incident]],
) -> None:
    """Writes group.json.gz of every group."""
    split = {name: by_group(tables.get(name, [])) for name in TABLES}
    for group in groups:
        of = {name: rows.get(group, []) for name, rows in split.items()}
        (totals,) = of["group_totals"] or [{}]
        content = {
            "cluster_name": group[0],
            "broker_name": group[1],
            "members": _members(of["membership"]),
            "totals": _bare(totals),
            "changes": [_bare(row) for row in _newest(of["sync_state_set_changes"])],
            "failovers": [_bare(row) for row in _newest(of["failovers"])],
            "clock_skew": [_bare(row) for row in of["clock_skew"]],
            "quality": [_bare(row) for row in of["data_quality"]],
            "incidents": to_builtins(list(incidents.get(group, []))),
        }
        path = to / "groups" / escaped(group[0]) / escaped(group[1]) / GROUP_FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(packed(json.encode(content)))


def _members(rows: Sequence[Row]) -> list[dict[str, Any]]:
    spans: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row["from_ts"]):
        spans[row["broker_id"]].append({"from": row["from_ts"], "to": row["to_ts"], "state": row["state"]})
    return [{"broker_id": broker, "spans": each[-ROWS_MAX:]} for broker, each in sorted(spans.items())]


def _newest(rows: Sequence[Row]) -> list[Row]:
    """Returns the last ROWS_MAX by the group's history: the event ids of another log start again."""
    return sorted(rows, key=lambda row: (row.get("n") or 0, row.get("event_id") or 0))[-ROWS_MAX:]


def _bare(row: Row) -> dict[str, Any]:
    """Returns the row without the group's name; a map of Arrow (a list of pairs) as an object."""
    return {
        name: dict(value) if isinstance(value, list) and value and isinstance(value[0], tuple) else value
        for name, value in row.items()
        if name not in ("cluster_name", "broker_name")
    }
