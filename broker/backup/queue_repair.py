"""Repairs ConsumeQueues of a stopped broker in place, entry by entry, from the records of its log.

Only an entry that is proved wrong is written: none is there, or it points to no whole record of its queue and
number. Right entries stay as they are, and the log is only read, so nothing that a consumer could read before
is lost, and no number is given anew.

- The newest record of a queue says where the queue ends. Older ones with higher numbers are of a topic that
  was deleted and made again, and get no entry. Of two records with one number the newer one gets it, unless
  the entry of the older one is there and right.
- What is behind the newest record that has an entry, or is not confirmed, is left to the next start, which
  dispatches it.
- Entries behind the end of a queue, which no record explains, are emptied: a start would count them.
- The log must be whole, since the records tell everything. A log with a damaged record is refused.
- A queue without any file may have been deleted: it stays so.
- Files that are missing or too short are replaced. Where no record of the log says what they had, they get
  fillers, over which consumers pass.

Queues of batches (queue.type=BatchCQ) are not looked at. SCHEDULE_TOPIC_XXXX gets delivery times by
RocketMQ's default messageDelayLevel.
"""

import mmap
import os
from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import msgspec

from broker.admin.repair import QUEUE_FILE_BYTES_DEFAULT, RepairError, StoreReport, log_files
from broker.backup.offline_check import missing_parts
from broker.message.delay_levels import SCHEDULED_TOPICS, DelayLevels
from broker.message.inner_batch import INNER_BATCH, sys_flag_at
from broker.message.record import parse, property_value
from broker.store.log.checkpoint import read_checkpoint
from broker.store.log.mapped_file import (
    StoreError,
    file_name,
    is_file_name,
    listed_files,
    lock_directory,
    sync_directory,
)
from broker.store.log.sync_fault import sync_file
from broker.store.queue.consume_queue import FILLER, FILLER_SIZE, UNIT, UNIT_BYTES

ENTRY_BYTES: Final = UNIT_BYTES
RECORDS_PER_STEP: Final = 20_000
MAPPED_MAX: Final = 128
"""Files of the log and of queues that are open at a time."""
OTHER_QUEUES: Final = b"INNER_MULTI_DISPATCH"
"""Property of a record that has entries in more queues than its own."""
EXTENDED_BELOW: Final = -(1 << 31)
"""A tags code below it is an address in RocketMQ's consumequeue_ext."""
NEW_FILE: Final = "consumequeue.repair"
Unit: TypeAlias = tuple[int, int, int]
"""(log offset, size, tags code)"""
NOTHING: Final[Unit] = (0, 0, 0)
Mapped: TypeAlias = Callable[[Path], mmap.mmap]


class Place(NamedTuple):
    """One queue."""

    topic: str
    queue_id: int


class Repaired(msgspec.Struct):
    """What was found, and written if that was asked for. entries: by queue. files: missing or too short
    ones. left: queues that cannot be repaired, and why."""

    entries: dict[Place, int] = msgspec.field(default_factory=dict)
    files: int = 0
    left: dict[Place, str] = msgspec.field(default_factory=dict)

    @property
    def count(self) -> int:
        """The number of entries of all queues."""
        return sum(self.entries.values())


class _Record(NamedTuple):
    place: Place
    number: int
    offset: int
    size: int
    tags_code: int

    @property
    def end(self) -> int:
        return self.offset + self.size


def repair_queues(
    store: StoreReport, found: Repaired, *, writes: bool, file_bytes: int | None = None
) -> Iterator[tuple[int, int]]:
    """Fills `found`; yields (bytes of the log read, bytes to read) now and then. writes False: changes
    nothing. file_bytes: mappedFileSizeConsumeQueue; None: as the files say. Raises RepairError: a broker uses
    the store, or the size of its files is not known; OSError: also if the disk is full, and then a second
    call goes on."""
    try:
        descriptor = lock_directory(store.root)
    except StoreError as error:
        raise RepairError(f"{error}: stop it first") from None
    try:
        size = file_bytes or known_file_bytes(store.root)
        for _, text in missing_parts(store, is_running=False):
            raise RepairError(f"{text}; a log that lacks records cannot tell their entries")
        yield from _Repair(store, found, size, writes=writes).run()
    finally:
        os.close(descriptor)


def known_file_bytes(root: Path) -> int:
    """Returns the size of the files of ConsumeQueues: the default, or a size that two files or the name of
    one show, because any file may have been shortened. RepairError: nothing shows it."""
    files = [path for path in (root / "consumequeue").glob("*/*/*") if path.is_file()]
    sizes = Counter(path.stat().st_size for path in files)
    largest = max(sizes, default=0)
    if largest in (0, QUEUE_FILE_BYTES_DEFAULT):
        return QUEUE_FILE_BYTES_DEFAULT
    starts = [int(path.name) for path in files if path.name.isdigit()]
    if largest % UNIT_BYTES == 0 and (
        sizes[largest] > 1 or any(each and not each % largest for each in starts)
    ):
        return largest
    raise RepairError(
        f"the largest file of a ConsumeQueue has {largest} bytes, and may have lost some: "
        "give the broker's mappedFileSizeConsumeQueue with --queue-file-bytes"
    )


class _Repair:
    def __init__(self, store: StoreReport, found: Repaired, file_bytes: int, *, writes: bool) -> None:
        self._store, self._found, self._file_bytes, self._writes = store, found, file_bytes, writes
        self._log = [(int(path.name), path) for path in log_files(store.root)]
        self._levels = DelayLevels()
        self._mapped = lru_cache(MAPPED_MAX)(_mapped)
        self._queues: dict[Place, _QueueFiles] = {}
        self._bytes = store.max_offset - store.min_offset
        # Our brokers write it at a stop; 0: another broker has written the file.
        self._confirmed = read_checkpoint(store.root / "checkpoint").confirm_offset or store.max_offset
        self._dispatched = 0  # end of the newest record that has an entry
        self._last: dict[Place, int] = {}  # number of each queue's newest record up to there
        self._first: dict[Place, int] = {}  # lowest number in the log
        self._counts: Counter[Place] = Counter()  # records
        self._read_to = store.max_offset
        self._done: dict[Path, bytearray] = {}  # a bit for each entry that was written, or would be

    def run(self) -> Iterator[tuple[int, int]]:
        """Reads the log twice: where do the queues end, and which entries are wrong?"""
        yield from self._look_for_ends()
        self._must_be_whole()
        for place, first in sorted(self._first.items()):
            self._replace_files(place, first, self._last.get(place, first - 1) + 1)
        self._mapped.cache_clear()
        yield from self._look_for_entries()
        for place, first in self._first.items():
            if place not in self._found.left:
                self._empty_behind(place, self._last.get(place, first - 1))
        if self._writes:
            for path in self._done:
                _sync(path)
        yield 2 * self._bytes, 2 * self._bytes

    # -- the log -----------------------------------------------------------------------------------------

    def _records(self, read: int) -> Iterator[_Record | tuple[int, int]]:
        """Returns the records that have an entry in a ConsumeQueue, up to the first bad one; between them
        (bytes read, bytes to read), from `read` on."""
        count = 0
        for start, path in self._log:
            if not path.stat().st_size:
                return
            with memoryview(self._mapped(path)) as view:
                position = max(self._store.min_offset - start, 0)
                while position < len(view):
                    parsed = parse(view, position, len(view), offset=start + position)
                    if parsed is None:
                        self._read_to = start + position
                        return
                    size, topic, queue_id, number, tags_code, stored, properties = parsed
                    name = topic.decode("utf-8", "replace")
                    if name and is_file_name(name) and not sys_flag_at(view, position) & INNER_BATCH:
                        if name in SCHEDULED_TOPICS:
                            tags_code = self._levels.queue_code(name, properties, stored)
                        yield _Record(Place(name, queue_id), number, start + position, size, tags_code)
                    count += 1
                    if not count % RECORDS_PER_STEP:
                        yield read + start + position - self._store.min_offset, 2 * self._bytes
                    position += size

    def _must_be_whole(self) -> None:
        start, path = self._log[-1]
        with memoryview(self._mapped(path)) as view:
            is_end = start <= self._read_to and not bytes(view[self._read_to - start :]).strip(b"\0")
        if not is_end:
            raise RepairError(
                f"the log has no whole record at {self._read_to}, and more behind it: a start may cut it "
                "there, with its queues. Keep a copy of the store before you start the broker"
            )

    def _look_for_ends(self) -> Iterator[tuple[int, int]]:
        undispatched: dict[Place, int] = {}
        for record in self._records(0):
            if not isinstance(record, _Record):
                yield record
                continue
            place, number, files = record.place, record.number, self._files(record.place)
            if not files:
                continue
            undispatched[place] = number
            self._first[place] = min(self._first.get(place, number), number)
            self._counts[place] += 1
            if record.end <= self._confirmed and files.read(number)[1] not in (0, FILLER_SIZE):
                self._dispatched = record.end
                self._last.update(undispatched)
                undispatched.clear()

    def _look_for_entries(self) -> Iterator[tuple[int, int]]:
        for record in self._records(self._bytes):
            if not isinstance(record, _Record):
                yield record
            elif record.end > self._dispatched:
                return
            elif record.number <= self._last.get(record.place, -1) and record.place not in self._found.left:
                self._check(record)

    def _check(self, record: _Record) -> None:
        files = self._files(record.place)
        path, at = files.where(record.number)
        bits = self._done.get(path)
        if bits is None or not bits[at >> 3] & 1 << (at & 7):
            unit = files.read(record.number)
            if unit[:2] == (record.offset, record.size):
                if self._has_its_code(unit, record):
                    return
            elif self._is_of_another(unit, record.place, record.number):
                return
            self._count(record.place, path, at)
        if self._writes:
            _write(path, at * UNIT_BYTES, UNIT.pack(record.offset, record.size, record.tags_code))

    def _count(self, place: Place, path: Path, at: int) -> None:
        bits = self._done.setdefault(path, bytearray((self._file_bytes // UNIT_BYTES >> 3) + 1))
        bits[at >> 3] |= 1 << (at & 7)
        self._found.entries[place] = self._found.entries.get(place, 0) + 1

    def _empty_behind(self, place: Place, last: int) -> None:
        files = self._files(place)
        for number, unit in files.behind(last):
            if not self._is_of_another(unit, place, number):
                path, at = files.where(number)
                self._count(place, path, at)
                if self._writes:
                    _write(path, at * UNIT_BYTES, bytes(UNIT_BYTES))

    def _has_its_code(self, unit: Unit, record: _Record) -> bool:
        # The code of a delayed message depends on settings that are not known here.
        is_known = record.place.topic not in SCHEDULED_TOPICS and unit[2] >= EXTENDED_BELOW
        return not is_known or unit[2] == record.tags_code

    def _is_of_another(self, unit: Unit, place: Place, number: int) -> bool:
        """Whether the entry points to a whole record of this queue and number, or to one that has entries in
        several queues."""
        offset, size, _ = unit
        if not self._store.min_offset <= offset < self._store.max_offset:
            return False
        start, path = next(each for each in reversed(self._log) if each[0] <= offset)
        with memoryview(self._mapped(path)) as view:
            parsed = parse(view, offset - start, len(view), offset=offset)
        if parsed is None or parsed[0] != size:
            return False
        _, topic, queue_id, its_number, _, _, properties = parsed
        is_of_place = (topic.decode("utf-8", "replace"), queue_id, its_number) == (*place, number)
        return is_of_place or property_value(properties, OTHER_QUEUES) is not None

    # -- the queues --------------------------------------------------------------------------------------

    def _files(self, place: Place) -> "_QueueFiles":
        files = self._queues.get(place)
        if files is None:
            files = self._queues[place] = _QueueFiles(self._store.root, place, self._file_bytes, self._mapped)
        return files

    def _replace_files(self, place: Place, first: int, end: int) -> None:
        """Replaces files that are missing or too short, from the first record's to the last one's."""
        files = self._files(place)
        fault = files.fault()
        if end - first > 2 * self._counts[place] + self._file_bytes // UNIT_BYTES:
            fault = f"its {self._counts[place]} records have numbers from {first} to {end - 1}"
        if fault is not None:
            self._found.left[place] = fault
            return
        for start, entries in files.incomplete(first, end):
            self._found.files += 1
            if self._writes:
                files.replace(start, entries)


class _QueueFiles:
    """The files of one queue. False: there is none."""

    def __init__(self, root: Path, place: Place, file_bytes: int, mapped: Mapped) -> None:
        self.file_bytes, self._mapped, self._new = file_bytes, mapped, root / NEW_FILE
        self._directory = root / "consumequeue" / place.topic / str(place.queue_id)
        self._sizes = {int(path.name): path.stat().st_size for path in listed_files(self._directory)}

    def __bool__(self) -> bool:
        return bool(self._sizes)

    def where(self, number: int) -> tuple[Path, int]:
        """Returns the file of an entry, which may be missing, and the index of the entry in it."""
        start, position = self._start(number), number * UNIT_BYTES
        return self._directory / file_name(start), (position - start) // UNIT_BYTES

    def _start(self, number: int) -> int:
        return number * UNIT_BYTES // self.file_bytes * self.file_bytes

    def read(self, number: int) -> Unit:
        """Returns the entry; NOTHING if its file is missing or too short. A start fills a short file with
        zeros, so that the first bytes of an entry may pass for one."""
        path, at = self.where(number)
        if at * UNIT_BYTES >= self._sizes.get(self._start(number), 0):
            return NOTHING
        raw = self._mapped(path)[at * UNIT_BYTES : (at + 1) * UNIT_BYTES]
        unit: Unit = UNIT.unpack(raw.ljust(UNIT_BYTES, b"\0"))
        return unit

    def behind(self, last: int) -> Iterator[tuple[int, Unit]]:
        """Yields each entry behind number `last` that is not empty."""
        for start in sorted(self._sizes):
            first = max(last + 1 - start // UNIT_BYTES, 0)
            if first * UNIT_BYTES >= self._sizes[start]:
                continue
            path = self._directory / file_name(start)
            with memoryview(self._mapped(path)) as view:
                rest = bytes(view[first * UNIT_BYTES :]).rstrip(b"\0")
            for at in range(-(-len(rest) // UNIT_BYTES)):
                number = start // UNIT_BYTES + first + at
                if (unit := self.read(number))[1]:
                    yield number, unit

    def fault(self) -> str | None:
        """Returns why the files are not those of a queue; None: they are."""
        for start, size in self._sizes.items():
            if start % self.file_bytes or size > self.file_bytes:
                path = self._directory / file_name(start)
                return f"{path} has {size} bytes, and the files of other queues {self.file_bytes}"
        return None

    def incomplete(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Yields (start, number of entries) of each file that lacks one of the entries first..end - 1."""
        for start in range(self._start(first), end * UNIT_BYTES, self.file_bytes):
            entries = min(self.file_bytes, end * UNIT_BYTES - start) // UNIT_BYTES
            if self._sizes.get(start, 0) < entries * UNIT_BYTES:
                yield start, entries

    def replace(self, start: int, entries: int) -> None:
        """Writes a file with fillers for the entries that are missing. Durable when it returns."""
        path = self._directory / file_name(start)
        kept = path.read_bytes() if start in self._sizes else b""
        kept = kept[: len(kept) // UNIT_BYTES * UNIT_BYTES]
        try:
            with self._new.open("wb") as file:
                file.write(kept + FILLER * (entries - len(kept) // UNIT_BYTES))
                file.truncate(self.file_bytes)
                file.flush()
                sync_file(file.fileno(), self._new)
            self._new.rename(path)
        finally:
            self._new.unlink(missing_ok=True)
        sync_directory(self._directory)
        self._sizes[start] = self.file_bytes


def _mapped(path: Path) -> mmap.mmap:
    """The file, until nobody refers to the map any more."""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _write(path: Path, position: int, data: bytes) -> None:
    # Not through a map: to write to a hole of a sparse file on a full disk would be a SIGBUS.
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.pwrite(descriptor, data, position)
    finally:
        os.close(descriptor)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR)
    try:
        sync_file(descriptor, path)
    finally:
        os.close(descriptor)
