"""Writes bytes into the middle of the CommitLog. Only a healing does that, over bytes that are damaged.

It must not run during a cut of the log: bytes that the cut removes may be written anew, and a late healing
would overwrite them. So the bytes are written under the lock under which a cut does its work on disk, and
only if no cut has begun since the Rewrite was made. Readers see the bytes change, so the range counts as
damaged until they are durable.
"""

import os
import threading
from collections.abc import Callable

from broker.store.log.commit_log import CommitLog
from broker.store.log.sync_fault import sync_file


class Rewrite:
    """One write of whole records, which are in one file, in front of the log's end. Made and closed in the
    event loop's thread."""

    def __init__(
        self, log: CommitLog, lock: threading.Lock, cut_count: Callable[[], int], offset: int, data: bytes
    ) -> None:
        """lock: of the work on disk. cut_count: of the store, now."""
        base = offset - offset % log.file_bytes
        assert log.min_offset <= offset
        assert offset + len(data) <= min(log.max_offset, base + log.file_bytes)
        self._log, self._lock, self._cut_count, self._cuts = log, lock, cut_count, cut_count()
        self._file, self._position, self._data = log.open_file(offset), offset - base, data

    def run(self) -> bool:
        """Writes the bytes durably; any thread. Returns False, and has written nothing, if the log was cut
        meanwhile. SyncError: the bytes may not be on disk."""
        with self._lock, self._log.sync_fault.latching():
            if self._cut_count() != self._cuts:
                return False
            view, position = memoryview(self._data), self._position
            while view:
                count = os.pwrite(self._file, view, position)
                view, position = view[count:], position + count
            sync_file(self._file, self._log.directory)
            return True

    def close(self) -> None:
        """Closes the file."""
        os.close(self._file)
