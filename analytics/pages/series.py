"""The series files of all groups: minutes, hours, days, and the finer windows of a short run.

One file after another of the time axis (a day of minutes, a month of hours, a year of days) is read, cut into
groups and written, so memory does not grow with the length of the history.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from analytics.pages.consumers import COLUMNS as CONSUMER_COLUMNS
from analytics.pages.consumers import IDS as CONSUMER_IDS
from analytics.pages.consumers import consumer_texts
from analytics.pages.days import DAYS, Days
from analytics.pages.grid import GROUP, Axis, Grid, GroupName, Resolution, Rollups, read_rows
from analytics.pages.reuse import Reuse, digest_of
from keelmq.web.page_files import FILE_DATE, PAGES_VERSION, STEP_MS, escaped, packed, series_file

UNITS = ("bytes", "ms", "lag_us", "confirm_us")
LAG = (
    "samples",
    *(f"{unit}_{name}" for unit in UNITS for name in ("p50", "p95", "p99", "max")),
    "confirms",
    "covered_ms",
    "stale_master",
    "above_max",
)
STATE = (
    "below_min_ms", "unknown_ms", "no_master_ms", "shrinks", "expands", "flaps", "elections",
    "unclean_elections",
)  # fmt: skip
REPLICA = ("samples", "bytes_max", "ms_max", "last_ack_offset")
TABLES = {"lag": LAG, "group_state": STATE, "replica_lag": REPLICA}
CONSUMERS = "consumer_lag"
DETAIL = "detail"
"""The name of windows that are neither minutes nor hours."""
GZIP_LEVEL = 3
HEAD = ("window_ts", *GROUP)

Read = Callable[[str, Sequence[str]], Any]
"""Returns these columns of a table, or None. One table after another, so that one is in memory."""


def find_resolutions(rollups: Rollups) -> list[Resolution]:
    """Returns the resolutions that are rolled up, finest first: minutes, hours, and at most one finer or odd
    width, which must have all hours, because hours of an earlier run over a short span keep their fine
    windows."""
    names = {step: name for name, step in STEP_MS.items()}
    found: list[Resolution] = []
    for step in sorted(rollups.widths()):
        files = {name: rollups.files(name, step) for name in (*TABLES, CONSUMERS, "replica_state")}
        found.append(Resolution(names.get(step, DETAIL), step, files))
    found = [each for each in found if each.days]
    named = [each for each in found if each.name != DETAIL]
    fine = [each for each in found if not named or each.step_ms < named[0].step_ms]
    return [each for each in fine if not named or not _hours(each) < _hours(named[0])][:1] + named


def _hours(resolution: Resolution) -> set[str]:
    """Returns the hours with samples, as their folders are named."""
    files = [path for paths in resolution.files["lag"].values() for path in paths]
    return {f"{path.parent.parent.name}/{path.parent.name}" for path in files}


def write_series(
    rollups: Rollups,
    to: Path,
    resolutions: Sequence[Resolution],
    groups: Sequence[GroupName],
    until_ts: int,
    reuse: Reuse,
) -> None:
    """Writes the files of every resolution, days included; those that are as before are linked. `until_ts`:
    the last moment with data."""
    folders = {each: to / "groups" / escaped(each[0]) / escaped(each[1]) for each in groups}
    for folder in folders.values():
        folder.mkdir(parents=True)

    def put(
        resolution: Resolution,
        file: str,
        made_of: Sequence[object],
        days: Sequence[str],
        read: Callable[[], Read],
    ) -> None:
        last = min(until_ts, _day_ts(days[-1]) + STEP_MS["day"])
        digest = digest_of((), resolution.name, last, *made_of)
        if not reuse.link(file, digest, folders):
            written = _write(read(), resolution, folders, file, groups, until_ts)
            reuse.written(file, digest, written)

    for each in resolutions:
        for file, days in _by_file(each).items():
            paths = [path for table in (*TABLES, CONSUMERS) for path in each.paths(table, days)]
            put(each, file, [digest_of(paths)], days, partial(_reader, each, days))
        if each.name == "hour":
            whole = Resolution("day", STEP_MS["day"], each.files)
            rows = Days(rollups, each, to.parent / DAYS)
            for file, days in _by_file(whole).items():
                put(whole, file, [*map(rows.digest, days)], days, partial(_days, rows, days))


def _days(rows: Days, days: Sequence[str]) -> Read:
    return _kept(rows.rows(days))


def _reader(resolution: Resolution, days: Sequence[str]) -> Read:
    return lambda name, columns: read_rows(resolution.paths(name, days), (*HEAD, *_id(name), *columns))


def _kept(tables: dict[str, Any]) -> Read:
    return lambda name, _: tables.get(name)


def _id(table: str) -> tuple[str, ...]:
    return {"replica_lag": ("broker_id",), CONSUMERS: CONSUMER_IDS}.get(table, ())


def _by_file(resolution: Resolution) -> dict[str, list[str]]:
    """Returns the days whose windows are in the same file."""
    found: dict[str, list[str]] = {}
    whole = FILE_DATE[resolution.name] is None
    for day in resolution.days:
        ts = 0 if whole else _day_ts(day)
        found.setdefault(series_file(resolution.name, ts), []).append(day)
    return found


def _day_ts(day: str) -> int:
    return int(datetime.strptime(day, "%Y-%m-%d").replace(tzinfo=UTC).timestamp()) * 1_000


def _write(
    read: Read,
    resolution: Resolution,
    folders: dict[GroupName, Path],
    file: str,
    groups: Sequence[GroupName],
    until_ts: int,
) -> int:
    """Returns the number of groups that have the file."""
    axis = _axis(read, resolution.step_ms, until_ts)
    if axis is None:
        return 0
    replicas: dict[GroupName, list[str]] = {}
    state: dict[GroupName, str] = {}
    for (group, broker), columns in _texts(read, "replica_lag", axis, groups, "broker_id"):
        text = f'{{"broker_id":{broker},"columns":{_object(columns)}}}'
        replicas.setdefault(group, []).append(text)
    for (group, _), columns in _texts(read, "group_state", axis, groups):
        state[group] = _object(columns)
    consumers = consumer_texts(read(CONSUMERS, CONSUMER_COLUMNS), axis, groups)
    lags = _texts(read, "lag", axis, groups)
    head = (
        f'{{"v":{PAGES_VERSION},"resolution":"{resolution.name}","start_ts":{axis.start_ts},'
        f'"step_ms":{axis.step_ms},"count":{axis.count}'
    )
    written = set()

    def write(group: GroupName, lag: str) -> None:
        others = f'"state":{state.pop(group, "{}")},"replicas":[{",".join(replicas.pop(group, []))}]'
        if group in consumers:
            others += f',"consumers":[{",".join(consumers.pop(group))}]'
        text = f'{head},"lag":{lag},{others}}}'
        (folders[group] / file).write_bytes(packed(text.encode(), GZIP_LEVEL))
        written.add(group)

    for (group, _), columns in lags:
        write(group, _object(columns))
    for group in sorted({*state, *replicas, *consumers} - written):
        write(group, "{}")
    return len(written)


def _object(columns: dict[str, str]) -> str:
    return "{" + ",".join(f'"{name}":{text}' for name, text in columns.items()) + "}"


def _texts(
    read: Read, name: str, axis: Axis, groups: Sequence[GroupName], by: str | None = None
) -> Iterator[tuple[tuple[GroupName, Any], dict[str, str]]]:
    rows = read(name, TABLES[name])
    return iter(()) if rows is None else Grid(rows, axis, groups, by).texts(TABLES[name])


def _axis(read: Read, step_ms: int, until_ts: int) -> Axis | None:
    """Returns the windows from the first row to the last, of all groups; None: no rows."""
    tables = [read(name, ()) for name in TABLES]
    known = [pc.min_max(each["window_ts"]).as_py() for each in tables if each is not None and len(each)]
    if not known:
        return None
    start = min(each["min"] for each in known)
    last = min(max(each["max"] for each in known), until_ts)
    return Axis(start, step_ms, max(1, (last - start) // step_ms + 1))
