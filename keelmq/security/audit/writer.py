"""AuditWriter: a bounded queue of lines, and the thread that writes them.

put() never waits. Lines that a full queue or disk has lost are counted, and the count is the next line that
is written."""

import asyncio
import logging
import threading
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path

from keelmq.runtime.clock import now_ms
from keelmq.runtime.rate_limited_log import RateLimitedLogger
from keelmq.runtime.rotated_file import RotatedFile

logger = logging.getLogger(__name__)

QUEUE_LINES_MAX = 10_000
BATCH_BYTES_MAX = 65_536
WARNING_PERIOD_MS = 60_000
CLOSE_S = 5.0
"""How long a stop waits for the disk."""


class Series(IntEnum):
    """Refused requests have separate files: a peer that sends many cannot push out what was done."""

    ACTS = 0
    REFUSED = 1


class AuditWriter:
    """Lines that come before start() wait. Any thread may call put()."""

    def __init__(
        self,
        *,
        bytes_max: int,
        files: int,
        lost_line: Callable[[int], bytes],
        queue_max: int = QUEUE_LINES_MAX,
    ) -> None:
        """lost_line: returns the line that says how many are lost."""
        self.written_lines = self.dropped_lines = 0
        self.fault: str | None = None
        """Why the last attempt to write failed; None after one succeeded."""
        self._bytes_max, self._keeps, self._queue_max = bytes_max, files, queue_max
        self._lost_line = lost_line
        self._told = RateLimitedLogger(logger, period_ms=WARNING_PERIOD_MS, level=logging.ERROR)
        self._condition = threading.Condition()  # protects what follows, and dropped_lines
        self._queue: list[tuple[Series, bytes]] = []
        self._untold = 0
        """Lost lines that no line has reported yet."""
        self._closing = False
        self._thread: threading.Thread | None = None

    def put(self, series: Series, line: bytes) -> None:
        """Queues a line with its end, which is written soon, or lost and counted."""
        with self._condition:
            if self._closing or len(self._queue) >= self._queue_max:
                self._lost(1)
                return
            self._queue.append((series, line))
            if len(self._queue) == 1:
                self._condition.notify()

    def start(self, directory: Path, name: str) -> None:
        """Starts to write NAME.log and NAME.refused.log. Once."""
        files = {
            series: RotatedFile(directory, each, bytes_max=self._bytes_max, files=self._keeps)
            for series, each in ((Series.ACTS, name), (Series.REFUSED, f"{name}.refused"))
        }
        self._thread = threading.Thread(target=self._run, args=(files,), name="audit log", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        """Writes what is queued; later lines are lost. Waits CLOSE_S for a disk that hangs. Safe to
        repeat."""
        with self._condition:
            self._closing = True
            self._condition.notify()
        if self._thread is None:
            return
        await asyncio.to_thread(self._thread.join, CLOSE_S)
        if self._thread.is_alive():
            logger.error("the audit log was not written to its end: the disk hangs")

    # -- in the thread -----------------------------------------------------------------------------------

    def _run(self, files: dict[Series, RotatedFile]) -> None:
        while True:
            with self._condition:
                while not self._queue and not self._closing:
                    self._condition.wait()
                queue, self._queue = self._queue, []
                closing = self._closing
            for series, file in files.items():
                self._write_all(file, [line for of, line in queue if of is series])
            self._write_lost(files[Series.ACTS])
            if closing and not self._queue:
                break
        for file in files.values():
            file.close()

    def _write_all(self, file: RotatedFile, lines: list[bytes]) -> None:
        batch, size = list[bytes](), 0
        for line in lines:
            if batch and size + len(line) > BATCH_BYTES_MAX:
                self._write(file, batch)
                batch, size = [], 0
            batch.append(line)
            size += len(line)
        if batch:
            self._write(file, batch)

    def _write_lost(self, file: RotatedFile) -> None:
        with self._condition:
            untold, self._untold = self._untold, 0
        if untold and not self._write(file, [self._lost_line(untold)], counts=False):
            with self._condition:
                self._untold += untold

    def _write(self, file: RotatedFile, lines: list[bytes], *, counts: bool = True) -> bool:
        """Returns whether the lines are written."""
        try:
            file.append(b"".join(lines))
        except OSError as error:
            self._failed(error, file.path, len(lines) if counts else 0)
            return False
        self.written_lines += len(lines)
        if self.fault is not None:
            self.fault = None
            logger.warning("the audit log is written again; %d lines were lost so far", self.dropped_lines)
        return True

    def _failed(self, error: OSError, path: Path, lines: int) -> None:
        with self._condition:
            self._lost(lines)
        self.fault = f"{error.filename or path}: {error.strerror or error}"
        self._told.tell(
            now_ms(),
            "cannot write the audit log: %s; %d lines are lost so far, requests are served as before. Free "
            "disk space, or repair the directory (auditPath)",
            self.fault,
            self.dropped_lines,
        )

    def _lost(self, lines: int) -> None:
        self.dropped_lines += lines
        self._untold += lines
