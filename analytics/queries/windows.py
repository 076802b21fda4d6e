"""Fixed time windows over integer milliseconds: the window of a moment, and spans cut at window edges."""

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

SECOND_MS, MINUTE_MS, HOUR_MS = 1_000, 60_000, 3_600_000


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


def last_order() -> Column:
    """Returns a BIGINT that orders the samples of a group: by ts, those of two masters by broker_id."""
    return F.col("ts") * 1_024 + F.pmod("broker_id", F.lit(1_024))


def one_of(rows: DataFrame, variants: Sequence[Mapping[str, Column]], *, keep: Sequence[str]) -> DataFrame:
    """Returns each row once per variant, with the columns `keep` and those of the variant. All variants have
    the same names and types.

    To explode an array of structs does the same, but the embedded engine does not unify structs whose fields
    differ in nullability.
    """
    number = F.col("_variant")
    numbered = rows.withColumn("_variant", F.explode(F.array(*map(F.lit, range(len(variants))))))

    def chosen(name: str) -> Column:
        return F.coalesce(*(F.when(number == i, each[name]) for i, each in enumerate(variants)))

    return numbered.select(*keep, *(chosen(name).alias(name) for name in variants[0]))


def all_rows(frames: Iterable[DataFrame], strings: Sequence[str] = ()) -> DataFrame:
    """Returns the rows of all frames. A column that a frame lacks is NULL there: a STRING if it is one of
    `strings`, else a BIGINT.

    unionByName(allowMissingColumns=True) does the same, but on the embedded engine such a column has no type.
    """
    parts = list(frames)
    names = list(dict.fromkeys(name for rows in parts for name in rows.columns))

    def null(name: str) -> Column:
        return F.lit(None).cast("string" if name in strings else "bigint").alias(name)

    whole = (
        rows.select(*(F.col(name) if name in rows.columns else null(name) for name in names))
        for rows in parts
    )
    return reduce(DataFrame.unionByName, whole)
