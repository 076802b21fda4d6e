"""The roll-up tables that come from samples: their columns, and how each is made of an hour's rows."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analytics.kept import has_short_plans, kept
from analytics.rollup import consumers, lag, masters, replicas
from analytics.rollup.masters import HOUR_MS
from analytics.rollup.window_counts import LAG_COLUMNS
from analytics.tables import CONSUMER_LAG, CONTROLLER_EVENT, GROUP, MASTER_SAMPLE, REPLICA_SAMPLE, Table

MINUTE_MS = 60_000


@dataclass
class Hours:
    """The compacted rows of some hours, and what several roll-up tables need of them.

    `windows`: widths in ms, ascending; the first divides a minute, all divide an hour.
    """

    read: Callable[[Table], DataFrame]
    windows: Sequence[int]
    ends: Mapping[int, int] = field(default_factory=dict)
    """Up to when each hour has rows, by its beginning; an hour that is not here, to its end."""
    _kept: dict[str, DataFrame] = field(default_factory=dict)

    @property
    def base_ms(self) -> int:
        """The finest window; the others are made of it."""
        return self.windows[0]

    @cached_property
    def terms(self) -> DataFrame:
        """Of masters.terms(); kept in memory."""
        return kept(masters.terms(self.read(MASTER_SAMPLE), self.read(CONTROLLER_EVENT)))

    @cached_property
    def master_samples(self) -> DataFrame:
        """Of masters.in_terms(). Many are read again for each table: of each, only some columns."""
        samples = masters.in_terms(self.read(MASTER_SAMPLE), self.terms)
        return kept(samples) if has_short_plans(samples) else samples

    @cached_property
    def lag_parts(self) -> DataFrame:
        """Of lag.parts(); kept, because two tables are made of it."""
        return kept(lag.parts(self.master_samples, self.base_ms))

    def kept(self, name: str, make: Callable[[], DataFrame]) -> DataFrame:
        """Returns what `make` returned first; it is kept for several tables."""
        if name not in self._kept:
            self._kept[name] = kept(make())
        return self._kept[name]

    def close(self) -> None:
        """Frees what was kept."""
        for name in ("terms", "master_samples", "lag_parts"):
            if name in self.__dict__:
                self.__dict__.pop(name).unpersist()
        for frame in self._kept.values():
            frame.unpersist()
        self._kept.clear()

    def with_group(self, rows: DataFrame) -> DataFrame:
        """Returns the rows with GROUP and hour_ts in place of gid."""
        return masters.with_names(rows, self.terms)

    def with_names(self, rows: DataFrame) -> DataFrame:
        """Returns the rows with GROUP and window_ts in place of gid and at."""
        window_ts = F.col("hour_ts") + F.col("at") * F.col("window")
        return masters.with_names(rows, self.terms).withColumn("window_ts", window_ts).drop("at")


Roll = Callable[[Hours], DataFrame]
"""Makes the rows of a table, with a column `window`, of all windows."""


@dataclass(frozen=True)
class RollUp:
    """A roll-up table. `columns` in order; the first `key` of them are unique in an hour, and its order.

    `sources`: the compacted tables whose rows it is made of; an hour without any has no such roll-up.
    """

    name: str
    columns: tuple[str, ...]
    key: int
    roll: Roll
    sources: tuple[Table, ...]


def _lag(hours: Hours) -> DataFrame:
    return hours.with_names(lag.lag(hours.lag_parts, hours.windows, hours.base_ms))


def _lag_histogram(hours: Hours) -> DataFrame:
    of_hours = lag.hour_histogram(hours.lag_parts, hours.base_ms)
    return hours.with_names(of_hours.withColumns({"window": F.lit(HOUR_MS), "at": F.lit(0)}))


def _replica_lag(hours: Hours) -> DataFrame:
    samples = masters.in_terms(hours.read(REPLICA_SAMPLE), hours.terms)
    base = replicas.replica_counts(samples, hours.base_ms)
    return hours.with_names(
        union(replicas.replica_lag(base, window_ms, hours.base_ms) for window_ms in hours.windows)
    )


def _consumer_lag(hours: Hours) -> DataFrame:
    samples = hours.read(CONSUMER_LAG)
    return union(consumers.consumer_lag(samples, window_ms) for window_ms in hours.windows)


def union(frames: Iterable[DataFrame]) -> DataFrame:
    """Returns the rows of all, by the names of their columns."""
    return reduce(DataFrame.unionByName, frames)


TABLES: Mapping[str, RollUp] = {
    each.name: each
    for each in (
        RollUp(
            "lag",
            (*GROUP, "window_ts", *LAG_COLUMNS),
            3,
            _lag,
            (MASTER_SAMPLE,),
        ),
        RollUp(
            "lag_histogram",
            (*GROUP, "window_ts", "unit", "bucket", "n", "worst"),
            5,
            _lag_histogram,
            (MASTER_SAMPLE,),
        ),
        RollUp(
            "replica_lag",
            (*GROUP, "window_ts", "broker_id", "samples", "bytes_max", "ms_max", "samples_out",
             "last_ack_offset", "last_ts"),
            4,
            _replica_lag,
            (REPLICA_SAMPLE,),
        ),
        RollUp(
            "consumer_lag",
            (*GROUP, "window_ts", "consumer_group", "topic", "lag_messages_max", "lag_messages_last",
             "lag_ms_max"),
            5,
            _consumer_lag,
            (CONSUMER_LAG,),
        ),
    )
}  # fmt: skip
