"""The rows of a batch: Spark's Python workers decode bytes of telemetry into Parquet files.

Nothing of a record goes through Java.

    <batch>/<table>-<task>.parquet     of the tables in KEPT; rows of the others are counted only

A task that Spark repeats writes the same files again.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext

from analytics.compaction.columns import tables_of
from analytics.compaction.decode import decode_lines
from analytics.rollup.arrays import numbers_of
from analytics.stream.files import GrowingFiles, kind_of
from analytics.stream.positions import Range
from analytics.tables import CONTROLLER_EVENT, MASTER_SAMPLE, REPLICA_SAMPLE
from keelmq.web.page_files import STEP_MS

MINUTE_MS = STEP_MS["minute"]
KEPT = (MASTER_SAMPLE, REPLICA_SAMPLE, CONTROLLER_EVENT)
"""The tables that roll-ups of minutes read."""
DECODED_BYTES = 4 << 20
"""Lines of several files are decoded at once: a call for each of a thousand files would cost more than they
do."""
COMPRESSION = "lz4"
"""The rows of a minute are read a dozen times."""

RANGES = pa.schema([("name", pa.string()), ("start", pa.int64()), ("end", pa.int64())])
"""What a batch reads: rows of Range."""
WRITTEN = pa.schema(
    [
        ("table", pa.string()),
        ("minute_ts", pa.int64()),
        ("rows", pa.int64()),
        ("from_ts", pa.int64()),
        ("to_ts", pa.int64()),
        ("bad", pa.int64()),
    ]
)
"""What a task says of each minute of a table. `bad`: lines that are not records; in the row of a table that
has no name."""

_KEPT = {table.name: table for table in KEPT}


@dataclass(frozen=True)
class WriteRows:
    """Decodes ranges of the files below `telemetry` into the directory `target`. Called once per task."""

    telemetry: str
    target: str

    def __call__(self, ranges: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Takes RANGES; yields WRITTEN."""
        found = [
            Range(*row)
            for batch in ranges
            for row in zip(*(c.to_pylist() for c in batch.columns), strict=True)
        ]
        task = TaskContext.get()
        with _Files(Path(self.target), 0 if task is None else task.partitionId()) as files:
            counts = _Counts()
            for kind, data in _lines(GrowingFiles(Path(self.telemetry)), found):
                decoded = decode_lines(data, kind)
                counts.bad += decoded.bad.total()
                for name, rows in tables_of(kind, decoded.rows).items():
                    counts.add(name, rows)
                    files.add(name, rows)
        yield counts.written()


def rows_of(paths: Sequence[str], columns: Sequence[str], *, dictionaries: Sequence[str] = ()) -> pa.Table:
    """Returns these columns of the files of one table; at least one file. `dictionaries`: columns of strings
    that come dictionary-encoded."""
    parts = []
    for path in paths:
        # read_table() would take "batch=" in the path for a column
        with pq.ParquetFile(path, read_dictionary=list(dictionaries)) as parquet:
            parts.append(parquet.read(list(columns), use_threads=False))
    return pa.concat_tables(parts)


def _lines(files: GrowingFiles, ranges: Iterable[Range]) -> Iterator[tuple[str, bytes]]:
    """Yields (kind of record, whole lines), of as many files as make DECODED_BYTES."""
    in_order = sorted(ranges, key=lambda each: (kind_of(each.name), each.name, each.start))
    for kind, some in groupby(in_order, key=lambda each: kind_of(each.name)):
        waiting, size = list[bytes](), 0
        for each in some:
            for data in files.chunks(each.name, each.start, each.end):
                waiting.append(data[: data.rfind(b"\n") + 1])  # a file that became shorter may end anywhere
                size += len(data)
                if size >= DECODED_BYTES:
                    yield kind, b"".join(waiting)
                    waiting, size = [], 0
        if waiting:
            yield kind, b"".join(waiting)


class _Counts:
    def __init__(self) -> None:
        self.bad = 0
        self._minutes: dict[tuple[str, int], tuple[int, int, int]] = {}
        """(rows, first ts, last ts) by table and minute."""

    def add(self, table: str, rows: pa.Table) -> None:
        ts = np.sort(numbers_of(rows["ts"]))
        minutes, starts, counts = np.unique(ts // MINUTE_MS, return_index=True, return_counts=True)
        for minute, start, count in zip(minutes.tolist(), starts.tolist(), counts.tolist(), strict=True):
            key, first, last = (table, minute * MINUTE_MS), int(ts[start]), int(ts[start + count - 1])
            before, earliest, latest = self._minutes.get(key, (0, first, last))
            self._minutes[key] = before + count, min(first, earliest), max(last, latest)

    def written(self) -> pa.RecordBatch:
        rows = [(*key, *found, 0) for key, found in self._minutes.items()] + [("", 0, 0, 0, 0, self.bad)]
        columns = zip(zip(*rows, strict=True), WRITTEN.types, strict=True)
        return pa.record_batch([pa.array(each, kind) for each, kind in columns], schema=WRITTEN)


class _Files:
    """The files of one task. They get their names when all are whole."""

    def __init__(self, target: Path, task: int) -> None:
        self._target, self._task, self._mark = target, task, uuid4().hex
        self._writers: dict[str, pq.ParquetWriter] = {}
        self._open = ExitStack()

    def add(self, table: str, rows: pa.Table) -> None:
        if not len(rows) or table not in _KEPT:
            return
        writer = self._writers.get(table)
        if writer is None:
            path = self._temporary(table)
            writer = pq.ParquetWriter(path, _KEPT[table].schema, compression=COMPRESSION)
            self._writers[table] = self._open.enter_context(writer)
        writer.write_table(rows)

    def __enter__(self) -> "_Files":
        self._target.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._open.close()
        for table in self._writers:
            path = self._temporary(table)
            if kind is None:
                path.replace(self._target / f"{table}-{self._task}.parquet")
            else:
                path.unlink(missing_ok=True)

    def _temporary(self, table: str) -> Path:
        return self._target / f".{table}-{self._mark}"
