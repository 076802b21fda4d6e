"""The roll-ups of minutes, by the queries of the batch job."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from analytics.live.batches import HOUR_MS, Batches
from analytics.live.clocks import Clocks
from analytics.live.rows import MINUTE_MS
from analytics.queries.kept import kept
from analytics.queries.lag import lag
from analytics.queries.minimum import minimum
from analytics.queries.reading import read_table
from analytics.queries.replicas import replica_lag
from analytics.queries.terms import current
from analytics.queries.windows import window_of
from analytics.rollup.tables import LAG, MINIMUM, REPLICA_LAG
from analytics.tables import MASTER_SAMPLE, REPLICA_SAMPLE, Table

STATE = "group_state"
COVERED_MS = 1_000
"""A sample covers its second and the next one, so the minute before affects this one."""
KEPT_SAMPLES_MAX = 30_000
"""Some 10 MB. The embedded engine holds what is kept of more rows until its session ends."""

Tables = Mapping[str, pa.Table]
"""Rows by name of the roll-up, each with window_ts."""


@dataclass(frozen=True)
class Piece:
    """Minutes of one hour, and where their rows are. `terms`: of the hour."""

    from_ts: int
    to_ts: int
    minutes: Sequence[int]
    batches: Batches
    clocks: Clocks
    terms: DataFrame

    def masters(self) -> int:
        """Returns how many samples of masters rows() reads at most."""
        return self.batches.masters_within(self.clocks.sources(self._start(), self.to_ts))

    def rows(self, spark: SparkSession, table: Table) -> DataFrame:
        """Returns the samples of these minutes, and of the second before in the same hour, with hour_ts: each
        once, by the controllers' clock."""
        start = self._start()
        paths = self.batches.paths(table, self.clocks.sources(start, self.to_ts))
        rows = self.clocks.corrected(_once(read_table(spark, paths, table), table)).where(
            F.col("ts").between(start, self.to_ts - 1)
        )
        return rows.withColumn("hour_ts", window_of(F.col("ts"), HOUR_MS))

    def _start(self) -> int:
        return max(self.from_ts - COVERED_MS, self.from_ts // HOUR_MS * HOUR_MS)


Compute = Callable[[SparkSession, Piece], Tables]


def minutes_of(spark: SparkSession, piece: Piece) -> Tables:
    """Returns lag, replica_lag and minimum (min_in_sync_replicas at the beginning of each minute, and its
    changes) of the minutes."""
    samples = piece.rows(spark, MASTER_SAMPLE).drop("sync_state_set", "sync_state_set_epoch")
    masters = current(samples, piece.terms)
    if piece.masters() <= KEPT_SAMPLES_MAX:
        masters = kept(masters)  # three queries read them
    replicas = current(piece.rows(spark, REPLICA_SAMPLE), piece.terms)
    by_minute = masters.withColumn("hour_ts", window_of(F.col("ts"), MINUTE_MS))
    found = {
        LAG: lag(masters, (MINUTE_MS,)),
        REPLICA_LAG: replica_lag(replicas, (MINUTE_MS,)),
        MINIMUM: minimum(by_minute),
    }
    try:
        return {table.name: rows.select(*table.columns).toArrow() for table, rows in found.items()}
    finally:
        masters.unpersist()


def _once(rows: DataFrame, table: Table) -> DataFrame:
    """Returns one row of each key. dropDuplicates() of lists takes gigabytes on the embedded engine."""
    same = Window.partitionBy(*table.key).orderBy("ts")
    return rows.withColumn("_copy", F.row_number().over(same)).where("_copy = 1").drop("_copy")
