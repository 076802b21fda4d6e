"""The stream's minutes are those of the hourly job."""

import pytest
from pyspark.sql import SparkSession

from analytics.reading import read_table
from analytics.rollup.run import paths_of
from analytics.rollup.tables import TABLES
from analytics.stream.minutes import MINUTE_MS, minutes_of
from analytics.tables import CONTROLLER_EVENT, MASTER_SAMPLE, REPLICA_SAMPLE
from tests.spark.rollup.conftest import Compacted, read_rollup

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def test_minutes_of_several_hours(spark: SparkSession, compacted: Compacted) -> None:
    tables = {
        table.name: read_table(spark, paths_of(str(compacted.out), compacted.manifests, table), table)
        for table in (MASTER_SAMPLE, REPLICA_SAMPLE, CONTROLLER_EVENT)
    }
    with minutes_of(tables) as rolled:
        found = {name: frame.toArrow().to_pylist() for name, frame in rolled.items()}
    assert set(found) == {"lag", "replica_lag"}
    for name, rows in found.items():
        key = TABLES[name].columns[: TABLES[name].key]
        expected = read_rollup(compacted.out, name, MINUTE_MS)
        order = [sorted(each, key=lambda row: [row[column] for column in key]) for each in (rows, expected)]
        assert order[0] == order[1] and expected
