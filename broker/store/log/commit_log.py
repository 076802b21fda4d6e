"""The CommitLog: one endless byte sequence of records in fixed-size mapped files.

Owned by the event loop thread; sync() alone may run in another thread. A helper thread creates the next file
and touches pages ahead of the writer, so that rolling is only a rename. Invariants: min_offset <= max_offset;
bytes at and after max_offset in its file are zero or were never acknowledged by anyone, and no file starts
after it. Source of the format: RocketMQ 5.3.3 CommitLog, MappedFileQueue.
"""

import logging
import sys
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

from broker.store.mapped_file import MappedFile, StoreError, file_name, listed_files, sync_directory
from broker.store.record import BLANK, BLANK_BYTES, HOSTS_V4_BYTES, MAGIC_BLANK, parse
from broker.store.record_bytes import FIXED_BYTES, record_bytes, record_parts

log = logging.getLogger(__name__)

PREPARED_NAME: Final = "next.prepared"  # not a log file's name: recovery never sees a file nobody wrote to
PREPARE_FILE_BYTES_MIN: Final = 1 << 20  # smaller files are created on the spot
JOINED_BYTES_MAX: Final = 32 << 10  # below, one store of all parts is cheaper than one of each
TOUCH_BYTES: Final = 8 << 20  # pages faulted in ahead of the writer
ZEROS_BYTES: Final = 4 * TOUCH_BYTES  # written into the next file for every TOUCH_BYTES of this one, about
_NEVER: Final = sys.maxsize


class CommitLog:
    """`max_offset` is where the next byte goes; `min_offset` is the first byte that exists."""

    def __init__(self, directory: Path, file_bytes: int, *, zeros_ahead: bool = False) -> None:
        """zeros_ahead: the next file is written full of zeros while this one fills. An fdatasync into blocks
        that were written before takes a quarter of the time; worth twice the bytes with SYNC_FLUSH only."""
        self.directory = directory
        self.file_bytes = file_bytes
        self._zeros_ahead = zeros_ahead
        self.reads_ahead = True
        self._zeroed_bytes = 0  # of the prepared file
        self._zeroing: Future[None] | None = None
        self._no_zeros = threading.Event()
        self.min_offset = 0
        self.max_offset = 0
        self.write_fault = ""  # why the next file could not be made, until one could
        self._files: list[MappedFile] = []
        self._base = 0  # of the file that is written to: start, end and map
        self._end = 0
        self._ahead_offset = _NEVER  # reaching it asks the helper thread for pages or for the next file
        self._touched_offset = 0
        self._helper: ThreadPoolExecutor | None = None
        self._prepared: Future[MappedFile] | None = None
        self._files_lock = threading.Lock()  # sync() against truncate/close; never taken on the hot path
        self._synced_offset = 0
        self._directory_dirty = False

    # -- files -------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Open what is there. Every file counts as full until the store's recovery has truncated the log."""
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / PREPARED_NAME).unlink(missing_ok=True)
        paths = listed_files(self.directory)
        while paths and paths[-1].stat().st_size == 0:  # crash while the file was created
            paths.pop().unlink()
        for path in paths:
            self._check_file(path, is_last=path is paths[-1])
            self._files.append(MappedFile(path, int(path.name), self.file_bytes, allocate=True))
        if self._files:
            self.min_offset = self._files[0].start_offset + self._leading_gap(self._files[0])
            self.max_offset = self._files[-1].end_offset
        self._synced_offset = self.max_offset
        self._use_last_file()

    def _check_file(self, path: Path, *, is_last: bool) -> None:
        size = path.stat().st_size
        if size > self.file_bytes or (size < self.file_bytes and not is_last):
            raise StoreError(
                f"{path} has {size} bytes, mappedFileSizeCommitLog says {self.file_bytes}:"
                " use the size that the store was written with"
            )
        expected = self._files[-1].end_offset if self._files else int(path.name)
        if int(path.name) != expected or expected % self.file_bytes:
            raise StoreError(f"{path}: the file before it ends elsewhere (file size {self.file_bytes})")

    @staticmethod
    def _leading_gap(first: MappedFile) -> int:
        """reset_to() begins a log in mid-file after a short blank record."""
        size, magic = BLANK.unpack_from(first.map, 0)
        return size if magic == MAGIC_BLANK and BLANK_BYTES <= size < first.file_bytes else 0

    def read_ahead(self, on: bool) -> None:
        """Also of files to come: pages that nobody has asked for are read with those that were, or not."""
        self.reads_ahead = on
        for file in self._files:
            file.read_ahead(on)

    def _use_last_file(self) -> None:
        if not self._files:
            self._base = self._end = self.max_offset
            return
        last = self._files[-1]
        self._map = last.map
        self._base, self._end = last.start_offset, last.end_offset
        self._touched_offset = max(self.max_offset, self._base)
        self._ahead_offset = self._touched_offset if self.file_bytes >= PREPARE_FILE_BYTES_MIN else _NEVER

    def _roll(self) -> None:
        """Make the file that contains max_offset (a file's end) the one that is written to."""
        assert self.max_offset == self._end
        try:
            file = self._next_file(self.max_offset)
        except OSError as error:
            self.write_fault = str(error)
            raise
        self.write_fault = ""
        self._directory_dirty = True
        self._files.append(file)
        if not self.reads_ahead:
            file.read_ahead(False)
        self._use_last_file()

    def _next_file(self, start: int) -> MappedFile:
        path = self.directory / file_name(start)
        if self._prepared is not None and self._files:
            prepared, self._prepared = self._prepared, None
            self._stop_zeroing()
            if prepared.exception() is None:  # else here and now: there may be room again
                file = prepared.result()
                file.start_offset = start
                file.rename(path)
                return file
        return MappedFile(path, start, self.file_bytes, allocate=True)

    def _look_ahead(self) -> None:
        """Once per some MiB: touch more pages; from the middle of a file on, prepare the next one."""
        if self._helper is None:
            self._helper = ThreadPoolExecutor(1, "commitlog-ahead")
        file = self._files[-1]
        if self._touched_offset < self._end:
            start = self._touched_offset - self._base
            self._touched_offset = min(max(self._touched_offset, self.max_offset) + TOUCH_BYTES, self._end)
            self._helper.submit(file.touch, start & -4096, self._touched_offset - self._base)
        middle = self._base + self.file_bytes // 2
        if self._prepared is None and self.max_offset >= middle:
            self._start_preparing()
        elif self._prepared is not None:
            self._zero_more(self._prepared)
        next_touch = self._touched_offset - TOUCH_BYTES // 2 if self._touched_offset < self._end else _NEVER
        self._ahead_offset = min(next_touch, middle if self._prepared is None else _NEVER)

    def has_room(self) -> bool:
        """For more files, as far as is known. After a write_fault the helper thread tries to make the next
        file: ask again."""
        if not self.write_fault:
            return True
        if self._prepared is None:
            self._start_preparing()
        elif self._prepared.done():
            if self._prepared.exception() is None:
                self.write_fault = ""
                return True
            self._prepared = None
        return False

    def _start_preparing(self) -> None:
        if self._helper is None:
            self._helper = ThreadPoolExecutor(1, "commitlog-ahead")
        self._prepared = self._helper.submit(self._prepare)

    def _zero_more(self, prepared: Future[MappedFile]) -> None:
        """Piece by piece, so that touching pages never waits long: the file is full of zeros well before it
        is needed."""
        is_due = self._zeros_ahead and prepared.done() and self._zeroed_bytes < self.file_bytes
        if not is_due or (self._zeroing is not None and not self._zeroing.done()):
            return
        if prepared.exception() is None and self._helper is not None:
            start = self._zeroed_bytes
            self._zeroed_bytes = min(start + ZEROS_BYTES, self.file_bytes)
            self._no_zeros.clear()
            self._zeroing = self._helper.submit(
                prepared.result().write_zeros, start, self._zeroed_bytes, self._no_zeros
            )

    def _stop_zeroing(self) -> None:
        """Nothing writes zeros into a file that belongs to the log: waits for a piece at most."""
        self._no_zeros.set()
        if self._zeroing is not None:
            self._zeroing.exception()
        self._zeroing, self._zeroed_bytes = None, 0

    def _prepare(self) -> MappedFile:
        """In the helper thread. After a failure (disk full) it is tried again where the file is needed."""
        file = MappedFile(self.directory / PREPARED_NAME, 0, self.file_bytes, allocate=True)
        file.touch(0, TOUCH_BYTES)
        return file

    # -- writing -----------------------------------------------------------------------------------------

    def append(
        self,
        topic_raw: bytes,
        queue_id: int,
        queue_offset: int,
        flag: int,
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        store_host: bytes,
        store_timestamp: int,
        reconsume_times: int,
        body: bytes,
        properties: bytes,
        prepared_offset: int = 0,
    ) -> int:
        """Write one record at the end (of the next file if it does not fit); its offset.

        topic_raw: record.topic_bytes(). sys_flag's host bits agree with the hosts' widths. prepared_offset:
        of the half message, for one that commits it. struct.error: a number out of its field's range;
        OSError: no room for a new file. Neither leaves anything behind.
        """
        hosts_extra = len(born_host) + len(store_host) - HOSTS_V4_BYTES
        size = FIXED_BYTES + hosts_extra + len(body) + len(topic_raw) + len(properties)
        offset = self.max_offset
        if offset + size + BLANK_BYTES > self._end:
            offset = self.close_file(size)
        at = offset - self._base
        # fmt: off
        if size <= JOINED_BYTES_MAX:
            self._map[at : at + size] = record_bytes(
                size, queue_id, flag, queue_offset, offset, sys_flag, born_timestamp, born_host,
                store_timestamp, store_host, reconsume_times, prepared_offset, body, topic_raw, properties)
        else:
            self._store_parts(at, record_parts(
                size, queue_id, flag, queue_offset, offset, sys_flag, born_timestamp, born_host,
                store_timestamp, store_host, reconsume_times, prepared_offset, body, topic_raw, properties))
        # fmt: on
        self.max_offset = end = offset + size
        if end > self._ahead_offset:
            self._look_ahead()
        return offset

    def _store_parts(self, at: int, parts: Iterable[bytes]) -> None:
        for part in parts:
            self._map[at : at + len(part)] = part
            at += len(part)

    def fits(self, count: int) -> bool:
        """There is room for so many bytes of records in the file that is written to."""
        return self.max_offset + count + BLANK_BYTES <= self._end

    def store(self, records: bytes) -> None:
        """Whole records that say that they are at max_offset; they fit."""
        at = self.max_offset - self._base
        self._map[at : at + len(records)] = records
        self.max_offset += len(records)
        if self.max_offset > self._ahead_offset:
            self._look_ahead()

    def close_file(self, size: int) -> int:
        """Fill the rest of the file with a blank record and roll; where records of `size` bytes go."""
        if size + BLANK_BYTES > self.file_bytes:
            raise ValueError(f"a record of {size} bytes does not fit into a file of {self.file_bytes}")
        if self.max_offset < self._end:
            at = self.max_offset - self._base
            BLANK.pack_into(self._map, at, self._end - self.max_offset, MAGIC_BLANK)
            self.max_offset = self._end
        self._roll()
        return self.max_offset

    def receive_view(self) -> memoryview:
        """Writable bytes from max_offset to the end of its file, never empty; follow with received()."""
        if self.max_offset == self._end:
            self._roll()
        elif self.max_offset > self._ahead_offset:
            self._look_ahead()
        return self._files[-1].view[self.max_offset - self._base :]

    def received(self, count: int) -> None:
        """`count` bytes of the master's log were written at max_offset."""
        assert 0 <= count <= self._end - self.max_offset
        self.max_offset += count

    # -- reading -----------------------------------------------------------------------------------------

    def view(self, offset: int, limit: int, *, end: int | None = None) -> memoryview:
        """At most `limit` contiguous bytes at `offset`, never past max_offset, `end` or a file's end."""
        stop = min(offset + limit, self.max_offset if end is None else min(end, self.max_offset))
        if stop <= offset or offset < self.min_offset:
            return memoryview(b"")
        file = self._file_of(offset)
        at = offset - file.start_offset
        return file.view[at : min(stop - file.start_offset, self.file_bytes)]

    def views(self, runs: Sequence[tuple[int, int]]) -> list[memoryview]:
        """The bytes of each (start, end), ascending; a run is within one file."""
        low, high = runs[0][0], runs[-1][1]
        file = self._file_of(low)
        base, view = file.start_offset, file.view
        if low < self.min_offset or high > min(file.end_offset, self.max_offset):
            return [self.view(start, end - start) for start, end in runs]
        return [view[start - base : end - base] for start, end in runs]

    def open_file(self, offset: int) -> int:
        """A descriptor of the file with the byte at `offset`. The caller closes it; till then it can be read
        from, even when the log has deleted the file."""
        assert self.min_offset <= offset < self.max_offset
        return self._file_of(offset).duplicate()

    def _file_of(self, offset: int) -> MappedFile:
        return self._files[(offset - self._files[0].start_offset) // self.file_bytes]

    def is_record_start(self, offset: int) -> bool:
        """A whole record begins here, or the log ends here: a cut at `offset` goes through no record."""
        view = self.view(offset, self.file_bytes)
        return offset == self.max_offset or parse(view, 0, len(view), offset=offset) is not None

    def file_starts(self) -> list[int]:
        """First existing offset of every file, ascending."""
        return [max(file.start_offset, self.min_offset) for file in self._files]

    # -- retention ---------------------------------------------------------------------------------------

    def oldest_files(self, limit_offset: int) -> list[tuple[int, int]]:
        """(end offset, wall ms of the last write) of the files that end at or before limit_offset, oldest
        first, never of the last one."""
        old = [file for file in self._files[:-1] if file.end_offset <= limit_offset]
        return [(file.end_offset, int(file.path.stat().st_mtime * 1000)) for file in old]

    def take_oldest(self) -> MappedFile:
        """The log begins with the next file; delete() what is returned, in any thread. It is synced long
        since (oldest_files), so sync() has nothing to do with it."""
        assert len(self._files) > 1
        file = self._files.pop(0)
        self.min_offset = self._files[0].start_offset
        return file

    # -- cutting -----------------------------------------------------------------------------------------

    def truncate(self, offset: int) -> None:
        """The log ends at `offset` from now on, also after a crash: later files go first, newest first, then
        everything behind the cut becomes zero, so that no stale record can be taken for a good one."""
        if offset < self.min_offset:
            self.reset_to(offset)
            return
        assert offset <= self.max_offset, (offset, self.max_offset)
        with self._files_lock:
            while len(self._files) > 1 and self._files[-1].start_offset >= offset:
                self._files.pop().delete()
                sync_directory(self.directory)
            if self._files and self._files[-1].start_offset <= offset < self._files[-1].end_offset:
                file = self._files[-1]
                file.zero_from(offset - file.start_offset, allocate=True)
            self.max_offset = offset
            self._synced_offset = min(self._synced_offset, offset)
            self._use_last_file()

    def reset_to(self, offset: int) -> None:
        """Forget everything: an empty log whose first byte will be `offset` (a replica that begins mid-log).

        In mid-file a short blank record stands before it, so that recovery finds the beginning again.
        """
        gap = offset % self.file_bytes
        assert gap == 0 or gap >= BLANK_BYTES, "not a record boundary"
        with self._files_lock:
            while self._files:
                self._files.pop().delete()
            sync_directory(self.directory)
            self.min_offset = self.max_offset = offset
            self._synced_offset = offset
            self._use_last_file()
            if gap:
                start = offset - gap
                path = self.directory / file_name(start)
                file = MappedFile(path, start, self.file_bytes, allocate=True)
                BLANK.pack_into(file.map, 0, gap, MAGIC_BLANK)
                file.sync()
                self._files.append(file)
                sync_directory(self.directory)
                self._use_last_file()

    # -- durability --------------------------------------------------------------------------------------

    @property
    def flushed_offset(self) -> int:
        """Everything before it is durable."""
        return self._synced_offset

    def sync_from(self, offset: int) -> None:
        """After a crash: what it wrote behind `offset` is here, but perhaps in memory only."""
        self._synced_offset, self._directory_dirty = min(self._synced_offset, offset), True
        self.sync()

    def sync(self) -> int:
        """fdatasync what was written since the last time; any thread. The offset that is durable now."""
        with self._files_lock:
            directory_dirty, self._directory_dirty = self._directory_dirty, False
            try:
                return self._sync(directory_dirty)
            except OSError:
                self._directory_dirty |= directory_dirty
                raise

    def _sync(self, directory_dirty: bool) -> int:
        target = self.max_offset
        files = [file for file in list(self._files) if file.end_offset > self._synced_offset]
        if target > self._synced_offset:
            for file in files:
                if file.start_offset < target:
                    file.sync()
        if directory_dirty:
            sync_directory(self.directory)
        self._synced_offset = target
        return target

    def close(self) -> None:
        """Sync and let go of the files; the prepared one is deleted."""
        self.sync()
        self._stop_zeroing()
        if self._helper is not None:
            self._helper.shutdown(wait=True)
        if self._prepared is not None and self._prepared.exception() is None:
            self._prepared.result().delete()
        self._prepared = None
        with self._files_lock:
            while self._files:
                self._files.pop().close()
