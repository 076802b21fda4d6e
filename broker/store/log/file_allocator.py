"""Prepares the CommitLog's next file in a helper thread, so that rolling to it is only a rename.

The thread also touches pages ahead of the writer, and fills the prepared file with zeros on request. It never
changes a byte of a file that belongs to the log. The prepared file has a name that recovery ignores. All
methods are called by the event loop's thread. Source: RocketMQ 5.3.3 AllocateMappedFileService.
"""

import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Final

from broker.store.log.mapped_file import MappedFile
from keelmq.runtime.log_context import ContextThreadPool

PREPARED_NAME: Final = "next.prepared"
"""Not the name of a log file."""
TOUCH_BYTES: Final = 8 << 20
"""Pages that are faulted in ahead of the writer at a time."""
ZEROS_BYTES: Final = 4 * TOUCH_BYTES
"""Zeros that are written into the prepared file for about every TOUCH_BYTES of the current one."""


class FileAllocator:
    """`prepared` is the next file, being made or ready; `zeroing` is the last piece of zeros. None: there is
    none."""

    def __init__(self, directory: Path, file_bytes: int, *, zeros_ahead: bool) -> None:
        """zeros_ahead: zero_more() has an effect."""
        self.prepared: Future[MappedFile] | None = None
        self.zeroing: Future[None] | None = None
        self._path, self._file_bytes = directory / PREPARED_NAME, file_bytes
        self._zeros_ahead = zeros_ahead
        self._zeroed_bytes = 0  # of the prepared file
        self._no_zeros = threading.Event()
        self._executor: ContextThreadPool | None = None

    def clear(self) -> None:
        """Deletes a prepared file that a crash left."""
        self._path.unlink(missing_ok=True)

    def _helper(self) -> ContextThreadPool:
        if self._executor is None:
            self._executor = ContextThreadPool(1, "commitlog-ahead")
        return self._executor

    def touch(self, file: MappedFile, start: int, end: int) -> None:
        """Faults in the pages of these bytes of the file soon."""
        self._helper().submit(file.touch, start, end)

    def prepare(self) -> None:
        """Begins to make the next file."""
        self.prepared = self._helper().submit(self._prepare)

    def _prepare(self) -> MappedFile:
        """In the helper thread. After a failure (disk full) it is tried again where the file is needed."""
        file = MappedFile(self._path, 0, self._file_bytes, allocate=True)
        file.touch(0, TOUCH_BYTES)
        return file

    def retry(self) -> bool:
        """Whether the next file is ready, after there was no room for it. If not, tries again to make it."""
        if self.prepared is None:
            self.prepare()
        elif self.prepared.done():
            if self.prepared.exception() is None:
                return True
            self.prepared = None
        return False

    def take(self, path: Path, start_offset: int) -> MappedFile | None:
        """The prepared file under its final name; waits until it is made. None: none was prepared, or there
        was no room for it, so the caller should try itself."""
        prepared, self.prepared = self.prepared, None
        if prepared is None:
            return None
        self._stop_zeroing()
        if prepared.exception() is not None:
            return None
        file = prepared.result()
        file.start_offset = start_offset
        file.rename(path)
        return file

    def zero_more(self) -> None:
        """Writes the next ZEROS_BYTES of zeros into the prepared file. Piece by piece, so that touching pages
        never waits long: the file is full of zeros well before it is needed."""
        prepared = self.prepared
        if not self._zeros_ahead or prepared is None or not prepared.done():
            return
        if self._zeroed_bytes >= self._file_bytes or (self.zeroing is not None and not self.zeroing.done()):
            return
        if prepared.exception() is None:
            start = self._zeroed_bytes
            self._zeroed_bytes = min(start + ZEROS_BYTES, self._file_bytes)
            self._no_zeros.clear()
            self.zeroing = self._helper().submit(
                prepared.result().write_zeros, start, self._zeroed_bytes, self._no_zeros
            )

    def _stop_zeroing(self) -> None:
        """Ends the zeroing before the file belongs to the log: waits for one piece at most."""
        self._no_zeros.set()
        if self.zeroing is not None:
            self.zeroing.exception()
        self.zeroing, self._zeroed_bytes = None, 0

    def close(self) -> None:
        """Ends the helper thread and deletes the prepared file."""
        self._stop_zeroing()
        if self._executor is not None:
            self._executor.shutdown(wait=True)
        if self.prepared is not None and self.prepared.exception() is None:
            self.prepared.result().delete()
        self.prepared = None
