"""The files of an hour in a Python worker of Spark: compacted parts are read, roll-ups are written, both with
pyarrow. Nothing of a sample goes through Java.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from uuid import uuid4

import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq

from analytics.rollup.hour import roll_hour
from analytics.tables import GROUP, Table

BATCH_ROWS = 65_536
"""Measured: numpy's arrays of larger batches leave the processor's cache."""


@dataclass(frozen=True)
class HourFiles:
    """`parts`: the paths of the compacted parts below OUT, by table, in the order of their rows."""

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
            self.system.create_dir(folder, recursive=True)
            # an attempt that was given up by Spark may still write
            temporary = f"{folder}/.{uuid4().hex}"
            with self.system.open_output_stream(temporary, compression=None) as file:
                pq.write_table(rows, file, compression="zstd")
            self.system.move(temporary, f"{folder}/part.parquet")


@dataclass(frozen=True)
class _Parts:
    system: pa_fs.FileSystem
    root: str
    parts: Mapping[str, Sequence[str]]

    def batches(self, table: Table, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        fields = {name.partition(".")[0]: table.schema.field(name.partition(".")[0]) for name in columns}
        for path in self.parts.get(table.name, ()):
            with self.system.open_input_file(f"{self.root}/{path}") as file:
                parquet = pq.ParquetFile(file, read_dictionary=list(GROUP))
                for batch in parquet.iter_batches(BATCH_ROWS, columns=list(columns), use_threads=False):
                    there = batch.schema.names
                    yield pa.RecordBatch.from_pydict(
                        {
                            name: batch.column(name) if name in there else pa.nulls(len(batch), field.type)
                            for name, field in fields.items()
                        }
                    )
