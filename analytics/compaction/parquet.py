"""Parquet files of one hour and kind: written from sorted rows, and read back as such.

Equal rows make equal files, byte for byte: a row group ends with the first group of brokers that reaches
ROW_GROUP_WEIGHT, in all tables of the kind, and does not depend on which rows were in memory together. The
name of a file is a digest of its content.
"""

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from analytics.compaction.columns import (
    HA_SAMPLE,
    HA_TABLES,
    SCHEMA_OF_TABLE,
    TABLES_OF,
    ha_rows,
    slave_rows,
    tables_of,
)
from analytics.compaction.manifest import COMPACTED, Part, folder_of
from analytics.compaction.merge import group_ranges
from analytics.compaction.storage import Storage
from analytics.errors import AnalyticsError
from analytics.tables import TABLES

ROW_GROUP_WEIGHT = 262_144
"""A record weighs 1, and so do eight elements of its lists: about 45 MB, whatever the records are. Writing
holds three copies of them."""
ELEMENTS_PER_WEIGHT = 8
ZSTD_LEVEL = 3
"""Measured: 6 takes twice the time of writing for 4 % of the bytes, and 1 saves none."""
_DIGEST_BYTES = 16


def write_parts(
    storage: Storage,
    folder: Path,
    kind: str,
    hour_ts: int,
    sorted_rows: Iterable[pa.Table],
    look: Callable[[str, pa.Table], None] = lambda _name, _rows: None,
) -> tuple[dict[str, list[Part]], int]:
    """Writes the tables of a kind; returns their parts and the number of records. Raises OSError.

    `folder`: local, for files that are not complete yet. `look`: gets a table's name and its rows, as they
    are written.
    """
    writers = {name: _TableWriter(name, folder) for name in TABLES_OF[kind]}
    records = 0
    try:
        for rows in _row_groups(sorted_rows):
            records += len(rows)
            for name, table in tables_of(kind, rows).items():
                writers[name].write(table)
                look(name, table)
        parts = {name: writer.finish(storage, hour_ts) for name, writer in writers.items()}
    finally:
        for writer in writers.values():
            writer.discard()
    return {name: [part] for name, part in parts.items() if part is not None}, records


def read_parts(storage: Storage, kind: str, parts: dict[str, list[Part]]) -> Iterator[pa.Table]:
    """Yields the rows of the parts of a kind, a row group at a time, as rows of this kind.

    Raises AnalyticsError if a part is missing or damaged.
    """
    if kind != HA_SAMPLE:
        yield from _read(storage, parts.get(kind, []))
        return
    masters, replicas, slaves = (_read(storage, parts.get(name, [])) for name in HA_TABLES)
    pending = next(replicas, None)
    for rows in masters:
        mine = []
        last = _group_at(rows, len(rows) - 1)
        while pending is not None and _group_at(pending, 0) <= last:
            mine.append(pending)
            pending = next(replicas, None)
        nothing = SCHEMA_OF_TABLE[HA_TABLES[1]].empty_table()
        yield ha_rows(rows, pa.concat_tables(mine) if mine else nothing)
    for rows in slaves:
        yield slave_rows(rows)


def verify_part(storage: Storage, part: Part) -> str:
    """Returns what is wrong with the part, after a look at its footer; "": nothing."""
    try:
        with storage.open_input(part.path) as file:
            rows = pq.ParquetFile(file).metadata.num_rows
    except (OSError, pa.ArrowInvalid) as error:
        return str(error)
    return "" if rows == part.rows else f"{rows} rows instead of {part.rows}"


def _read(storage: Storage, parts: list[Part]) -> Iterator[pa.Table]:
    for part in parts:
        try:
            with storage.open_input(part.path) as file:
                reader = pq.ParquetFile(file)
                for at in range(reader.num_row_groups):
                    yield reader.read_row_group(at, use_threads=False)
        except (OSError, pa.ArrowInvalid) as error:
            raise AnalyticsError(
                f"cannot read {storage.url}/{part.path} ({error}); if it is lost, delete the manifest "
                "of that hour and compact it again from its sources"
            ) from None


def _group_at(rows: pa.Table, at: int) -> tuple[str, str]:
    return rows["cluster_name"][at].as_py(), rows["broker_name"][at].as_py()


def _row_groups(sorted_rows: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Cuts the rows at ends of groups of brokers; `sorted_rows` are never cut within one."""
    pending: list[pa.Table] = []
    weight = 0
    for rows in sorted_rows:
        begin = done = 0
        for _, (first, end) in group_ranges(rows):
            weight += _weight(rows.slice(first, end - first))
            done = end
            if weight >= ROW_GROUP_WEIGHT:
                yield pa.concat_tables([*pending, rows.slice(begin, end - begin)])
                pending, weight, begin = [], 0, end
        if begin < done:
            pending.append(rows.slice(begin))
    if pending:
        yield pa.concat_tables(pending)


def _weight(rows: pa.Table) -> int:
    elements = 0
    for column in rows.columns:
        if pa.types.is_list(column.type):
            elements += pc.sum(pc.list_value_length(column)).as_py() or 0
    return len(rows) + elements // ELEMENTS_PER_WEIGHT


class _TableWriter:
    """Writes one file, opened with the first rows."""

    def __init__(self, name: str, folder: Path) -> None:
        self._name, self._path = name, folder / f"{name}.parquet"
        self._writer: pq.ParquetWriter | None = None
        self._rows = 0
        self._min_ts = self._max_ts = 0

    def write(self, table: pa.Table) -> None:
        if not len(table):
            return
        table = table.combine_chunks()
        if self._writer is None:
            self._writer = pq.ParquetWriter(str(self._path), table.schema, **_OPTIONS[self._name])
        self._writer.write_table(table, row_group_size=len(table))
        times = pc.min_max(table["ts"]).as_py()
        self._min_ts = min(times["min"], self._min_ts) if self._rows else times["min"]
        self._max_ts = max(times["max"], self._max_ts) if self._rows else times["max"]
        self._rows += len(table)

    def finish(self, storage: Storage, hour_ts: int) -> Part | None:
        """Moves the file to its place. None: there were no rows."""
        if self._writer is None:
            return None
        self._writer.close()
        with self._path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()[: 2 * _DIGEST_BYTES]
        size = self._path.stat().st_size
        folder = f"{COMPACTED}/{self._name}/{folder_of(hour_ts)}"
        part = Part(
            path=f"{folder}/{digest}.parquet",
            rows=self._rows,
            size_bytes=size,
            min_ts=self._min_ts,
            max_ts=self._max_ts,
        )
        there = {each.name: each.size_bytes for each in storage.files(folder)}
        if there.get(f"{digest}.parquet") != size:
            storage.move_in(self._path, part.path)
        return part

    def discard(self) -> None:
        with contextlib.suppress(OSError):  # the disk is full, which was reported already
            if self._writer is not None:
                self._writer.close()
            self._path.unlink(missing_ok=True)


def _leaves(field: pa.Field, path: str) -> Iterator[tuple[str, pa.DataType]]:
    if pa.types.is_list(field.type):
        yield from _leaves(field.type.value_field, f"{path}.list.element")
    elif pa.types.is_struct(field.type):
        for each in field.type:
            yield from _leaves(each, f"{path}.{each.name}")
    else:
        yield path, field.type


def _options(schema: pa.Schema, key: tuple[str, ...]) -> dict[str, object]:
    """Numbers outside lists: DELTA_BINARY_PACKED. Strings and elements of lists: a dictionary."""
    leaves = [leaf for field in schema for leaf in _leaves(field, field.name)]
    deltas = {path for path, type_ in leaves if pa.types.is_integer(type_) and "." not in path}
    return {
        "compression": "zstd",
        "compression_level": ZSTD_LEVEL,
        "use_dictionary": [path for path, _ in leaves if path not in deltas],
        "column_encoding": dict.fromkeys(sorted(deltas), "DELTA_BINARY_PACKED"),
        "sorting_columns": pq.SortingColumn.from_ordering(schema, [(name, "ascending") for name in key]),
    }


_OPTIONS = {table.name: _options(table.schema, table.key) for table in TABLES}
