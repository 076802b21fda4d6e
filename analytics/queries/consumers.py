"""How far consumer groups are behind, per window."""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analytics.queries.windows import in_widths, last_order, window_of
from analytics.tables import GROUP

_WINDOW = (*GROUP, "window", "window_ts", "consumer_group", "topic")


def consumer_lag(samples: DataFrame, windows: Sequence[int]) -> DataFrame:
    """Returns a row per group, window, consumer group and topic with a sample: _WINDOW, lag_messages_max,
    lag_messages_last, lag_ms_max. `samples`: rows of the table consumer_lag. `windows`: widths in ms."""
    rows = in_widths(samples, windows).withColumn("window_ts", window_of(F.col("ts"), F.col("window")))
    return rows.groupBy(*_WINDOW).agg(
        F.max("lag_messages").alias("lag_messages_max"),
        F.max_by("lag_messages", last_order()).alias("lag_messages_last"),
        F.max("lag_ms").alias("lag_ms_max"),
    )
