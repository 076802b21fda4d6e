"""The directory of the stream."""

from pathlib import Path

import pytest

from analytics.errors import AnalyticsError
from analytics.live.app import line_of_stop, make_directory
from analytics.live.tables import Status, read_status


@pytest.mark.parametrize("streams", [True, False])
def test_a_directory_that_others_wrote_is_made_anew(tmp_path: Path, streams: bool) -> None:
    """Of another release, or of the other kind of engine, which does not know what this one has read."""
    live, mine = tmp_path / "live", "checkpoint" if streams else "position.json"
    make_directory(live, streams=streams)
    for name in (".lock", mine):
        (live / name).touch()
    (live / "records" / "batch=0").mkdir(parents=True)
    make_directory(live, streams=streams)
    assert (live / mine).exists() and (live / "records" / "batch=0").exists(), "a restart goes on"
    make_directory(live, streams=not streams)
    assert {path.name for path in live.iterdir()} == {".lock", "format"}
    (live / "records" / "batch=0").mkdir(parents=True)
    (live / "format").unlink()
    make_directory(live, streams=streams)
    assert {path.name for path in live.iterdir()} == {".lock", "format"}


def test_a_damaged_status_is_named(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_bytes(b"\0" * 40)
    with pytest.raises(AnalyticsError, match=rf"{tmp_path}/status\.json is damaged .*; delete {tmp_path}:"):
        read_status(tmp_path)


def test_what_a_start_says_of_the_stop_before() -> None:
    hour_ms = 3_600_000
    now = 490_000 * hour_ms + 5  # 2025-11-24, 16:00 UTC
    assert line_of_stop(Status(), now) == "", "the first start"
    assert line_of_stop(Status(computed_ts=now - 2 * hour_ms), now) == ""
    assert line_of_stop(Status(computed_ts=now + hour_ms), now) == "", "a clock that was ahead"
    said = line_of_stop(Status(computed_ts=now - 30 * hour_ms), now)
    assert "2025-11-23 10:00 UTC" in said and "before 2025-11-24 14:00 is left to" in said
