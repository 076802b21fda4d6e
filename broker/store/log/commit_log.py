"""The CommitLog: one endless byte sequence of records in fixed-size mapped files.

Owned by the event loop thread; only sync() may run in another thread. Invariants: min_offset <= max_offset;
bytes at and after max_offset in its file are zero or were never acknowledged, and no file starts after it.
A cut ends the log at once for readers, and later on disk, by jobs (disk_jobs.py): after a crash between any
two, no stale record behind the new end can pass for a good one.
Source of the format: RocketMQ 5.3.3 CommitLog, MappedFileQueue.
"""

import logging
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from broker.message.prop_crc import with_empty_crc, with_prop_crcs
from broker.message.record import (
    BLANK,
    BLANK_BYTES,
    HOSTS_V4_BYTES,
    MAGIC_BLANK,
    PROPERTIES_BYTES_MAX,
    parse,
)
from broker.message.record_bytes import FIXED_BYTES, record_bytes, record_parts
from broker.store.log.disk_jobs import Job, run
from broker.store.log.file_allocator import TOUCH_BYTES, FileAllocator
from broker.store.log.file_sizes import FileKind, sized_files
from broker.store.log.mapped_file import MappedFile, file_name, sync_directory
from broker.store.log.sync_fault import SyncFault

log = logging.getLogger(__name__)

PREPARE_FILE_BYTES_MIN: Final = 1 << 20  # smaller files are created on the spot
JOINED_BYTES_MAX: Final = 32 << 10  # below this size, one store of all parts is cheaper than one of each
_NEVER: Final = sys.maxsize


HOW_TO_MEND_LOG: Final = (
    "restore its files from a copy; if keelmq verify finds a replica with sound copies, run keelmq repair "
    "--resync, which copies the log of the master"
)


def log_file_kind(file_bytes: int) -> FileKind:
    """Returns the required form of a log's files."""
    return FileKind("mappedFileSizeCommitLog", file_bytes)


class CommitLog:
    """`max_offset` is where the next byte goes; `min_offset` is the first byte that exists."""

    def __init__(
        self,
        directory: Path,
        file_bytes: int,
        *,
        sync_fault: SyncFault,
        zeros_ahead: bool = False,
        append_prop_crc: bool = False,
    ) -> None:
        """append_prop_crc: append() makes the checksum of each record its last property. zeros_ahead: fill
        the next file with zeros while this one is in use. An fdatasync of blocks that were written before
        needs a quarter of the time, which justifies writing twice the bytes only with SYNC_FLUSH. sync_fault:
        shared with the store that this log belongs to."""
        self.sync_fault = sync_fault
        self._has_prop_crc = append_prop_crc
        self.directory = directory
        self.file_bytes = file_bytes
        self.allocator = FileAllocator(directory, file_bytes, zeros_ahead=zeros_ahead)
        self.reads_ahead = True
        self.min_offset = 0
        self.max_offset = 0
        self.write_fault = ""  # why the next file could not be made, until one could
        self._files: list[MappedFile] = []
        self._base = 0  # of the file that is written to: start, end and map
        self._end = 0
        self._ahead_offset = _NEVER  # reaching it asks the helper thread for pages or for the next file
        self._touched_offset = 0
        self._files_lock = threading.Lock()  # sync() against truncate/close; never taken on the fast path
        self._synced_offset = 0
        self._directory_dirty = False

    # -- files -------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Opens the files. Every file counts as full until the store's recovery has truncated the log.
        To be called when the size fits, see check_store(). StoreError, before a file is changed: a file has
        more bytes, or fewer in front of another, or a wrong name."""
        self.directory.mkdir(parents=True, exist_ok=True)
        kind, found = log_file_kind(self.file_bytes), sized_files(self.directory)
        kind.check([found], HOW_TO_MEND_LOG, is_size_sure=True)
        self.allocator.clear()
        used = kind.used(found)
        for file in reversed(found[len(used) :]):  # crash while the file was created
            file.path.unlink()
        for file in used:
            self._files.append(MappedFile(file.path, file.start, self.file_bytes, allocate=True))
        if self._files:
            self.min_offset = self._files[0].start_offset + self._leading_gap(self._files[0])
            self.max_offset = self._files[-1].end_offset
        self._synced_offset = self.max_offset
        self._use_last_file()

    def bytes_end(self) -> int:
        """Returns the offset behind the last byte of its files; load() gives the last one its full size.
        Reads their sizes only."""
        used = log_file_kind(self.file_bytes).used(sized_files(self.directory))
        return used[-1].start + used[-1].size if used else 0

    @staticmethod
    def _leading_gap(first: MappedFile) -> int:
        """Size of the short blank record that reset_to() writes where a log begins in the middle of a file; 0
        if there is none."""
        size, magic = BLANK.unpack_from(first.map, 0)
        return size if magic == MAGIC_BLANK and BLANK_BYTES <= size < first.file_bytes else 0

    def read_ahead(self, on: bool) -> None:
        """Turns the system's read-ahead on or off, also for files to come."""
        self.reads_ahead = on
        for file in self._files:
            file.read_ahead(on)

    def why_shorter(self, end: int, confirmed: int) -> str:
        """Returns why the log ends at `end`, below the confirmed offset, and the remedy: the files with the
        rest are missing, or their content is damaged. For recovery, before the log is truncated."""
        if self._files and end < self.max_offset:
            return "what was behind it is damaged or lost"
        begin, last = (offset // self.file_bytes * self.file_bytes for offset in (end, confirmed - 1))
        first = self.directory / file_name(begin)
        more = f" and {(last - begin) // self.file_bytes} behind it are" if last > begin else " is"
        return (
            f"{first}{more} missing. A slave gets the messages from its master again. Otherwise stop this "
            "broker before it takes messages, and restore the files from a copy of this store"
        )

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
        """Begins a new file at max_offset, which is the end of the last one. OSError: there is no room."""
        assert self.max_offset == self._end
        self.sync_fault.check()
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
        prepared = self.allocator.take(path, start) if self._files else None
        return prepared or MappedFile(path, start, self.file_bytes, allocate=True)

    def _look_ahead(self) -> None:
        """Called once per some MiB: touches more pages and, from the middle of a file on, prepares the next
        one."""
        file, allocator = self._files[-1], self.allocator
        if self._touched_offset < self._end:
            start = self._touched_offset - self._base
            self._touched_offset = min(max(self._touched_offset, self.max_offset) + TOUCH_BYTES, self._end)
            allocator.touch(file, start & -4096, self._touched_offset - self._base)
        middle = self._base + self.file_bytes // 2
        if allocator.prepared is None and self.max_offset >= middle:
            allocator.prepare()
        else:
            allocator.zero_more()
        next_touch = self._touched_offset - TOUCH_BYTES // 2 if self._touched_offset < self._end else _NEVER
        self._ahead_offset = min(next_touch, middle if allocator.prepared is None else _NEVER)

    def refuse(self) -> None:
        """After a sync fault: makes the next write call close_file(), which raises the SyncError."""
        self._end = self.max_offset

    def has_room(self) -> bool:
        """Whether there is room for another file, as far as known. After a write_fault, makes the helper
        thread try to create the next file; call it again later."""
        if self.write_fault and self.allocator.retry():
            self.write_fault = ""
        return not self.write_fault

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
        """Appends one record, to the next file if it does not fit into this one. Returns its offset.

        topic_raw: record.topic_bytes(). sys_flag: its host bits must agree with the hosts' widths. Timestamps
        in ms. prepared_offset: of the half message that this record commits, or 0. struct.error: a number is
        out of its field's range; ValueError: the properties are too long with the checksum; OSError: no room
        for a new file. None of them leaves anything behind.
        """
        if self._has_prop_crc:
            properties = with_empty_crc(properties)
            if len(properties) > PROPERTIES_BYTES_MAX:
                raise ValueError(f"properties of {len(properties)} bytes, with the checksum")
        hosts_extra = len(born_host) + len(store_host) - HOSTS_V4_BYTES
        size = FIXED_BYTES + hosts_extra + len(body) + len(topic_raw) + len(properties)
        offset = self.max_offset
        if offset + size + BLANK_BYTES > self._end:
            offset = self.close_file(size)
        at = offset - self._base
        fields = (
            size, queue_id, flag, queue_offset, offset, sys_flag, born_timestamp, born_host, store_timestamp,
            store_host, reconsume_times, prepared_offset, body, topic_raw, properties,
        )  # fmt: skip
        if self._has_prop_crc:  # stored at once, since a thread may be sending it to a replica already
            self._map[at : at + size] = with_prop_crcs(record_bytes(fields))
        elif size <= JOINED_BYTES_MAX:
            self._map[at : at + size] = record_bytes(fields)
        else:
            for part in record_parts(fields):
                self._map[at : at + len(part)] = part
                at += len(part)
        self.max_offset = end = offset + size
        if end > self._ahead_offset:
            self._look_ahead()
        return offset

    def fits(self, count: int) -> bool:
        """Whether `count` bytes of records fit into the current file."""
        return self.max_offset + count + BLANK_BYTES <= self._end

    def store(self, records: bytes | bytearray) -> None:
        """Appends whole records, the first of which has max_offset as its own offset. The caller has checked
        that they fit."""
        at = self.max_offset - self._base
        self._map[at : at + len(records)] = records
        self.max_offset += len(records)
        if self.max_offset > self._ahead_offset:
            self._look_ahead()

    def close_file(self, size: int) -> int:
        """Fills the rest of the file with a blank record and begins a new file. Returns the offset of records
        of `size` bytes. ValueError: they fit into no file; OSError: no room, or a sync has failed."""
        if size + BLANK_BYTES > self.file_bytes:
            raise ValueError(f"a record of {size} bytes does not fit into a file of {self.file_bytes}")
        self.sync_fault.check()
        if self.max_offset < self._end:
            at = self.max_offset - self._base
            BLANK.pack_into(self._map, at, self._end - self.max_offset, MAGIC_BLANK)
            self.max_offset = self._end
        self._roll()
        return self.max_offset

    def receive_view(self) -> memoryview:
        """Returns the writable bytes from max_offset to the end of its file, at least one. The caller fills
        some of them and calls received(). OSError: no room for a new file, or a sync has failed."""
        self.sync_fault.check()
        if self.max_offset == self._end:
            self._roll()
        elif self.max_offset > self._ahead_offset:
            self._look_ahead()
        return self._files[-1].view[self.max_offset - self._base :]

    def received(self, count: int) -> None:
        """Adds `count` bytes of the master's log that were written at max_offset."""
        assert 0 <= count <= self._files[-1].end_offset - self.max_offset
        self.max_offset += count

    # -- reading -----------------------------------------------------------------------------------------

    def view(self, offset: int, limit: int, *, end: int | None = None) -> memoryview:
        """Returns at most `limit` contiguous bytes at `offset`, never past max_offset, `end` or a file's end;
        an empty view if there are none."""
        stop = min(offset + limit, self.max_offset if end is None else min(end, self.max_offset))
        if stop <= offset or offset < self.min_offset:
            return memoryview(b"")
        file = self._file_of(offset)
        at = offset - file.start_offset
        return file.view[at : min(stop - file.start_offset, self.file_bytes)]

    def views(self, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Returns the bytes of each range (start, end), as view() does; ranges ascend, and each is within one
        file."""
        low, high = ranges[0][0], ranges[-1][1]
        if self.min_offset <= low < high <= self.max_offset:
            file = self._file_of(low)
            base, view = file.start_offset, file.view
            if high <= file.end_offset:
                return [view[start - base : end - base] for start, end in ranges]
        return [self.view(start, end - start) for start, end in ranges]

    def open_file(self, offset: int) -> int:
        """Returns a descriptor of the file with the byte at `offset`. Until the caller closes it, it can be
        read from, even after the log has deleted the file."""
        assert self.min_offset <= offset < self.max_offset
        return self._file_of(offset).duplicate()

    def _file_of(self, offset: int) -> MappedFile:
        return self._files[(offset - self._files[0].start_offset) // self.file_bytes]

    def is_record_start(self, offset: int) -> bool:
        """Whether a whole record begins at `offset`, or the log ends there: a cut there splits no record."""
        view = self.view(offset, self.file_bytes)
        return offset == self.max_offset or parse(view, 0, len(view), offset=offset) is not None

    @property
    def file_count(self) -> int:
        """How many files there are, each of file_bytes."""
        return len(self._files)

    def file_starts(self) -> list[int]:
        """Returns the first existing offset of every file, ascending."""
        return [max(file.start_offset, self.min_offset) for file in self._files]

    # -- retention ---------------------------------------------------------------------------------------

    def oldest_files(self, limit_offset: int) -> list[tuple[int, int]]:
        """Returns (end offset, wall clock ms of the last write) of the files that end at or before
        limit_offset, oldest first, without the last file."""
        old = [file for file in self._files[:-1] if file.end_offset <= limit_offset]
        return [(file.end_offset, int(file.path.stat().st_mtime * 1000)) for file in old]

    def take_oldest(self) -> MappedFile:
        """Removes the oldest file from the log and returns it; the caller calls its delete(), in any thread.
        The file was synced long ago, since it is one of oldest_files(), so sync() does not use it."""
        assert len(self._files) > 1
        file = self._files.pop(0)
        self.min_offset = self._files[0].start_offset
        return file

    # -- truncation --------------------------------------------------------------------------------------

    def truncate(self, offset: int) -> None:
        """Ends the log at `offset`; durable when it returns."""
        run(self.cut(offset))

    def cut(self, offset: int) -> list[Job]:
        """Ends the log at `offset` for its readers. The returned jobs do the same on disk: they delete the
        later files, newest first, then write zeros behind the cut. No byte may be written before they are
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
        """Corrects the end that was set by a sync that ran during the cut."""
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

    # -- durability --------------------------------------------------------------------------------------

    @property
    def flushed_offset(self) -> int:
        """Everything in front of this offset is durable."""
        return min(self._synced_offset, self.max_offset)  # during a cut, the latter

    def sync_from(self, offset: int) -> None:
        """Syncs everything behind `offset`: after a crash it may be in the page cache only."""
        self._synced_offset, self._directory_dirty = min(self._synced_offset, offset), True
        self.sync()

    def drop_cached(self, offset: int) -> None:
        """Makes the system read the files from `offset` on from the disk again. After a failed write-back the
        page cache holds bytes that the disk does not have, and marks them clean (docs/durability.md)."""
        for file in self._files:
            if file.end_offset > offset:
                file.drop_cached()

    def page_dropper(self, start: int, end: int) -> Callable[[], None]:
        """Returns a function, for any thread, that drops these bytes, which are of one file and synced, from
        the page cache."""
        file = self._file_of(start)
        return partial(file.drop_cached, start - file.start_offset, end - file.start_offset)

    def sync(self) -> int:
        """Syncs what was written since the last call; any thread. Returns the offset up to which the log is
        durable. SyncError: a sync has failed, now or earlier, and nothing counts as durable any more."""
        with self._files_lock, self.sync_fault.latching():
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

    def close(self, *, sync: bool = True) -> None:
        """Closes the files and deletes the prepared one. sync: make everything durable first."""
        if sync:
            self.sync()
        self.allocator.close()
        with self._files_lock:
            while self._files:
                self._files.pop().close()
