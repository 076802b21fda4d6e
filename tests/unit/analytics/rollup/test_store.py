"""Which roll-ups count as up to date."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analytics.compaction.manifest import HOUR_MS, HourManifest, Part
from analytics.rollup.run import MINUTE_MS
from analytics.rollup.store import ROLLUP_VERSION, RollupStore

PART = Part(
    path="compacted/master_sample/dt=1970-01-01/hour=01/1.parquet", rows=1, size_bytes=1, min_ts=0, max_ts=1
)
MANIFEST = HourManifest(hour_ts=HOUR_MS, parts={"master_sample": [PART]})


def placed(out: Path) -> Path:
    """Places the roll-up of an hour; returns its file."""
    store = RollupStore(str(out))
    name = store.put("rollup/lag", MINUTE_MS, HOUR_MS, pa.table({"rows": [1]}))
    store.place([MANIFEST], {HOUR_MS: [name]}, [MINUTE_MS])
    assert name == f"rollup/lag/window={MINUTE_MS}/dt=1970-01-01/hour=01/part.parquet"
    return out / name


def test_a_file_that_is_empty_or_gone_is_computed_again(tmp_path: Path) -> None:
    """After a power cut a file may be there without its content, because it is not synced."""
    path, store = placed(tmp_path), RollupStore(str(tmp_path))
    assert pq.read_table(path, partitioning=None)["rows"].to_pylist() == [1]
    assert store.stale([MANIFEST], [MINUTE_MS]) == []
    path.write_bytes(b"")
    assert store.stale([MANIFEST], [MINUTE_MS]) == [MANIFEST]
    path.unlink()
    assert store.stale([MANIFEST], [MINUTE_MS]) == [MANIFEST]
    assert placed(tmp_path) == path
    assert store.stale([MANIFEST], [MINUTE_MS]) == []


@pytest.mark.parametrize("version", [ROLLUP_VERSION, ROLLUP_VERSION - 1])
def test_a_dropped_hour_is_gone(tmp_path: Path, version: int) -> None:
    path, store = placed(tmp_path), RollupStore(str(tmp_path))
    (manifest,) = (tmp_path / "rollup" / "manifest").iterdir()
    text = manifest.read_text()
    manifest.write_text(text.replace(f'"version":{ROLLUP_VERSION}', f'"version":{version}'))
    store.drop([HOUR_MS, 2 * HOUR_MS])
    assert not path.exists() and store.read(HOUR_MS) is None
    assert store.stale([MANIFEST], [MINUTE_MS]) == [MANIFEST]
