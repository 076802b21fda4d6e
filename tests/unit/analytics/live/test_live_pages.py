"""The last minutes: what the stream writes, what a name server reads, and what controllers' events say."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from analytics.live.pages import LivePages
from keelmq.web.live_files import MINUTE_MS, MINUTES, find_group
from keelmq.web.live_reader import LiveFiles
from keelmq.web.page_files import packed, unpacked
from keelmq.web.reading import PageFileError

START = 29_000_000 * MINUTE_MS
GROUP = ("c", 'b"\\\n')


def lag(minute: int, ms: int, name: tuple[str, str] = GROUP) -> dict[str, Any]:
    return {"cluster_name": name[0], "broker_name": name[1], "window_ts": START + minute * MINUTE_MS,
            "samples": 60, "ms_p99": ms, "ms_max": ms + 1, "max_offset": 7, "confirm_offset": 6}  # fmt: skip


def replica(minute: int, broker: int) -> dict[str, Any]:
    return {"cluster_name": GROUP[0], "broker_name": GROUP[1], "window_ts": START + minute * MINUTE_MS,
            "broker_id": broker, "samples": 60, "bytes_max": broker, "ms_max": 0, "samples_out": 0,
            "last_ack_offset": 5, "last_ts": 1}  # fmt: skip


def state(
    minute: int, below: int | None, without: int | None, unknown: int = 0, group: str = "b"
) -> dict[str, Any]:
    return {"cluster_name": "c", "broker_name": group, "window_ts": START + minute * MINUTE_MS,
            "below_min_ms": below, "no_master_ms": without, "unknown_ms": unknown}  # fmt: skip


def put(pages: LivePages, minute: int, *lags: dict[str, Any], replicas: tuple[Any, ...] = ()) -> None:
    tables = [pa.Table.from_pylist(list(rows)) if rows else None for rows in (lags, replicas)]
    pages.put(START + minute * MINUTE_MS, *tables)


def published(out: Path, minutes: int = 3) -> LivePages:
    pages = LivePages(out, every_ms=5_000)
    put(pages, 0, lag(0, 10), lag(0, 99, ("c", "other")), replicas=(replica(0, 2), replica(0, 3)))
    put(pages, minutes - 1, lag(minutes - 1, 30), replicas=(replica(minutes - 1, 3),))
    pages.publish(computed_ts=5, data_to_ts=START + minutes * MINUTE_MS - 1)
    return pages


def test_a_group_is_found_by_its_exact_name(tmp_path: Path) -> None:
    published(tmp_path)
    files = LiveFiles(tmp_path)
    head = files.head()
    assert head is not None and (head.start_ts, head.count, head.every_ms) == (START, 3, 5_000)
    found = files.series(head, *GROUP)
    assert found is not None and found.lag == {
        "samples": [60, None, 60], "ms_p99": [10, None, 30], "ms_max": [11, None, 31],
    }  # fmt: skip
    assert [(each.broker_id, each.columns["bytes_max"]) for each in found.replicas] == [
        (2, [2, None, None]), (3, [3, None, 3]),
    ]  # fmt: skip
    other = files.series(head, "c", "other")
    assert other is not None and other.lag["ms_p99"] == [99, None, None]
    for name in (("c", "b"), ("c", "othe"), ("", "other")):
        assert files.series(head, *name) is None
    late = files.series(head, *GROUP, from_ts=START + MINUTE_MS + 5)
    assert late is not None and (late.start_ts, late.count) == (START + MINUTE_MS, 2)


def test_minutes_of_a_clock_that_was_ahead_are_left_out(tmp_path: Path) -> None:
    pages = published(tmp_path)
    put(pages, 1_440, lag(1_440, 1))
    pages.publish(computed_ts=5, data_to_ts=START + 3 * MINUTE_MS - 1)
    head = LiveFiles(tmp_path).head()
    assert head is not None and (head.start_ts, head.count) == (START, 3)


def test_a_minute_that_changes_replaces_its_file(tmp_path: Path) -> None:
    pages = published(tmp_path)
    put(pages, 0, lag(0, 77))
    data = (tmp_path / MINUTES / f"{START}.jsonl").read_bytes()
    group = find_group(data, *GROUP)
    assert group is not None and group.lag["ms_p99"] == 77 and find_group(data, "c", "other") is None
    pages.forget(START + MINUTE_MS)
    assert [path.stem for path in (tmp_path / MINUTES).iterdir()] == [str(START + 2 * MINUTE_MS)]


def merged(out: Path) -> Any:
    at, content = LiveFiles(out).merged(packed(b'{"v":1,"groups":[]}'), 9)
    return at, json.loads(unpacked(content))


def test_the_fleet_has_its_last_hour(tmp_path: Path) -> None:
    assert merged(tmp_path) == (0, {"v": 1, "groups": []}), "no stream: the index as it is"
    pages = LivePages(tmp_path, every_ms=5_000)
    for minute in (0, 61):
        of_histogram = {"lag_us_p99": 61_001, "lag_us_max": 70_000} if minute else {}
        put(pages, minute, lag(minute, minute, ("c", "b")) | of_histogram)
    for minute, rows in {
        1: [state(1, 0, 0)],
        58: [state(58, 0, None, 30_000)],
        59: [state(59, 30_000, 0), state(59, None, None, MINUTE_MS, "z")],
        60: [state(60, MINUTE_MS, MINUTE_MS)],
        61: [state(61, 0, 0), state(61, 0, 0, 0, "z")],
    }.items():
        pages.remember(START + minute * MINUTE_MS, state=pa.Table.from_pylist(rows))
    end = START + 61 * MINUTE_MS + 15_000
    pages.publish(computed_ts=end + 1, data_to_ts=end)
    at, index = merged(tmp_path)
    live = index["live"]
    assert at > 0 and (live["start_ts"], live["count"]) == (START + 2 * MINUTE_MS, 60)
    b, z = live["groups"]
    assert (b["broker_name"], z["broker_name"]) == ("b", "z")
    assert (b["ms_p99"], b["ms_max"]) == ([None] * 59 + [62], [None] * 59 + [70])
    assert b["samples_ts"] == START + 62 * MINUTE_MS
    assert b["below_min_ms"] == [None] * 56 + [0, 30_000, MINUTE_MS, 0]
    assert b["no_master_ms"] == [None] * 57 + [0, MINUTE_MS, 0], "NULL is not 0"
    assert b["unknown_ms"] == [None] * 56 + [30_000, 0, 0, 0]
    assert z["no_master_ms"] == [None] * 59 + [0] and "samples_ts" not in z


def test_only_a_group_that_is_known_everywhere_has_no_columns(tmp_path: Path) -> None:
    """An empty column is 0 in every minute."""
    pages = LivePages(tmp_path, every_ms=5_000)
    for minute in range(60):
        rows = [state(minute, 0, 0), state(minute, 0, 0, 0, "z")]
        pages.remember(START + minute * MINUTE_MS, state=pa.Table.from_pylist(rows[: 1 + (minute < 59)]))
    put(pages, 0, lag(0, 1, ("c", "unseen")))
    end = START + 59 * MINUTE_MS
    pages.publish(computed_ts=end + 1, data_to_ts=end)
    b, unseen, z = merged(tmp_path)[1]["live"]["groups"]
    for name in ("below_min_ms", "no_master_ms", "unknown_ms"):
        assert name not in b and unseen[name] == [None] * 60 and z[name] == [0] * 59 + [None]


def test_files_of_another_release_or_damaged(tmp_path: Path) -> None:
    published(tmp_path)
    head = LiveFiles(tmp_path).head()
    assert head is not None
    (tmp_path / MINUTES / f"{START}.jsonl").write_bytes(b'["c","other",{"samples":"x"}]\n')
    with pytest.raises(PageFileError, match=r"\.jsonl is damaged: .*; restart the stream"):
        LiveFiles(tmp_path).series(head, "c", "other")
    (tmp_path / "live/page.json").write_text(
        (tmp_path / "live/page.json").read_text().replace('"v":1', '"v":9')
    )
    with pytest.raises(PageFileError, match="of another release"):
        LiveFiles(tmp_path).head()
