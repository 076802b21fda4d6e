"""How far consumer groups are behind, per window."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analytics.tables import GROUP
from analytics.windows import window_of


def consumer_lag(samples: DataFrame, window_ms: int) -> DataFrame:
    """Returns the columns of the table and `window`. `samples`: rows of the table consumer_lag."""
    last = F.col("ts") * 1024 + F.pmod("broker_id", F.lit(1024))
    key = (*GROUP, "consumer_group", "topic", window_of(F.col("ts"), window_ms).alias("window_ts"))
    found = samples.groupBy(*key).agg(
        F.max("lag_messages").alias("lag_messages_max"),
        F.max_by("lag_messages", last).alias("lag_messages_last"),
        F.max("lag_ms").alias("lag_ms_max"),
    )
    return found.withColumn("window", F.lit(window_ms))
