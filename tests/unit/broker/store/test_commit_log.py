"""The CommitLog: rolling, views, receiving in place, cutting, and what a crash leaves behind."""

import errno
import struct
import threading
from pathlib import Path

import pytest

from broker.message.record import MAGIC_BLANK, decode, parse, topic_bytes
from broker.store.log.commit_log import PREPARE_FILE_BYTES_MIN, CommitLog
from broker.store.log.file_allocator import PREPARED_NAME
from broker.store.log.mapped_file import MappedFile, StoreError, file_name
from broker.store.log.sync_fault import SyncFault
from tests.support.store_parts import BORN_HOST, FILE_BYTES

RAW = topic_bytes("TopicA")


def open_log(path: Path, file_bytes: int = FILE_BYTES) -> CommitLog:
    log = CommitLog(path, file_bytes, sync_fault=SyncFault(pytest.fail))
    log.load()
    return log


def append(log: CommitLog, body: bytes = b"x" * 1000) -> int:
    return log.append(RAW, 0, 0, 0, 0, 1, BORN_HOST, BORN_HOST, 2, 0, body, b"")


def names(path: Path) -> list[str]:
    return sorted(file.name for file in path.iterdir())


def test_a_full_file_ends_with_a_blank_record(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    offsets = [append(log) for _ in range(5)]
    size = decode(log.view(0, FILE_BYTES)).size
    assert offsets == [0, size, 2 * size, FILE_BYTES, FILE_BYTES + size]
    blank = log.view(3 * size, 8)
    assert struct.unpack(">iI", blank) == (FILE_BYTES - 3 * size, MAGIC_BLANK)
    log.close()
    assert names(tmp_path) == [file_name(0), file_name(FILE_BYTES)]


@pytest.mark.parametrize(("room", "rolls"), [(0, True), (1, True), (7, True), (8, False), (9, False)])
def test_room_for_the_blank_header_is_always_kept(tmp_path: Path, room: int, rolls: bool) -> None:
    log = open_log(tmp_path)
    first = append(log) + log.max_offset
    fixed = 91 + len("TopicA")
    second = append(log, b"x" * (FILE_BYTES - first - fixed - room))
    assert second == (FILE_BYTES if rolls else first)
    log.close()


def test_a_record_larger_than_a_file_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, b"x" * (FILE_BYTES - 8 - 97))
    with pytest.raises(ValueError, match="does not fit"):
        append(log, b"x" * (FILE_BYTES - 7 - 97))
    assert log.max_offset == FILE_BYTES - 8
    log.close()


def test_a_refused_record_leaves_nothing(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log)
    end = log.max_offset
    with pytest.raises(struct.error):
        log.append(RAW, 1 << 40, 0, 0, 0, 1, BORN_HOST, BORN_HOST, 2, 0, b"", b"")
    assert log.max_offset == end
    log.close()


def test_views_stop_at_every_limit(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for _ in range(5):
        append(log)
    assert len(log.view(0, 10)) == 10
    assert len(log.view(0, 1 << 30)) == FILE_BYTES
    assert len(log.view(FILE_BYTES, 1 << 30)) == log.max_offset - FILE_BYTES
    assert len(log.view(100, 50, end=120)) == 20
    assert len(log.view(log.max_offset, 10)) == 0
    assert len(log.view(0, 10, end=0)) == 0
    log.close()


def test_a_replica_becomes_the_same_bytes(tmp_path: Path) -> None:
    master, slave = open_log(tmp_path / "m"), open_log(tmp_path / "s")
    for _ in range(9):
        append(master)
    while slave.max_offset < master.max_offset:
        room = slave.receive_view()
        piece = master.view(slave.max_offset, min(len(room), 700))
        room[: len(piece)] = piece
        slave.received(len(piece))
    master.close()
    slave.close()
    assert names(tmp_path / "m") == names(tmp_path / "s")
    for name in names(tmp_path / "m"):
        assert (tmp_path / "m" / name).read_bytes() == (tmp_path / "s" / name).read_bytes()


def test_truncate_leaves_no_stale_record_anywhere(tmp_path: Path) -> None:
    """Equal sizes: after the next append a stale record would stand exactly behind it."""
    log = open_log(tmp_path)
    offsets = [append(log, b"old") for _ in range(100)]
    log.truncate(offsets[3])
    assert names(tmp_path) == [file_name(0)]
    assert append(log, b"new") == offsets[3]
    assert log.max_offset == offsets[4]
    log.close()
    raw = (tmp_path / file_name(0)).read_bytes()
    assert parse(raw, offsets[3], FILE_BYTES, offset=offsets[3]) is not None
    assert not any(raw[offsets[4] :])


@pytest.mark.parametrize("offset", [0, FILE_BYTES, 2 * FILE_BYTES])
def test_truncate_at_a_file_boundary_goes_on_there(tmp_path: Path, offset: int) -> None:
    log = open_log(tmp_path)
    for _ in range(9):
        append(log)
    log.truncate(offset)
    assert log.max_offset == offset
    assert append(log) == offset
    log.close()


@pytest.mark.parametrize("offset", [0, FILE_BYTES, FILE_BYTES + 300])
def test_a_log_may_begin_anywhere_and_remembers_it(tmp_path: Path, offset: int) -> None:
    log = open_log(tmp_path)
    append(log)
    log.reset_to(offset)
    assert (log.min_offset, log.max_offset) == (offset, offset)
    room = log.receive_view()
    assert len(room) == FILE_BYTES - offset % FILE_BYTES
    room[:3] = b"abc"
    log.received(3)
    assert bytes(log.view(offset, 10)) == b"abc"
    assert len(log.view(offset - 1, 1)) == 0 if offset else True
    log.close()
    again = open_log(tmp_path)
    assert again.min_offset == offset
    again.close()


def test_files_from_an_interrupted_creation_are_dropped(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log)
    log.close()
    (tmp_path / file_name(FILE_BYTES)).touch()
    (tmp_path / PREPARED_NAME).write_bytes(b"half")
    again = open_log(tmp_path)
    assert names(tmp_path) == [file_name(0)]
    again.close()


def test_a_last_file_cut_short_by_a_crash_in_truncate_is_extended(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log)
    end = log.max_offset
    log.close()
    with (tmp_path / file_name(0)).open("r+b") as file:
        file.truncate(end)
    again = open_log(tmp_path)
    assert (tmp_path / file_name(0)).stat().st_size == FILE_BYTES
    again.close()


def test_files_of_another_size_are_explained(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for _ in range(5):
        append(log)
    log.close()
    with pytest.raises(StoreError, match="has 4096 of 8192 bytes"):
        open_log(tmp_path, 8192)
    with pytest.raises(StoreError, match="mappedFileSizeCommitLog says 2048"):
        open_log(tmp_path, 2048)


def test_the_next_file_is_ready_before_it_is_needed(tmp_path: Path) -> None:
    log = open_log(tmp_path, 1 << 20)
    body = b"x" * 100_000
    while log.max_offset < 700_000:
        append(log, body)
    prepared = log.allocator.prepared
    assert prepared is not None
    prepared.result(timeout=10)
    assert (tmp_path / PREPARED_NAME).stat().st_size == 1 << 20
    while log.max_offset < 1 << 20:
        append(log, body)
    assert names(tmp_path) == [file_name(0), file_name(1 << 20)]
    assert decode(log.view(1 << 20, 200_000)).body == body
    log.close()
    assert names(tmp_path) == [file_name(0), file_name(1 << 20)]


def test_zeros_are_written_ahead_into_the_next_file_and_never_into_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With SYNC_FLUSH: all of the next file, piece by piece, until it becomes the log's."""
    size = 1 << 20
    monkeypatch.setattr("broker.store.log.commit_log.TOUCH_BYTES", size // 16)
    monkeypatch.setattr("broker.store.log.file_allocator.ZEROS_BYTES", size // 4)
    pieces: list[tuple[str, int, int]] = []
    real = MappedFile.write_zeros

    def noted(file: MappedFile, start: int, end: int, stop: threading.Event) -> None:
        pieces.append((file.path.name, start, end))
        real(file, start, end, stop)

    monkeypatch.setattr(MappedFile, "write_zeros", noted)
    log = CommitLog(tmp_path, size, zeros_ahead=True, sync_fault=SyncFault(pytest.fail))
    log.load()
    bodies = 0
    while log.max_offset < 3 * size:
        append(log, b"%d" % bodies * 1_000)
        bodies += 1
        for job in (log.allocator.prepared, log.allocator.zeroing):
            if job is not None:
                job.result(timeout=10)
    assert {name for name, _, _ in pieces} == {PREPARED_NAME}
    assert [(start, end) for _, start, end in pieces[:4]] == [
        (at, at + size // 4) for at in range(0, size, size // 4)
    ]
    at = 0
    for number in range(bodies):
        record = decode(log.view(at, 100_000))
        assert record.body == b"%d" % number * 1_000
        at += record.size
        view = log.view(at, 8)
        if len(view) == 8 and int.from_bytes(view[4:], "big") == MAGIC_BLANK:
            at += int.from_bytes(view[:4], "big")
    log.close()


def test_a_view_outlives_its_file(tmp_path: Path) -> None:
    """A reply that is still in a socket buffer must not be unmapped."""
    log = open_log(tmp_path)
    append(log, b"kept")
    view = log.view(0, FILE_BYTES)
    log.close()
    assert decode(view).body == b"kept"


def test_sync_says_how_far_the_log_is_durable(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert log.sync() == 0
    for _ in range(5):
        append(log)
    assert log.sync() == log.max_offset
    log.truncate(FILE_BYTES)
    assert log.sync() == FILE_BYTES
    log.close()


def test_a_full_disk_is_told_and_forgotten_when_there_is_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file that was to be ready in time, and the one made on the spot instead."""
    log = open_log(tmp_path, PREPARE_FILE_BYTES_MIN)
    body = b"x" * 100_000
    append(log, body)

    def no_room(*args: object, **kwargs: object) -> MappedFile:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full_disk:
        full_disk.setattr("broker.store.log.commit_log.MappedFile", no_room)
        full_disk.setattr("broker.store.log.file_allocator.MappedFile", no_room)
        with pytest.raises(OSError, match="No space left"):
            for _ in range(20):
                append(log, body)
    assert "No space left" in log.write_fault
    assert append(log, body) == PREPARE_FILE_BYTES_MIN
    assert log.write_fault == ""
    log.close()
