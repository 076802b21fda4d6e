"""Counts of what was read and what was wrong with it, so that a page with gaps can explain them."""

from collections.abc import Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from analytics.inputs import BAD
from analytics.lag import is_above_max
from analytics.schema import GROUP
from keelmq.remoting.records import ControllerEvent, HaSample, Record, name_of

COUNTS = ("rows", "corrupt", "confirm_above_max", "epoch_gaps")


def data_quality(lines: Mapping[type[Record], DataFrame], history: DataFrame) -> DataFrame:
    """One row per record kind and group: COUNTS, and the time of the first and the last record.

    corrupt: lines that are no record; their group is not known. epoch_gaps: places in a group's history where
    an event is missing, or the controllers' log began anew.
    """
    frames = [_counted(record, frame) for record, frame in lines.items()]
    gaps = history.where("is_gap").select(*_columns(name_of(ControllerEvent), epoch_gaps=F.lit(1)))
    return (
        reduce(DataFrame.unionByName, [*frames, gaps])
        .groupBy("record", *GROUP)
        .agg(
            *(F.sum(name).alias(name) for name in COUNTS),
            F.min("ts").alias("from_ts"),
            F.max("ts").alias("to_ts"),
        )
    )


def _counted(record: type[Record], lines: DataFrame) -> DataFrame:
    is_good = ~F.col(BAD)
    above = F.when(is_good & is_above_max(), 1).otherwise(0) if record is HaSample else F.lit(0)
    rows, corrupt = F.when(is_good, 1).otherwise(0), F.when(is_good, 0).otherwise(1)
    return lines.select(
        *_columns(name_of(record), is_good, rows=rows, corrupt=corrupt, confirm_above_max=above)
    )


def _columns(record: str, is_good: Column | None = None, **counts: Column) -> list[Column]:
    """`is_good` None: the row only adds to a count, and has no time."""
    of_good = F.lit(True) if is_good is None else is_good
    known = F.lit(False) if is_good is None else is_good
    return [
        F.lit(record).alias("record"),
        *(F.when(of_good, F.col(name)).alias(name) for name in GROUP),
        F.when(known, F.col("ts")).alias("ts"),
        *(counts.get(name, F.lit(0)).alias(name) for name in COUNTS),
    ]
