"""The queue and the thread of the audit log: nothing waits for the disk, and what is lost is counted."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from keelmq.runtime.rotated_file import RotatedFile
from keelmq.security.audit.writer import AuditWriter, Series
from tests.support.server_parts import until

FULL = OSError(28, "No space left on device")


def writer(queue_max: int = 100) -> AuditWriter:
    def lost_line(count: int) -> bytes:
        return b"lost %d\n" % count

    return AuditWriter(bytes_max=65_536, files=3, lost_line=lost_line, queue_max=queue_max)


def content(tmp_path: Path, name: str = "p-1.log") -> bytes:
    path = tmp_path / name
    return path.read_bytes() if path.exists() else b""


async def test_lines_are_written_in_order_and_at_the_stop(tmp_path: Path) -> None:
    made = writer()
    made.put(Series.ACTS, b"before the start\n")
    made.start(tmp_path, "p-1")
    made.put(Series.REFUSED, b"refused\n")
    for number in range(50):
        made.put(Series.ACTS, b"%d\n" % number)
    await made.close()
    await made.close()
    assert content(tmp_path) == b"before the start\n" + b"".join(b"%d\n" % number for number in range(50))
    assert content(tmp_path, "p-1.refused.log") == b"refused\n"
    assert (made.written_lines, made.dropped_lines) == (52, 0)
    made.put(Series.ACTS, b"too late\n")
    assert made.dropped_lines == 1


async def test_without_lines_there_is_no_file(tmp_path: Path) -> None:
    made = writer()
    made.start(tmp_path / "audit", "p-1")
    await made.close()
    assert not (tmp_path / "audit").exists()


async def test_a_writer_that_was_not_started_can_be_closed() -> None:
    made = writer()
    made.put(Series.ACTS, b"x\n")
    await made.close()
    assert made.written_lines == 0


async def test_a_full_queue_loses_lines_and_says_how_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, hangs = writer(queue_max=3), threading.Event()
    append: Callable[[RotatedFile, bytes], None] = RotatedFile.append
    first = threading.Event()

    def slow(self: RotatedFile, lines: bytes) -> None:
        first.set()
        hangs.wait(10)
        append(self, lines)

    monkeypatch.setattr(RotatedFile, "append", slow)
    made.start(tmp_path, "p-1")
    made.put(Series.ACTS, b"0\n")
    await until(first.is_set)
    for number in range(1, 10):
        made.put(Series.ACTS, b"%d\n" % number)
    assert made.dropped_lines == 6
    hangs.set()
    await made.close()
    assert content(tmp_path) == b"0\nlost 6\n1\n2\n3\n"
    assert made.written_lines == 5


async def test_a_full_disk_is_told_once_and_its_end_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = writer()
    with monkeypatch.context() as patched:

        def full(*_: object) -> None:
            raise FULL

        patched.setattr(RotatedFile, "append", full)
        made.start(tmp_path, "p-1")
        for number in range(3):
            made.put(Series.ACTS, b"%d\n" % number)
            await until(lambda expected=number + 1: made.dropped_lines == expected)  # type: ignore[misc]
        await until(lambda: made.fault is not None)
        told = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
        assert len(told) == 1
        assert "cannot write the audit log" in told[0] and "auditPath" in told[0]
    made.put(Series.ACTS, b"again\n")
    await made.close()
    assert content(tmp_path) == b"again\nlost 3\n"
    assert made.fault is None
    assert "the audit log is written again; 3 lines were lost so far" in caplog.text
