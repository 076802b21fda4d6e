"""Lines of a newer version are read when a release comes that knows it."""

from pathlib import Path

import pytest

from analytics.compaction import compactor, decode, plan
from analytics.compaction.manifest import read_manifests
from keelmq.remoting.records import ClockSample, encode_record
from tests.unit.analytics.compaction.model import HOUR, file_of, run


def line(at: int, version: int) -> bytes:
    record = ClockSample(
        v=version, ts=HOUR + at, cluster_name="c", broker_name="b", broker_id=1, controller_id="n1",
        offset_ms=0, heartbeats=1,
    )  # fmt: skip
    return encode_record(record)


def upgrade(monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    for module in (compactor, decode, plan):
        monkeypatch.setattr(module, "RECORD_VERSION", version)


def test_newer_lines_are_read_after_an_upgrade(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = file_of(tmp_path / "in", "clock_sample", "n-1.jsonl.open")
    path.write_bytes(line(0, 1) + line(1, 2))
    out = tmp_path / "out"
    run(tmp_path / "in", out)
    with path.open("ab") as file:
        file.write(line(2, 3))
    run(tmp_path / "in", out)
    (manifest,) = read_manifests(str(out))
    assert manifest.counts["clock_sample"].bad_lines == {"newer_version": 2}
    assert run(tmp_path / "in", out) == [], "the same release reads nothing again"
    upgrade(monkeypatch, 2)
    (manifest,) = run(tmp_path / "in", out)
    counts = manifest.counts["clock_sample"]
    assert (counts.rows, counts.duplicates, counts.bad_lines) == (2, 0, {"newer_version": 1})
    assert run(tmp_path / "in", out) == []
    upgrade(monkeypatch, 3)
    (manifest,) = run(tmp_path / "in", out)
    assert (manifest.counts["clock_sample"].rows, manifest.counts["clock_sample"].bad_lines) == (3, {})
