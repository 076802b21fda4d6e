"""A separate log for each broker of a process: the lines of its context (log_context.py), also in
DIRECTORY/broker.log.

A line never waits for the disk: it is queued, and one thread of the process writes for all. Lines that a full
queue or disk has lost are counted, and the count is in the next line that is written; on stderr they are all
the same. Files have a size and a number, so a log has at most FILES * FILE_BYTES_MAX. The thread and the
handler exist while there is a log. Source: RocketMQ 5.3.3, logback configuration, `isolateLogEnable`.
"""

import fcntl
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from keelmq.runtime.clock import now_ms
from keelmq.runtime.log_context import (
    JsonFormatter,
    LogContext,
    PlainFormatter,
    current_log_context,
    is_log_json,
    log_context,
)
from keelmq.runtime.rate_limited_log import RateLimitedLogger
from keelmq.runtime.rotated_file import DIRECTORY_MODE, FILE_MODE, RotatedFile

logger = logging.getLogger(__name__)

NAME: Final = "isolated logs"
"""Name of the thread and the handler."""
FILE_NAME: Final = "broker"
FILE_BYTES_MAX: Final = 32 << 20
FILES: Final = 10
QUEUE_BYTES_MAX: Final = 4 << 20
"""Limit of one log."""
WARNING_PERIOD_MS: Final = 60_000
CLOSE_S: Final = 2.0
"""How long the end of a program waits for the disk."""


class _Handler(logging.Handler):
    """Gives a line of a context with a log to this log. One for the whole process."""

    def emit(self, record: logging.LogRecord) -> None:
        context = current_log_context()
        if context is not None and (sink := context.sink) is not None:
            try:
                sink(self.format(record))
            except Exception:  # noqa: BLE001 - arguments that do not fit the message; as all handlers do
                self.handleError(record)


class IsolatedLog:
    """Opens nothing before the first line. Start the broker in `with log_context(log.context)`; close() when
    it has stopped."""

    def __init__(self, name: str, directory: Path, *, queue_bytes_max: int = QUEUE_BYTES_MAX) -> None:
        self.context = LogContext(name)
        self.dropped_lines = 0
        self.fault: str | None = None
        """Why the last attempt to write failed; None after one succeeded."""
        self._directory, self._queue_bytes_max = directory, queue_bytes_max
        self._file = RotatedFile(directory, FILE_NAME, bytes_max=FILE_BYTES_MAX, files=FILES)
        self._told = RateLimitedLogger(logger, period_ms=WARNING_PERIOD_MS)
        self._lock_fd = -1
        self._queue_lock = threading.Lock()  # protects what follows, and dropped_lines
        self._queue: list[bytes] = []
        self._untold = 0
        self.queued_bytes = 0
        self._is_closing = False
        self._closed = threading.Event()
        self.context.sink = self._put
        _writer.add(self)

    def close(self) -> None:
        """Accepts no more lines. The thread writes those that are queued, and closes the file. Safe to
        repeat."""
        self.context.sink = None
        with self._queue_lock:
            self._is_closing = True
        _writer.remove(self)

    @property
    def queued_lines(self) -> int:
        """Lines that wait for the thread."""
        return len(self._queue)

    def wait_closed(self, seconds: float) -> bool:
        """Waits until the file is closed. False: the disk hangs."""
        return self._closed.wait(seconds)

    def _put(self, line: str) -> None:
        data = line.encode(errors="replace") + b"\n"
        with self._queue_lock:
            if self._is_closing or self.queued_bytes + len(data) > self._queue_bytes_max:
                self.dropped_lines += 1
                self._untold += 1
                return
            self._queue.append(data)
            self.queued_bytes += len(data)
        _writer.wake()

    # -- in the thread -----------------------------------------------------------------------------------

    def write(self) -> None:
        """Writes what is queued, or counts it as lost. Closes the file if it is closing."""
        with self._queue_lock:
            lines, self._queue, self.queued_bytes = self._queue, [], 0
            untold, self._untold = self._untold, 0
            is_closing = self._is_closing
        if lines or untold:
            told = f"({untold} lines are lost: the disk was full or too slow)\n" if untold else ""
            try:
                self._lock()
                self._file.append(told.encode() + b"".join(lines))
            except OSError as error:
                self._failed(error, len(lines), untold)
            else:
                self.fault = None
        if is_closing:
            self._end()

    def _lock(self) -> None:
        """OSError: another process writes there."""
        if self._lock_fd < 0:
            self._directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
            lock_fd = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
            try:
                fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(lock_fd)
                raise OSError(error.errno, "another process writes there", str(self._directory)) from error
            self._lock_fd = lock_fd

    def _failed(self, error: OSError, lines: int, untold: int) -> None:
        with self._queue_lock:
            self.dropped_lines += lines
            self._untold += lines + untold
        self.fault = f"{error.filename or self._file.path}: {error.strerror or error}"
        self._told.tell(
            now_ms(),
            "cannot write the log of %s: %s; %d lines are on stderr only. Free disk space, or set logPath",
            self.context.name,
            self.fault,
            self.dropped_lines,
        )

    def _end(self) -> None:
        self._file.close()
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1
        self._closed.set()


class _Writer:
    """The thread and the handler of all logs of this process."""

    def __init__(self) -> None:
        self._condition = threading.Condition()  # protects what follows
        self._logs: list[IsolatedLog] = []
        self._closing: list[IsolatedLog] = []
        self._is_woken = False
        self._thread: threading.Thread | None = None
        self._handler = _Handler()
        self._handler.set_name(NAME)

    def add(self, log: IsolatedLog) -> None:
        with self._condition:
            if not self._logs:
                self._handler.setFormatter(JsonFormatter() if is_log_json() else PlainFormatter())
                logging.getLogger().addHandler(self._handler)
            self._logs.append(log)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=NAME, daemon=True)
                self._thread.start()

    def remove(self, log: IsolatedLog) -> None:
        with self._condition:
            if log not in self._logs:
                return
            self._logs.remove(log)
            self._closing.append(log)
            if not self._logs:
                logging.getLogger().removeHandler(self._handler)
            self._wake()

    def wake(self) -> None:
        """Lines are queued."""
        with self._condition:
            self._wake()

    def _wake(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            self._condition.notify()

    def _run(self) -> None:
        """Its own lines have no context, so none of them is queued here."""
        while True:
            with self._condition:
                while not self._is_woken:
                    self._condition.wait()
                self._is_woken = False
                closing, self._closing = self._closing, []
                logs = [*closing, *self._logs]  # a broker may be back already, with the same directory
            for log in logs:
                log.write()
            with self._condition:
                if not self._logs and not self._closing:
                    self._thread = None
                    return


_writer: Final = _Writer()


@contextmanager
def isolated_log(name: str, directory: Path, *, wait_s: float = 0.0) -> Iterator[LogContext]:
    """As log_context(), with a separate log, for the whole life of a broker. wait_s: how long the end of the
    block waits for the disk; the event loop's thread must not."""
    log = IsolatedLog(name, directory)
    try:
        with log_context(log.context) as context:
            yield context
    finally:
        log.close()
        if wait_s:
            log.wait_closed(wait_s)
