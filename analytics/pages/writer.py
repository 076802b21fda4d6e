"""Page files from roll-ups and run tables: Python and pyarrow, no Spark. Their layout: keelmq/web/page_files.

A generation is written into its own folder and named in current.json last, so a reader sees all of one or
nothing of it. Older generations stay for readers that have begun, GENERATIONS_KEPT of them.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.compute as pc

from analytics.errors import AnalyticsError
from analytics.pages.details import by_group, read_run_tables, write_details
from analytics.pages.grid import GROUP, Axis, Grid, GroupName, Resolution, Rollups, groups_in, read_rows
from analytics.pages.incidents import severity
from analytics.pages.marks import COLUMNS, incidents_of
from analytics.pages.reuse import Reuse, newest_pages
from analytics.pages.series import find_resolutions, write_series
from keelmq.runtime.clock import wall_ms
from keelmq.web.page_files import (
    CURRENT,
    GENERATIONS_KEPT,
    HEAT_COLUMNS_MAX,
    INCIDENTS_MAX,
    INDEX,
    PAGES,
    Current,
    Incident,
    Index,
    IndexGroup,
    packed,
    series_file,
)
from keelmq.web.page_reader import generations

HEAT = {"lag": ("ms_p99", "ms_max"), "group_state": ("below_min_ms", "unknown_ms")}
HIGHEST = ("logs", "skew_max_ms")
TOTALS = ("elections", "unclean_elections", "shrinks", "flaps")


def write_pages(
    out: Path,
    *,
    source: Path | None = None,
    hours: Iterable[int] | None = None,
    inputs: Sequence[str] = (),
    interval_ms: int | None = None,
    progress: Callable[[str], None] = lambda _: None,
    wall_clock: Callable[[], int] = wall_ms,
) -> Path:
    """Writes a generation of page files from OUT/rollup and OUT/tables; returns the path of current.json.

    `source`: where rollup and tables are, if not in `out`. `hours`: those that the tables of the newest run
    are of; None: all. `interval_ms`: how often this is done, for pages to tell when they are stale. Raises
    AnalyticsError if there is nothing rolled up, or a file cannot be written.
    """
    source = source or out
    rollups = Rollups(source, hours)
    resolutions = find_resolutions(rollups)
    if not resolutions:
        raise AnalyticsError(f"{source} has no roll-ups of lag: run keelmq analytics run first")
    generation = max([wall_clock(), *(each + 1 for each in generations(out))])
    to = out / PAGES / str(generation)
    try:
        to.mkdir(parents=True)
        reuse = Reuse(newest_pages(out), to)
        index = _write(rollups, to, resolutions, inputs, interval_ms, generation, reuse)
        reuse.save()
        _replace(out / CURRENT, msgspec.json.encode(Current(generation=generation, interval_ms=interval_ms)))
    except OSError as error:
        shutil.rmtree(to, ignore_errors=True)
        raise AnalyticsError(f"cannot write {to}: {error.strerror or error}") from error
    except BaseException:
        shutil.rmtree(to, ignore_errors=True)
        raise
    for old in generations(out)[:-GENERATIONS_KEPT]:
        shutil.rmtree(out / PAGES / str(old), ignore_errors=True)
    linked = f"; {reuse.linked:,} files are as before" if reuse.linked else ""
    progress(f"pages of {len(index.groups):,} groups, {index.incidents_total:,} incidents{linked}")
    return out / CURRENT


def _write(
    rollups: Rollups,
    to: Path,
    resolutions: Sequence[Resolution],
    inputs: Sequence[str],
    interval_ms: int | None,
    generation: int,
    reuse: Reuse,
) -> Index:
    tables = read_run_tables(rollups.out)
    heat = _heat_resolution(resolutions)
    from_ts, last_ts = _span(resolutions[0])
    until_ts = last_ts + resolutions[0].step_ms
    groups = _groups(resolutions, tables)
    write_series(rollups, to, resolutions, groups, last_ts, reuse)
    axis = _last(heat.step_ms, from_ts, until_ts)
    fine = resolutions[0]
    fine_axis = Axis(axis.start_ts, fine.step_ms, (until_ts - axis.start_ts) // fine.step_ms)
    incidents = incidents_of(
        _rows(fine, fine_axis, COLUMNS),
        fine_axis,
        groups,
        tables["failovers"],
        tables["clock_skew"],
        tables["membership"],
    )
    of_group: dict[GroupName, list[Incident]] = {}
    for each in incidents:
        of_group.setdefault((each.cluster_name, each.broker_name), []).append(each)
    write_details(to, tables, groups, of_group)
    rows = _index_groups(_rows(heat, axis, HEAT), axis, groups, tables, of_group)
    worst = sorted(incidents, key=lambda each: (-severity(each), each.from_ts))
    names = [each.name for each in resolutions]
    index = Index(
        generated_ts=generation, interval_ms=interval_ms, from_ts=from_ts, to_ts=until_ts - 1,
        start_ts=axis.start_ts, step_ms=axis.step_ms, columns=axis.count,
        detail_ms=fine.step_ms if fine.name == "detail" else None,
        resolutions=names + ["day"] * ("hour" in names),
        inputs=list(inputs), quality=_quality(tables["data_quality"]), groups_total=len(rows),
        incidents_total=len(incidents), incidents=worst[:INCIDENTS_MAX], groups=rows,
    )  # fmt: skip
    (to / INDEX).write_bytes(packed(msgspec.json.encode(index), level=9))
    return index


def _heat_resolution(resolutions: Sequence[Resolution]) -> Resolution:
    """Returns the finest resolution whose windows fit into the heat map; else hours, the last of them."""
    for each in resolutions:
        first, last = _span(each)
        if (last - first) // each.step_ms < HEAT_COLUMNS_MAX or each.name == "hour":
            return each
    return resolutions[-1]


def _span(resolution: Resolution) -> tuple[int, int]:
    """Returns the first and the last window with a row in any table."""
    edges = []
    for table in resolution.files:
        for day in (resolution.days[0], resolution.days[-1]):
            rows = read_rows(resolution.paths(table, [day]), ("window_ts",))
            if rows is not None and len(rows):
                found = pc.min_max(rows["window_ts"]).as_py()
                edges += [found["min"], found["max"]]
    return min(edges), max(edges)


def _last(step: int, from_ts: int, until_ts: int) -> Axis:
    end = -(-until_ts // step) * step
    start = max(from_ts - from_ts % step, end - HEAT_COLUMNS_MAX * step)
    return Axis(start, step, (end - start) // step)


def _groups(resolutions: Sequence[Resolution], tables: Mapping[str, Sequence[Any]]) -> list[GroupName]:
    coarse = resolutions[-1]
    found = {(row["cluster_name"], row["broker_name"]) for row in tables["group_totals"]}
    for table in ("lag", "group_state"):
        found |= groups_in(read_rows(coarse.paths(table, coarse.days), GROUP))
    return sorted(found)


def _rows(resolution: Resolution, axis: Axis, columns: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Returns the rows of the tables within the axis."""
    found = {}
    end = axis.start_ts + axis.count * axis.step_ms
    first_day = _day(axis.start_ts)
    for name, wanted in columns.items():
        ids = ["broker_id"] if name.startswith("replica") else []
        paths = resolution.paths(name, [day for day in resolution.days if day >= first_day])
        rows = read_rows(paths, ["window_ts", *GROUP, *ids, *wanted])
        if rows is not None:
            ts = rows["window_ts"]
            found[name] = rows.filter(pc.and_(pc.greater_equal(ts, axis.start_ts), pc.less(ts, end)))
    return found


def _day(ts: int) -> str:
    return series_file("minute", ts).removeprefix("minute-").removesuffix(".json.gz")


def _index_groups(
    rows: Mapping[str, Any],
    axis: Axis,
    groups: Sequence[GroupName],
    tables: Mapping[str, Sequence[Any]],
    incidents: Mapping[GroupName, Sequence[Incident]],
) -> list[IndexGroup]:
    """Returns the rows of the index, worst group first."""
    grids = {
        name: Grid(rows[name], axis, groups).columns(columns)
        for name, columns in HEAT.items()
        if name in rows
    }
    totals = {group: each[0] for group, each in by_group(tables["group_totals"]).items()}
    failovers = by_group(tables["failovers"])
    found = []
    for group in groups:
        cells: dict[str, Any] = {}
        for grid in grids.values():
            cells |= grid.get((group, None), {})
        unknown = cells.get("unknown_ms", [None] * axis.count)
        of_group = incidents.get(group, [])
        gaps = [row["gap_ms"] for row in failovers.get(group, []) if row.get("gap_ms") is not None]
        total = totals.get(group, {})
        sums: dict[str, Any] = {name: total.get(name) or 0 for name in TOTALS}
        found.append(
            IndexGroup(
                cluster_name=group[0], broker_name=group[1], **cells,
                worst_ms=_most(cells.get("ms_max")), worst_p99_ms=_most(cells.get("ms_p99")),
                below_ms=total.get("below_min_ms"),
                unknown_total_ms=sum(axis.step_ms if each is None else each for each in unknown),
                availability=total.get("availability"), failovers=len(failovers.get(group, [])),
                longest_gap_ms=max(gaps, default=None), incidents=len(of_group),
                score=sum(map(severity, of_group)), **sums,
            )
        )  # fmt: skip
    return sorted(
        found, key=lambda each: (-each.score, -(each.worst_p99_ms or 0), each.cluster_name, each.broker_name)
    )


def _most(values: Sequence[int | None] | None) -> int | None:
    return max((each for each in values or () if each is not None), default=None)


def _quality(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the counts of all groups together, and the highest of what cannot be added up (HIGHEST), one
    row per kind of record."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        kind = str(row.get("record", ""))
        sums = found.setdefault(kind, {"record": kind})
        for name, value in row.items():
            if isinstance(value, int) and not name.endswith("_ts"):
                known = sums.get(name, 0)
                sums[name] = max(known, value) if name in HIGHEST else known + value
    return list(found.values())


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
