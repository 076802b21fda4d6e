"""Fixed time windows over integer milliseconds: the window of a moment, and spans cut at window edges."""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F


def window_of(ts: Column, window_ms: int | Column) -> Column:
    """Returns the start of the window that `ts` is in."""
    return ts - F.pmod(ts, F.lit(window_ms))


def clip(spans: DataFrame, window_ms: int | Column) -> DataFrame:
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


def in_widths(rows: DataFrame, windows: Sequence[int]) -> DataFrame:
    """Returns each row once per width, in a column `window`: one query for all widths is a third of three."""
    return rows.withColumn("window", F.explode(F.array(*map(F.lit, windows))))
