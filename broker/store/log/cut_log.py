"""Truncation of the CommitLog: its end changes at once for readers, and later on disk, by jobs
(disk_jobs.py).

Invariant: after a crash between any two jobs, no stale record behind the new end can pass for a good one.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from broker.message.record import BLANK, BLANK_BYTES, MAGIC_BLANK
from broker.store.log.disk_jobs import Job, run
from broker.store.log.mapped_file import MappedFile, file_name, sync_directory


class CuttableLog(ABC):
    """The part of CommitLog that cuts it, and the attributes that this part uses."""

    directory: Path
    file_bytes: int
    min_offset: int
    max_offset: int
    _files: list[MappedFile]
    _files_lock: threading.Lock
    _synced_offset: int

    @abstractmethod
    def _use_last_file(self) -> None:
        """Makes the last file the one that is written to, from max_offset on."""

    @property
    def file_count(self) -> int:
        """How many files there are, each of file_bytes."""
        return len(self._files)

    def truncate(self, offset: int) -> None:
        """Ends the log at `offset`; durable when it returns."""
        run(self.cut(offset))

    def cut(self, offset: int) -> list[Job]:
        """Ends the log at `offset` for its readers. The returned jobs do the same on disk: they delete the
        later files, newest first, then write zeros behind the cut. Nothing may be written before they are
        done."""
        if offset < self.min_offset:
            return self.cut_all(offset)
        assert offset <= self.max_offset, (offset, self.max_offset)
        self.max_offset = offset
        jobs: list[Job] = []
        while len(self._files) > 1 and self._files[-1].start_offset >= offset:
            jobs.append(partial(self._delete, [self._files.pop()]))
        if self._files and self._files[-1].start_offset <= offset < self._files[-1].end_offset:
            jobs.append(partial(self._zero_from, self._files[-1], offset))
        self._use_last_file()
        return [*jobs, partial(self._now_synced, offset, at_most=True)]

    def reset_to(self, offset: int) -> None:
        """Deletes the whole log; durable when it returns. See cut_all()."""
        run(self.cut_all(offset))

    def cut_all(self, offset: int) -> list[Job]:
        """Makes the log empty; its first byte will be at `offset` (a replica that begins mid-log). Returns
        jobs, as cut() does.

        If `offset` is in the middle of a file, a short blank record is written in front of it, so that
        recovery finds the beginning.
        """
        gap = offset % self.file_bytes
        assert gap == 0 or gap >= BLANK_BYTES, "not a record boundary"
        gone, self._files = self._files[::-1], []
        self.min_offset = self.max_offset = offset
        self._use_last_file()
        jobs: list[Job] = [partial(self._delete, gone), partial(self._now_synced, offset)]
        return [*jobs, partial(self._begin_after, gap)] if gap else jobs

    def _delete(self, files: Sequence[MappedFile]) -> None:
        with self._files_lock:
            for file in files:
                file.delete()
            sync_directory(self.directory)

    def _zero_from(self, file: MappedFile, offset: int) -> None:
        with self._files_lock:
            file.zero_from(offset - file.start_offset, allocate=True)

    def _now_synced(self, offset: int, *, at_most: bool = False) -> None:
        """Corrects the end that a sync has set which was running during the cut."""
        with self._files_lock:
            self._synced_offset = min(self._synced_offset, offset) if at_most else offset

    def _begin_after(self, gap: int) -> None:
        with self._files_lock:
            start = self.max_offset - gap
            file = MappedFile(self.directory / file_name(start), start, self.file_bytes, allocate=True)
            BLANK.pack_into(file.map, 0, gap, MAGIC_BLANK)
            file.sync()
            sync_directory(self.directory)
            self._files.append(file)
            self._use_last_file()
