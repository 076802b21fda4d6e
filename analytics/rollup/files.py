"""The files of an hour in a Python worker of Spark: compacted parts are read, roll-ups are written, both with
pyarrow. Nothing of a sample goes through Java.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from uuid import uuid4

import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq

from analytics.compaction.manifest import folder_of
from analytics.compaction.storage import is_object_store
from analytics.rollup.filled import LAG_COLUMNS, ReplicaFill
from analytics.rollup.hour import roll_hour
from analytics.rollup.tables import LAG, REPLICA_LAG, RollUp
from analytics.tables import GROUP, Table

HOURS_AT_ONCE = 8
"""Of an object store each request waits for the network."""
BATCH_ROWS = 65_536
"""Measured: numpy's arrays of larger batches leave the processor's cache."""


@dataclass(frozen=True)
class HourFiles:
    """`parts`: paths below OUT by table, in the order of their rows."""

    hour_ts: int
    parts: Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class RollHours:
    """Rolls up an hour's files. It is called once per hour, in any process, and may be repeated: equal rows
    give equal files.

    `system`, `root`: where OUT is. `target`: the folder below it for the files.
    """

    system: pa_fs.FileSystem
    root: str
    target: str
    windows: Sequence[int]
    wanted: Collection[str]

    def __call__(self, hour: HourFiles) -> None:
        """Writes TARGET/<table>/window=<ms>/hour=<ms>/part.parquet for each table with rows."""
        source = _Parts(self.system, self.root, hour.parts)
        for table, window_ms, rows in roll_hour(source, hour.hour_ts, self.windows, self.wanted):
            folder = f"{self.root}/{self.target}/{table.name}/window={window_ms}/hour={hour.hour_ts}"
            _write(self.system, folder, rows)


@dataclass(frozen=True)
class FillReplicas:
    """Writes replica_lag with the lag of replicas that are down: see analytics/rollup/filled.py. It is called
    once per width of windows.

    `hours`: by width, in the order of time, with the files of the roll-ups `lag` and `replica_lag`.
    """

    system: pa_fs.FileSystem
    root: str
    target: str
    hours: Mapping[int, Sequence[HourFiles]]

    def __call__(self, window_ms: int) -> None:
        """Writes TARGET/window=<ms>/dt=YYYY-MM-DD/hour=HH/part.parquet for each hour with rows."""
        fill, hours = ReplicaFill(window_ms), self.hours[window_ms]
        with ThreadPoolExecutor(HOURS_AT_ONCE) as pool:
            for first in range(0, len(hours), HOURS_AT_ONCE):
                some = hours[first : first + HOURS_AT_ONCE]
                found = pool.map(self._read_hour, some)
                filled = [fill.hour(hour.hour_ts, *tables) for hour, tables in zip(some, found, strict=True)]
                list(pool.map(partial(self._write_hour, window_ms), some, filled))

    def _read_hour(self, hour: HourFiles) -> tuple[pa.Table, pa.Table]:
        return self._read(hour, LAG, LAG_COLUMNS), self._read(hour, REPLICA_LAG, REPLICA_LAG.columns)

    def _write_hour(self, window_ms: int, hour: HourFiles, rows: pa.Table) -> None:
        if len(rows):
            folder = f"{self.root}/{self.target}/window={window_ms}/{folder_of(hour.hour_ts)}"
            _write(self.system, folder, rows)

    def _read(self, hour: HourFiles, table: RollUp, columns: Sequence[str]) -> pa.Table:
        schema = pa.schema([table.schema.field(each) for each in columns])
        found = [schema.empty_table()]
        for path in hour.parts.get(table.name, ()):
            with self.system.open_input_file(f"{self.root}/{path}") as file:
                found.append(pq.ParquetFile(file).read(list(columns), use_threads=False))
        return pa.concat_tables(found)


@dataclass(frozen=True)
class _Parts:
    system: pa_fs.FileSystem
    root: str
    parts: Mapping[str, Sequence[str]]

    def batches(self, table: Table, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        fields = {name.partition(".")[0]: table.schema.field(name.partition(".")[0]) for name in columns}
        for path in self.parts.get(table.name, ()):
            with self.system.open_input_file(f"{self.root}/{path}") as file:
                # of an object store: few large requests instead of one per column
                ahead = is_object_store(self.system)
                parquet = pq.ParquetFile(file, read_dictionary=list(GROUP), pre_buffer=ahead)
                for batch in parquet.iter_batches(BATCH_ROWS, columns=list(columns), use_threads=False):
                    there = batch.schema.names
                    yield pa.RecordBatch.from_pydict(
                        {
                            name: batch.column(name) if name in there else pa.nulls(len(batch), field.type)
                            for name, field in fields.items()
                        }
                    )


def _write(system: pa_fs.FileSystem, folder: str, rows: pa.Table) -> None:
    """Writes FOLDER/part.parquet. An attempt that Spark gave up may still write: each has its own file."""
    path = f"{folder}/part.parquet"
    if is_object_store(system):
        _write_file(system, path, rows)
        return
    system.create_dir(folder, recursive=True)
    temporary = f"{folder}/.{uuid4().hex}"
    _write_file(system, temporary, rows)
    system.move(temporary, path)


def _write_file(system: pa_fs.FileSystem, path: str, rows: pa.Table) -> None:
    with system.open_output_stream(path, compression=None) as file:
        pq.write_table(rows, file, compression="zstd")
