"""Page files from roll-ups: what is in them, what is unknown, sizes, generations, and odd inputs."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analytics.errors import AnalyticsError
from analytics.fleet.plan import KINDS, plan
from analytics.fleet.rollup import write_rollups
from analytics.pages import write_pages
from analytics.pages.days import percentiles
from analytics.pages.details import ROWS_MAX
from analytics.pages.grid import read_rows
from keelmq.runtime.log_buckets import bucket_of, bucket_top
from keelmq.web.page_files import GENERATIONS_KEPT, PAGES, escaped
from keelmq.web.page_reader import PageFiles, generations

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
START = 20_000 * DAY_MS + 22 * HOUR_MS
G = {"cluster_name": "c", "broker_name": "b"}


def put(out: Path, name: str, window_ms: int, rows: list[dict[str, Any]]) -> None:
    """Writes roll-up rows into the hours that they belong to."""
    by_hour: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        by_hour.setdefault(row["window_ts"] // HOUR_MS, []).append({**G, **row})
    for hour, each in by_hour.items():
        day = {20_000: "2024-10-04", 20_001: "2024-10-05"}[hour // 24]
        path = (
            out
            / "rollup"
            / name
            / f"window={window_ms}"
            / f"dt={day}"
            / f"hour={hour % 24:02}"
            / "part.parquet"
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(each), path)


def put_run(out: Path, name: str, rows: list[dict[str, Any]]) -> None:
    path = out / "tables" / "run=5" / name / "part.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)


def series(out: Path, resolution: str, cluster: str = "c", broker: str = "b") -> dict[str, Any]:
    (folder,) = [out / PAGES / str(generations(out)[-1]) / "groups" / escaped(cluster) / escaped(broker)]
    parts = [json.loads(gzip.decompress(path.read_bytes())) for path in sorted(folder.glob(f"{resolution}*"))]
    assert parts
    return parts[0] if len(parts) == 1 else {"parts": parts}


def test_a_window_without_a_row_is_unknown(tmp_path: Path) -> None:
    rows = [{"window_ts": START + i * MINUTE_MS, "samples": 60, "ms_p99": i} for i in (0, 1, 3)]
    rows[1]["ms_p99"] = None
    put(tmp_path, "lag", MINUTE_MS, rows)
    write_pages(tmp_path)
    found = series(tmp_path, "minute")
    assert (found["start_ts"], found["step_ms"], found["count"]) == (START, MINUTE_MS, 4)
    assert found["lag"] == {"samples": [60, 60, None, 60], "ms_p99": [0, None, None, 3]}
    assert found["state"] == {} and found["replicas"] == []


@pytest.mark.parametrize("content", [b"", b"PAR1", b"x" * 100])
@pytest.mark.parametrize("name", ["lag", "group_state", "membership"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    put(tmp_path, "lag", MINUTE_MS, [{"window_ts": START, "samples": 60, "ms_p99": 1}])
    put(tmp_path, "group_state", MINUTE_MS, [{"window_ts": START, "below_min_ms": 0}])
    put_run(tmp_path, "membership", [{**G, "broker_id": 1, "state": "master", "from_ts": 0, "to_ts": 1}])
    (path,) = tmp_path.rglob(f"{name}/**/part.parquet")
    path.write_bytes(content)
    with pytest.raises(AnalyticsError, match="is damaged") as caught:
        write_pages(tmp_path)
    assert str(path) in str(caught.value)


def test_rows_in_any_order_and_in_many_files(tmp_path: Path) -> None:
    names = [("c", "b"), ("c", "a"), ("C", "b")]
    rows = [
        {"window_ts": START + i * 30 * MINUTE_MS, "samples": 1, "ms_max": 100 * g + i,
         "cluster_name": cluster, "broker_name": broker}
        for i in range(8) for g, (cluster, broker) in enumerate(names)
    ]  # fmt: skip
    put(tmp_path, "lag", MINUTE_MS, rows[::-1])
    write_pages(tmp_path)
    files = PageFiles(tmp_path)
    for g, (cluster, broker) in enumerate(names):
        answer = files.group(files.generation(), cluster, broker)
        assert answer.series.lag["ms_max"][::30] == [100 * g + i for i in range(8)]
        assert answer.series.count == 7 * 30 + 1, "two days' files, cut into one series"


def test_replicas_have_their_own_columns(tmp_path: Path) -> None:
    put(tmp_path, "lag", MINUTE_MS, [{"window_ts": START, "samples": 60}])
    rows = [
        {"window_ts": START + i * MINUTE_MS, "broker_id": broker, "samples": 60 - 60 * i,
         "bytes_max": broker + i}
        for i in (0, 1) for broker in (7, 2**40)
    ]  # fmt: skip
    put(tmp_path, "replica_lag", MINUTE_MS, rows[:3])
    write_pages(tmp_path)
    found = series(tmp_path, "minute")["replicas"]
    assert found == [
        {"broker_id": 7, "columns": {"samples": [60, 0], "bytes_max": [7, 8]}},
        {"broker_id": 2**40, "columns": {"samples": [60, None], "bytes_max": [2**40, None]}},
    ]


def test_a_day_is_the_sum_of_its_hours(tmp_path: Path) -> None:
    """Its percentiles are of the added histograms: no average and no maximum of percentiles is right."""
    hours = [START, START + HOUR_MS, START + 2 * HOUR_MS]  # the last one is of the next day
    put(tmp_path, "lag", HOUR_MS, [
        {"window_ts": ts, "samples": 100, "covered_ms": HOUR_MS, "ms_p50": 9, "ms_p99": 9, "ms_max": 900 + i}
        for i, ts in enumerate(hours)
    ])  # fmt: skip
    put(tmp_path, "group_state", HOUR_MS, [{"window_ts": ts, "below_min_ms": 5, "flaps": 1} for ts in hours])
    low, high = bucket_of(4), bucket_of(700)
    put(tmp_path, "lag_histogram", HOUR_MS, [
        {"window_ts": hours[0], "unit": "ms", "bucket": low, "n": 1_000, "worst": 4},
        {"window_ts": hours[1], "unit": "ms", "bucket": high, "n": 30, "worst": 700},
        {"window_ts": hours[2], "unit": "ms", "bucket": low, "n": 1, "worst": 4},
        {"window_ts": hours[0], "unit": "ms", "bucket": -1, "n": 10_000, "worst": 9},
    ])  # fmt: skip
    write_pages(tmp_path)
    found = series(tmp_path, "day")
    assert (found["count"], found["step_ms"]) == (2, DAY_MS)
    assert found["lag"]["samples"] == [200, 100] and found["lag"]["ms_max"] == [901, 902]
    assert found["lag"]["ms_p50"] == [4, 4] and found["lag"]["ms_p99"] == [700, 4]
    assert found["state"] == {"below_min_ms": [10, 5], "flaps": [2, 1]}


def test_fine_windows_of_the_first_hour_do_not_end_the_pages(tmp_path: Path) -> None:
    """The first runs see a short span and roll it up in windows of seconds, later ones in minutes only."""
    for window_ms in (5_000, MINUTE_MS, HOUR_MS):
        put(tmp_path, "lag", window_ms, [{"window_ts": START, "samples": 5, "ms_p99": 1, "ms_max": 1}])
    write_pages(tmp_path)
    assert PageFiles(tmp_path).generation().index.detail_ms == 5_000
    for window_ms in (MINUTE_MS, HOUR_MS):
        put(tmp_path, "lag", window_ms, [
            {"window_ts": START + HOUR_MS, "samples": 60, "ms_p99": 7_000, "ms_max": 7_000}
        ])  # fmt: skip
    write_pages(tmp_path)
    index = PageFiles(tmp_path).generation().index
    assert (index.detail_ms, index.resolutions) == (None, ["minute", "hour", "day"])
    assert index.to_ts == START + HOUR_MS + MINUTE_MS - 1


def test_the_quality_of_all_groups_is_a_sum_or_the_worst(tmp_path: Path) -> None:
    put(tmp_path, "lag", MINUTE_MS, [{"window_ts": START, "samples": 1}])
    put_run(tmp_path, "data_quality", [
        {"cluster_name": "c", "broker_name": name, "record": "controller_event", "logs": n, "epoch_gaps": 2,
         "skew_max_ms": 40 * n}
        for name, n in (("a", 1), ("b", 2), ("c", 1))
    ])  # fmt: skip
    write_pages(tmp_path)
    (row,) = PageFiles(tmp_path).generation().index.quality
    assert row == {"record": "controller_event", "logs": 2, "epoch_gaps": 6, "skew_max_ms": 80}


@pytest.mark.parametrize("table", ["sync_state_set_changes", "failovers"])
def test_details_of_controllers_that_were_built_anew(tmp_path: Path, table: str) -> None:
    """Event ids start again with another log, so the highest are not the newest."""
    put(tmp_path, "lag", MINUTE_MS, [{"window_ts": START, "samples": 1}])
    ids = [*range(5_000, 5_000 + ROWS_MAX), 1, 2]
    times = {"elected_ts": START, "last_heartbeat_ts": START}
    put_run(tmp_path, table, [{**G, "n": n, "event_id": event, **times} for n, event in enumerate(ids)][::-1])
    write_pages(tmp_path)
    files = PageFiles(tmp_path)
    answer = json.loads(msgspec.json.encode(files.group(files.generation(), "c", "b")))
    rows = answer["group"]["changes" if table == "sync_state_set_changes" else table]
    assert [row["event_id"] for row in rows] == ids[2:]


def test_one_day_after_another_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a fleet's year of days, whose histograms are gigabytes."""
    for ts in (START, START + HOUR_MS, START + 2 * HOUR_MS):
        put(tmp_path, "lag", HOUR_MS, [{"window_ts": ts, "samples": 1}])
        bucket = {"unit": "ms", "bucket": 3, "n": 1, "worst": 9}
        put(tmp_path, "lag_histogram", HOUR_MS, [{"window_ts": ts, **bucket}])
    read: list[set[str]] = []

    def noted(paths: Sequence[Path], columns: Sequence[str]) -> Any:
        read.append({path.parent.parent.name for path in paths})
        return read_rows(paths, columns)

    monkeypatch.setattr("analytics.pages.days.read_rows", noted)
    write_pages(tmp_path)
    assert max(map(len, read)) == 1
    assert series(tmp_path, "day")["lag"]["samples"] == [2, 1]


@pytest.mark.parametrize(
    ("buckets", "wanted"),
    [
        ([(3, 100)], (3, 3, 3)),
        ([(3, 50), (9, 50)], (3, 9, 9)),
        ([(3, 95), (9, 4), (20, 1)], (3, 3, 9)),
        ([(3, 1)], (3, 3, 3)),
    ],
)
def test_percentiles_of_buckets(buckets: list[tuple[int, int]], wanted: tuple[int, int, int]) -> None:
    assert tuple(percentiles(buckets).values()) == tuple(map(bucket_top, wanted))


def test_details_are_the_newest_runs(tmp_path: Path) -> None:
    put(tmp_path, "lag", MINUTE_MS, [{"window_ts": START, "samples": 1}])
    put_run(tmp_path, "membership", [
        {**G, "broker_id": 2, "from_ts": 5, "to_ts": 9, "state": "out"},
        {**G, "broker_id": 2, "from_ts": 1, "to_ts": 5, "state": "in_sync"},
    ])  # fmt: skip
    put_run(
        tmp_path,
        "group_totals",
        [{**G, "flaps": 3, "availability": 0.5}, {**G, "broker_name": "z", "flaps": 1}],
    )
    put_run(tmp_path, "data_quality", [
        {**G, "record": "ha_sample", "rows": 5, "corrupt": 0, "from_ts": 7},
        {**G, "record": "ha_sample", "rows": 2, "corrupt": 1, "from_ts": 8},
    ])  # fmt: skip
    old = tmp_path / "tables" / "run=4" / "group_totals"
    old.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist([{**G, "flaps": 99}]), old / "part.parquet")
    write_pages(tmp_path)
    files = PageFiles(tmp_path)
    answer = json.loads(msgspec.json.encode(files.group(files.generation(), "c", "b")))
    group = answer["group"]
    assert group["members"] == [{"broker_id": 2, "spans": [
        {"from": 1, "to": 5, "state": "in_sync"}, {"from": 5, "to": 9, "state": "out"}]}]  # fmt: skip
    assert group["totals"] == {"flaps": 3, "availability": 0.5}
    index = files.generation().index
    assert index.quality == [{"record": "ha_sample", "rows": 7, "corrupt": 1}]
    assert {each.broker_name for each in index.groups} == {"b", "z"}, "a group without samples is shown too"
    unseen = next(each for each in index.groups if each.broker_name == "z")
    assert unseen.worst_ms is None and unseen.unknown_total_ms == MINUTE_MS


def test_generations(tmp_path: Path) -> None:
    put(tmp_path, "lag", MINUTE_MS, [{"window_ts": START, "samples": 1}])
    clock = iter([100, 50, 300, 400])
    seen = []
    for _ in range(4):
        write_pages(tmp_path, wall_clock=lambda: next(clock), interval_ms=7)
        seen.append(json.loads((tmp_path / "current.json").read_bytes())["generation"])
    assert seen == [100, 101, 300, 400], "a clock that was set back makes no older generation"
    assert generations(tmp_path) == seen[-GENERATIONS_KEPT:]
    assert PageFiles(tmp_path).generation().index.interval_ms == 7


def test_a_failed_write_leaves_the_last_generation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "lag", MINUTE_MS, [{"window_ts": START, "samples": 1}])
    write_pages(tmp_path, wall_clock=lambda: 100)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("analytics.pages.writer.write_details", full)
    with pytest.raises(AnalyticsError, match="No space left on device"):
        write_pages(tmp_path, wall_clock=lambda: 200)
    assert generations(tmp_path) == [100] and PageFiles(tmp_path).generation().current.generation == 100


def test_no_roll_ups_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(AnalyticsError, match="has no roll-ups of lag: run keelmq analytics run first"):
        write_pages(tmp_path)


def test_equal_roll_ups_give_equal_pages(tmp_path: Path) -> None:
    fleet = plan(3, groups=12, hours=1, kinds=KINDS, from_ts=START)
    for name in ("a", "b"):
        write_rollups(fleet, tmp_path / name)
        write_pages(tmp_path / name, wall_clock=lambda: 5)
    files = [
        {
            path.relative_to(tmp_path / name): path.read_bytes()
            for path in (tmp_path / name / PAGES).rglob("*.gz")
        }
        for name in ("a", "b")
    ]
    assert files[0] == files[1] and len(files[0]) > 12 * 3


@pytest.mark.slow
def test_a_fleet_of_a_hundred_groups_is_small(tmp_path: Path) -> None:
    """1,000 groups and 24 hours take 10 times as much; the index may have 250 kB then."""
    write_rollups(plan(3, groups=100, hours=24, kinds=(), from_ts=START - 22 * HOUR_MS), tmp_path)
    write_pages(tmp_path)
    generation = PageFiles(tmp_path).generation()
    assert generation.index.columns == 24 and len(generation.index.groups) == 100
    assert len(generation.packed_index) < 25_000


def test_fine_windows_of_other_hours_hide_no_others(tmp_path: Path) -> None:
    """An earlier run, of a shorter span, had finer windows."""
    later = START + HOUR_MS
    for ts, step in ((START, 1_000), (START, MINUTE_MS), (later, 5_000), (later, MINUTE_MS)):
        put(tmp_path, "lag", step, [{"window_ts": ts, "samples": 1}])
    write_pages(tmp_path, hours=[later])
    index = PageFiles(tmp_path).generation().index
    assert (index.detail_ms, index.from_ts, index.to_ts) == (5_000, later, later + 4_999)
    write_pages(tmp_path)
    assert PageFiles(tmp_path).generation().index.detail_ms is None, "no width has all hours"
