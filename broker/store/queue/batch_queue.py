"""The ConsumeQueue of a topic with queue.type=BatchCQ: one 46-byte unit per record, with any number of
messages.

    0 CommitLog offset i64 | 8 record size i32 | 12 tags code i64 | 20 STORETIMESTAMP i64 | 28 base offset i64
    36 messages i16 | 38 compacted offset i32, -1 | 42 reserved i32, 0

Queue offsets count messages. A unit has the messages from its base offset on, and is found by binary search:
its position in the files does not follow from a queue offset. So the files of a queue that begins mid-way
need no fillers. If a cut of the log leaves no unit at all, one filler keeps the numbering: a unit without a
record, with the last assigned queue offset. Source: RocketMQ 5.3.3 BatchConsumeQueue.
"""

import logging
import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Final, NamedTuple

from broker.store.log.disk_jobs import Job
from broker.store.log.mapped_file import MappedFile
from broker.store.queue.consume_queue import FILLER_SIZE, ConsumeQueue, Unit
from broker.store.queue.opening import end_in_front, first_behind

log = logging.getLogger(__name__)

BATCH_UNIT = struct.Struct(">qiqqqhii")
BATCH_UNIT_BYTES: Final = BATCH_UNIT.size
BATCH_FILE_BYTES: Final = 300_000 * BATCH_UNIT_BYTES
"""Default of mapperFileSizeBatchConsumeQueue."""
_COMPACTED: Final = -1


class BatchUnit(NamedTuple):
    """The unit of a record with the messages base_offset to end_offset - 1. log_offset, size and tags_code
    are those of a ConsumeQueue's unit; timestamp in ms."""

    log_offset: int
    size: int
    tags_code: int
    timestamp: int
    base_offset: int
    messages: int

    @property
    def end_offset(self) -> int:
        """Queue offset behind the last message."""
        return self.base_offset + self.messages

    def packed(self) -> bytes:
        """Returns the unit's bytes. struct.error: it has more than MESSAGES_MAX messages."""
        return BATCH_UNIT.pack(*self, _COMPACTED, 0)


class BatchQueue(ConsumeQueue):
    """All queue offsets, in attributes and arguments, count messages."""

    __slots__ = ("_end_unit",)
    unit_bytes: ClassVar[int] = BATCH_UNIT_BYTES
    reserve_bytes: ClassVar[int] = (64 << 10) // BATCH_UNIT_BYTES * BATCH_UNIT_BYTES
    size_setting: ClassVar[str] = "mapperFileSizeBatchConsumeQueue"

    def __init__(self, directory: Path, topic: str, queue_id: int, file_bytes: int) -> None:
        super().__init__(directory, topic, queue_id, file_bytes)
        self._end_unit = 0  # where in the files the next unit goes

    # -- start -------------------------------------------------------------------------------------------

    def load(self, *, log_min_offset: int) -> None:
        """Opens the files and finds the end, as ConsumeQueue.load()."""
        self._open_files()
        if self._files:
            last = self._files[-1]
            self._end_unit = last.start_offset // BATCH_UNIT_BYTES + self._units_in(last)
            if self._end_unit > self._first_unit():
                self.max_offset = self._unit_at(self._end_unit - 1).end_offset
            self.next_offset = self.max_offset
            self._synced_end = self._end_position
            self.correct_min_offset(log_min_offset)

    def _is_written(self, unit: bytes) -> bool:
        return _is_written(_unpacked(unit, 0))

    def correct_min_offset(self, log_min_offset: int) -> None:
        """Sets min_offset to that of the first record that still exists, or to max_offset if none does. A
        unit that a power loss left unwritten does not count as one of a deleted record."""
        low = self._first_behind(lambda offset, size: offset < log_min_offset or size == FILLER_SIZE)
        if low < self._end_unit and _is_written(found := self._unit_at(low)):
            self.min_offset = found.base_offset
        elif low > self._first_unit():
            self.min_offset = self._unit_at(low - 1).end_offset
        else:  # the cut that follows leaves no unit, and the next record has its own base offset
            self.min_offset = 0 if self._files else self.max_offset

    def _place(self, number: int) -> tuple[int, int] | None:
        unit = self._unit_at(number)
        return unit[:2] if _is_written(unit) else None

    # -- writing -----------------------------------------------------------------------------------------

    def append(
        self,
        queue_offset: int,
        log_offset: int,
        size: int,
        tags_code: int,
        timestamp: int = 0,
        messages: int = 1,
    ) -> None:
        """Appends the unit of the record whose first message has this queue offset. A unit that is there
        already is skipped; a gap is logged as an error.

        OSError: no room on the disk; nothing has changed, and the same unit may be appended later.
        """
        if queue_offset < self.max_offset:
            return
        if queue_offset > self.max_offset and self.max_offset > self.min_offset:
            log.error(
                "%s/%d lacks messages %d to %d", self.topic, self.queue_id, self.max_offset, queue_offset - 1
            )
        unit = BatchUnit(log_offset, size, tags_code, timestamp, queue_offset, messages).packed()
        self._write(unit)
        if self.max_offset == self.min_offset:
            self.min_offset = queue_offset
        self.put_bytes += size
        self.max_offset = queue_offset + messages
        self.next_offset = max(self.next_offset, self.max_offset)

    def append_units(self, queue_offset: int, units: bytes, log_bytes: int) -> None:
        """Appends packed units, except those in front of queue_offset and those that are there already."""
        for log_offset, size, tags_code, timestamp, base, messages, _, _ in BATCH_UNIT.iter_unpack(units):
            if base >= queue_offset:
                self.append(base, log_offset, size, tags_code, timestamp, messages)

    def _write(self, unit: bytes) -> None:
        position = self._end_position
        if position >= self._room_end:
            self._make_room(position)
        assert self._map is not None
        at = position - self._base
        self._map[at : at + BATCH_UNIT_BYTES] = unit
        self._end_unit += 1

    # -- reading -----------------------------------------------------------------------------------------

    def unit(self, index: int) -> Unit:
        """Returns (CommitLog offset, size, tags code) of the record with the message `index`, or, in a gap,
        of the next record. IndexError: the queue ends in front of it."""
        found = self._find(index)
        if found >= self._end_unit:
            raise IndexError(f"{self.topic}/{self.queue_id} ends at {self.max_offset}: no message {index}")
        return self._unit_at(found)[:3]

    def units(self, index: int, count: int) -> Iterator[Unit]:
        """Returns unit() of each message from `index` on, at most `count`."""
        return map(self.unit, range(index, min(index + count, self.max_offset)))

    def records(self, queue_offset: int) -> Iterator[BatchUnit]:
        """Returns the units from the one with this message on, to the queue's end."""
        return map(self._unit_at, range(self._find(queue_offset), self._end_unit))

    def log_end_offset(self) -> int:
        """End of the last record that the queue points to; 0 if there is none."""
        if self._end_unit <= self._first_unit():
            return 0
        unit = self._unit_at(self._end_unit - 1)
        return unit.log_offset + unit.size if unit.size != FILLER_SIZE else 0

    def end_before(self, log_offset: int) -> int:
        """As ConsumeQueue.end_before()."""
        if self.log_end_offset() <= log_offset:
            return self.next_offset
        keep = self._search_end(log_offset, crashed=False)
        if keep > self._first_unit():
            return self._unit_at(keep - 1).end_offset
        unit = self._unit_at(keep)
        return unit.base_offset if _is_written(unit) else self.min_offset

    def _unit_at(self, number: int) -> BatchUnit:
        position = number * BATCH_UNIT_BYTES
        file = self._files[(position - self._files[0].start_offset) // self.file_bytes]
        return _unpacked(file.map, position - file.start_offset)

    def _find(self, queue_offset: int) -> int:
        """Number of the unit with the message, or of the first unit behind it. A lost unit has the messages
        up to the next one's."""

        def is_in_front(number: int) -> bool | None:
            unit = self._unit_at(number)
            return unit.base_offset <= queue_offset if _is_written(unit) else None

        first = self._first_unit()
        behind = first_behind(first, self._end_unit, BATCH_UNIT_BYTES, self.file_bytes, is_in_front)
        if behind > first and self._unit_at(behind - 1).end_offset > queue_offset:
            return behind - 1
        return behind

    # -- damaged units -----------------------------------------------------------------------------------

    def wrong_unit(self, expected: BatchUnit, *, is_code_sure: bool) -> int | None:
        """Returns the number in the files of the unit that should be `expected` and is not; None: it is
        right, or the units around it do not prove that it is wrong."""
        behind = self._first_behind(lambda offset, size: offset < expected.log_offset, search=end_in_front)
        low, high = self._first_unit(), self._end_unit
        near = [number for number in (behind, behind - 1) if low <= number < high]
        for number in near:
            found = self._unit_at(number)
            if found.log_offset == expected.log_offset:
                code = expected.tags_code if is_code_sure else found.tags_code
                if found == expected._replace(tags_code=code):
                    return None
                is_same = found[4:] == expected[4:]
                return number if is_same or self._fits(number, expected) else None
        return next((number for number in near if self._fits(number, expected, is_proof=True)), None)

    def _fits(self, number: int, expected: BatchUnit, *, is_proof: bool = False) -> bool:
        """Whether no adjacent unit contradicts that the unit with this number in the files should be
        `expected`. is_proof: requires at least one adjacent unit."""
        before = self._unit_at(number - 1) if number > self._first_unit() else None
        after = self._unit_at(number + 1) if number + 1 < self._end_unit else None
        if after is not None and not _is_written(after):
            after = None
        if before is None and after is None:
            return not is_proof
        if before is not None and (not _is_written(before) or before.end_offset != expected.base_offset):
            return False
        return after is None or after.base_offset == expected.end_offset

    def rewrite_batch(self, number: int, unit: BatchUnit) -> BatchUnit:
        """Replaces the unit with this number in the files, as rewrite(), and returns the old one."""
        found, position = self._unit_at(number), number * BATCH_UNIT_BYTES
        file = self._files[(position - self._files[0].start_offset) // self.file_bytes]
        at = position - file.start_offset
        file.reserve(at, BATCH_UNIT_BYTES)
        file.map[at : at + BATCH_UNIT_BYTES] = unit.packed()
        self._synced_end = min(self._synced_end, position)
        return found

    def last_units(self) -> list[BatchUnit]:
        """Returns the last two units, or fewer if there are not as many."""
        return [self._unit_at(each) for each in range(self._first_unit(), self._end_unit)[-2:]]

    def unit_in_front(self, queue_offset: int) -> BatchUnit | None:
        """Returns the unit in front of the first one of records(queue_offset); None: there is none."""
        found = self._find(queue_offset)
        return self._unit_at(found - 1) if found > self._first_unit() else None

    def correct_end(self, unit: BatchUnit) -> None:
        """Replaces the last unit, from which the next queue offset follows. OSError: no room."""
        self.rewrite_batch(self._end_unit - 1, unit)
        self.max_offset = self.next_offset = unit.end_offset
        self.min_offset = min(self.min_offset, unit.base_offset)

    # -- cutting -----------------------------------------------------------------------------------------

    def cut(self, log_offset: int, *, crashed: bool = False) -> list[Job]:
        """As ConsumeQueue.cut()."""
        jobs = list[Job]()
        keep, first = self._search_end(log_offset, crashed=crashed), self._first_unit()
        if keep < self._end_unit:
            cut = self._unit_at(keep)
            if keep > first:
                self.max_offset = self._unit_at(keep - 1).end_offset
            else:
                self.max_offset = cut.base_offset if _is_written(cut) else self.min_offset
            if keep == first and self.max_offset:  # no other unit keeps the last queue offset
                filler = BatchUnit(0, FILLER_SIZE, 0, 0, self.max_offset - 1, 1).packed()
                self._files[0].map[:BATCH_UNIT_BYTES] = filler
                keep += 1
            jobs = self._cut_files(keep * BATCH_UNIT_BYTES)
            self._end_unit = keep
            self.min_offset = min(self.min_offset, self.max_offset)
        self.next_offset, self.seen_to, self.skipped_to = self.max_offset, 0, 0
        return jobs

    @property
    def _end_position(self) -> int:
        return self._end_unit * BATCH_UNIT_BYTES

    def expire(self, log_min_offset: int) -> list[MappedFile]:
        """As ConsumeQueue.expire()."""
        gone = self._take_old_files(log_min_offset)
        has_old = self.max_offset > self.min_offset and self.unit(self.min_offset)[0] < log_min_offset
        if gone or has_old:
            self.correct_min_offset(log_min_offset)
        return gone

    def cut_all(self) -> list[Job]:
        """As ConsumeQueue.cut_all()."""
        self._end_unit = 0
        return super().cut_all()


def _unpacked(data: bytes | mmap.mmap, at: int) -> BatchUnit:
    return BatchUnit(*BATCH_UNIT.unpack_from(data, at)[:6])


def _is_written(unit: BatchUnit) -> bool:
    return unit.log_offset >= 0 and unit.size > 0 and unit.base_offset >= 0 and unit.messages > 0
