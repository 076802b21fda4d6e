"""The stream's minutes are those of the hourly job."""

import pytest

from analytics.rollup.hours import paths_of
from analytics.rollup.tables import TABLES
from analytics.stream.minutes import Minutes, RollMinutes, minutes_of
from analytics.stream.rows import KEPT, MINUTE_MS
from tests.spark.rollup.conftest import Compacted, read_rollup

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def test_minutes_of_several_hours(compacted: Compacted) -> None:
    files = {table.name: paths_of(str(compacted.out), compacted.manifests, table) for table in KEPT}
    found = RollMinutes(minutes_of)(Minutes(0, 1 << 62, files))
    assert set(found) == {"lag", "replica_lag"}
    for name, table in found.items():
        rows = table.to_pylist()
        key = TABLES[name].columns[: TABLES[name].key]
        expected = read_rollup(compacted.out, name, MINUTE_MS)
        order = [sorted(each, key=lambda row: [row[column] for column in key]) for each in (rows, expected)]
        assert order[0] == order[1] and expected
