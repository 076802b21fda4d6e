"""A replica that is down keeps its last acknowledgement."""

import pytest
from pyspark.sql import SparkSession

from analytics.rollup.replicas import replica_lag_filled

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

W = 60_000
LAG = "cluster_name string, broker_name string, window_ts long, max_offset long"
REPLICA = (
    "cluster_name string, broker_name string, broker_id long, window_ts long, samples long, bytes_max long, "
    "ms_max long, samples_out long, last_ack_offset long, last_ts long"
)
GROUP = ("c", "g")


def test_later_windows_are_filled(spark: SparkSession) -> None:
    """Replica 2 is down after the second window, and back in the sixth; replica 3 comes late and had all.

    The fourth window has no sample of the current master, the fifth no row at all.
    """
    max_offsets = {0: 100, 1: 200, 2: 300, 3: None, 5: 600, 6: 700}
    lag = spark.createDataFrame([(*GROUP, at * W, offset) for at, offset in max_offsets.items()], LAG)
    replicas = spark.createDataFrame(
        [
            (*GROUP, 2, 0, 60, 5, 7, 0, 100, W - 1_000),
            (*GROUP, 2, W, 30, 50, 70, 9, 150, W + 30_000),
            (*GROUP, 2, 6 * W, 10, 1, 2, 3, 699, 7 * W - 1),
            (*GROUP, 3, 5 * W, 10, 0, 0, 0, 900, 5 * W + 10_000),
        ],
        REPLICA,
    )
    rows = replica_lag_filled(lag, replicas, W).orderBy("broker_id", "window_ts").collect()
    found = [
        (row.broker_id, row.window_ts // W, row.samples, row.bytes_max, row.ms_max, row.is_filled)
        for row in rows
    ]
    assert found == [
        (2, 0, 60, 5, 7, False),
        (2, 1, 30, 50, 70, False),
        (2, 2, 0, 150, 70 + 90_000, True),
        (2, 5, 0, 450, 70 + 270_000, True),
        (2, 6, 10, 1, 2, False),
        (3, 5, 10, 0, 0, False),
        (3, 6, 0, 0, 0, True),
    ]
