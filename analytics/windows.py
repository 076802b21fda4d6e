"""Fixed time windows over integer milliseconds: the window of a moment, and spans cut at window edges."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

POINTS_MAX = 2000
"""Limit of the points of a series on a page."""

_DAY_MS = 86_400_000
WINDOWS_MS = (1_000, 5_000, 10_000, 60_000, 300_000, 3_600_000, _DAY_MS)


def window_of(ts: Column, window_ms: int) -> Column:
    """Returns the start of the window that `ts` is in."""
    return ts - F.pmod(ts, F.lit(window_ms))


def points(from_ts: int, to_ts: int, window_ms: int) -> int:
    """Returns the number of windows that overlap [from_ts, to_ts]."""
    return to_ts // window_ms - from_ts // window_ms + 1


def choose_window_ms(from_ts: int, to_ts: int) -> int:
    """Returns the smallest width (ms) that fits on a page; whole days if one day is too small."""
    for window_ms in WINDOWS_MS:
        if points(from_ts, to_ts, window_ms) <= POINTS_MAX:
            return window_ms
    return _DAY_MS * -(-(to_ts - from_ts) // (_DAY_MS * (POINTS_MAX - 1)))


def clip(spans: DataFrame, window_ms: int) -> DataFrame:
    """Returns spans [from_ts, to_ts) as one row per window that each touches: window_ts and `ms` in it.

    A span of zero length touches nothing.
    """
    last = window_of(F.col("to_ts") - 1, window_ms)
    starts = F.sequence(window_of(F.col("from_ts"), window_ms), last, F.lit(window_ms))
    end = F.least(F.col("to_ts"), F.col("window_ts") + window_ms)
    return (
        spans.where("to_ts > from_ts")
        .withColumn("window_ts", F.explode(starts))
        .withColumn("ms", end - F.greatest("from_ts", "window_ts"))
    )
