"""The ConsumeQueue of one (topic, queueId): 20-byte units that point into the CommitLog.

    0 CommitLog offset i64 | 8 record size i32 | 12 tags code i64

Unit n stands at byte n * 20 of an endless sequence of fixed-size sparse files. Holds only what consumers may
read: units are appended when confirmOffset has passed their record. `next_offset` is beyond that: the queue
offset of the next record to be written to the log. Source: RocketMQ 5.3.3 ConsumeQueue.
"""

import logging
import mmap
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Final

from broker.store.mapped_file import MappedFile, StoreError, file_name, listed_files, sync_directory
from broker.store.record import java_hash

log = logging.getLogger(__name__)

UNIT = struct.Struct(">qiq")
UNIT_BYTES: Final = UNIT.size
RESERVE_BYTES: Final = (64 << 10) // UNIT_BYTES * UNIT_BYTES  # whole units: none is half in a hole
FILLER_SIZE: Final = 2147483647
FILLER: Final = UNIT.pack(0, FILLER_SIZE, 0)  # stands where a queue that begins at n > 0 has no unit
_PACK = UNIT.pack_into
_UNPACK_PLACE = struct.Struct(">q").unpack_from

Unit = tuple[int, int, int]


class ConsumeQueue:
    """min_offset <= max_offset <= next_offset, in units. batch_queue.py has the kind with wider units."""

    unit_bytes: ClassVar[int] = UNIT_BYTES
    reserve_bytes: ClassVar[int] = RESERVE_BYTES
    size_setting: ClassVar[str] = "mappedFileSizeConsumeQueue"

    __slots__ = (
        "_base",
        "_end",
        "_files",
        "_map",
        "_names_are_durable",
        "_room_end",
        "_synced_end",
        "directory",
        "file_bytes",
        "key_prefix_hash",
        "max_offset",
        "min_offset",
        "next_offset",
        "put_bytes",
        "queue_id",
        "topic",
        "waiters",
    )

    def __init__(self, directory: Path, topic: str, queue_id: int, file_bytes: int) -> None:
        assert file_bytes > 0 and file_bytes % self.unit_bytes == 0
        self.directory = directory
        self.topic = topic
        self.queue_id = queue_id
        self.key_prefix_hash = java_hash(f"{topic}#")
        self.file_bytes = file_bytes
        self.min_offset = self.max_offset = self.next_offset = 0
        self.put_bytes = 0  # of records that got a unit since the start
        self.waiters: list[tuple[int, Callable[[], None]]] = []  # (wanted offset, callback); see MessageStore
        self._files: list[MappedFile] = []
        self._base = self._end = 0  # byte positions of the last file
        self._room_end = 0  # blocks are reserved up to here: storing into a hole of a full disk is a SIGBUS
        self._map: mmap.mmap | None = None
        self._synced_end = 0  # byte position: all in front of it is durable
        self._names_are_durable = False  # of the files, and of the directories above them

    # -- start -------------------------------------------------------------------------------------------

    def load(self, *, log_min_offset: int) -> None:
        """Open the files and find the end: the first unit that was never written."""
        self._open_files()
        if not self._files:
            return
        last = self._files[-1]
        self.max_offset = self.next_offset = last.start_offset // UNIT_BYTES + self._units_in(last)
        self._synced_end = self._end_position  # or it is cut where it may not be
        self.correct_min_offset(log_min_offset)

    def _open_files(self) -> None:
        """All that have a unit; of a queue that has none yet, the first one."""
        paths = listed_files(self.directory)
        while paths and paths[-1].stat().st_size == 0:
            paths.pop().unlink()
        for path in paths:
            size = path.stat().st_size
            if size > self.file_bytes or (size < self.file_bytes and path is not paths[-1]):
                raise StoreError(f"{path} has {size} bytes, {self.size_setting} says {self.file_bytes}")
            self._files.append(MappedFile(path, int(path.name), self.file_bytes, allocate=False))
        while len(self._files) > 1 and self._units_in(self._files[-1]) == 0:
            self._files.pop().delete()
        self._use_last_file()

    def _units_in(self, file: MappedFile) -> int:
        """Written units stand at the front of a file: search for the first one that is none."""
        low, high = 0, self.file_bytes // UNIT_BYTES
        while low < high:
            middle = (low + high) // 2
            offset, size, _ = UNIT.unpack(file.read(middle * UNIT_BYTES, UNIT_BYTES))
            low, high = (middle + 1, high) if offset >= 0 and size > 0 else (low, middle)
        return low

    def correct_min_offset(self, log_min_offset: int) -> None:
        """min_offset: the first unit whose record still exists (all of them gone: max_offset)."""
        self.min_offset = self._search(log_min_offset, self._first_unit())

    def _first_unit(self) -> int:
        return self._files[0].start_offset // UNIT_BYTES if self._files else self.max_offset

    def _search(self, log_offset: int, low: int) -> int:
        """First unit at or after `low` with a record at or after log_offset. Fillers count as before it."""
        high = self.max_offset
        if low < high and self.unit(low)[1] != FILLER_SIZE and self.unit(low)[0] >= log_offset:
            return low  # the common case; also right when a reported hole was filled further behind
        while low < high:
            middle = (low + high) // 2
            offset, size, _ = self.unit(middle)
            is_before = offset < log_offset or size == FILLER_SIZE
            low, high = (middle + 1, high) if size and is_before else (low, middle)  # 0: lost, so it is young
        return low

    def _use_last_file(self) -> None:
        if self._files:
            last = self._files[-1]
            self._map, self._base, self._end = last.map, last.start_offset, last.end_offset
        else:
            self._map, self._base, self._end = None, 0, 0
        self._room_end = self._base

    # -- writing -----------------------------------------------------------------------------------------

    def append(self, queue_offset: int, log_offset: int, size: int, tags_code: int) -> None:
        """Unit of the record with this queue offset. A repeat is skipped; a gap is filled and reported.

        OSError: no room on the disk; nothing has changed, and the same unit may be appended later.
        """
        if queue_offset != self.max_offset:
            if queue_offset < self.max_offset:
                return
            self._skip_to(queue_offset)
        position = queue_offset * UNIT_BYTES
        if position >= self._room_end:
            self._make_room(position)
        assert self._map is not None
        _PACK(self._map, position - self._base, log_offset, size, tags_code)
        self.put_bytes += size
        self.max_offset = queue_offset = queue_offset + 1
        if queue_offset > self.next_offset:
            self.next_offset = queue_offset

    def append_run(self, queue_offset: int, units: bytes, log_bytes: int) -> None:
        """Packed units of consecutive records, log_bytes in all, from this queue offset on. As append(), but
        some may be there after an OSError."""
        if queue_offset != self.max_offset:
            for number, unit in enumerate(UNIT.iter_unpack(units), queue_offset):
                self.append(number, *unit)
            return
        position, end = queue_offset * UNIT_BYTES, queue_offset * UNIT_BYTES + len(units)
        at = 0
        while position < end:
            if position >= self._room_end:
                self._make_room(position)
            assert self._map is not None
            count = min(end, self._room_end) - position
            self._map[position - self._base : position - self._base + count] = units[at : at + count]
            position, at = position + count, at + count
            self.max_offset = position // UNIT_BYTES
            self.next_offset = max(self.next_offset, self.max_offset)
        self.put_bytes += log_bytes

    def _make_room(self, position: int) -> None:
        """Reserve the blocks of the next units. Files are sparse: most queues never fill one."""
        if position >= self._end:
            self._open_file_at(position)
        start = position - self._base
        count = min(self.reserve_bytes, self.file_bytes - start)
        self._files[-1].reserve(start, count)
        self._room_end = position + count

    def _open_file_at(self, position: int) -> None:
        start = position - position % self.file_bytes
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / file_name(start)
        self._files.append(MappedFile(path, start, self.file_bytes, allocate=False))
        self._names_are_durable = False
        self._use_last_file()

    def _skip_to(self, queue_offset: int) -> None:
        """The queue begins mid-way (a replica that joined late), or its log has a hole (reported)."""
        if self.max_offset > self.min_offset:
            log.error("%s/%d: unit %d follows %d", self.topic, self.queue_id, queue_offset, self.max_offset)
        else:
            self.min_offset = queue_offset
        position = queue_offset * UNIT_BYTES
        start = position - position % self.file_bytes
        while self._files and self._files[-1].start_offset < start:
            if self.max_offset > self.min_offset:
                self._fill(min(self._end, position))
                if self._end < start:
                    self._open_file_at(self._end)
                    continue
                break
            self._files.pop().delete()
        if position >= self._end or not self._files:
            self._open_file_at(position)
        self._fill(position)
        self.max_offset = queue_offset

    def _fill(self, position: int) -> None:
        """Fillers from the last unit of the last file up to byte `position`."""
        begin = max(self.max_offset * UNIT_BYTES, self._base)
        file = self._files[-1]
        if position > begin:
            file.reserve(begin - self._base, position - begin)
            file.map[begin - self._base : position - self._base] = FILLER * ((position - begin) // UNIT_BYTES)

    # -- reading -----------------------------------------------------------------------------------------

    def unit(self, index: int) -> Unit:
        position = index * UNIT_BYTES
        file = self._files[(position - self._files[0].start_offset) // self.file_bytes]
        unit: Unit = UNIT.unpack_from(file.map, position - file.start_offset)
        return unit

    def units(self, index: int, count: int) -> Iterator[Unit]:
        """At most `count` units from `index` on, from one file, below max_offset."""
        position = index * UNIT_BYTES
        file = self._files[(position - self._files[0].start_offset) // self.file_bytes]
        end = min((index + count) * UNIT_BYTES, self.max_offset * UNIT_BYTES, file.end_offset)
        return UNIT.iter_unpack(file.view[position - file.start_offset : end - file.start_offset])

    def log_end_offset(self) -> int:
        """End of the last record that the queue points to; 0 when it is empty."""
        if self.max_offset <= self._first_unit():
            return 0
        offset, size, _ = self.unit(self.max_offset - 1)
        return offset + size if size != FILLER_SIZE else 0

    def ended_before(self, log_offset: int) -> bool:
        """It has counted, and no record of it is at or behind log_offset."""
        return 0 < self.next_offset == self.max_offset and self.log_end_offset() <= log_offset

    def go_on_from(self, end: int) -> None:
        """A new master's queue: without a record, dispatched or not, it counts on from `end`."""
        if self.min_offset == self.max_offset == self.next_offset < end:
            self.next_offset = end

    # -- cutting -----------------------------------------------------------------------------------------

    def truncate(self, log_offset: int) -> None:
        """Drop the units of records that end after log_offset, and units that a power loss left unwritten."""
        keep = self._search_end(log_offset)
        if keep < self.max_offset:
            position = keep * UNIT_BYTES
            while len(self._files) > 1 and self._files[-1].start_offset >= position:
                self._delete_last_file()
            file = self._files[-1]
            if position < file.end_offset:
                file.zero_from(max(position - file.start_offset, 0), allocate=False)
            self._use_last_file()
            self.max_offset = keep
            self.min_offset = min(self.min_offset, keep)
            self._synced_end = min(self._synced_end, position)
        self.next_offset = self.max_offset

    def drop_stale(self) -> None:
        """After a crash, and truncate(): the system may have written later units and not the first one that
        is missing. They must not come back when that one is there again."""
        if self._files:
            file, at = self._files[-1], self._end_position - self._files[-1].start_offset
            if not file.is_zero_from(at):
                file.zero_from(at, allocate=False)
                self._use_last_file()

    @property
    def _end_position(self) -> int:
        return self.max_offset * UNIT_BYTES

    def _search_end(self, log_offset: int) -> int:
        low, high = self._first_unit(), self.max_offset
        while low < high:
            middle = (low + high) // 2
            offset, size, _ = self.unit(middle)
            whole = size == FILLER_SIZE or (size > 0 and offset + size <= log_offset)
            low, high = (middle + 1, high) if whole else (low, middle)
        return low

    def expire(self, log_min_offset: int) -> list[MappedFile]:
        """The log begins at log_min_offset. Files without a unit of it, taken out: delete() them, in any
        thread. The last file stays."""
        gone = self._take_old_files(log_min_offset)
        first_unit = max(self.min_offset, self._first_unit())
        if gone or (self.max_offset > first_unit and self.unit(first_unit)[0] < log_min_offset):
            self.correct_min_offset(log_min_offset)
        return gone

    def _take_old_files(self, log_min_offset: int) -> list[MappedFile]:
        """By their last unit, which begins with its record's place in the log."""
        gone: list[MappedFile] = []
        while len(self._files) > 1:
            first = self._files[0]
            if _UNPACK_PLACE(first.map, self.file_bytes - self.unit_bytes)[0] >= log_min_offset:
                break
            gone.append(self._files.pop(0))
        return gone

    def sync(self) -> None:
        """fdatasync every file that could be dirty, and sync the names of new ones: a queue that is missing
        after a power cut would count from 0 again. Any thread, beside appends."""
        have_names, self._names_are_durable = self._names_are_durable, True
        try:
            self._sync_files()
            if not have_names:
                self._sync_names()
        except OSError:
            self._names_are_durable = self._names_are_durable and have_names
            raise

    def _sync_files(self) -> None:
        target = self._end_position
        for file in [each for each in list(self._files) if each.end_offset > self._synced_end]:
            with suppress(FileNotFoundError):  # truncated meanwhile
                fd = os.open(file.path, os.O_RDWR)
                try:
                    os.fdatasync(fd)
                finally:
                    os.close(fd)
        self._synced_end = target

    def _sync_names(self) -> None:
        for directory in (self.directory, self.directory.parent, self.directory.parent.parent):
            with suppress(FileNotFoundError):  # destroyed meanwhile
                sync_directory(directory)

    def _delete_last_file(self) -> None:
        """Durably, one by one: after a power cut no file is back behind a missing or a short one."""
        self._files.pop().delete()
        sync_directory(self.directory)

    def destroy(self) -> None:
        while self._files:
            self._delete_last_file()
        self._use_last_file()
        self._synced_end = 0
        shutil.rmtree(self.directory, ignore_errors=True)
        self.min_offset = self.max_offset = self.next_offset = 0

    def close(self) -> None:
        while self._files:
            self._files.pop().close()
        self._use_last_file()
