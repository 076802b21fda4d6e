"""Whose samples are stale in the last hours: terms of masters, from events and the samples' own epochs."""

from collections.abc import Collection, Mapping
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from analytics.live.batches import HOUR_MS, Batches
from analytics.live.clocks import Clocks
from analytics.queries.reading import local_rows, read_table
from analytics.queries.terms import terms
from analytics.queries.windows import window_of
from analytics.tables import CONTROLLER_EVENT, GROUP

HOURS_MAX = 4
"""Hours that may have minutes which are computed: KEPT_MS, and the current one."""
_TIMES = ("stale_from_ts", "from_ts", "to_ts")
"""Columns of a term with the times from which on it classifies samples differently."""


class Masters:
    """The terms of each hour with samples. They equal the terms from all samples of the hour: the batches
    keep the first and the last sample of each epoch and minute."""

    def __init__(self, spark: SparkSession, batches: Batches, clocks: Clocks) -> None:
        self._spark, self._batches, self._clocks = spark, batches, clocks
        self._terms: dict[int, pa.Table] = {}
        self._began: dict[int, pa.Table] = {}
        """By hour: when each of its masterEpochs was sampled first."""
        hours = pc.unique(pc.divide(batches.epochs["minute_ts"], HOUR_MS)).to_pylist()
        self.look(sorted(hours)[-HOURS_MAX:])

    def look(self, hours: Collection[int], *, surely: bool = True) -> Mapping[int, int]:
        """Reads these hours (since 1970) of the batches; returns, by hour, the time from which on other
        samples are stale than before, for hours that changed. `surely`: there may be new events or offsets of
        clocks; else an hour in which no masterEpoch began is unchanged."""
        changed = {}
        began = {hour: self._first_of_epochs(hour) for hour in hours}
        new = [
            hour
            for hour in hours
            if surely or self._has_logs(hour) or not began[hour].equals(self._began[hour])
        ]
        self._began |= began
        for hour, found in self._read(new).items():
            before = self._terms.get(hour)
            self._terms[hour] = found
            if before is not None and not before.equals(found):
                from_ts = _differ_from(before, found)
                if from_ts is not None:
                    changed[hour] = from_ts
        for kept in (self._terms, self._began):
            for old in sorted(kept)[:-HOURS_MAX]:
                del kept[old]
        return changed

    def terms(self, hour: int) -> DataFrame:
        """Returns the terms of an hour that was looked at."""
        return local_rows(self._spark, self._terms[hour])

    def _has_logs(self, hour: int) -> bool:
        """Returns whether the hour is not known, or has several logs: an epoch's last sample counts then."""
        known = self._terms.get(hour)
        return known is None or bool(pc.any(pc.greater(known["place"], 0)).as_py())

    def _first_of_epochs(self, hour: int) -> pa.Table:
        epochs, ts = self._batches.epochs, self._batches.epochs["minute_ts"]
        of_hour = epochs.filter(
            pc.and_(pc.greater_equal(ts, hour * HOUR_MS), pc.less(ts, (hour + 1) * HOUR_MS))
        )
        keys = [*GROUP, "broker_id", "master_epoch"]
        first = of_hour.group_by(keys).aggregate([("first_ts", "min")])
        return first.sort_by([(name, "ascending") for name in keys])

    def _read(self, hours: Collection[int]) -> dict[int, pa.Table]:
        rows = self._samples(hours)
        if not hours or not len(rows):
            return {}
        hour_ts = F.col("hour_ts")
        wanted = hour_ts.isin([each * HOUR_MS for each in hours])
        samples = self._clocks.corrected(local_rows(self._spark, rows))
        samples = samples.withColumn("hour_ts", window_of(F.col("ts"), HOUR_MS)).where(wanted)
        events = read_table(self._spark, self._batches.paths(CONTROLLER_EVENT), CONTROLLER_EVENT)
        events = events.withColumn("hour_ts", window_of(F.col("ts"), HOUR_MS)).where(wanted)
        found = terms(samples, events).toArrow()
        found = found.sort_by([(name, "ascending") for name in found.column_names])
        return {hour: found.filter(pc.equal(found["hour_ts"], hour * HOUR_MS)) for hour in hours}

    def _samples(self, hours: Collection[int]) -> pa.Table:
        """Returns two samples of each epoch and minute of the hours: the first one and the last."""
        epochs = self._batches.epochs
        spans = [self._clocks.sources(each * HOUR_MS, (each + 1) * HOUR_MS) for each in hours]
        wanted = reduce(set.union, spans, set[int]())
        epochs = epochs.filter(pc.is_in(epochs["minute_ts"], pa.array(sorted(wanted), pa.int64())))
        columns = ["cluster_name", "broker_name", "broker_id", "master_epoch"]
        parts = [
            epochs.select([*columns, name]).rename_columns([*columns, "ts"])
            for name in ("first_ts", "last_ts")
        ]
        return pa.concat_tables(parts).combine_chunks()


def _differ_from(before: pa.Table, found: pa.Table) -> int | None:
    """Returns the earliest time in a row that only one of two tables has; None: there is none, as in a new
    term that makes no other one stale."""
    one, other = ({tuple(row.items()) for row in table.to_pylist()} for table in (before, found))
    times = [value for row in one ^ other for name, value in row if name in _TIMES and value is not None]
    return min(times, default=None)
