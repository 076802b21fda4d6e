"""Messy telemetry whose truth is known, through the whole job: every number of every table."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analytics import job
from tests.spark.key.check import compare
from tests.spark.key.files import Written, write
from tests.spark.key.world import KINDS, Plan, groups

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.smoke, pytest.mark.timeout(300)]

VALUES_MIN = 140_000
"""What is compared if no table is left out."""
PLAN = Plan()


@dataclass(frozen=True)
class Computed:
    """What is in the files, and what the job has made of it below `out`."""

    written: Written
    out: Path


@pytest.fixture(scope="module", params=["right", "skewed"])
def computed(
    spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Computed:
    """A group of each kind, with clocks that are right or not. The job takes the session that is there."""
    del spark
    folder = tmp_path_factory.mktemp("key")
    lives = groups(len(KINDS), PLAN, right_clocks=request.param == "right")
    written = write(folder / "in", lives, PLAN)
    job.run(str(folder / "in"), str(folder / "out"), wall_clock=lambda: PLAN.end + 60_000)
    return Computed(written, folder / "out")


def test_no_number_differs_from_the_truth(computed: Computed) -> None:
    found = compare(computed.out, computed.written, PLAN)
    assert not found.differences, str(found)
    assert found.values > VALUES_MIN


@pytest.mark.parametrize("computed", ["skewed"], indirect=True)
def test_a_wrong_number_is_found_in_every_table(computed: Computed, tmp_path: Path) -> None:
    """In each table one row is lost, and numbers of the others are wrong."""
    right = compare(computed.out, computed.written, PLAN)
    out = tmp_path / "out"
    shutil.copytree(computed.out, out)
    newest = max((out / "tables").glob("run=*"))
    folders = [*(out / "rollup").glob("*/window=*"), *newest.glob("replica_lag/window=*")]
    folders += [each for each in newest.iterdir() if each.name != "replica_lag"]
    for folder in folders:
        spoil(folder)
    found = compare(out, computed.written, PLAN)
    for table in right.by_table:
        mine = [each for each in found.differences if each.startswith(f"{table} ")]
        assert any(": no row" in each for each in mine) or "groups" in table, table
        assert any(": no row" not in each for each in mine), table


def spoil(folder: Path) -> None:
    """Drops the first row of a table, and makes the numbers of all others wrong."""
    path = max(folder.rglob("*.parquet"), key=lambda each: each.stat().st_size)
    table = pq.ParquetFile(path).read()
    rows = table.to_pylist()[1:]
    keys = {"window_ts", "broker_id", "bucket", "from_ts", "event_id"}
    if folder.name == "data_quality":
        keys |= {"to_ts"}  # where the run ends
    for row in rows:
        of_numbers = {name: value for name, value in row.items() if type(value) is int and name not in keys}
        row.update({name: value + 1_000 for name, value in of_numbers.items()})
    path.unlink()
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)
