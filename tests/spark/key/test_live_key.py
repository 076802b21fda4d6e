"""The live tables of the last minutes, against the truth: the numbers of the hourly job, minute by minute."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.key.check import compare_minutes
from tests.spark.key.files import write
from tests.spark.key.world import HOUR_MS, KINDS, MINUTE_MS, START_TS, Plan, groups

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.smoke, pytest.mark.timeout(300)]

PAUSE_TS = START_TS + 75 * MINUTE_MS
PLAN = Plan(pause=PAUSE_TS, resume=PAUSE_TS, end=PAUSE_TS + 10 * MINUTE_MS)
"""85 minutes without a pause: a first batch reads all of them."""
VALUES_MIN = 25_000


def test_no_minute_differs_from_the_truth(spark: "SparkSession", tmp_path: Path) -> None:
    from analytics.live.following import Following
    from analytics.live.positions import ranges
    from analytics.live.tables import LiveTables

    written = write(tmp_path / "in", groups(len(KINDS), PLAN), PLAN)
    following = Following(tmp_path / "in", hour=PLAN.end // HOUR_MS)
    start = following.first()
    tables = LiveTables(spark, tmp_path / "in", tmp_path / "live", wall_clock=lambda: PLAN.end + 1_000)
    tables.take(list(ranges(start, following.after(start))), 0)
    found = compare_minutes(tmp_path / "live", written, tables.status.data_to_ts + 1, PLAN)
    assert not found.differences, str(found)
    assert found.values > VALUES_MIN
