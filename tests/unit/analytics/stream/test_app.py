"""The directory of the stream."""

from pathlib import Path

from analytics.stream.app import line_of_stop, make_directory
from analytics.stream.live import Status


def test_a_directory_of_an_older_release_is_made_anew(tmp_path: Path) -> None:
    live = tmp_path / "live"
    make_directory(live)
    checkpoint, rows = live / "checkpoint" / "offsets", live / "records" / "batch=0"
    for each in (checkpoint, rows):
        each.mkdir(parents=True)
    make_directory(live)
    assert checkpoint.exists() and rows.exists(), "a restart goes on"
    (live / "rows" / "batch=0").mkdir(parents=True)
    make_directory(live)
    assert list(live.iterdir()) == []


def test_what_a_start_says_of_the_stop_before() -> None:
    hour_ms = 3_600_000
    now = 490_000 * hour_ms + 5  # 2025-11-24, 16:00 UTC
    assert line_of_stop(Status(), now) == "", "the first start"
    assert line_of_stop(Status(computed_ts=now - 2 * hour_ms), now) == ""
    assert line_of_stop(Status(computed_ts=now + hour_ms), now) == "", "a clock that was ahead"
    said = line_of_stop(Status(computed_ts=now - 30 * hour_ms), now)
    assert "2025-11-23 10:00 UTC" in said and "before 2025-11-24 14:00 is left to" in said
