"""The ConsumeQueue of one (topic, queueId): 20-byte units that point into the CommitLog.

    0 CommitLog offset i64 | 8 record size i32 | 12 tags code i64

Unit n is at byte n * 20 of an endless sequence of fixed-size sparse files. The queue has only units that
consumers may read: a unit is appended when confirmOffset has passed its record. `next_offset` may be higher:
it is the queue offset of the next record that is written to the log. Source: RocketMQ 5.3.3 ConsumeQueue.
"""

import logging
import mmap
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import ClassVar, Final

from broker.message.record import java_hash
from broker.store.log.disk_jobs import Job, run
from broker.store.log.file_sizes import FileKind
from broker.store.log.mapped_file import MappedFile, file_name, sync_directory
from broker.store.log.sync_fault import sync_file
from broker.store.queue.opening import FILLER_SIZE as FILLER_SIZE
from broker.store.queue.opening import (
    PAGE_BYTES,
    end_in_front,
    first_behind,
    is_torn,
    lost_files,
    open_files,
    units_in,
)

log = logging.getLogger(__name__)

UNIT = struct.Struct(">qiq")
UNIT_BYTES: Final = UNIT.size
RESERVE_BYTES: Final = (64 << 10) // UNIT_BYTES * UNIT_BYTES  # whole units: none is half in a hole
FILLER: Final = UNIT.pack(0, FILLER_SIZE, 0)  # in front of the first unit of a queue that begins at n > 0
GAP_CODE: Final = 1
"""Tags code of a filler between units: its record was lost. In front of the first unit it is 0."""
GAP_FILLER: Final = UNIT.pack(0, FILLER_SIZE, GAP_CODE)
_PACK = UNIT.pack_into
_UNPACK_PLACE = struct.Struct(">qi").unpack_from

Unit = tuple[int, int, int]


class ConsumeQueue:
    """min_offset <= max_offset <= next_offset, in units. BatchQueue is the kind with wider units. Owned by
    the event loop's thread; only sync(), and jobs of a cut, run in others."""

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
        "is_end_lost",
        "is_listed",
        "key_prefix_hash",
        "max_offset",
        "min_offset",
        "next_offset",
        "put_bytes",
        "queue_id",
        "seen_to",
        "shortened",
        "size_counts",
        "skipped_to",
        "topic",
        "waiters",
    )

    def __init__(self, directory: Path, topic: str, queue_id: int, file_bytes: int) -> None:
        assert file_bytes > 0 and file_bytes % self.unit_bytes == 0
        self.directory, self.topic, self.queue_id = directory, topic, queue_id
        self.key_prefix_hash = java_hash(f"{topic}#")
        self.file_bytes = file_bytes
        self.min_offset = self.max_offset = self.next_offset = 0
        self.seen_to = 0  # a scan has found no record of the queue behind this CommitLog offset
        self.skipped_to = 0  # damaged records in front of this CommitLog offset have not next_offset or more
        self.put_bytes = 0  # of records that got a unit since the start
        self.size_counts: list[int] = []  # of the topic; QueueTable sets it
        self.waiters: dict[Callable[[], None], int] = {}  # callback -> wanted offset; see QueueTable
        self._files: list[MappedFile] = []
        self._base = self._end = 0  # byte positions of the last file
        self._room_end = 0  # blocks are reserved up to here: storing into a hole of a full disk raises SIGBUS
        self._map: mmap.mmap | None = None
        self._synced_end = 0  # byte position: all in front of it is durable
        self.is_listed = False  # in the file of ends
        self.is_end_lost, self.shortened = False, list[Path]()  # at the start; see OpenedFiles
        self._names_are_durable = False  # of the files, and of the directories above them

    # -- start -------------------------------------------------------------------------------------------

    def load(self, *, log_min_offset: int) -> None:
        """Opens the files and finds the end: the first unit that was never written. log_min_offset: where the
        CommitLog begins. StoreError: a file has more bytes than configured, or a wrong name."""
        self._open_files()
        if not self._files:
            return
        last = self._files[-1]
        self.max_offset = self.next_offset = last.start_offset // UNIT_BYTES + self._units_in(last)
        self._synced_end = self._end_position
        self.correct_min_offset(log_min_offset)

    def _open_files(self) -> None:
        kind = self.file_kind(self.file_bytes)
        opened = open_files(self.directory, kind, lambda file: self._units_in(file) > 0)
        self._files, self.is_end_lost, self.shortened = opened
        self._use_last_file()

    @classmethod
    def file_kind(cls, file_bytes: int) -> FileKind:
        """Returns the required form of the files of such queues."""
        return FileKind(cls.size_setting, file_bytes, cls.unit_bytes)

    @property
    def file_count(self) -> int:
        """How many files there are, each of file_bytes."""
        return len(self._files)

    def _units_in(self, file: MappedFile) -> int:
        return units_in(file, self.unit_bytes, self._is_written)

    def _is_written(self, unit: bytes) -> bool:
        offset, size = _UNPACK_PLACE(unit)
        return bool(offset >= 0 and size > 0)

    def correct_min_offset(self, log_min_offset: int) -> None:
        """Sets min_offset to the first unit whose record still exists, or to max_offset if none does."""
        low = self._first_unit()
        place = self._place(low) if low < self.max_offset else None
        if place is None or place[1] == FILLER_SIZE or place[0] < log_min_offset:
            # else the common case; also right if there are fillers for a logged gap further behind
            low = first_behind(
                self._first_unit(), self.max_offset, self.unit_bytes, self.file_bytes,
                lambda number: self._is_in_front(number, log_min_offset),
            )  # fmt: skip
        self.min_offset = low

    def _is_in_front(self, number: int, log_min_offset: int) -> bool | None:
        """Whether the record of this unit is deleted; None: never written. A filler in front of the first
        unit is in front; one between units is like the unit behind it."""
        while (place := self._place(number)) is not None:
            if place[1] != FILLER_SIZE or number + 1 >= self.max_offset or self.unit(number)[2] != GAP_CODE:
                return place[0] < log_min_offset or place[1] == FILLER_SIZE
            number += 1
        return None

    def _first_unit(self) -> int:
        start = self._files[0].start_offset if self._files else self._end_position
        return start // self.unit_bytes

    def _place(self, number: int) -> tuple[int, int] | None:
        """Returns (CommitLog offset, size) of the unit with this number in the files; None: never written."""
        position = number * self.unit_bytes
        file = self._files[(position - self._files[0].start_offset) // self.file_bytes]
        offset, size = _UNPACK_PLACE(file.map, position - file.start_offset)
        return (offset, size) if offset >= 0 and size > 0 else None

    def _first_behind(
        self, is_in_front: Callable[[int, int], bool], *, search: Callable[..., int] = first_behind
    ) -> int:
        """Returns the number of the first unit whose place is not in front, see first_behind()."""
        return search(
            self._first_unit(), self._end_position // self.unit_bytes, self.unit_bytes, self.file_bytes,
            lambda number: None if (place := self._place(number)) is None else is_in_front(*place),
        )  # fmt: skip

    def lost_files(self) -> list[Path]:
        """Returns the files whose units are lost, judging by the first unit of each."""
        return [file.path for file in lost_files(self._files)]

    def _use_last_file(self) -> None:
        if self._files:
            last = self._files[-1]
            self._map, self._base, self._end = last.map, last.start_offset, last.end_offset
        else:
            self._map, self._base, self._end = None, 0, 0
        self._room_end = self._base

    # -- writing -----------------------------------------------------------------------------------------

    def append(self, queue_offset: int, log_offset: int, size: int, tags_code: int) -> None:
        """Appends the unit of the record with this queue offset. A unit that is there already is skipped; a
        gap is filled and logged as an error.
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

    def append_units(self, queue_offset: int, units: bytes, log_bytes: int) -> None:
        """Appends the packed units of consecutive records from this queue offset on; log_bytes: total size of
        the records. As append(), but after an OSError some of them may have been appended."""
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

    def rewrite(self, number: int, log_offset: int, size: int, tags_code: int) -> None:
        """Replaces the unit `number`, which the files have; sync() makes it durable. OSError: no room."""
        assert self._first_unit() <= number < self.max_offset
        position = number * UNIT_BYTES
        file = self._files[(position - self._files[0].start_offset) // self.file_bytes]
        file.reserve(position - file.start_offset, UNIT_BYTES)
        _PACK(file.map, position - file.start_offset, log_offset, size, tags_code)
        self._synced_end = min(self._synced_end, position)

    def begin_with(self, number: int) -> None:
        """The unit `number`, in front of min_offset, now has a record, which was not known before: the queue
        begins there. Consumers skip fillers behind it. OSError: no room."""
        for each in range(number + 1, self.min_offset):
            self.rewrite(each, *UNIT.unpack(GAP_FILLER))
        self.min_offset = number

    def _make_room(self, position: int) -> None:
        """Reserves the blocks of the next units. Files are sparse, since most queues never fill one."""
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
        """Sets max_offset: the queue begins mid-way (a replica that joined late), or entries are missing."""
        filler = FILLER
        if self.max_offset > self.min_offset:
            filler, end = GAP_FILLER, queue_offset - 1
            log.error("%s/%d lacks entries %d to %d", self.topic, self.queue_id, self.max_offset, end)
        else:
            self.min_offset = queue_offset
        position = queue_offset * UNIT_BYTES
        start = position - position % self.file_bytes
        while self._files and self._files[-1].start_offset < start:
            if self.max_offset > self.min_offset:
                self._fill(min(self._end, position), filler)
                if self._end < start:
                    self._open_file_at(self._end)
                    continue
                break
            self._files.pop().delete()
        if position >= self._end or not self._files:
            self._open_file_at(position)
        self._fill(position, filler)
        self.max_offset = queue_offset

    def _fill(self, position: int, filler: bytes) -> None:
        """Writes fillers from the end of the units in the last file up to byte `position`."""
        begin = max(self.max_offset * UNIT_BYTES, self._base)
        file = self._files[-1]
        if position > begin:
            file.reserve(begin - self._base, position - begin)
            file.map[begin - self._base : position - self._base] = filler * ((position - begin) // UNIT_BYTES)

    # -- reading -----------------------------------------------------------------------------------------

    def unit(self, index: int) -> Unit:
        """Returns (CommitLog offset, size, tags code) of the unit `index`, which must exist."""
        position = index * UNIT_BYTES
        file = self._files[(position - self._files[0].start_offset) // self.file_bytes]
        unit: Unit = UNIT.unpack_from(file.map, position - file.start_offset)
        return unit

    def units(self, index: int, count: int) -> Iterator[Unit]:
        """Returns at most `count` units from `index` on, from one file, below max_offset."""
        return UNIT.iter_unpack(self.raw(index, count))

    def raw(self, index: int, count: int) -> memoryview:
        """Returns the bytes of units()."""
        position = index * UNIT_BYTES
        file = self._files[(position - self._files[0].start_offset) // self.file_bytes]
        end = min((index + count) * UNIT_BYTES, self.max_offset * UNIT_BYTES, file.end_offset)
        return file.view[position - file.start_offset : end - file.start_offset]

    def log_end_offset(self) -> int:
        """End of the last record that the queue points to; 0 if it is empty."""
        if self.max_offset <= self._first_unit():
            return 0
        offset, size, _ = self.unit(self.max_offset - 1)
        return offset + size if size != FILLER_SIZE else 0

    def may_have_lost_end(self) -> bool:
        """Whether its last file was too short, or the queue ends at the start of a page, where it would end
        if a disk had lost its last page."""
        at = self._end_position % self.file_bytes
        return self.is_end_lost or bool(self._files and (not at or -at % PAGE_BYTES < self.unit_bytes))

    def end_before(self, log_offset: int) -> int:
        """Returns the next queue offset when the CommitLog ended at log_offset."""
        if self.log_end_offset() <= log_offset:
            return self.next_offset
        return self._search_end(log_offset, crashed=False)

    def ended_before(self, log_offset: int) -> bool:
        """Whether the queue has had messages, and none of their records is at or behind log_offset."""
        return 0 < self.next_offset == self.max_offset and self.log_end_offset() <= log_offset

    def go_on_from(self, end: int) -> None:
        """At a new master: if the queue has no record, dispatched or not, its next queue offset is `end`."""
        if self.min_offset == self.max_offset == self.next_offset < end:
            self.next_offset = end

    def has_filler(self, number: int) -> bool:
        """Whether the files have a filler there, or a unit that was never written."""
        return self._first_unit() <= number < self.max_offset and self.unit(number)[1] in (0, FILLER_SIZE)

    # -- cutting -----------------------------------------------------------------------------------------

    def truncate(self, log_offset: int, *, crashed: bool = False) -> None:
        """Removes the units of records that end after log_offset, and units that a power loss left unwritten,
        or, if crashed, torn. Durable when it returns."""
        run(self.cut(log_offset, crashed=crashed))

    def cut(self, log_offset: int, *, crashed: bool = False) -> list[Job]:
        """As truncate(), but for readers only; the returned jobs do it on disk. No unit may be appended
        before they are done."""
        keep, jobs = self._search_end(log_offset, crashed=crashed), list[Job]()
        if keep < self.max_offset:
            jobs = self._cut_files(keep * UNIT_BYTES)
            self.max_offset = keep
            self.min_offset = min(self.min_offset, keep)
        self.next_offset, self.seen_to, self.skipped_to = self.max_offset, 0, 0
        return jobs

    def needs_cut(self, log_offset: int) -> bool:
        """Whether cut() has to change the queue. Reads the last unit only; if that does not decide it, the
        answer is True. Results of a scan in front of the cut stay valid."""
        if self.next_offset != self.max_offset or self.seen_to > log_offset:
            return True
        last = self._end_position // self.unit_bytes - 1
        if last < self._first_unit():
            return False
        place = self._place(last)
        return place is None or place[1] == FILLER_SIZE or sum(place) > log_offset

    def _cut_files(self, position: int) -> list[Job]:
        """Returns jobs that remove everything at or behind this byte position."""
        jobs: list[Job] = []
        while len(self._files) > 1 and self._files[-1].start_offset >= position:
            jobs.append(partial(self._delete, self._files.pop()))
        file = self._files[-1]
        if position < file.end_offset:
            jobs.append(partial(file.zero_from, max(position - file.start_offset, 0), allocate=False))
        self._use_last_file()
        return [*jobs, partial(self._synced_at_most, position)]

    def _synced_at_most(self, position: int) -> None:
        """Corrects the end that was set by a sync that ran during the cut."""
        self._synced_end = min(self._synced_end, position)

    def drop_stale(self) -> None:
        """To be called after a crash, and after truncate(): the system may have written later units, but not
        the first missing one. Zeros them, so that they do not reappear once that one is appended."""
        if self._files:
            file, at = self._files[-1], self._end_position - self._files[-1].start_offset
            if not file.is_zero_from(at):
                file.zero_from(at, allocate=False)
                self._use_last_file()

    @property
    def _end_position(self) -> int:
        return self.max_offset * UNIT_BYTES

    def _search_end(self, log_offset: int, *, crashed: bool) -> int:
        end = self._first_behind(
            lambda offset, size: offset + size <= log_offset or size == FILLER_SIZE, search=end_in_front
        )
        return end - 1 if crashed and is_torn(self._place, self._first_unit(), end) else end

    def expire(self, log_min_offset: int) -> list[MappedFile]:
        """Removes the files whose records are all in front of log_min_offset, where the log begins now, and
        returns them. The caller calls their delete(), in any thread. The last file stays."""
        gone = self._take_old_files(log_min_offset)
        first_unit = max(self.min_offset, self._first_unit())
        if gone or (self.max_offset > first_unit and self.unit(first_unit)[0] < log_min_offset):
            self.correct_min_offset(log_min_offset)
        return gone

    def _take_old_files(self, log_min_offset: int) -> list[MappedFile]:
        """Removes old files; the last unit of a file begins with the CommitLog offset of its record."""
        gone: list[MappedFile] = []
        while len(self._files) > 1 and self._is_old(log_min_offset):
            gone.append(self._files.pop(0))
        return gone

    def _is_old(self, log_min_offset: int) -> bool:
        """Whether the last record of the first file is deleted. The next files decide if its unit is lost."""
        second = self._files[1].start_offset // self.unit_bytes
        end, file_units = self._end_position // self.unit_bytes, self.file_bytes // self.unit_bytes
        numbers = second - 1, *range(second, end, file_units)
        return next((place[0] < log_min_offset for place in map(self._place, numbers) if place), False)

    def sync(self) -> None:
        """Makes the units durable, and the names of new files: a queue whose directory is missing after a
        power cut would count from 0 again. Any thread, concurrently with appends. SyncError: a sync
        failed."""
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
                    sync_file(fd, file.path)
                finally:
                    os.close(fd)
        self._synced_end = target

    def _sync_names(self) -> None:
        for directory in (self.directory, self.directory.parent, self.directory.parent.parent):
            with suppress(FileNotFoundError):  # destroyed meanwhile
                sync_directory(directory)

    def _delete(self, file: MappedFile) -> None:
        """Deletes the file durably. Files are deleted one by one, so that after a power cut no file reappears
        behind a missing or a short one."""
        file.delete()
        sync_directory(self.directory)

    def cut_all(self) -> list[Job]:
        """As cut(), but removes everything: the queue is empty and counts from 0."""
        jobs: list[Job] = [partial(self._delete, file) for file in reversed(self._files)]
        self._files = []
        self._use_last_file()
        self.min_offset = self.max_offset = self.next_offset = self.seen_to = self.skipped_to = 0
        self.is_listed = False
        forget = partial(shutil.rmtree, self.directory, ignore_errors=True)
        return [*jobs, partial(self._synced_at_most, 0), forget]

    def close(self) -> None:
        """Closes the files, without a sync."""
        while self._files:
            self._files.pop().close()
        self._use_last_file()
