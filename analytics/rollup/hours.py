"""The rows of some hours as the roll-up tables need them: by one clock, computed once for several tables."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from analytics.compaction.manifest import HOUR_MS, HourManifest
from analytics.queries.clocks import corrected, offsets
from analytics.queries.event_log import group_history
from analytics.queries.kept import kept
from analytics.queries.lag import lag_cells
from analytics.queries.minimum import minimum
from analytics.queries.reading import read_table
from analytics.queries.skew import clock_pieces
from analytics.queries.sync_state_set import group_spans
from analytics.queries.terms import current, terms
from analytics.queries.windows import window_of
from analytics.rollup.edges import NEAR_MS
from analytics.rollup.inputs import Inputs
from analytics.tables import CLOCK_SAMPLE, CONTROLLER_EVENT, MASTER_SAMPLE, REPLICA_SAMPLE, Table


class Hours:
    """The rows of `batch`, hours by the controllers' clock, below `out_url`.

    `inputs`: what each of them reads: also hours from which a broker's rows move here, because its clock is
    off. `windows`: widths in ms, ascending. `ends`: up to when an hour has rows, by its beginning; an hour
    that is not there, to its end.
    """

    def __init__(
        self,
        spark: SparkSession,
        out_url: str,
        inputs: Sequence[Inputs],
        batch: Sequence[HourManifest],
        windows: Sequence[int],
        ends: Mapping[int, int],
        keep: Callable[[DataFrame], DataFrame] = kept,
    ) -> None:
        self.windows = windows
        self._spark, self._out_url, self._ends = spark, out_url, ends
        self._batch = batch
        self._inputs = _once(hour for each in inputs for hour in each.hours)
        self._clock_hours = _once(hour for each in inputs for hour in each.clock_hours)
        self._keep = keep
        self._kept: dict[str, DataFrame] = {}

    @property
    def manifests(self) -> list[HourManifest]:
        """The compacted hours that are read."""
        return _once((*self._inputs, *self._clock_hours))

    def has_any(self, tables: Sequence[Table]) -> bool:
        """Returns whether one of these compacted tables has rows."""
        return any(table.name in each.parts for each in self._inputs for table in tables)

    def rows(self, table: Table) -> DataFrame:
        """Returns the rows that brokers wrote in these hours, by the controllers' clock, with hour_ts.

        None is more than NEAR_MS after the hour's end, where a wrong clock may put some.
        """
        hour_ts = hour_of(F.col("ts"))
        if not self._clock_hours:
            return self._until_end(self._read(table, self._batch).withColumn("hour_ts", hour_ts))

        def of_clocks() -> DataFrame:
            return offsets(clock_pieces(self._read(CLOCK_SAMPLE, self._clock_hours)))

        moved = corrected(self._read(table, self._inputs), self._once("offsets", of_clocks))
        hours = [each.hour_ts for each in self._batch]
        return self._until_end(moved.withColumn("hour_ts", hour_ts).where(F.col("hour_ts").isin(hours)))

    def masters(self) -> DataFrame:
        """Returns rows of master_sample, with is_stale."""
        return current(self.rows(MASTER_SAMPLE), self._terms())

    def replicas(self) -> DataFrame:
        """Returns rows of replica_sample, with is_stale."""
        return current(self.rows(REPLICA_SAMPLE), self._terms())

    def cells(self) -> DataFrame:
        """Returns lag_cells() of the finest windows."""
        return self._once("cells", lambda: lag_cells(self.masters(), self.windows[0]))

    def minimum(self) -> DataFrame:
        """Returns minimum() of these hours."""
        return self._once("minimum", lambda: minimum(self.masters()))

    def history(self) -> DataFrame:
        """Returns group_history(), by hour."""
        return self._once("history", lambda: group_history(self._events(), by_hour=True))

    def spans(self) -> DataFrame:
        """Returns group_spans() of the history."""
        return self._once(
            "spans", lambda: group_spans(self.history(), from_ts=0, to_ts=end_of_hours(self._ends))
        )

    def _terms(self) -> DataFrame:
        return self._once("terms", lambda: terms(self.rows(MASTER_SAMPLE), self._events()))

    def _events(self) -> DataFrame:
        return self._read(CONTROLLER_EVENT, self._batch)

    def _until_end(self, rows: DataFrame) -> DataFrame:
        hours = {each.hour_ts for each in self._batch}
        is_short = any(hour in hours and end + NEAR_MS < hour + HOUR_MS for hour, end in self._ends.items())
        return rows.where(F.col("ts") < end_of_hours(self._ends) + NEAR_MS) if is_short else rows

    def _once(self, name: str, make: Callable[[], DataFrame]) -> DataFrame:
        if name not in self._kept:
            self._kept[name] = self._keep(make())
        return self._kept[name]

    def _read(self, table: Table, manifests: Sequence[HourManifest]) -> DataFrame:
        return read_table(self._spark, paths_of(self._out_url, manifests, table), table)


def _once(hours: Iterable[HourManifest]) -> list[HourManifest]:
    """Returns each hour once, ascending."""
    found = {each.hour_ts: each for each in hours}
    return [found[hour_ts] for hour_ts in sorted(found)]


def end_of_hours(ends: Mapping[int, int]) -> Column:
    """Returns how far the records of hour_ts reach: of an hour that is not over, not to its end. `ends`: by
    hour_ts; an hour that is not there has its end."""
    whole = F.col("hour_ts") + HOUR_MS
    short = [(hour_ts, end) for hour_ts, end in sorted(ends.items()) if end < hour_ts + HOUR_MS]
    if not short:
        return whole
    known = F.create_map(*(F.lit(value).cast("long") for pair in short for value in pair))
    return F.coalesce(known[F.col("hour_ts")], whole)


def hour_of(ts: Column) -> Column:
    """Returns the start of the UTC hour that `ts` is in."""
    return window_of(ts, HOUR_MS)


def paths_of(out_url: str, manifests: Sequence[HourManifest], table: Table) -> list[str]:
    """Returns the URLs of this table's parts, hour by hour."""
    parts = [part.path for each in manifests for part in each.parts.get(table.name, [])]
    return [f"{out_url}/{path}" for path in parts]
