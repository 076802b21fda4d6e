"""confirmOffset lag of a group per window: percentiles in bytes, milliseconds and microseconds.

Four units. "bytes" and "ms" are read once a second; "lag_us" and "confirm_us" are histograms that the
broker kept between two samples. All are counted into the buckets of keelmq.runtime.log_buckets, so a
percentile is at most 9.05 % above the exact one. Counts of minutes add up to those of an hour; percentiles
are never averaged.

Samples of a replaced master, and those whose confirmOffset is above their maxOffset (a defect of a
truncation), are left out of the lag and counted.

Spark reads, distributes and writes; the arithmetic is in analytics/rollup/window_counts.py and runs in its
Python workers on Arrow batches. As SQL, with a row for each bucket of each sample, it cost a multiple.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame

from analytics.rollup.window_counts import LAG_COLUMNS, WindowCounts, hour_buckets, lag_rows

WINDOWS_MAX = 20_000
"""Windows that are turned into rows together; a group's hour is never cut."""

_PARTS = (
    "gid bigint, at bigint, samples bigint, stale_master bigint, above_max bigint, seconds bigint, "
    "last bigint, max_offset bigint, confirm_offset bigint, cells array<bigint>, n array<bigint>, "
    "worst array<bigint>"
)
_LAG = f"gid bigint, window int, at bigint, {', '.join(f'{name} bigint' for name in LAG_COLUMNS)}"
_BUCKETS = "gid bigint, unit string, bucket smallint, n bigint, worst bigint"

_Batches = Iterable[pa.RecordBatch]
_Rows = Callable[[WindowCounts], Iterator[pa.RecordBatch]]


def parts(samples: DataFrame, base_ms: int) -> DataFrame:
    """Returns what the windows of `base_ms` (a minute at most) hold, in rows that merge_hours() adds up.

    `samples`: rows of master_sample by in_terms(). A window has a row for each batch that has some of it.
    """
    columns = (
        "gid", "ts", "broker_id", "is_stale", "max_offset", "confirm_offset", "lag_ms", "lag_ms_max",
        "lag_bytes_max", "lag_us", "confirm_us",
    )  # fmt: skip

    def count(batches: _Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if len(batch):
                yield WindowCounts.of_samples(batch, base_ms).to_batch()

    return samples.select(*columns).mapInArrow(count, _PARTS)


def lag(of: DataFrame, windows: Sequence[int], base_ms: int) -> DataFrame:
    """Returns gid, window, at and the columns of the table, of these widths. `of`: of parts().

    The percentile of rank q is the top of the first bucket up to which at least q of the values lie, and
    never more than the worst value, where that is known. NULL: nothing was measured.

    covered_ms, in whole seconds: a sample covers its second and the next one, also beyond the window's end if
    the next window has samples; not beyond the hour's. Windows above a minute have the sum of their minutes.
    """
    widths = tuple(windows)
    return _of_hours(of, lambda counts: (lag_rows(counts, width, base_ms) for width in widths), _LAG)


def hour_histogram(of: DataFrame, base_ms: int) -> DataFrame:
    """Returns gid, unit (its name), bucket, n and worst of the hour. `of`: of parts()."""
    return _of_hours(of, lambda counts: iter((hour_buckets(counts, base_ms),)), _BUCKETS)


def _of_hours(of: DataFrame, rows: _Rows, schema: str) -> DataFrame:
    def convert(batches: _Batches) -> Iterator[pa.RecordBatch]:
        for counts in merge_hours(batches):
            yield from rows(counts)

    return of.repartition("gid").sortWithinPartitions("gid").mapInArrow(convert, schema)


def merge_hours(batches: _Batches) -> Iterator[WindowCounts]:
    """Yields the windows of whole gids, merged. `batches`: of parts(), in the order of gid."""
    waiting: list[WindowCounts] = []
    for batch in batches:
        if len(batch):
            waiting.append(WindowCounts.of_batch(batch))
        if sum(map(len, waiting)) >= WINDOWS_MAX:
            ended, unfinished = WindowCounts.merge(waiting).split_last()
            waiting = [unfinished]
            if len(ended):
                yield ended
    if waiting:
        yield WindowCounts.merge(waiting)
