"""A Spark data source that follows telemetry files while they grow.

A batch is a pair of Positions in Spark's checkpoint, so after a restart it reads the same bytes again. One
row per record; each table of analytics.tables is a column of structs, all but one of which are NULL in a row.
`counts` says how many lines a piece of a file had; it is NULL in rows of records.

Executors read the files by their paths: on a cluster the input must be on a shared file system.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes
from pyspark.sql.types import StructType

from analytics.compaction.columns import tables_of
from analytics.compaction.decode import decode_lines
from analytics.stream.files import GrowingFiles, kind_of
from analytics.stream.positions import Positions, Range, advance, ranges, share
from analytics.tables import TABLES
from keelmq.runtime.clock import wall_ms

NAME = "keelmq_telemetry"
BATCH_BYTES_MAX = 64 << 20
"""About 300,000 samples: the backlog after a stop is read in pieces of this size."""
PARTS = 2
HOUR_MS = 3_600_000

COUNTS = pa.struct([("record", pa.string()), ("rows", pa.int64()), ("bad", pa.int64())])
SCHEMA = pa.schema(
    [*(pa.field(table.name, pa.struct(list(table.schema))) for table in TABLES), pa.field("counts", COUNTS)]
)


class Share(InputPartition):
    """Ranges of files that one task reads."""

    def __init__(self, found: Sequence[Range]) -> None:
        super().__init__([(each.name, each.start, each.end) for each in found])


class TelemetrySource(DataSource):
    """Options: `directory` with telemetry in it or in folders named telemetry below; `bytes_max` and `parts`
    of a batch; `from_hour`, the first hour since 1970 (default: the current one)."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return from_arrow_schema(SCHEMA)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _Reader(self.options)


class _Reader(DataSourceStreamReader):
    def __init__(self, options: Mapping[str, str]) -> None:
        self._directory = Path(options["directory"])
        self._bytes_max = int(options.get("bytes_max", BATCH_BYTES_MAX))
        self._parts = int(options.get("parts", PARTS))
        self._from_hour = int(options.get("from_hour", wall_ms() // HOUR_MS))
        self._files = GrowingFiles(self._directory)

    def initialOffset(self) -> dict[str, object]:
        return Positions(self._from_hour, {}).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxBytes(self._bytes_max)

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:
        files = self._files
        bytes_max = 1 << 62 if isinstance(limit, ReadAllAvailable) else self._bytes_max
        at, hour = Positions.of_json(start), wall_ms() // HOUR_MS
        sizes = files.whole_lines(at.from_hour, hour + 1)
        end = advance(at, sizes, hour=hour, bytes_max=bytes_max)
        cut = {
            each.name: files.cut(each.name, each.start, each.end)
            for each in ranges(at, end)
            if each.end < sizes[each.name]
        }
        return Positions(end.from_hour, {**end.files, **cut}).to_json()

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> list[Share]:
        every = list(ranges(Positions.of_json(start), Positions.of_json(end)))
        return [Share(each) for each in share(every, self._parts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        files = GrowingFiles(self._directory)
        for name, start, end in partition.value:
            record = kind_of(name)
            for data in files.chunks(name, start, end):
                yield from rows_of(data, record)


def rows_of(data: bytes, record: str) -> Iterator[pa.RecordBatch]:
    """Yields the records in `data`, whole lines of files of one kind, and one row of counts, in SCHEMA."""
    decoded = decode_lines(data, record)
    for name, table in tables_of(record, decoded.rows).items():
        for batch in table.to_batches():
            yield _batch(name, batch.to_struct_array())
    counts = [{"record": record, "rows": decoded.rows.num_rows, "bad": decoded.bad.total()}]
    yield _batch("counts", pa.array(counts, COUNTS))


def _batch(column: str, values: pa.Array) -> pa.RecordBatch:
    columns = [values if field.name == column else pa.nulls(len(values), field.type) for field in SCHEMA]
    return pa.record_batch(columns, schema=SCHEMA)
