"""SyncFault: latches the first failed fdatasync of a store until the process ends.

Linux reports a write-back error once per open file, marks the pages clean, and lets the next fdatasync
succeed. After a failure the content of the disk is unknown, and later successes prove nothing. So every part
of a store that syncs checks the same latch first. A failure before a sync (no room for a file, no free
descriptor) is not latched: nothing was lost, and the operation may be tried again.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

log = logging.getLogger(__name__)


class SyncError(OSError):
    """fdatasync or fsync of a file or directory failed: some of its pages may be lost."""


def sync_file(descriptor: int, path: Path) -> None:
    """Calls fdatasync. SyncError: it failed."""
    try:
        os.fdatasync(descriptor)
    except OSError as error:
        raise SyncError(error.errno, error.strerror, str(path)) from error


def sync_all(descriptor: int, path: Path) -> None:
    """Calls fsync, which also makes the file's size durable; also for a directory. SyncError: it failed."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise SyncError(error.errno, error.strerror, str(path)) from error


class SyncFault:
    """`text`: what failed; empty until a sync has failed. latch() and check() may be called in any
    thread."""

    def __init__(self, on_fault: Callable[[str], None]) -> None:
        """on_fault: called once, with the text, in the thread whose sync failed."""
        self.text = ""
        self._on_fault = on_fault
        self._error: OSError | None = None
        self._lock = threading.Lock()

    def latch(self, error: OSError) -> None:
        """Latches a SyncError. Any other error, and every error after the first one, is ignored."""
        if not isinstance(error, SyncError):
            return
        with self._lock:
            if self.text:
                return
            self._error = error
            self.text = f"{error.filename} could not be synced: {error.strerror}"
        log.critical(
            "%s; later writes cannot be trusted and are not acknowledged. Make the disk writable, or replace "
            "it, and restart the broker",
            self.text,
        )
        self._on_fault(self.text)

    @contextmanager
    def latching(self) -> Iterator[None]:
        """Latches a SyncError that leaves this block. Raises the latched one, if any, before the block."""
        self.check()
        try:
            yield
        except OSError as error:
            self.latch(error)
            raise

    def check(self) -> None:
        """Raises the latched SyncError again, if there is one."""
        if self.text:
            assert self._error is not None
            raise SyncError(self._error.errno, self.text, self._error.filename)
