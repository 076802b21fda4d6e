"""The minutes that the live tables have are those that the batch job's queries make of the same telemetry."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.engine import SLOW_ON_SPARK
from tests.spark.last_hours import FROM_TS, HOUR_MS, HOUR_TS, MINUTE_MS, TO_TS, GrowingTelemetry
from tests.spark.rollup.conftest import read_rollup

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

STEP_MS = 125_000
Row = dict[str, Any]


def live_rows(
    spark: "SparkSession", telemetry: GrowingTelemetry, out: Path, seed: int, *, restarts: bool
) -> tuple[dict[str, list[Row]], int]:
    """What the live tables have in the end, and the time up to which. `restarts`: the process is killed now
    and then, and starts again; that computes the kept hours again, and so hides what was not noticed."""
    from analytics.live.following import Following
    from analytics.live.positions import ranges
    from analytics.live.tables import LiveTables

    dice, tables = random.Random(seed), None
    clock = [FROM_TS]
    at = Following(telemetry.root, hour=FROM_TS // HOUR_MS).first()
    for now in [*range(FROM_TS + STEP_MS, TO_TS, STEP_MS), TO_TS, TO_TS + 5 * MINUTE_MS]:
        clock[0] = now
        telemetry.grow(now)
        end = Following(telemetry.root, hour=now // HOUR_MS).after(at)
        if tables is None or (restarts and dice.random() < 0.3):
            tables = LiveTables(spark, telemetry.root, out, wall_clock=lambda: clock[0])
        if batch := list(ranges(at, end)):
            tables.take(batch, tables.status.batch + 1)
            tables.commit(took_ms=0)
        at = end
    assert tables is not None and tables.status.late == 0
    return {
        name: [row for _, rows in tables.kept(name) for row in rows.to_pylist()]
        for name in ("lag", "replica_lag", "group_state")
    }, tables.status.data_to_ts


def batch_rows(
    spark: "SparkSession", telemetry: GrowingTelemetry, out: Path, data_to_ts: int
) -> dict[str, list[Row]]:
    """The same tables, as the batch job makes them of whole hours up to a time."""
    from analytics.compaction.compactor import compact
    from analytics.compaction.scan import find_sources
    from analytics.rollup.inputs import inputs_of
    from analytics.rollup.run import roll_up

    telemetry.close()
    manifests = compact(find_sources([str(telemetry.root)]), str(out))
    batch = [each for each in manifests if HOUR_TS - HOUR_MS <= each.hour_ts <= HOUR_TS + HOUR_MS]
    assert len(batch) == 3
    ends = {HOUR_TS - HOUR_MS: HOUR_TS - 30 * MINUTE_MS + 1, HOUR_TS + HOUR_MS: data_to_ts + 1}
    tables = ("lag", "replica_lag", "minimum", "group_state")
    roll_up(spark, str(out), batch, tables=tables, inputs=inputs_of(manifests), ends=ends)
    return {name: read_rollup(out, name, MINUTE_MS) for name in tables if name != "minimum"}


def by_key(rows: Sequence[Row]) -> dict[tuple[Any, ...], Row]:
    keys = ("broker_name", "window_ts", "broker_id")
    found = {tuple(row.get(name) for name in keys): row for row in rows}
    assert len(found) == len(rows)
    return found


@pytest.mark.parametrize(
    ("seed", "with_skew"), [pytest.param(1, True, marks=[SLOW_ON_SPARK, pytest.mark.slow]), (2, False)]
)
def test_minute_by_minute(spark: "SparkSession", tmp_path: Path, seed: int, with_skew: bool) -> None:
    """Births, two masters, groups without one, rebuilt controllers, clocks that are off, late and doubled
    lines; over the edge of an hour. Without clocks that are off, a batch changes fewer minutes."""
    telemetry = GrowingTelemetry(tmp_path / "in", seed, with_skew=with_skew)
    live, data_to_ts = live_rows(spark, telemetry, tmp_path / "live", seed, restarts=not with_skew)
    assert TO_TS - 2_000 <= data_to_ts <= TO_TS
    batch = batch_rows(spark, telemetry, tmp_path / "out", data_to_ts)
    for name, rows in batch.items():
        expected, found = by_key(rows), by_key(live[name])
        differs = {
            (*key, (key[1] - HOUR_TS) / MINUTE_MS): (expected.get(key), found.get(key))
            for key in expected.keys() | found.keys()
            if expected.get(key) != found.get(key)
        }
        assert not differs, (name, len(differs), sorted(differs.items(), key=lambda each: str(each[0]))[:4])
        assert expected
