"""One time axis: times that brokers wrote by their own clocks are converted to the controllers' clock.

The controller's time of a row is its broker's time plus an offset, see analytics/queries/skew.py. The offset
is looked up by the minute of the broker's own clock, so a broker whose clock is right costs nothing: only
offsets of more than STEP_MS are listed. A producer's clock is never known: send gaps stay as they are.

A clock that is set back repeats minutes. Rows do not show which of the two minutes they belong to; such a
minute gets the offset that was measured for most of it; of two that are equally long, the smaller one.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from analytics.compaction.times import HOLD_MS, OFFSET_MAX_MS, STEP_MS
from analytics.queries.skew import SAMPLE_MS
from analytics.queries.windows import window_of
from analytics.tables import GROUP

MINUTE_MS = 60_000
_BROKER = (*GROUP, "broker_id")


def offsets(pieces: DataFrame) -> DataFrame:
    """Returns one row per broker and minute of its own clock (own_minute, ms) whose rows are to be corrected:
    offset_ms, which is added to the broker's time. `pieces`: see skew.clock_pieces().

    A minute's offset depends on the pieces that are at most HOLD_MS from it by the broker's clock, and on no
    others. Offsets of at most STEP_MS and of more than OFFSET_MAX_MS are left out.
    """
    offset = F.col("offset_ms")
    known = pieces.where(F.abs(offset) <= OFFSET_MAX_MS).select(
        *_BROKER,
        offset,
        (F.col("from_ts") + SAMPLE_MS - offset).alias("_begin"),
        (F.col("to_ts") - offset).alias("_end"),
    )
    is_off = F.max(F.abs(offset) > STEP_MS).over(Window.partitionBy(*_BROKER))
    first = window_of(F.col("_begin") - HOLD_MS, MINUTE_MS)
    last = window_of(F.col("_end") + HOLD_MS, MINUTE_MS)
    minutes = (
        known.withColumn("_is_off", is_off)
        .where("_is_off")
        .withColumn("own_minute", F.explode(F.sequence(first, last, F.lit(MINUTE_MS))))
    )
    begin, minute = F.col("_begin"), F.col("own_minute")
    within = F.least(F.col("_end"), minute + MINUTE_MS) - F.greatest(begin, minute)
    best = F.struct(
        F.greatest(F.lit(0), -within).alias("distance"),
        (-within).alias("shared"),
        F.abs(offset).alias("size"),
        offset.alias("offset_ms"),
    )
    nearest = minutes.groupBy(*_BROKER, "own_minute").agg(F.min(best).alias("_best"))
    return nearest.select(*_BROKER, "own_minute", F.col("_best.offset_ms").alias("offset_ms")).where(
        F.abs(F.col("offset_ms")) > STEP_MS
    )


def corrected(rows: DataFrame, of_minutes: DataFrame) -> DataFrame:
    """Returns the rows with ts by the controllers' clock, and own_ts: by their broker's.

    `rows`: of a table that brokers write (samples, role changes, consumers' lag), so broker_id is the
    writer's. started_ts, if there is one, is corrected by the same offset. `of_minutes`: see offsets().
    """
    looked_up = of_minutes.withColumnRenamed("offset_ms", "_offset_ms")
    found = rows.withColumn("own_minute", window_of(F.col("ts"), MINUTE_MS)).join(
        looked_up, [*_BROKER, "own_minute"], "left"
    )
    by = F.coalesce(F.col("_offset_ms"), F.lit(0))
    own = F.col("ts").alias("own_ts")
    return found.select(*(_moved(name, by) for name in rows.columns), own)


def _moved(name: str, by: Column) -> Column:
    """Returns the column; a moment by the broker's clock is moved."""
    return (F.col(name) + by).alias(name) if name in ("ts", "started_ts") else F.col(name)
