"""Series files that are as before are links; consumers in series files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from analytics.fleet.plan import plan
from analytics.fleet.rollup import write_rollups
from analytics.pages import days, grid, write_pages
from keelmq.web.page_files import CONSUMERS_MAX, PAGES
from keelmq.web.page_reader import PageFiles, generations
from tests.unit.analytics.test_pages import DAY_MS, HOUR_MS, MINUTE_MS, START, put, series

FIRST, SECOND = "minute-2024-10-04.json.gz", "minute-2024-10-05.json.gz"


def pages(out: Path, at: int) -> dict[str, Path]:
    """Writes a generation; returns its files by their path."""
    write_pages(out, wall_clock=lambda: at)
    root = out / PAGES / str(generations(out)[-1])
    return {str(path.relative_to(root)): path for path in sorted(root.rglob("*.gz"))}


def lag(out: Path, ts: int, ms: int = 1) -> None:
    put(out, "lag", MINUTE_MS, [{"window_ts": ts, "samples": 60, "ms_p99": ms}])


def test_a_day_that_did_not_change_is_a_link(tmp_path: Path) -> None:
    lag(tmp_path, START)
    lag(tmp_path, START + DAY_MS // 2)
    before = pages(tmp_path, 1)
    lag(tmp_path, START + DAY_MS // 2, ms=5)
    after = pages(tmp_path, 2)
    old, new = f"groups/c/b/{FIRST}", f"groups/c/b/{SECOND}"
    assert after[old].samefile(before[old]) and not after[new].samefile(before[new])
    found = series(tmp_path, "minute")["parts"]
    assert [part["lag"]["ms_p99"] for part in found] == [[1], [5]]
    lag(tmp_path, START, ms=7)  # late records
    assert not pages(tmp_path, 3)[old].samefile(before[old])
    assert [part["lag"]["ms_p99"] for part in series(tmp_path, "minute")["parts"]] == [[7], [5]]


@pytest.mark.slow
def test_linked_pages_equal_those_that_are_written(tmp_path: Path) -> None:
    fleet = plan(3, groups=12, hours=30, kinds=(), from_ts=START)
    write_rollups(fleet, tmp_path / "a")
    first = pages(tmp_path / "a", 1)
    again = pages(tmp_path / "a", 2)
    links = [name for name in again if again[name].samefile(first[name])]
    assert len(links) == 12 * (3 + 1 + 1), "three days of minutes, a month of hours, a year of days"
    write_rollups(fleet, tmp_path / "b")
    fresh = pages(tmp_path / "b", 2)
    assert {name: path.read_bytes() for name, path in again.items()} == {
        name: path.read_bytes() for name, path in fresh.items()
    }


@pytest.mark.parametrize("fault", ["no links", "a lost file", "an empty file", "damaged"])
def test_what_cannot_be_linked_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    write_rollups(plan(3, groups=3, hours=1, kinds=(), from_ts=START), tmp_path)
    before = pages(tmp_path, 1)
    wanted = {name: path.read_bytes() for name, path in before.items() if name != "index.json.gz"}
    victim = next(path for name, path in sorted(before.items(), reverse=True) if FIRST in name)
    if fault == "no links":

        def refused(*_: object) -> None:
            raise OSError(95, "Operation not supported")

        monkeypatch.setattr(Path, "hardlink_to", refused)
    elif fault == "an empty file":
        victim.write_bytes(b"")
    elif fault == "a lost file":
        victim.unlink()
    else:
        (tmp_path / PAGES / "1" / "series.json").write_bytes(b"{")
    after = pages(tmp_path, 2)
    assert {name: path.read_bytes() for name, path in after.items() if name != "index.json.gz"} == wanted
    assert all(path.stat().st_nlink == 1 for name, path in after.items() if FIRST in name)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["", "an empty file", "damaged", "of other rows"])
def test_a_day_is_computed_again_if_it_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """The file of a year is written anew each hour: the rows of its other days are kept."""
    write_rollups(plan(3, groups=3, hours=30, kinds=(), from_ts=START), tmp_path)
    pages(tmp_path, 1)
    (first, *_) = kept = sorted((tmp_path / PAGES / "days").iterdir())
    assert [each.name for each in kept] == [f"dt=2024-10-0{day}" for day in (4, 5, 6)]
    if fault:
        first.write_bytes(
            {"an empty file": b"", "damaged": first.read_bytes()[:-9]}.get(fault, kept[1].read_bytes())
        )
    changed = sorted((tmp_path / "rollup" / "lag" / f"window={HOUR_MS}").glob("dt=*/hour=*/*"))[-1]
    pq.write_table(pq.ParquetFile(changed).read().slice(1), changed)
    read = set[str]()

    def noted(paths: Sequence[Path], columns: Sequence[str]) -> Any:
        read.update(path.parent.parent.name for path in paths)
        return grid.read_rows(paths, columns)

    with monkeypatch.context() as patch:
        patch.setattr(days, "read_rows", noted)
        again = pages(tmp_path, 2)
    assert read == {"dt=2024-10-06", *([first.name] if fault else [])}
    for path in [*(tmp_path / PAGES / "days").iterdir(), tmp_path / "current.json"]:
        path.unlink()
    fresh = pages(tmp_path, 3)
    of_year = [name for name in fresh if name.endswith("day-2024.json.gz")]
    assert len(of_year) == 3
    assert all(again[name].read_bytes() == fresh[name].read_bytes() for name in of_year)


def consumer(ts: int, group: str, topic: str, messages: int | None) -> dict[str, Any]:
    return {"window_ts": ts, "consumer_group": group, "topic": topic, "lag_messages_max": messages,
            "lag_ms_max": messages}  # fmt: skip


def test_consumers(tmp_path: Path) -> None:
    put(tmp_path, "lag", MINUTE_MS, [
        {"window_ts": START + i * MINUTE_MS, "samples": 60} for i in range(3)
    ])  # fmt: skip
    rows = [consumer(START + MINUTE_MS, "g", "t", 5), consumer(START, "g", 't\\"', 7)]
    rows += [consumer(START, "many", f"t{i:02}", i) for i in range(CONSUMERS_MAX + 3)]
    put(tmp_path, "consumer_lag", MINUTE_MS, rows)
    write_pages(tmp_path)
    found = {(each["consumer_group"], each["topic"]): each["columns"]
             for each in series(tmp_path, "minute")["consumers"]}  # fmt: skip
    assert len(found) == CONSUMERS_MAX and ("many", "t00") not in found
    assert found["g", 't\\"'] == {"lag_messages_max": [7, None, None], "lag_ms_max": [7, None, None]}
    answer = PageFiles(tmp_path).group(PageFiles(tmp_path).generation(), "c", "b")
    (mine,) = [each for each in answer.series.consumers if each.topic == 't\\"']
    assert mine.columns["lag_messages_max"] == [7, None, None]
    assert found["many", "t12"]["lag_ms_max"][0] == 12
