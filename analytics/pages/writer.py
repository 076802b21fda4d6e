"""Page files from roll-ups and run tables: Python and pyarrow, no Spark.

keelmq/web/page_files.py has their layout. A generation is written into its own folder and named in
current.json last, so a reader sees a generation as a whole or not at all. GENERATIONS_KEPT older generations
stay for readers that have begun.
"""

import os
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.compute as pc

from analytics.errors import AnalyticsError
from analytics.pages.details import by_group, read_run_tables, run_files, write_details
from analytics.pages.grid import GROUP, Axis, Grid, GroupName, Resolution, Rollups, groups_in, read_rows
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
    STEP_MS,
    Current,
    Incident,
    Index,
    IndexGroup,
    packed,
)
from keelmq.web.page_reader import generations

HEAT = "heat"
CELLS = ("ms_p99", "ms_max", "below_min_ms", "unknown_ms")
HIGHEST = ("logs", "skew_max_ms")


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
    from_ts, last_ts = _span(resolutions[0])
    until_ts = last_ts + resolutions[0].step_ms
    fleet = {group: row for group, (row,) in by_group(tables["fleet"]).items()}
    groups = _groups(resolutions[-1], tables, fleet)
    write_series(rollups, to, resolutions, groups, last_ts, reuse)
    heat = read_rows(run_files(rollups.out, HEAT), (*GROUP, "window_ts", "cell_ms", *CELLS))
    axis = _heat_axis(heat, from_ts, until_ts)
    worst = sorted(tables["incidents"], key=lambda row: (-row["severity"], row["from_ts"]))
    incidents = [_incident(row) for row in worst]
    of_group: dict[GroupName, list[Incident]] = {}
    for each in sorted(incidents, key=lambda each: each.from_ts):
        of_group.setdefault((each.cluster_name, each.broker_name), []).append(each)
    write_details(to, tables, groups, of_group)
    rows = _index_groups(heat, axis, groups, fleet)
    names = [each.name for each in resolutions]
    index = Index(
        generated_ts=generation, interval_ms=interval_ms, from_ts=from_ts, to_ts=until_ts - 1,
        start_ts=axis.start_ts, step_ms=axis.step_ms, columns=axis.count,
        detail_ms=resolutions[0].step_ms if resolutions[0].name == "detail" else None,
        resolutions=names + ["day"] * ("hour" in names),
        inputs=list(inputs), quality=_quality(tables["data_quality"]), groups_total=len(rows),
        incidents_total=len(incidents), incidents=incidents[:INCIDENTS_MAX], groups=rows,
    )  # fmt: skip
    (to / INDEX).write_bytes(packed(msgspec.json.encode(index), level=9))
    return index


def _heat_axis(heat: Any, from_ts: int, until_ts: int) -> Axis:
    """Returns the cells of the heat map, up to the last window of the roll-ups; see queries/fleet.shown()."""
    if heat is None or not len(heat):
        is_short = until_ts - from_ts <= HEAT_COLUMNS_MAX * STEP_MS["minute"]
        return _last(STEP_MS["minute" if is_short else "hour"], from_ts, until_ts)
    return _last(pc.max(heat["cell_ms"]).as_py(), from_ts, until_ts)


def _incident(row: Mapping[str, Any]) -> Incident:
    return Incident(**{name: row[name] for name in Incident.__struct_fields__})


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


def _groups(
    coarse: Resolution, tables: Mapping[str, Sequence[Any]], fleet: Collection[GroupName]
) -> list[GroupName]:
    found = {*fleet, *by_group(tables["group_totals"])}
    for table in ("lag", "group_state"):
        found |= groups_in(read_rows(coarse.paths(table, coarse.days), GROUP))
    return sorted(found)


def _index_groups(
    heat: Any, axis: Axis, groups: Sequence[GroupName], fleet: Mapping[GroupName, Mapping[str, Any]]
) -> list[IndexGroup]:
    """Returns the rows of the index, worst group first. `fleet`: the fleet's numbers by group."""
    is_empty = heat is None or not len(heat)
    grid: Mapping[Any, Mapping[str, Any]] = {} if is_empty else Grid(heat, axis, groups).columns(CELLS)
    nothing: Mapping[str, Any] = {"unknown_total_ms": axis.count * axis.step_ms}
    names = [name for name in IndexGroup.__struct_fields__ if name not in (*GROUP, *CELLS)]
    found = []
    for cluster, broker in groups:
        row = fleet.get((cluster, broker), nothing)
        found.append(
            IndexGroup(
                cluster_name=cluster,
                broker_name=broker,
                **grid.get(((cluster, broker), None), {}),
                **{name: row[name] for name in names if name in row},
            )
        )
    return sorted(
        found, key=lambda each: (-each.score, -(each.worst_p99_ms or 0), each.cluster_name, each.broker_name)
    )


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
