"""Repairs ConsumeQueues of a stopped broker in place, entry by entry, from the records of its log.

Only an entry that is proved wrong is written: it is missing, or points to no whole record of its queue and
number. Correct entries stay, and the log is only read, so consumers lose no message that they could read
before, and no number is assigned twice.

- The newest record of a queue says where the queue ends. Older ones with higher numbers belong to a topic
  that was deleted and created again, and get no entry. Of two records with one number the newer one gets it,
  unless the entry of the older one exists and is correct.
- Records that are not confirmed are left to the next start, unless they or later ones have their entries.
- Entries behind the end of a queue, which no record explains, are emptied: a start would count them.
- The log must be whole, since the records are the only source. A log with a damaged record is refused.
- A queue without any file may have been deleted: it is only reported. With an empty file it gets all of its
  entries. A queue whose numbers go back, with correct entries for both, is not changed.
- Files that are missing or too short are replaced. Entries without a record in the log become fillers, which
  consumers skip.

Before that, queues whose files have another size get the same entries in files of the requested size.

The entries of queues of batches (queue.type=BatchCQ) are not checked. SCHEDULE_TOPIC_XXXX gets delivery
times by RocketMQ's default messageDelayLevel.
"""

import os
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from broker.admin.repair import RepairError, StoreReport, inspect_store, log_files
from broker.backup.offline_check import missing_parts
from broker.backup.queue_files import (
    QueueFiles,
    Unit,
    is_zero,
    known_file_bytes,
    mapped,
    newest_batches,
    other_sizes,
    remove_new,
    resize,
    sync,
    write,
)
from broker.message.delay_levels import SCHEDULED_TOPICS, DelayLevels
from broker.message.inner_batch import INNER_BATCH, sys_flag_at
from broker.message.record import Parsed, parse, property_value
from broker.store.log.checkpoint import read_checkpoint
from broker.store.log.file_sizes import FileKind
from broker.store.log.mapped_file import StoreError, is_file_name, listed_files, lock_directory
from broker.store.queue.batch_queue import BATCH_UNIT_BYTES, BatchQueue
from broker.store.queue.consume_queue import FILLER, FILLER_SIZE, UNIT, UNIT_BYTES, ConsumeQueue
from broker.store.queue.queue_table import queue_directories

ENTRY_BYTES: Final = UNIT_BYTES
BATCH_ENTRY_BYTES: Final = BATCH_UNIT_BYTES
RECORDS_PER_STEP: Final = 20_000
MAPPED_MAX: Final = 128
"""Files of the log and of queues that are open at a time."""
OTHER_QUEUES: Final = b"INNER_MULTI_DISPATCH"
"""Property of a record that has entries in more queues than its own."""
EXTENDED_BELOW: Final = -(1 << 31)
"""A tags code below it is an address in RocketMQ's consumequeue_ext."""


class TopicQueue(NamedTuple):
    """One queue."""

    topic: str
    queue_id: int


class Repaired(msgspec.Struct):
    """The result: what was found, and written if requested. entries: by queue. files: missing or too short
    ones. resized: queues whose files have another size; without writing, nothing else is checked. left:
    queues that cannot be repaired, and why. without_file: queues that have records and no file, and the file
    of their first record."""

    entries: dict[TopicQueue, int] = msgspec.field(default_factory=dict)
    files: int = 0
    resized: list[TopicQueue] = msgspec.field(default_factory=list)
    left: dict[TopicQueue, str] = msgspec.field(default_factory=dict)
    without_file: dict[TopicQueue, Path] = msgspec.field(default_factory=dict)

    @property
    def count(self) -> int:
        """The number of entries of all queues."""
        return sum(self.entries.values())


class _Record(NamedTuple):
    topic_queue: TopicQueue
    number: int
    offset: int
    size: int
    tags_code: int
    is_code_sure: bool

    @property
    def end(self) -> int:
        return self.offset + self.size


def repair_queues(
    store: StoreReport,
    found: Repaired,
    *,
    writes: bool,
    file_bytes: int | None = None,
    batch_file_bytes: int | None = None,
) -> Iterator[tuple[int, int]]:
    """Fills `found`; yields (bytes of the log read, bytes to read) now and then. writes False: changes
    nothing. file_bytes: mappedFileSizeConsumeQueue; None: derived from the files. batch_file_bytes:
    mapperFileSizeBatchConsumeQueue; None: queues of batches stay as they are. Raises RepairError: a broker
    uses the store, or the size of its files is not known; OSError: also if the disk is full, and then a
    second call goes on."""
    try:
        descriptor = lock_directory(store.root)
    except StoreError as error:
        raise RepairError(f"{error}: stop it first") from None
    try:
        store = inspect_store(store.root, store.epoch_path)  # a broker may have worked until now
        size = file_bytes or known_file_bytes(store.root)
        for _, text in missing_parts(store, is_running=False):
            raise RepairError(f"{text}; entries of missing records cannot be rebuilt from the log")
        if writes:
            remove_new(store.root)
        _resize(store.root / "consumequeue", ConsumeQueue.file_kind(size), found, writes=writes)
        if batch_file_bytes is not None:
            kind = BatchQueue.file_kind(batch_file_bytes)
            _resize(store.root / "batchconsumequeue", kind, found, writes=writes)
        if writes or not found.resized:
            yield from _Repair(store, found, size, writes=writes).run()
    finally:
        os.close(descriptor)


def _resize(base: Path, kind: FileKind, found: Repaired, *, writes: bool) -> None:
    for queue in queue_directories(base):
        directory = Path(queue.path)
        if other_sizes(directory, kind):
            found.resized.append(TopicQueue(queue.topic, queue.queue_id))
            if writes:
                resize(directory, kind.file_bytes)


class _Repair:
    def __init__(self, store: StoreReport, found: Repaired, file_bytes: int, *, writes: bool) -> None:
        self._store, self._found, self._file_bytes, self._writes = store, found, file_bytes, writes
        self._log = [(int(path.name), path) for path in log_files(store.root)]
        if not self._log or not self._log[0][1].stat().st_size:
            raise RepairError(f"{store.root / 'commitlog'} has no record")
        self._levels = DelayLevels()
        self._mapped = lru_cache(MAPPED_MAX)(mapped)
        self._queues: dict[TopicQueue, QueueFiles] = {}
        self._bytes = store.max_offset - store.min_offset
        self._confirmed = read_checkpoint(store.root / "checkpoint").confirm_offset  # 0: unknown
        self._dispatched_to = 0  # a start dispatches nothing in front of it
        self._dispatched = 0  # end of the newest record that must have an entry
        self._last: dict[TopicQueue, int] = {}  # number of each queue's newest record up to there
        self._first: dict[TopicQueue, int] = {}  # lowest number in the log
        self._right: dict[TopicQueue, int] = {}  # highest number with a right entry
        self._counts: Counter[TopicQueue] = Counter()  # records
        self._read_to = store.max_offset
        self._done: dict[Path, bytearray] = {}  # a bit for each entry that was written, or would be

    def run(self) -> Iterator[tuple[int, int]]:
        """Reads the log twice: to find the ends of the queues, then the wrong entries."""
        ends = [
            offset + size for offset, size in newest_batches(self._store.root) if self._parsed(offset, size)
        ]
        self._dispatched_to = max([self._confirmed, *ends])
        yield from self._look_for_ends()
        self._must_be_whole()
        try:
            yield from self._repair()
        finally:
            for files in self._queues.values():
                files.discard()
        yield 2 * self._bytes, 2 * self._bytes

    def _repair(self) -> Iterator[tuple[int, int]]:
        for topic_queue, first in sorted(self._first.items()):
            self._replace_files(topic_queue, first, self._last.get(topic_queue, first - 1) + 1)
        self._mapped.cache_clear()
        yield from self._look_for_entries()
        for topic_queue, first in self._first.items():
            if topic_queue not in self._found.left:
                self._empty_behind(topic_queue, self._last.get(topic_queue, first - 1))
                self._fill_gaps(topic_queue, first)
        if self._writes:
            for path in self._done:
                sync(path)
            for files in self._queues.values():
                files.finish()

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
                        is_sure = name not in SCHEDULED_TOPICS and properties.count(b"TAGS\x01") < 2
                        if name in SCHEDULED_TOPICS:
                            tags_code = self._levels.queue_code(name, properties, stored)
                        topic_queue = TopicQueue(name, queue_id)
                        yield _Record(topic_queue, number, start + position, size, tags_code, is_sure)
                    count += 1
                    if not count % RECORDS_PER_STEP:
                        yield read + start + position - self._store.min_offset, 2 * self._bytes
                    position += size

    def _must_be_whole(self) -> None:
        start, path = self._log[-1]
        ahead = [each for each in listed_files(path.parent) if int(each.name) > start]
        is_end = start <= self._read_to and is_zero(path, self._read_to - start)
        if not is_end or not all(is_zero(each, 0) for each in ahead):
            raise RepairError(
                f"the log has no complete record at {self._read_to}, but data after it: a start may truncate "
                "the log and its queues there. Keep a copy of the store before you start the broker"
            )

    def _look_for_ends(self) -> Iterator[tuple[int, int]]:
        undispatched: dict[TopicQueue, int] = {}
        for record in self._records(0):
            if not isinstance(record, _Record):
                yield record
                continue
            topic_queue, number, files = record.topic_queue, record.number, self._files(record.topic_queue)
            if not files:
                self._found.without_file.setdefault(topic_queue, files.where(number)[0])
                continue
            undispatched[topic_queue] = number
            self._first[topic_queue] = min(self._first.get(topic_queue, number), number)
            self._counts[topic_queue] += 1
            unit = files.read(number)
            if unit[:2] == (record.offset, record.size):
                self._right[topic_queue] = max(self._right.get(topic_queue, 0), number)
            if self._must_have_entry(record, unit):
                self._dispatched = record.end
                self._last.update(undispatched)
                undispatched.clear()

    def _must_have_entry(self, record: _Record, unit: Unit) -> bool:
        if unit[:2] == (record.offset, record.size):
            return True  # an older checkpoint may not know of it
        if record.end <= self._dispatched_to:
            return True
        return not self._confirmed and unit[1] not in (0, FILLER_SIZE)

    def _look_for_entries(self) -> Iterator[tuple[int, int]]:
        for record in self._records(self._bytes):
            if not isinstance(record, _Record):
                yield record
            elif record.end > self._dispatched:
                return
            elif (
                record.number <= self._last.get(record.topic_queue, -1)
                and record.topic_queue not in self._found.left
            ):
                self._check(record)

    def _check(self, record: _Record) -> None:
        files = self._files(record.topic_queue)
        path, at = files.where(record.number)
        bits = self._done.get(path)
        if bits is None or not bits[at >> 3] & 1 << (at & 7):
            unit = files.read(record.number)
            if unit[:2] == (record.offset, record.size):
                if self._has_its_code(unit, record):
                    return
            elif self._is_of_another(unit, record.topic_queue, record.number):
                return
            self._count(record.topic_queue, path, at)
        if self._writes:
            write(path, at * UNIT_BYTES, UNIT.pack(record.offset, record.size, record.tags_code))

    def _count(self, topic_queue: TopicQueue, path: Path, at: int) -> None:
        bits = self._done.setdefault(path, bytearray((self._file_bytes // UNIT_BYTES >> 3) + 1))
        bits[at >> 3] |= 1 << (at & 7)
        self._found.entries[topic_queue] = self._found.entries.get(topic_queue, 0) + 1

    def _empty_behind(self, topic_queue: TopicQueue, last: int) -> None:
        for number, unit in self._files(topic_queue).behind(last):
            if not self._is_of_another(unit, topic_queue, number, is_any_topic=True):
                self._replace(topic_queue, number, bytes(UNIT_BYTES))

    def _fill_gaps(self, topic_queue: TopicQueue, first: int) -> None:
        """Even without a record for it, an empty entry must be filled: a start may end the queue there, and
        no consumer gets beyond it."""
        if topic_queue in self._last:
            for number, _ in self._files(topic_queue).gaps(first, self._last[topic_queue]):
                self._replace(topic_queue, number, FILLER)

    def _replace(self, topic_queue: TopicQueue, number: int, entry: bytes) -> None:
        """Writes an entry, unless a record has it now."""
        path, at = self._files(topic_queue).where(number)
        bits = self._done.get(path)
        if bits is None or not bits[at >> 3] & 1 << (at & 7):
            self._count(topic_queue, path, at)
            if self._writes:
                write(path, at * UNIT_BYTES, entry)

    def _has_its_code(self, unit: Unit, record: _Record) -> bool:
        # The code of a delayed message depends on settings that are not known here.
        return not record.is_code_sure or unit[2] == record.tags_code or unit[2] < EXTENDED_BELOW

    def _is_of_another(
        self, unit: Unit, topic_queue: TopicQueue, number: int, *, is_any_topic: bool = False
    ) -> bool:
        """Whether the entry points to a whole record of this queue and number, or to one that has an entry in
        this queue besides its own. is_any_topic: no checksum covers the topic, so the topic may be wrong."""
        parsed = self._parsed(*unit[:2])
        if parsed is None:
            return False
        _, topic, queue_id, its_number, _, _, properties = parsed
        if (queue_id, its_number) == (topic_queue.queue_id, number):
            return is_any_topic or topic.decode("utf-8", "replace") == topic_queue.topic
        others = property_value(properties, OTHER_QUEUES) or b""
        return topic_queue.topic.encode() in others.split(b",")

    def _parsed(self, offset: int, size: int) -> Parsed | None:
        """Returns the whole record of that many bytes there; None: there is none."""
        if not self._store.min_offset <= offset < self._store.max_offset:
            return None
        start, path = next(each for each in reversed(self._log) if each[0] <= offset)
        with memoryview(self._mapped(path)) as view:
            parsed = parse(view, offset - start, len(view), offset=offset)
        return None if parsed is None or parsed[0] != size else parsed

    # -- the queues --------------------------------------------------------------------------------------

    def _files(self, topic_queue: TopicQueue) -> QueueFiles:
        files = self._queues.get(topic_queue)
        if files is None:
            files = self._queues[topic_queue] = QueueFiles(
                self._store.root / "consumequeue", *topic_queue, self._file_bytes, self._mapped
            )
        return files

    def _replace_files(self, topic_queue: TopicQueue, first: int, end: int) -> None:
        """Replaces files that are missing or too short, from the first record's to the last one's."""
        files = self._files(topic_queue)
        fault = files.fault()
        if end - first > 2 * self._counts[topic_queue] + self._file_bytes // UNIT_BYTES:
            fault = f"its {self._counts[topic_queue]} records have numbers from {first} to {end - 1}"
        if (right := self._right.get(topic_queue, -1)) >= end:
            fault = f"its newest record has number {end - 1}, an older one {right}, and both have entries"
        if fault is not None:
            self._found.left[topic_queue] = fault
            return
        for start, entries in files.incomplete(first, end):
            self._found.files += 1
            if self._writes:
                files.replace(start, entries)
