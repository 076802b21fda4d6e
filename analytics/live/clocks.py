"""By how much brokers' clocks are off in the last hours: which minutes that moves samples between."""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from analytics.live.batches import Batch, Batches
from analytics.live.rows import MINUTE_MS, WriterKey, Written
from analytics.queries.clocks import corrected, offsets
from analytics.queries.reading import local_rows, read_table
from analytics.queries.skew import clock_pieces
from analytics.rollup.edges import Spell, edge_of
from analytics.tables import CLOCK_SAMPLE, GROUP

Offsets = dict[tuple[Any, ...], int]
"""offset_ms by group, broker and minute of its clock."""


class Clocks:
    """The offsets that the clock samples of the kept batches show; most fleets have none."""

    def __init__(self, spark: SparkSession, batches: Batches) -> None:
        self._spark, self._batches = spark, batches
        self._offsets: Offsets = {}
        self._rows: pa.Table | None = None
        self._measured: frozenset[WriterKey] = frozenset()
        """Brokers with clock samples, and the controllers that wrote these."""
        self._steps: frozenset[int] = frozenset()
        self._read()

    def look(self, batch: Batch) -> set[int]:
        """Reads the clock samples of a batch; returns the minutes that they move samples out of or into."""
        if not batch.rows.get(CLOCK_SAMPLE.name):
            return set()
        before = self._offsets
        self._read()
        differs = {(key[-1], offset) for key, offset in before.items() ^ self._offsets.items()}
        moved = {key[-1] for key, _ in before.items() ^ self._offsets.items()}
        return {
            at for minute, offset in [*differs, *((each, 0) for each in moved)] for at in _at(minute, offset)
        }

    @property
    def are_off(self) -> bool:
        """Whether any broker's clock is off."""
        return self._rows is not None

    def moved(self, minute: int) -> set[int]:
        """Returns the minutes that samples of a minute of brokers' clocks may be in."""
        return {minute, *(minute + step for step in self._steps)}

    def sources(self, from_ts: int, to_ts: int) -> set[int]:
        """Returns the minutes of brokers' clocks that may have samples of this time."""
        first = from_ts // MINUTE_MS * MINUTE_MS
        minutes = range(first, to_ts, MINUTE_MS)
        return {each - step for each in minutes for step in (0, *self._steps)}

    def corrected(self, rows: DataFrame) -> DataFrame:
        """Returns the rows of brokers with ts by the controllers' clock."""
        if self._rows is None:
            return rows
        return corrected(rows, local_rows(self._spark, self._rows)).drop("own_ts")

    def edge(self, written: Written, now: int) -> int | None:
        """Returns the last moment of a batch, by the controllers' clock and never by one wrong clock: see
        edge_of(). None: it has no rows."""
        spells = []
        for writer, times in written.writers.items():
            first, last = (ts + self._offsets.get((*writer, ts - ts % MINUTE_MS), 0) for ts in times)
            is_known = writer in self._measured
            spells.append(Spell(writer, min(first, last), max(first, last), is_known))
        return edge_of(spells, now_ms=now)

    def _read(self) -> None:
        paths = self._batches.paths(CLOCK_SAMPLE)
        if not paths:
            return
        self._measured = _writers_in(paths)
        samples = read_table(self._spark, paths, CLOCK_SAMPLE)
        found = offsets(clock_pieces(samples.dropDuplicates(list(CLOCK_SAMPLE.key)))).toArrow()
        self._rows = found if len(found) else None
        *keys, minutes, values = (found[name].to_pylist() for name in found.column_names)
        brokers = zip(*(map(str, each) for each in keys), minutes, strict=True)
        self._offsets = dict(zip(brokers, values, strict=True))
        self._steps = frozenset(
            at - minute for (*_, minute), value in self._offsets.items() for at in _at(minute, value)
        )


def _writers_in(paths: Sequence[str]) -> frozenset[WriterKey]:
    """Returns the brokers in clock samples, and their controllers."""
    found: set[WriterKey] = set()
    for path in paths:
        rows = pq.ParquetFile(path).read(columns=[*GROUP, "broker_id", "controller_id"])
        for names in ((*GROUP, "broker_id"), ("controller_id",)):
            for each in rows.group_by(names).aggregate([]).to_pylist():
                found.add(tuple(str(each[name]) for name in names))
    return frozenset(found)


def _at(minute: int, offset: int) -> Iterator[int]:
    """Yields the minutes that a minute, moved by an offset, is in."""
    first = (minute + offset) // MINUTE_MS * MINUTE_MS
    yield first
    if (minute + offset) % MINUTE_MS:
        yield first + MINUTE_MS
