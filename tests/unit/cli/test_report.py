"""`keelmq report`: when it computes, and when it shows what was computed."""

import os
from pathlib import Path
from typing import Any

import pytest
import typer

from cli import analytics_commands as analytics
from keelmq import web

pytest.importorskip("pyarrow")

from analytics.fleet.plan import plan
from analytics.fleet.rollup import write_rollups
from analytics.pages import write_pages


@pytest.mark.skipif(not web.is_built(), reason=web.NOT_BUILT)
def test_new_telemetry_is_in_the_next_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an earlier report has computed stays beside the telemetry, and is shown while nothing is new."""
    telemetry = tmp_path / "telemetry" / "ha_sample" / "dt=2026-01-01" / "hour=00" / "n-1.jsonl"
    telemetry.parent.mkdir(parents=True)
    telemetry.write_bytes(b"")
    computed: list[tuple[str, str]] = []

    def compute(source: str, output: str, **_: Any) -> None:
        computed.append((source, output))
        write_rollups(plan(1, groups=1, hours=1, kinds=(), from_ts=0), Path(output))
        write_pages(Path(output))

    monkeypatch.setattr(analytics, "compute", compute)

    def report() -> int:
        analytics.report(tmp_path, tmp_path / "report.html", "a title")
        return len(computed)

    assert [report(), report()] == [1, 1]
    newer = (tmp_path / "analytics" / "current.json").stat().st_mtime_ns + 1_000_000
    os.utime(telemetry, ns=(newer, newer))
    assert report() == 2
    assert computed == [(str(tmp_path), str(tmp_path / "analytics"))] * 2
    assert "a title" in (tmp_path / "report.html").read_text()


def test_without_built_pages_nothing_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("keelmq.web.report.ANALYTICS", tmp_path)
    monkeypatch.setattr(analytics, "compute", lambda *_, **__: pytest.fail("computed"))
    with pytest.raises(typer.Exit):
        analytics.report(tmp_path)
    assert "npm run build" in capsys.readouterr().err
