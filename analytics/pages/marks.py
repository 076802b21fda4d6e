"""The rows of roll-ups that break a rule of analytics/pages/incidents.py: Arrow filters millions of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from analytics.pages.grid import GROUP, Axis, Grid, GroupName
from analytics.pages.incidents import LAG_MS, SKEW_MS, Mark, find_incidents, without_consequences
from keelmq.web.page_files import Incident

COLUMNS = {
    "lag": ("ms_p99", "ms_max", "stale_master", "samples"),
    "group_state": ("below_min_ms", "unclean_elections", "flaps"),
    "replica_lag": ("samples", "bytes_max"),
    "replica_state": ("flaps",),
}
"""The columns that the rules look at, by table."""

Row = Mapping[str, Any]


def incidents_of(
    tables: Mapping[str, Any],
    axis: Axis,
    groups: Sequence[GroupName],
    failovers: Sequence[Row],
    clock_skew: Sequence[Row],
    membership: Sequence[Row] = (),
) -> list[Incident]:
    """Returns the incidents of all groups, by group and time. `tables`: Arrow tables of one window width.
    `membership`: a replica that became master is not down, although no master samples it, and neither is one
    that was removed from its group."""
    step = axis.step_ms
    lag, state = tables.get("lag"), tables.get("group_state")
    replicas, replica_state = tables.get("replica_lag"), tables.get("replica_state")
    flaps = _marks(replica_state, "flaps", step, by="broker_id") or _marks(state, "flaps", step)
    end = axis.start_ts + axis.count * step
    found = [
        *find_incidents("lag", _marks(lag, "ms_p99", step, least=LAG_MS, worst="ms_max")),
        *find_incidents("stale-master", _marks(lag, "stale_master", step)),
        *find_incidents("below-min", _marks(state, "below_min_ms", step)),
        *find_incidents("unclean", _marks(state, "unclean_elections", step)),
        *find_incidents("flap", flaps),
        *find_incidents("dead-replica", _expected(_unseen(replicas, step), membership)),
        *find_incidents("gap", _gaps(lag, axis, groups)),
        *find_incidents("failover", [mark for row in failovers for mark in _failover(row, axis.start_ts)]),
        *find_incidents("skew", _skews(clock_skew, axis.start_ts, end)),
    ]
    known = set(groups)
    return [each for each in without_consequences(found) if (each.cluster_name, each.broker_name) in known]


def _name(row: Row) -> tuple[str, str]:
    return row["cluster_name"], row["broker_name"]


def _failover(row: Row, since_ts: int) -> list[Mark]:
    end = row.get("ready_ts") or row["elected_ts"]
    start = min(
        each for each in (row.get("fault_ts"), row.get("last_heartbeat_ts"), row["elected_ts"]) if each
    )
    if end < since_ts:
        return []
    return [(*_name(row), row.get("old_master"), start, end + 1, row.get("gap_ms") or end - start)]


def _skews(rows: Sequence[Row], start: int, end: int) -> list[Mark]:
    """Pieces of time in which a broker's clock is off; a row without times is of all the time."""
    marks: list[Mark] = []
    for row in rows:
        offset = row.get("offset_ms")
        begins, ends = max(row.get("from_ts") or start, start), min(row.get("to_ts") or end, end)
        if offset is not None and abs(offset) >= SKEW_MS and begins < ends:
            marks.append((*_name(row), row["broker_id"], begins, ends, abs(offset)))
    return marks


def _marks(
    table: Any, column: str, step: int, *, least: int = 1, worst: str | None = None, by: str | None = None
) -> list[Mark]:
    if table is None or column not in table.column_names:
        return []
    rows = table.filter(pc.fill_null(pc.greater_equal(table[column], least), False))
    return _listed(rows, worst or column, step, by)


def _unseen(table: Any, step: int) -> list[Mark]:
    """Windows of replicas without a sample, whose lag is how far behind their last one is."""
    if table is None:
        return []
    if "samples" not in table.column_names:
        return []
    unseen = pc.equal(pc.fill_null(table["samples"], 0), 0)
    return _listed(table.filter(unseen), "bytes_max", step, "broker_id")


def _expected(marks: Sequence[Mark], membership: Sequence[Row]) -> list[Mark]:
    """Returns the marks of replicas that a master should see: that are not master themselves, and were not
    removed (`cleanBrokerData`), after which the group is known and goes on without them."""
    masters: dict[tuple[str, str, int | None], list[tuple[int, int]]] = {}
    known_to: dict[tuple[str, str, int | None], int] = {}
    for row in membership:
        name, to_ts = _name(row), row["to_ts"]
        if row["state"] == "master":
            masters.setdefault((*name, row["broker_id"]), []).append((row["from_ts"], to_ts))
        for key in ((*name, row["broker_id"]), (*name, None)):
            known_to[key] = max(to_ts, known_to.get(key, to_ts))

    def is_removed(mark: Mark) -> bool:
        return mark[:3] in known_to and known_to[mark[:3]] <= mark[3] < known_to[mark[0], mark[1], None]

    return [
        mark
        for mark in marks
        if not is_removed(mark)
        and not any(start < mark[4] and mark[3] < end for start, end in masters.get(mark[:3], ()))
    ]


def _listed(rows: Any, column: str, step: int, by: str | None) -> list[Mark]:
    if column not in rows.column_names:
        rows = rows.append_column(column, pa.nulls(len(rows), pa.int64()))
    names = [*GROUP, "window_ts", column, *([by] if by else [])]
    return [
        (*_name(row), row[by] if by else None, row["window_ts"], row["window_ts"] + step, row[column] or 0)
        for row in rows.select(names).to_pylist()
    ]


def _gaps(table: Any, axis: Axis, groups: Sequence[GroupName]) -> list[Mark]:
    """Windows without samples of the current master, after the first one that a group has."""
    step = axis.step_ms
    marks: list[Mark] = []
    if table is None:
        return []
    grid = Grid(table.filter(pc.greater(pc.fill_null(table["samples"], 0), 0)), axis, groups)
    for (group, _), windows in grid.missing():
        marks += [
            (*group, None, axis.start_ts + i * step, axis.start_ts + (i + 1) * step, step) for i in windows
        ]
    seen = {group for group, _ in grid.keys}
    end = axis.start_ts + axis.count * step
    return marks + [
        (*group, None, axis.start_ts, end, end - axis.start_ts) for group in groups if group not in seen
    ]
