"""Parquet roll-ups as grids: for each group or replica one number per window, unknown where there is no row.

Columns become JSON text inside of Arrow, so no Python object is made per number.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from analytics.compaction.manifest import folder_of
from analytics.errors import AnalyticsError

GroupName = tuple[str, str]
GROUP = ("cluster_name", "broker_name")
FILLED = "replica_lag"
"""The roll-up that a run has, too, with the lag of replicas that are down filled in."""
CHUNK_CELLS = 400_000
"""Numbers of a column that are text at the same time."""


@dataclass(frozen=True, slots=True)
class Axis:
    """The windows of one file: window i begins at start_ts + i * step_ms."""

    start_ts: int
    step_ms: int
    count: int


@dataclass(frozen=True, slots=True)
class Resolution:
    """One width of windows, and the files of its roll-ups by table and day."""

    name: str
    step_ms: int
    files: dict[str, dict[str, list[Path]]]

    @property
    def days(self) -> list[str]:
        """The days with rows, oldest first."""
        return sorted({day for of_table in self.files.values() for day in of_table})

    def paths(self, table: str, days: Sequence[str]) -> list[Path]:
        """Returns the files of a table on these days."""
        found = self.files.get(table, {})
        return [path for day in days for path in found.get(day, [])]


def newest_run(out: Path) -> Path | None:
    """Returns the folder of the newest run's tables; None: there is none."""
    runs = [path for path in (out / "tables").glob("run=*") if path.name.removeprefix("run=").isdigit()]
    return max(runs, key=lambda path: int(path.name.removeprefix("run=")), default=None)


class Rollups:
    """The roll-ups below `out` that pages are made of. `hours`: of these only; None: all existing ones."""

    def __init__(self, out: Path, hours: Iterable[int] | None = None) -> None:
        self.out = out
        self._folders = None if hours is None else {folder_of(hour_ts) for hour_ts in hours}

    def widths(self) -> set[int]:
        """Returns the widths of windows."""
        return {
            int(path.name.removeprefix("window=")) for path in (self.out / "rollup" / "lag").glob("window=*")
        }

    def files(self, name: str, window_ms: int) -> dict[str, list[Path]]:
        """Returns the files of a table by day ("2026-11-23")."""
        found: dict[str, list[Path]] = {}
        root = self.out / "rollup" / name / f"window={window_ms}"
        if name == FILLED and (run := newest_run(self.out)) is not None and (run / name).is_dir():
            root = run / name / f"window={window_ms}"
        for path in sorted(root.glob("dt=*/hour=*/*.parquet")):
            day, hour = path.parent.parent.name, path.parent.name
            if self._folders is None or f"{day}/{hour}" in self._folders:
                found.setdefault(day.removeprefix("dt="), []).append(path)
        return found


def read_rows(paths: Sequence[Path], columns: Sequence[str]) -> Any:
    """Returns one Arrow table with those of `columns` that the files have; None: no files. Names of
    groups are dictionaries."""
    if not paths:
        return None
    tables = []
    for path in paths:
        with naming(path), pq.ParquetFile(path, read_dictionary=list(GROUP)) as file:
            known = [name for name in columns if name in file.schema_arrow.names]
            tables.append(file.read(columns=known))
    return pa.concat_tables(tables, promote_options="permissive").unify_dictionaries().combine_chunks()


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Raises AnalyticsError, which names the file, if it cannot be read as Parquet."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise AnalyticsError(
            f"{path} is damaged ({error}); delete it, and keelmq analytics run computes it again"
        ) from error


def names_of(table: Any) -> Any:
    """Returns (row's code, the codes' group names): equal codes are equal groups."""
    parts = [table[name].unify_dictionaries().combine_chunks() for name in GROUP]
    clusters, brokers = (each.dictionary.to_pylist() for each in parts)
    width = max(len(brokers), 1)
    code = pc.add(pc.multiply(parts[0].indices.cast(pa.int64()), width), parts[1].indices.cast(pa.int64()))
    names = {each: (clusters[each // width], brokers[each % width]) for each in pc.unique(code).to_pylist()}
    return code, names


def groups_in(table: Any) -> set[GroupName]:
    """Returns the names of the groups with at least one row."""
    return set() if table is None else set(names_of(table)[1].values())


class Grid:
    """The rows of a table on an axis. `keys`: one per line of the grid, each a group, or (group, replica)."""

    def __init__(self, table: Any, axis: Axis, groups: Sequence[GroupName], by: str | None = None) -> None:
        code, names = names_of(table)
        ids = [None] if by is None else sorted(pc.unique(table[by]).to_pylist())
        number = {each: i for i, each in enumerate(groups)}
        line_of: dict[int, int] = {}
        if by is not None:
            inner = pc.index_in(table[by].combine_chunks(), value_set=pa.array(ids, pa.int64()))
            code = pc.add(pc.multiply(code, len(ids)), inner.cast(pa.int64()))
        found = []
        for each in pc.unique(code).to_pylist():
            outer, of_id = divmod(each, len(ids))
            if names[outer] in number:
                found.append((number[names[outer]], ids[of_id], each))
        found.sort(key=lambda each: (each[0], -1 if each[1] is None else each[1]))
        line_of = {each: i for i, (_, _, each) in enumerate(found)}
        self.keys = [(groups[group], replica) for group, replica, _ in found]
        self.axis, self._table = axis, table
        self._inverse = _inverse(table, code, line_of, axis)

    def texts(self, names: Sequence[str]) -> Iterator[tuple[tuple[GroupName, Any], dict[str, str]]]:
        """Yields each key with its columns as JSON lists. A column that is unknown everywhere is left out."""
        count = self.axis.count
        lines = max(1, CHUNK_CELLS // count)
        known = [name for name in names if name in self._table.column_names]
        columns = {name: self._table[name].combine_chunks() for name in known}
        for first in range(0, len(self.keys), lines):
            keys = self.keys[first : first + lines]
            at = self._inverse.slice(first * count, len(keys) * count)
            offsets = pa.array(range(0, len(keys) * count + 1, count), pa.int32())
            texts = {name: _joined(values.take(at), offsets) for name, values in columns.items()}
            for i, key in enumerate(keys):
                yield key, {name: each[i] for name, each in texts.items() if each is not None}

    def columns(self, names: Sequence[str]) -> dict[tuple[GroupName, Any], dict[str, list[int | None]]]:
        """Returns the same as lists of numbers, for small grids."""
        count = self.axis.count
        lists = {
            name: self._table[name].combine_chunks().take(self._inverse).to_pylist()
            for name in names
            if name in self._table.column_names
        }
        return {
            key: {name: values[i * count : (i + 1) * count] for name, values in lists.items()}
            for i, key in enumerate(self.keys)
        }

    def missing(self) -> Iterator[tuple[tuple[GroupName, Any], list[int]]]:
        """Yields each key with the numbers of the windows that have no row, after the first one that has."""
        count = self.axis.count
        empty = pc.indices_nonzero(pc.is_null(self._inverse)).to_pylist()
        by_line: dict[int, list[int]] = {}
        for cell in empty:
            by_line.setdefault(cell // count, []).append(cell % count)
        for line, windows in by_line.items():
            first = next((i for i, window in enumerate(windows) if i != window), len(windows))
            yield self.keys[line], windows[first:]


def _inverse(table: Any, code: Any, line_of: Mapping[int, int], axis: Axis) -> Any:
    """Returns for each cell of the grid the row that is there, or null."""
    codes = pa.array(list(line_of), pa.int64())
    line = pc.index_in(code, value_set=codes).cast(pa.int64())
    window = pc.divide(pc.subtract(table["window_ts"].combine_chunks(), axis.start_ts), axis.step_ms)
    inside = pc.and_(pc.greater_equal(window, 0), pc.less(window, axis.count))
    cell = pc.if_else(inside, pc.add(pc.multiply(line, axis.count), window), pa.scalar(None, pa.int64()))
    cells = len(line_of) * axis.count
    if not cells:
        return pa.array([], pa.int64())
    return pc.inverse_permutation(cell, max_index=cells - 1, output_type=pa.int64())


def _joined(values: Any, offsets: Any) -> list[str] | None:
    if values.null_count == len(values):
        return None
    text = pc.fill_null(values.cast(pa.string()), "null")
    lists = pa.ListArray.from_arrays(offsets, text)
    return [f"[{each}]" for each in pc.binary_join(lists, ",").to_pylist()]
