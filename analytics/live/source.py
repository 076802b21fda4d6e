"""A Spark data source that follows telemetry files while they grow, for Structured Streaming.

A batch is a pair of Positions in Spark's checkpoint, so after a restart it reads the same bytes again. Its
rows are not records, but the ranges of bytes with records in them: analytics/live/rows.py decodes these.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes
from pyspark.sql.types import LongType, StringType, StructField, StructType

from analytics.live.following import BATCH_BYTES_MAX, Following
from analytics.live.positions import Positions, ranges

NAME = "keelmq_telemetry"
RANGES = StructType(
    [StructField("name", StringType()), StructField("start", LongType()), StructField("end", LongType())]
)
"""What a batch reads: rows of Range."""


class TelemetrySource(DataSource):
    """Options: `directory` with telemetry in it or in folders named telemetry below; `bytes_max` of a batch;
    `hour`, the current one since 1970 (default: the clock's)."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return RANGES

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _Reader(self.options)


class _Reader(DataSourceStreamReader):
    def __init__(self, options: Mapping[str, str]) -> None:
        self._bytes_max = int(options.get("bytes_max", BATCH_BYTES_MAX))
        hour = options.get("hour")
        self._following = Following(Path(options["directory"]), hour=None if hour is None else int(hour))

    def initialOffset(self) -> dict[str, object]:
        return self._following.first().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxBytes(self._bytes_max)

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:
        bytes_max = 1 << 62 if isinstance(limit, ReadAllAvailable) else self._bytes_max
        return self._following.after(Positions.of_json(start), bytes_max=bytes_max).to_json()

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> list[InputPartition]:
        found = ranges(Positions.of_json(start), Positions.of_json(end))
        return [InputPartition([(each.name, each.start, each.end) for each in found])]

    def read(self, partition: InputPartition) -> Iterator[tuple[str, int, int]]:
        yield from partition.value
