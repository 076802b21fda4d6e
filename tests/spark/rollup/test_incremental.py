"""Only what is new or changed is computed, and the result is that of computing everything, to the byte."""

import shutil
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from analytics.engine.errors import spark_in_one_line
from analytics.errors import AnalyticsError
from analytics.rollup.run import roll_up, windows_of
from analytics.rollup.store import ROLLUP_VERSION, RollupStore
from analytics.tables import CONTROLLER_EVENT, MASTER_SAMPLE
from tests.spark.model_samples import HOUR_MS
from tests.spark.rollup.conftest import BASE_MS, Compacted, contents, write_part

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

VERSION = b'"version":%d' % ROLLUP_VERSION


@pytest.fixture
def copy(compacted: Compacted, tmp_path: Path) -> Path:
    """Compacted files and roll-ups of their own."""
    shutil.copytree(compacted.out, tmp_path / "out")
    return tmp_path / "out"


def test_a_second_run_does_nothing(spark: SparkSession, compacted: Compacted) -> None:
    before = contents(compacted.out)
    assert roll_up(spark, str(compacted.out), compacted.manifests, base_ms=BASE_MS) == []
    assert contents(compacted.out) == before


def test_hour_by_hour_is_all_at_once(spark: SparkSession, compacted: Compacted, tmp_path: Path) -> None:
    """Also after a kill: files without a manifest."""
    shutil.copytree(compacted.out / "compacted", tmp_path / "compacted")
    first, *others = compacted.manifests
    assert roll_up(spark, str(tmp_path), [first], base_ms=BASE_MS) == [first.hour_ts]
    assert roll_up(spark, str(tmp_path), compacted.manifests, base_ms=BASE_MS) == [
        each.hour_ts for each in others
    ]
    assert contents(tmp_path) == contents(compacted.out)


def test_a_changed_hour(spark: SparkSession, compacted: Compacted, copy: Path) -> None:
    """Fewer rows in a new part: the table that has none left loses its file; other hours stay."""
    before = contents(copy)
    second = compacted.manifests[1]
    rows = [row for row in compacted.masters if row["ts"] // HOUR_MS * HOUR_MS == second.hour_ts][:5]
    changed = msgspec.structs.replace(
        second, parts={MASTER_SAMPLE.name: [write_part(copy, MASTER_SAMPLE, rows, name="2")]}
    )
    manifests = [compacted.manifests[0], changed, compacted.manifests[2]]
    assert roll_up(spark, str(copy), manifests, base_ms=BASE_MS) == [second.hour_ts]
    after = contents(copy)
    touched = {name for name in before if before[name] != after.get(name)}
    assert touched
    assert all("hour=01" in name for name in touched)
    assert any("replica_lag" in name for name in before.keys() - after.keys())
    assert roll_up(spark, str(copy), manifests, base_ms=BASE_MS) == []


def test_an_hour_with_events_only(spark: SparkSession, compacted: Compacted, tmp_path: Path) -> None:
    """Its brokers were down, so no minimum is known."""
    shutil.copytree(compacted.out / "compacted", tmp_path / "compacted")
    manifest = next(each for each in compacted.manifests if CONTROLLER_EVENT.name in each.parts)
    alone = {CONTROLLER_EVENT.name: manifest.parts[CONTROLLER_EVENT.name]}
    silent = msgspec.structs.replace(manifest, parts=alone)
    assert roll_up(spark, str(tmp_path), [silent]) == [manifest.hour_ts]
    rolled = RollupStore(str(tmp_path)).read(manifest.hour_ts)
    assert rolled is not None
    assert {name.split("/")[1] for name in rolled.files} <= {"group_state", "replica_state"}


def test_a_part_that_is_lost(spark: SparkSession, compacted: Compacted, tmp_path: Path) -> None:
    """The error is one line, and names the file."""
    shutil.copytree(compacted.out / "compacted", tmp_path / "compacted")
    (part,) = compacted.manifests[1].parts[MASTER_SAMPLE.name]
    (tmp_path / part.path).unlink()
    with pytest.raises(AnalyticsError) as raised, spark_in_one_line():
        roll_up(spark, str(tmp_path), compacted.manifests, base_ms=BASE_MS)
    assert part.path in str(raised.value)
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 500


def test_killed_before_the_manifest(compacted: Compacted, copy: Path) -> None:
    manifest = next((copy / "rollup" / "manifest").iterdir())
    content = manifest.read_bytes()
    assert VERSION in content
    store, windows = RollupStore(str(copy)), windows_of(BASE_MS)
    for damage in (None, b"", content[:-5], content.replace(VERSION, b'"version":0')):
        manifest.unlink() if damage is None else manifest.write_bytes(damage)
        assert len(store.stale(compacted.manifests, windows)) == 1
    manifest.write_bytes(content)
    assert store.stale(compacted.manifests, windows) == []
    assert store.stale(compacted.manifests, windows_of(None)) == [], "fewer windows are there"
    assert len(store.stale(compacted.manifests, windows_of(1_000))) == len(compacted.manifests)


@pytest.mark.parametrize("base_ms", [-1, 0, 1_500, 7_000, 90_000, 3_599_000])
def test_a_window_that_does_not_fit(base_ms: int) -> None:
    with pytest.raises(AnalyticsError, match="divide an hour"):
        windows_of(base_ms)


@pytest.mark.parametrize(
    ("base_ms", "expected"),
    [
        (None, (60_000, HOUR_MS)),
        (1_000, (1_000, 60_000, HOUR_MS)),
        (60_000, (60_000, HOUR_MS)),
        (300_000, (60_000, 300_000, HOUR_MS)),
        (86_400_000, (60_000, HOUR_MS)),
    ],
)
def test_windows(base_ms: int | None, expected: tuple[int, ...]) -> None:
    assert windows_of(base_ms) == expected
