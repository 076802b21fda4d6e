"""A Spark data source that follows telemetry files while they grow.

A batch is a pair of Positions in Spark's checkpoint, so after a restart it reads the same bytes again. Its
rows are not records, but the ranges of bytes with records in them: analytics/stream/rows.py decodes these.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes
from pyspark.sql.types import StructType

from analytics.stream.files import GrowingFiles
from analytics.stream.positions import Positions, Range, advance, followed_from, ranges, share
from analytics.stream.rows import RANGES
from keelmq.runtime.clock import wall_ms

NAME = "keelmq_telemetry"
BATCH_BYTES_MAX = 64 << 20
"""About 300,000 samples: the backlog of a stop is read in pieces of this size."""
PARTS = 2
HOUR_MS = 3_600_000


class Share(InputPartition):
    """Ranges of files that one task decodes."""

    def __init__(self, found: Sequence[Range]) -> None:
        super().__init__([(each.name, each.start, each.end) for each in found])


class TelemetrySource(DataSource):
    """Options: `directory` with telemetry in it or in folders named telemetry below; `bytes_max` and `parts`
    of a batch; `hour`, the current one since 1970 (default: the clock's). The first batch begins with it."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return from_arrow_schema(RANGES)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _Reader(self.options)


class _Reader(DataSourceStreamReader):
    def __init__(self, options: Mapping[str, str]) -> None:
        self._directory = Path(options["directory"])
        self._bytes_max = int(options.get("bytes_max", BATCH_BYTES_MAX))
        self._parts = int(options.get("parts", PARTS))
        self._fixed_hour = options.get("hour")
        self._files = GrowingFiles(self._directory)

    def initialOffset(self) -> dict[str, object]:
        return Positions(self._hour(), {}).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxBytes(self._bytes_max)

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:
        files = self._files
        bytes_max = 1 << 62 if isinstance(limit, ReadAllAvailable) else self._bytes_max
        at, hour = Positions.of_json(start), self._hour()
        sizes = files.whole_lines(followed_from(at, hour), hour + 1)
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

    def _hour(self) -> int:
        return wall_ms() // HOUR_MS if self._fixed_hour is None else int(self._fixed_hour)

    def read(self, partition: InputPartition) -> Iterator[tuple[str, int, int]]:
        yield from partition.value
