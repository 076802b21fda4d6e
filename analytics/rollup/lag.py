"""confirmOffset lag of a group per window: percentiles in bytes, milliseconds and microseconds.

Four units. "bytes" and "ms" are read once a second; "lag_us" and "confirm_us" are histograms that the
broker kept between two samples. All are counted into the buckets of keelmq.runtime.log_buckets, so a
percentile is at most 9.05 % above the exact one. Counts of minutes add up to those of an hour; percentiles
are never averaged.

Samples of a replaced master, and those whose confirmOffset is above their maxOffset (a defect of a
truncation), are left out of the lag and counted.

The percentile of rank q is the top of the first bucket up to which at least q of the values lie, and never
more than the worst value, where that is known. NULL: nothing was measured.

covered_ms, in whole seconds: a sample covers its second and the next one, also beyond the window's end if
the next window has samples; not beyond the hour's. Windows above a minute have the sum of their minutes.
"""

from collections.abc import Iterable, Iterator

from analytics.rollup.window_counts import WindowCounts

SAMPLE_COLUMNS = (
    "ts", "broker_id", "max_offset", "confirm_offset", "lag_ms", "lag_ms_max", "lag_bytes_max", "lag_us",
    "confirm_us",
)  # fmt: skip
"""What WindowCounts.of_samples() reads, besides gid and is_stale."""
WINDOWS_MAX = 20_000
"""Windows that are turned into rows together; a group's hour is never cut."""


def merge_hours(counts: Iterable[WindowCounts]) -> Iterator[WindowCounts]:
    """Yields the windows of whole gids, merged. `counts`: of batches, in the order of gid."""
    waiting: list[WindowCounts] = []
    for each in counts:
        waiting.append(each)
        if sum(map(len, waiting)) >= WINDOWS_MAX:
            ended, unfinished = WindowCounts.merge(waiting).split_last()
            waiting = [unfinished]
            if len(ended):
                yield ended
    if waiting:
        yield WindowCounts.merge(waiting)
