"""Logs of their own: which lines they have, disks that are full or hang, and what remains of a closed one."""

import errno
import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from keelmq.runtime import isolated_log as module
from keelmq.runtime.isolated_log import IsolatedLog, isolated_log
from keelmq.runtime.log_context import current_log_context, in_context, log_context
from keelmq.runtime.rotated_file import RotatedFile

logger = logging.getLogger("tests.isolated")
WAIT_S = 10.0


@pytest.fixture(autouse=True)
def all_levels() -> Iterator[None]:
    level = logging.getLogger().level
    logging.getLogger().setLevel(logging.INFO)
    yield
    logging.getLogger().setLevel(level)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.001)


def handlers() -> list[logging.Handler]:
    return [each for each in logging.getLogger().handlers if each.name == module.NAME]


def threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == module.NAME]


def lines_of(directory: Path) -> list[str]:
    return (directory / "broker.log").read_text().splitlines()


def test_each_log_has_the_lines_of_its_context(tmp_path: Path) -> None:
    one, two = IsolatedLog("C_a_0", tmp_path / "C_a_0"), IsolatedLog("C_b_0", tmp_path / "C_b_0")
    for log, text in ((one, "one"), (two, "two"), (one, "three")):
        with log_context(log.context):
            logger.info("line %s", text)
    logger.info("of the process")
    with log_context("without a log"):
        logger.info("of another")
    for log in (one, two):
        log.close()
        assert log.wait_closed(WAIT_S)
    first = lines_of(tmp_path / "C_a_0")
    assert [line.rpartition(" ")[2] for line in first] == ["one", "three"]
    assert first[0].endswith(" INFO tests.isolated line one"), "as on stderr, without the name"
    assert [line[-8:] for line in lines_of(tmp_path / "C_b_0")] == ["line two"]
    assert not handlers()


def test_a_line_with_wrong_arguments_harms_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    with isolated_log("a", tmp_path, wait_s=WAIT_S) as context:
        assert current_log_context() is context
        (handler,) = handlers()
        for text in ("%d", "next \udcff %s"):  # not by the logger: other handlers would get them, too
            handler.handle(logging.LogRecord("x", logging.INFO, "x.py", 1, text, ("no number",), None))
    assert lines_of(tmp_path)[0].endswith("next ? no number")


def test_a_full_disk_stops_nobody_and_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    is_full, append = [True], RotatedFile.append

    def full(self: RotatedFile, lines: bytes) -> None:
        if is_full[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        append(self, lines)

    monkeypatch.setattr(RotatedFile, "append", full)
    log = IsolatedLog("C_a_0", tmp_path)
    with log_context(log.context):
        for number in range(50):
            logger.info("lost %d", number)
        until(lambda: log.dropped_lines == 50)
        assert log.fault is not None and "No space left" in log.fault
        is_full[0] = False
        logger.info("after it")
    log.close()
    assert log.wait_closed(WAIT_S)
    assert log.fault is None
    lines = lines_of(tmp_path)
    assert lines[0] == "(50 lines are lost: the disk was full or too slow)"
    assert lines[1].endswith("after it") and len(lines) == 2
    told = [each for each in caplog.records if "cannot write the log of C_a_0" in each.getMessage()]
    assert len(told) == 1, "once a minute, and on stderr"


def test_a_disk_that_hangs_blocks_no_line_and_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs, append = threading.Event(), RotatedFile.append

    def hanging(self: RotatedFile, lines: bytes) -> None:
        assert hangs.wait(WAIT_S)
        append(self, lines)

    monkeypatch.setattr(RotatedFile, "append", hanging)
    log = IsolatedLog("a", tmp_path, queue_bytes_max=4_000)
    with log_context(log.context):
        logger.info("first")
        until(lambda: not log.queued_lines)
        before = time.monotonic()
        for number in range(1_000):
            logger.info("line %d", number)
        log.close()
        assert time.monotonic() - before < WAIT_S / 2
    assert log.queued_bytes <= 4_000
    kept = log.queued_lines
    assert 10 < kept < 100
    assert log.dropped_lines == 1_000 - kept
    assert not log.wait_closed(0.01)
    hangs.set()
    assert log.wait_closed(WAIT_S)
    lines = lines_of(tmp_path)
    assert lines[0].endswith("first")
    assert lines[1] == f"({1_000 - kept} lines are lost: the disk was full or too slow)"
    assert len(lines) == kept + 2


def test_two_processes_never_write_one_log(tmp_path: Path) -> None:
    """Both would rotate it. The other one may be the process that the broker has just left."""
    other = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(other, fcntl.LOCK_EX)
    log = IsolatedLog("a", tmp_path)
    with log_context(log.context):
        logger.info("lost")
        until(lambda: log.fault is not None)
        assert "another process writes there" in str(log.fault)
        assert not (tmp_path / "broker.log").exists()
        os.close(other)
        logger.info("written")
    log.close()
    assert log.wait_closed(WAIT_S)
    assert [line[-7:] for line in lines_of(tmp_path)[1:]] == ["written"]
    again = os.open(tmp_path / "lock", os.O_RDWR)
    fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(again)


def test_a_log_has_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FILE_BYTES_MAX", 1_000)
    monkeypatch.setattr(module, "FILES", 3)
    log = IsolatedLog("a", tmp_path)
    with log_context(log.context):
        for number in range(200):
            logger.info("line %d", number)
            until(lambda: not log.queued_lines)
    log.close()
    assert log.wait_closed(WAIT_S)
    files = sorted(path.name for path in tmp_path.glob("broker*"))
    assert files == ["broker.log", "broker.log.1", "broker.log.2"]
    assert sum((tmp_path / name).stat().st_size for name in files) <= 3_200
    assert lines_of(tmp_path)[-1].endswith("line 199")


def test_many_cycles_leave_nothing(tmp_path: Path) -> None:
    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    def in_a_thread() -> None:
        logger.info("in a thread")

    before = open_files()
    for number in range(200):
        name = f"C_a_{number % 7}"
        with isolated_log(name, tmp_path / name, wait_s=WAIT_S if number % 10 == 0 else 0):
            logger.info("cycle %d", number)
            thread = threading.Thread(target=in_context(in_a_thread))
            thread.start()
            thread.join()
    until(lambda: not threads())
    assert open_files() == before
    assert not handlers()
    lines = [line for path in tmp_path.glob("*/broker.log") for line in lines_of(path.parent)]
    assert len([line for line in lines if "cycle" in line]) == 200
    assert len([line for line in lines if "in a thread" in line]) == 200


def test_a_broker_that_is_back_at_once_goes_on_in_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is closed later than the new one gets its first line."""
    slow, append = threading.Event(), RotatedFile.append

    def waiting(self: RotatedFile, lines: bytes) -> None:
        assert slow.wait(WAIT_S)
        append(self, lines)

    monkeypatch.setattr(RotatedFile, "append", waiting)
    logs = []
    for number in range(3):
        log = IsolatedLog("a", tmp_path)
        logs.append(log)
        with log_context(log.context):
            logger.info("life %d", number)
            if number == 0:
                until(lambda: not logs[0].queued_lines)
        if number < 2:
            log.close()
    slow.set()
    until(lambda: not logs[2].queued_lines)
    logs[2].close()
    assert all(log.wait_closed(WAIT_S) and not log.dropped_lines for log in logs)
    assert [line[-6:] for line in lines_of(tmp_path)] == ["life 0", "life 1", "life 2"]


def test_closing_again_is_harmless_and_other_logs_go_on(tmp_path: Path) -> None:
    with isolated_log("b", tmp_path / "b", wait_s=WAIT_S):
        log = IsolatedLog("a", tmp_path / "a")
        log.close()
        log.close()
        assert log.wait_closed(WAIT_S)
        assert not (tmp_path / "a").exists(), "nothing is made before the first line"
        logger.info("still here")
    assert lines_of(tmp_path / "b")[0].endswith("still here")
