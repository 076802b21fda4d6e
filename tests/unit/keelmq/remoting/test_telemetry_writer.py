"""TelemetryWriter: whole lines in hourly files, whatever disk, clock and crash do."""

import asyncio
import errno
import glob
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from keelmq.remoting import telemetry
from keelmq.remoting.records import HaSample, Record, RoleChange, SendGap, decode_record, encode_record
from keelmq.remoting.telemetry import HOUR_MS, TelemetryConfig, TelemetryWriter
from keelmq.runtime.tasks import TaskSet

T0 = 1_767_225_600_000  # 2026-01-01 00:00 UTC
HOUR_0, HOUR_1 = "dt=2026-01-01/hour=00", "dt=2026-01-01/hour=01"


class Clock:
    def __init__(self) -> None:
        self.ms = T0

    def __call__(self) -> int:
        return self.ms


def sample(ts: int = T0, max_offset: int = 1) -> HaSample:
    return HaSample(
        ts=ts, cluster_name="C", broker_name="b", broker_id=1, role="master", master_epoch=1,
        max_offset=max_offset, confirm_offset=0,
    )  # fmt: skip


def gap(ts: int = T0) -> SendGap:
    return SendGap(ts=ts, cluster_name="C", broker_name="b", broker_id=1, program="p", started_ts=1, gap_ms=2)


def writer(directory: Path, clock: Callable[[], int], **more: object) -> TelemetryWriter:
    settings: dict[str, object] = {"node": "n0", "reserved_hours": 72, "bytes_max": 1 << 20, **more}
    return TelemetryWriter(directory, wall_clock=clock, **settings)  # type: ignore[arg-type]


def files(directory: Path) -> list[str]:
    names = glob.iglob("**", root_dir=directory, recursive=True)  # a folder may go meanwhile
    return sorted(name for name in names if (directory / name).is_file())


def offsets(directory: Path) -> list[int]:
    """max_offset of every ha_sample; each line of each file must be whole."""
    found = []
    for path in sorted(directory.glob("ha_sample/*/*/*")):
        content = path.read_bytes()
        assert content.endswith(b"\n")
        for line in content.splitlines():
            record = decode_record(line)
            assert isinstance(record, HaSample)
            found.append(record.max_offset)
    return found


async def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline, f"not within 5 s: {what}"
        await asyncio.sleep(0.005)


@asynccontextmanager
async def running(made: TelemetryWriter) -> AsyncIterator[TelemetryWriter]:
    tasks = TaskSet()
    tasks.start("telemetry", made.run)
    try:
        yield made
    finally:
        await tasks.stop()
        await made.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "BATCH_MS", 1)
    monkeypatch.setattr(telemetry, "IDLE_MS", 20)
    monkeypatch.setattr(telemetry, "TIDY_PERIOD_MS", 0)


async def test_a_record_is_a_line_of_its_hours_file(tmp_path: Path, clock: Clock) -> None:
    async with running(writer(tmp_path, clock)) as made:
        made.put(sample())
        made.put(gap(T0 + HOUR_MS - 1))
        await until(lambda: made.written_records == 2, "written")
        growing = [
            f"ha_sample/{HOUR_0}/n0-{T0}.jsonl.open",
            f"send_gap/{HOUR_0}/n0-{T0 + 1}.jsonl.open",  # never the same ms twice
        ]
        assert files(tmp_path) == growing
    assert files(tmp_path) == [name.removesuffix(".open") for name in growing]
    assert (tmp_path / f"ha_sample/{HOUR_0}/n0-{T0}.jsonl").read_bytes() == encode_record(sample())
    assert made.written_bytes == sum(path.stat().st_size for path in tmp_path.rglob("*.jsonl"))
    assert made.fault is None and made.dropped_records == 0


async def test_the_hour_is_the_records_and_a_late_one_finds_its_file(tmp_path: Path, clock: Clock) -> None:
    async with running(writer(tmp_path, clock)) as made:
        made.put(sample(T0, 1))
        await until(lambda: made.written_records == 1, "the first hour")
        clock.ms = T0 + HOUR_MS
        made.put(sample(clock.ms, 2))
        made.put(sample(clock.ms - 1, 3))  # late
        await until(lambda: made.written_records == 3, "the second hour")
        assert files(tmp_path) == [
            f"ha_sample/{HOUR_0}/n0-{T0}.jsonl.open",
            f"ha_sample/{HOUR_1}/n0-{clock.ms}.jsonl.open",
        ]
        clock.ms += telemetry.LATE_MS
        await until(lambda: f"ha_sample/{HOUR_0}/n0-{T0}.jsonl" in files(tmp_path), "renamed while idle")
        made.put(sample(T0, 4))  # very late: another file of the old hour, closed at once
        await until(lambda: f"ha_sample/{HOUR_0}/n0-{clock.ms}.jsonl" in files(tmp_path), "a second file")
    assert sorted(offsets(tmp_path)) == [1, 2, 3, 4]


async def test_each_file_begins_with_what_on_open_gives(tmp_path: Path, clock: Clock) -> None:
    def snapshot(name: str) -> list[Record]:
        return [sample(clock.ms, 1_000)] if name == "ha_sample" else []

    async with running(writer(tmp_path, clock, on_open=snapshot)) as made:
        made.put(sample(T0, 1))
        await until(lambda: made.written_records == 2, "snapshot and record")
        made.put(sample(T0, 2))
        await until(lambda: made.written_records == 3, "only the record")
        clock.ms = T0 + HOUR_MS
        await until(lambda: made.written_records == 4, "the new hour's snapshot without any record")
        made.put(sample(clock.ms, 3))
        made.put(gap(clock.ms))
    assert offsets(tmp_path) == [1_000, 1, 2, 1_000, 3]
    assert made.written_records == 6


async def test_what_a_crash_left_is_renamed_and_strange_files_are_left_alone(
    tmp_path: Path, clock: Clock
) -> None:
    left = tmp_path / "ha_sample" / HOUR_0
    left.mkdir(parents=True)
    (left / f"other.node-{T0}.jsonl.open").write_bytes(encode_record(sample())[:-5])  # half a line
    strange = [
        "notes.txt",
        "ha_sample/x.open",
        f"ha_sample/{HOUR_0}/mine.jsonl.open",
        f"A/{HOUR_0}/n-1.jsonl",
    ]
    for name in strange:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("mine")
    (tmp_path / "ha_sample" / HOUR_1 / f"n0-{T0}.jsonl.open").mkdir(parents=True)  # a folder
    clock.ms = T0 + 1_000 * HOUR_MS
    async with running(writer(tmp_path, clock, reserved_hours=2_000, bytes_max=1_000)):
        whole = f"ha_sample/{HOUR_0}/other.node-{T0}.jsonl"
        await until(lambda: files(tmp_path) == sorted([*strange, whole]), "renamed")
    async with running(writer(tmp_path, clock, reserved_hours=1)):
        await until(lambda: files(tmp_path) == sorted(strange), "deleted by age")


async def test_a_file_that_another_process_writes_is_left_alone(tmp_path: Path, clock: Clock) -> None:
    async with running(writer(tmp_path, clock, node="n0")) as one:
        one.put(sample())
        await until(lambda: one.written_records == 1, "written by one")
        async with running(writer(tmp_path, clock, node="n1")) as other:
            other.put(sample())
            await until(lambda: other.written_records == 1, "written by the other, which has tidied before")
        assert files(tmp_path) == [
            f"ha_sample/{HOUR_0}/n0-{T0}.jsonl.open",
            f"ha_sample/{HOUR_0}/n1-{T0}.jsonl",
        ]
    assert one.fault is None
    assert files(tmp_path)[0].endswith(f"n0-{T0}.jsonl")


async def test_old_files_and_empty_folders_go(tmp_path: Path, clock: Clock) -> None:
    for hour in range(4):
        clock.ms = T0 + hour * HOUR_MS
        async with running(writer(tmp_path, clock)) as made:
            made.put(sample(clock.ms, hour))
    clock.ms = T0 + 4 * HOUR_MS  # hour 1 ended two hours ago
    async with running(writer(tmp_path, clock, reserved_hours=2)):
        await until(lambda: len(files(tmp_path)) == 2, "two hours kept")
    assert offsets(tmp_path) == [2, 3]
    assert [path.name for path in sorted((tmp_path / "ha_sample/dt=2026-01-01").iterdir())] == [
        "hour=02",
        "hour=03",
    ]


async def test_the_oldest_files_go_when_there_is_too_much(tmp_path: Path, clock: Clock) -> None:
    """Large files are closed before their hour ends; the open one stays even if nothing else may."""
    line = len(encode_record(sample(T0, 10)))
    limit = 16 * line
    async with running(writer(tmp_path, clock, bytes_max=limit)) as made:
        made.put(gap())
        await until(lambda: made.written_records == 1, "the oldest file")
        for number in range(10, 50):
            made.put(sample(T0, number))
            await until(lambda wanted=number: made.written_records == wanted - 8, "written")  # type: ignore[misc]
            assert sum(path.stat().st_size for path in tmp_path.rglob("n0*")) <= limit + 2 * line
        assert len(list(tmp_path.glob("send_gap/*/*/*.open"))) == 1
    found = offsets(tmp_path)
    assert found == list(range(found[0], 50)) and 12 <= len(found) <= 18


async def test_a_full_queue_drops_and_counts(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "QUEUE_RECORDS_MAX", 3)
    made = writer(tmp_path, clock)
    for number in range(5):
        made.put(sample(max_offset=number))
    assert made.dropped_records == 2
    await made.close()
    assert offsets(tmp_path) == [0, 1, 2]
    made.put(sample())
    assert made.dropped_records == 3, "closed"
    await made.close()
    assert files(tmp_path) == [f"ha_sample/{HOUR_0}/n0-{T0}.jsonl"]


async def test_put_from_many_threads(tmp_path: Path, clock: Clock) -> None:
    async with running(writer(tmp_path, clock)) as made:

        def put_many(start: int) -> None:
            for number in range(start, start + 100):
                made.put(sample(max_offset=number))

        threads = [threading.Thread(target=put_many, args=(start,)) for start in range(0, 800, 100)]
        for thread in threads:
            thread.start()
        await until(lambda: made.written_records == 800, "all of them")
        for thread in threads:
            thread.join()
    assert sorted(offsets(tmp_path)) == list(range(800))


@pytest.mark.parametrize("taken", [0, 20])
@pytest.mark.parametrize("truncates", [True, False])
async def test_a_full_disk_costs_records_and_never_leaves_half_a_line(
    tmp_path: Path,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    taken: int,
    truncates: bool,
) -> None:
    """The disk takes `taken` bytes of a line, or nothing; and the half cannot always be taken back."""
    write, full = os.write, False

    def limited(descriptor: int, data: bytes) -> int:
        if not full:
            return write(descriptor, data)
        if not taken:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[:taken])

    def cannot(descriptor: int, size: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(telemetry.os, "write", limited)  # type: ignore[attr-defined]
    if not truncates:
        monkeypatch.setattr(telemetry.os, "ftruncate", cannot)  # type: ignore[attr-defined]
    async with running(writer(tmp_path, clock)) as made:
        made.put(sample(max_offset=1))
        await until(lambda: made.written_records == 1, "before")
        full = True
        with caplog.at_level(logging.WARNING):
            for number in (2, 3):
                made.put(sample(max_offset=number))
                await until(lambda lost=number - 1: made.dropped_records == lost, "dropped")  # type: ignore[misc]
        assert made.fault is not None and "No space left" in made.fault
        assert [record.levelname for record in caplog.records] == ["WARNING"], "said once"
        assert "telemetryEnable=false" in caplog.text
        full = False
        with caplog.at_level(logging.WARNING):
            for number in (4, 5):
                made.put(sample(max_offset=number))
                await until(lambda count=number - 2: made.written_records == count, "goes on")  # type: ignore[misc]
        assert made.fault is None
        assert caplog.text.count("written again; 2 records were lost") == 1
    lines = [line for path in tmp_path.rglob("*.jsonl") for line in path.read_bytes().splitlines(True)]
    whole = [line for line in lines if line.endswith(b"\n")]
    assert sorted(decode_record(line).max_offset for line in whole) == [1, 4, 5]
    assert len(lines) - len(whole) == (1 if taken and not truncates else 0)


@pytest.mark.parametrize("from_the_start", [True, False])
async def test_first_records_are_written_when_a_full_disk_has_room_again(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, from_the_start: bool
) -> None:
    """Without them a group in which nothing happens would be unknown for hours."""
    write, full = os.write, from_the_start

    def limited(descriptor: int, data: bytes) -> int:
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data)

    monkeypatch.setattr(telemetry.os, "write", limited)  # type: ignore[attr-defined]
    async with running(writer(tmp_path, clock, on_open=lambda _: [sample(clock.ms, 1_000)])) as made:
        made.put(sample(max_offset=1))
        if not from_the_start:
            await until(lambda: made.written_records == 2, "the first hour")
            full = True
            clock.ms = T0 + HOUR_MS + telemetry.LATE_MS
        await until(lambda: made.fault is not None, "the disk is full")
        await until(lambda: not list(tmp_path.rglob("*.open")), "the first hour's file is closed")
        before = made.written_records
        full = False
        await until(lambda: made.written_records == before + 1, "what an hour begins with, without an event")
    assert offsets(tmp_path) == ([1_000] if from_the_start else [1_000, 1, 1_000])


async def test_a_directory_that_cannot_be_made_is_waited_for(tmp_path: Path, clock: Clock) -> None:
    place = tmp_path / "telemetry"
    place.write_text("a file, not a directory")
    async with running(writer(place, clock)) as made:
        made.put(sample())
        await until(lambda: made.dropped_records == 1, "dropped")
        assert made.fault is not None and str(place) in made.fault
        place.unlink()
        made.put(sample(max_offset=7))
        await until(lambda: made.written_records == 1, "goes on")
    assert offsets(place) == [7]


async def test_a_deleted_file_is_begun_again(tmp_path: Path, clock: Clock) -> None:
    async with running(writer(tmp_path, clock)) as made:
        made.put(sample(max_offset=1))
        await until(lambda: made.written_records == 1, "written")
        next(tmp_path.rglob("*.open")).unlink()
        made.put(sample(max_offset=2))
        await until(lambda: made.written_records == 2, "written again")
    assert offsets(tmp_path) == [2]


async def test_impossible_records_are_dropped(tmp_path: Path, clock: Clock) -> None:
    async with running(writer(tmp_path, clock, node="a/b:1")) as made:
        made.put(sample(ts=-1))
        made.put(sample(ts=1 << 60))
        made.put(sample(max_offset=object()))  # type: ignore[arg-type]
        made.put(sample(max_offset=5))
        await until(lambda: made.written_records == 1, "the good one")
    assert made.dropped_records == 3 and offsets(tmp_path) == [5]
    assert files(tmp_path) == [f"ha_sample/{HOUR_0}/a_b_1-{T0}.jsonl"]


async def test_wild_clocks_do_not_open_files_without_end(tmp_path: Path, clock: Clock) -> None:
    async with running(writer(tmp_path, clock, bytes_max=1 << 30)) as made:
        for hour in range(100):
            made.put(sample(T0 + hour * HOUR_MS, hour))
        await until(lambda: made.written_records == 100, "written")
        assert len(list(tmp_path.rglob("*.open"))) <= telemetry.FILES_OPEN_MAX
    assert offsets(tmp_path) == list(range(100))


async def test_cancelled_while_writing_loses_nothing(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, go_on, begun = os.write, threading.Event(), list[bytes]()

    def slow(descriptor: int, data: bytes) -> int:
        begun.append(data)
        assert go_on.wait(5)
        return write(descriptor, data)

    monkeypatch.setattr(telemetry.os, "write", slow)  # type: ignore[attr-defined]
    made, tasks = writer(tmp_path, clock), TaskSet()
    tasks.start("telemetry", made.run)
    made.put(sample(max_offset=1))
    await until(lambda: len(begun) == 1, "in the thread")
    made.put(sample(max_offset=2))
    await tasks.stop()
    closing = asyncio.create_task(made.close())
    assert not await asyncio.to_thread(go_on.wait, 0.05)
    assert len(begun) == 1, "two threads write"
    go_on.set()
    await closing
    assert offsets(tmp_path) == [1, 2] and not list(tmp_path.rglob("*.open"))


async def test_a_role_change_does_not_wait_for_the_second(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "IDLE_MS", 60_000)
    change = RoleChange(
        ts=T0, cluster_name="C", broker_name="b", broker_id=1, role="master", master_epoch=2,
        previous_role="none", previous_epoch=0, started_ts=T0, max_offset=0, confirm_offset=0,
    )  # fmt: skip
    async with running(writer(tmp_path, clock)) as made:
        await until(lambda: made._loop is not None and made._job is not None, "started")
        made.put(change)
        await until(lambda: made.written_records == 1, "written")
        assert decode_record(next(tmp_path.glob("role_change/*/*/*.open")).read_bytes()) == change


def test_the_settings_and_their_defaults() -> None:
    config = TelemetryConfig.model_validate({})
    assert config.telemetry_enable
    assert (config.telemetry_reserved_time, config.telemetry_bytes_max) == (72, 256 << 20)
    assert set(config.model_dump(by_alias=True)) == {
        "telemetryEnable",
        "telemetryReservedTime",
        "telemetryBytesMax",
    }
