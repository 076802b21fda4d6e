"""An hour's roll-ups from that hour's compacted rows: a pure function, which Spark's Python workers and the
stream call.

Rows are read twice: first who is master when, then the rest in batches, so that neither the samples nor
their histograms are in memory at once.
"""

from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analytics.rollup import lag, replicas
from analytics.rollup.arrays import Bools, Ints, arrow, bools_of, ints, numbers_of
from analytics.rollup.consumers import PAIR, consumer_lag, consumer_samples
from analytics.rollup.logs import EpochLogs, Views
from analytics.rollup.masters import GroupNumbers, Terms, named_rows
from analytics.rollup.minimum import minimum_changes
from analytics.rollup.replicas import ReplicaCounts
from analytics.rollup.tables import CONSUMERS, LAG, LAG_HISTOGRAM, MINIMUM, REPLICA_LAG, TABLES, RollUp
from analytics.rollup.window_counts import HOUR_MS, WindowCounts, hour_buckets, lag_rows
from analytics.tables import CONSUMER_LAG, CONTROLLER_EVENT, GROUP, MASTER_SAMPLE, REPLICA_SAMPLE, Table

_OF_EVENT = (*GROUP, "ts", "log_id", "before.master_epoch", "after.master_epoch")

Rolled = Iterator[tuple[RollUp, int, pa.Table]]
"""A table, the width of its windows in ms, and its rows in the order of the key."""


class Source(Protocol):
    """The compacted rows of one hour."""

    def batches(self, table: Table, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yields the rows with these columns, in the order of the table; or all of them in one batch, in any
        order. A column that an older file lacks is NULL."""


def roll_hour(
    source: Source, hour_ts: int, windows: Sequence[int], wanted: Collection[str] = TABLES.keys()
) -> Rolled:
    """Yields the wanted roll-ups that have rows.

    `windows`: widths in ms, ascending; the first divides a minute or is one, all divide an hour.
    """
    hour = _Hour(source, hour_ts, windows)
    makers = {
        hour.lag: (LAG, LAG_HISTOGRAM),
        hour.replica_lag: (REPLICA_LAG,),
        hour.minimum: (MINIMUM,),
        hour.consumer_lag: (CONSUMERS,),
    }
    for make, tables in makers.items():
        if any(each.name in wanted for each in tables):
            for table, window_ms, rows in make():
                if len(rows) and table.name in wanted:
                    yield table, window_ms, rows


class _Masters:
    """Of every row of master_sample: gid, ts, whether it is stale, and its minimum."""

    def __init__(self, source: Source, numbers: GroupNumbers, terms: Terms, logs: EpochLogs) -> None:
        columns = (*GROUP, "ts", "master_epoch", "min_in_sync_replicas")
        batches = list(source.batches(MASTER_SAMPLE, columns))
        self.gid = _joined([numbers.of(each) for each in batches])
        self.ts, epoch = (_joined([ints(each, name) for each in batches]) for name in ("ts", "master_epoch"))
        self.minimum = pa.chunked_array([each.column(columns[-1]) for each in batches], pa.int32())
        views = [
            each for batch in source.batches(CONTROLLER_EVENT, _OF_EVENT) for each in _views(batch, numbers)
        ]
        for each in views:
            logs.add(each)
        epoch = logs.of_samples(self.gid, epoch, self.ts)
        terms.add(self.gid, epoch, self.ts)
        for each in views:
            of_log, counts = logs.of_events(each)
            terms.add(each.gid[counts], of_log[counts], each.ts[counts])
            begins = counts & each.is_elected
            terms.add_elections(each.gid[begins], of_log[begins])
        _, self.is_stale = terms.is_stale(self.gid, epoch, self.ts)


def _views(events: pa.RecordBatch, numbers: GroupNumbers) -> Iterator[Views]:
    """Yields the groups before these events, and after them."""
    gid, ts, log = numbers.of(events), ints(events, "ts"), events.column("log_id")
    before, after = (pc.struct_field(events.column(view), "master_epoch") for view in ("before", "after"))
    begins = bools_of(pc.less(before, after))  # NULL, of a snapshot, is false
    for epochs, is_elected in ((before, np.zeros(len(gid), np.bool_)), (after, begins)):
        known = bools_of(epochs.is_valid())
        yield Views(
            gid[known], ts[known], log.filter(arrow(known)), numbers_of(epochs.drop_null()), is_elected[known]
        )


class _Hour:
    def __init__(self, source: Source, hour_ts: int, windows: Sequence[int]) -> None:
        self._source, self._hour_ts, self._windows = source, hour_ts, windows
        self._base_ms = windows[0]
        self._numbers, self._terms, self._logs = GroupNumbers(), Terms(), EpochLogs()

    @cached_property
    def _masters(self) -> _Masters:
        return _Masters(self._source, self._numbers, self._terms, self._logs)

    def lag(self) -> Rolled:
        rows: dict[int, list[pa.RecordBatch]] = {width: [] for width in self._windows}
        buckets: list[pa.RecordBatch] = []
        for counts in lag.merge_hours(self._window_counts()):
            for width, found in rows.items():
                found.append(lag_rows(counts, width, self._base_ms))
            buckets.append(hour_buckets(counts, self._base_ms))
        if not buckets:
            return
        for width, found in rows.items():
            yield LAG, width, self._named(LAG, pa.Table.from_batches(found), width)
        histogram = pa.Table.from_batches(buckets)
        start = arrow(np.full(len(histogram), self._hour_ts))
        yield LAG_HISTOGRAM, HOUR_MS, self._named(LAG_HISTOGRAM, histogram.append_column("window_ts", start))

    def replica_lag(self) -> Rolled:
        _ = self._masters
        parts = []
        for batch in self._source.batches(REPLICA_SAMPLE, replicas.SAMPLE_COLUMNS):
            gid, ts = self._numbers.of(batch), ints(batch, "ts")
            epoch = self._logs.of_samples(gid, ints(batch, "master_epoch"), ts)
            is_seen, is_stale = self._terms.is_stale(gid, epoch, ts)
            counts = is_seen & ~is_stale
            current = batch if counts.all() else batch.filter(arrow(counts))
            parts.append(ReplicaCounts.of_samples(current, gid[counts], self._base_ms))
        if parts:
            base = ReplicaCounts.merge(parts)
            for width in self._windows:
                rows = pa.Table.from_batches([base.widened(width // self._base_ms).rows()])
                yield REPLICA_LAG, width, self._named(REPLICA_LAG, rows, width)

    def minimum(self) -> Rolled:
        masters = self._masters
        if len(masters.gid):
            rows = minimum_changes(masters.gid, masters.ts, masters.minimum, ~masters.is_stale)
            yield MINIMUM, HOUR_MS, self._named(MINIMUM, pa.Table.from_batches([rows]))

    def consumer_lag(self) -> Rolled:
        columns = (*GROUP, "ts", "broker_id", *PAIR, "lag_messages", "lag_ms")
        samples = [
            consumer_samples(batch, self._numbers.of(batch))
            for batch in self._source.batches(CONSUMER_LAG, columns)
        ]
        for width in self._windows if samples else ():
            yield CONSUMERS, width, self._named(CONSUMERS, consumer_lag(samples, width), width)

    def _window_counts(self) -> Iterator[WindowCounts]:
        masters, begin = self._masters, 0
        for batch in self._source.batches(MASTER_SAMPLE, lag.SAMPLE_COLUMNS):
            rows = slice(begin, begin := begin + len(batch))
            known: dict[str, Ints | Bools] = {"gid": masters.gid[rows], "is_stale": masters.is_stale[rows]}
            for name, values in known.items():
                batch = batch.append_column(name, arrow(values))
            yield WindowCounts.of_samples(batch, self._base_ms)

    def _named(self, table: RollUp, rows: pa.Table, window_ms: int | None = None) -> pa.Table:
        """Returns the columns of the table in the order of its key. `rows`: with gid in place of the names,
        and of windows of `window_ms` with `at` in place of window_ts."""
        if window_ms is not None:
            window_ts = self._hour_ts + numbers_of(rows["at"]) * window_ms
            rows = rows.append_column("window_ts", arrow(window_ts))
        return named_rows(rows, self._numbers.names, table.schema, table.key)


def _joined(arrays: Sequence[Ints]) -> Ints:
    return np.concatenate(arrays) if arrays else np.empty(0, np.int64)
