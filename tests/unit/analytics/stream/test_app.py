"""The directory of the stream."""

from pathlib import Path

from analytics.stream.app import make_directory


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
