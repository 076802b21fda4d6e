"""Compares ConsumeQueue entries with the sound records that the scrub has read, and repairs them.

An entry whose tag code, offset or size a disk has changed is rewritten from its record. The scrub's thread
computes the expected entries, many records in one pass; entries are compared and written in the event loop's
thread, for STEP_US at a time.

An entry with another place is not changed if it may be right: it names a record of this queue and number that
was stored later, or one that has entries in more queues than its own (INNER_MULTI_DISPATCH, RocketMQ's light
topics). It is written only if the record lies between those of the entries around it. A record that has no
queue, or whose number the queue does not have (not dispatched, expired), is skipped. The code of a delayed
message depends on messageDelayLevel, so it is not compared.
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from broker.message.delay_levels import SCHEDULE_TOPIC, SCHEDULED_TOPICS
from broker.message.inner_batch import INNER_BATCH, message_count, sys_flag_at
from broker.message.record import Parsed, parse, property_value
from broker.message.record_scan import FIRST, QUEUE, UNITS, QueueScans, clear, new_queue_scan, scan_units
from broker.store.log.mapped_file import is_file_name
from broker.store.message_store import MessageStore
from broker.store.queue.batch_check import has_two_bases
from broker.store.queue.batch_queue import BatchQueue, BatchUnit
from broker.store.queue.consume_queue import FILLER_SIZE, UNIT, UNIT_BYTES, ConsumeQueue, Unit
from keelmq.runtime.clock import now_ms, now_us
from keelmq.runtime.rate_limited_log import RateLimitedLogger

logger = logging.getLogger(__name__)

STEP_US: Final = 2_000
"""How long a step blocks the event loop."""
RECORDS_PER_PASS: Final = 256
WINDOW_BYTES: Final = 64 << 10
ADJACENT_ENTRIES: Final = 256
"""Entries searched on each side for a right one: more than a page has."""
OTHER_QUEUES: Final = b"INNER_MULTI_DISPATCH"
EXTENDED_BELOW: Final = -(1 << 31)
"""A tags code below it is an address in RocketMQ's consumequeue_ext."""
_SCHEDULED: Final = frozenset(name.encode() for name in SCHEDULED_TOPICS)


class ExpectedUnits(NamedTuple):
    """Packed units that a queue must have from the number `first` on. Without units: the record at `offset`
    must be parsed."""

    topic: bytes
    queue_id: int
    first: int
    units: bytes
    offset: int = -1


def expected_units(data: bytes, offset: int, queue_scans: QueueScans) -> Iterator[ExpectedUnits]:
    """Yields the expected entries of the records in `data`, whole ones that begin at the CommitLog offset
    `offset`; any thread. queue_scans: of this reader alone, empty at first."""
    at = 0
    while at < len(data):
        window = data[at : at + WINDOW_BYTES]
        found = scan_units(window, offset + at, RECORDS_PER_PASS, queue_scans, None, check_crc=False)
        for queue_scan in found.queue_scans:
            topic, queue_id = queue_scan[QUEUE]
            yield ExpectedUnits(topic, queue_id, queue_scan[FIRST], bytes(queue_scan[UNITS]))
            clear(queue_scan)
        at = found.end - offset
        if found.records or at >= len(data):
            continue
        parsed = parse(data, at, len(data), offset=offset + at)
        if parsed is None:
            return  # it was changed meanwhile: a cut, or a heal
        size, topic, queue_id, number, code, *_ = parsed
        if topic and (sys_flag_at(data, at) & INNER_BATCH or topic in _SCHEDULED):
            yield ExpectedUnits(topic, queue_id, number, b"", offset + at)
        elif topic:  # the first one of its queue, or a long one
            queue_scans.setdefault(topic, {})[queue_id] = new_queue_scan((topic, queue_id), 0, is_plain=True)
            yield ExpectedUnits(topic, queue_id, number, UNIT.pack(offset + at, size, code))
        at += size


class EntryCheck:
    """Owned by the event loop's thread. rewritten: entries, since the start."""

    def __init__(self, store: MessageStore) -> None:
        self.rewritten = 0
        self._store = store
        self._has_extended = (store.root / "consumequeue_ext").exists()
        self._log = RateLimitedLogger(logger)
        self._failures = RateLimitedLogger(logger, level=logging.ERROR)

    async def compare(self, expected: Sequence[ExpectedUnits], cuts: int) -> None:
        """Compares entries, and rewrites wrong ones. cuts: the store's cut_count when the records were read;
        stops once it has changed."""
        store, began = self._store, now_us()
        for _ in self._steps(expected):
            if now_us() - began >= STEP_US:
                await asyncio.sleep(0)
                if store.cutter.is_cutting or store.cutter.cut_count != cuts:
                    return
                began = now_us()

    def _steps(self, expected: Sequence[ExpectedUnits]) -> Iterator[None]:
        """Yields after each small piece of work."""
        for topic, queue_id, first, units, offset in expected:
            yield
            name = topic.decode("utf-8", "replace")
            queue = self._store.queues.find(name, queue_id) if is_file_name(name) else None
            if queue is None:
                continue
            if isinstance(queue, BatchQueue):
                offsets = [each[0] for each in UNIT.iter_unpack(units)] if units else [offset]
                for each in offsets:
                    self._compare_batch(queue, each)
                    yield
            elif not units:
                if queue.min_offset <= first < queue.max_offset:
                    self.judge(queue, first, offset)
            else:
                yield from self._compare_units(queue, first, units)

    def _compare_units(self, queue: ConsumeQueue, first: int, units: bytes) -> Iterator[None]:
        number, end = max(first, queue.min_offset), first + len(units) // UNIT_BYTES
        while number < (end := min(end, queue.max_offset)):
            found = bytes(queue.raw(number, end - number))
            at = (number - first) * UNIT_BYTES
            if found == units[at : at + len(found)]:
                number += len(found) // UNIT_BYTES
                continue
            for pos in range(0, len(found), UNIT_BYTES):
                expected = units[at + pos : at + pos + UNIT_BYTES]
                if (
                    found[pos : pos + UNIT_BYTES] != expected
                    and queue.min_offset <= number < queue.max_offset
                ):
                    self.judge(queue, number, UNIT.unpack(expected)[0])
                    yield
                number += 1

    # -- one entry ---------------------------------------------------------------------------------------

    def _parsed(self, offset: int) -> Parsed | None:
        """Returns the whole record of the log that begins there; None: there is none."""
        log = self._store.commit_log
        if not log.min_offset <= offset < self._store.dispatch_offset:
            return None
        view = log.view(offset, log.file_bytes)
        return parse(view, 0, len(view), offset=offset)

    def judge(self, queue: ConsumeQueue, number: int, offset: int) -> None:
        """Rewrites the entry `number` if it is proved to contradict its record, which is at `offset`."""
        parsed = self._parsed(offset)
        if parsed is None or not parsed[1]:
            return
        size, _, _, _, tags_code, stored, properties = parsed
        code, found = tags_code, queue.unit(number)
        is_sure = properties.count(b"TAGS\x01") < 2
        if queue.topic in SCHEDULED_TOPICS:
            code = self._store.delay_levels.queue_code(queue.topic, properties, stored)
            is_sure = queue.topic != SCHEDULE_TOPIC
        if found[:2] == (offset, size):
            is_address = self._has_extended and found[2] < EXTENDED_BELOW
            if found[2] in (code, tags_code) or is_address or not is_sure:  # of a timer: RocketMQ's unit
                return
        elif self._may_be_right(queue, number, found, offset) or not self._fits(queue, number, offset, size):
            return
        try:
            self._store.rewrite_unit(queue, number, offset, size, code)
        except OSError as error:
            self._failures.tell(now_ms(), "an entry of %s cannot be rewritten: %s", queue.directory, error)
            return
        self._count(queue, number, found, (offset, size, code))

    def _may_be_right(self, queue: ConsumeQueue, number: int, found: Unit, offset: int) -> bool:
        """Whether an entry with another place than `offset` may be right."""
        its_offset, its_size, _ = found
        parsed = self._parsed(its_offset) if its_size not in (0, FILLER_SIZE) else None
        if parsed is None or parsed[0] != its_size:
            return False
        if _is_of(queue, number, parsed):
            return its_offset > offset
        others = property_value(parsed[6], OTHER_QUEUES) or b""
        return queue.topic.encode() in others.split(b",")

    def _fits(self, queue: ConsumeQueue, number: int, offset: int, size: int) -> bool:
        """Whether the record lies between those of the next right entries on both sides."""
        behind = self._right_one(
            queue, range(number + 1, min(number + 1 + ADJACENT_ENTRIES, queue.max_offset))
        )
        low = max(number - ADJACENT_ENTRIES, queue.min_offset)
        before = self._right_one(queue, range(number - 1, low - 1, -1))
        return (before is None or sum(before) <= offset) and (behind is None or offset + size <= behind[0])

    def _right_one(self, queue: ConsumeQueue, numbers: range) -> tuple[int, int] | None:
        """Returns (CommitLog offset, size) of the first entry that names a record of its queue and number."""
        for number in numbers:
            offset, size, _ = queue.unit(number)
            if size not in (0, FILLER_SIZE):
                parsed = self._parsed(offset)
                if parsed is not None and parsed[0] == size and _is_of(queue, number, parsed):
                    return offset, size
        return None

    def _count(self, queue: ConsumeQueue, number: int, found: object, written: object) -> None:
        self.rewritten += 1
        text = "the entry %d of the ConsumeQueue %s/%d was damaged: %s instead of %s; it is rewritten"
        self._log.tell(now_ms(), text, number, queue.topic, queue.queue_id, found, written)

    # -- queues of batches -------------------------------------------------------------------------------

    def _compare_batch(self, queue: BatchQueue, offset: int) -> None:
        """As judge(), for the unit of the record at `offset`, which is found by its place."""
        parsed = self._parsed(offset)
        if parsed is None or not parsed[1]:
            return
        size, _, _, base, code, stored, properties = parsed
        if has_two_bases(parsed):
            text = f"its QUEUEOFFSET {base} is not that of INNER_BASE"
            self._store.damage.add(offset, offset + size, text)
            return
        unit = BatchUnit(offset, size, code, stored, base, message_count(properties))
        if not queue.min_offset <= base < queue.max_offset:
            return
        number = queue.wrong_unit(unit, is_code_sure=properties.count(b"TAGS\x01") < 2)
        if number is None:
            return
        try:
            found = queue.rewrite_batch(number, unit)
        except OSError as error:
            self._failures.tell(now_ms(), "an entry of %s cannot be rewritten: %s", queue.directory, error)
            return
        self._store.unit_rewritten(queue)
        queue.correct_min_offset(self._store.commit_log.min_offset)
        self._count(queue, number, tuple(found), tuple(unit))


def _is_of(queue: ConsumeQueue, number: int, parsed: Parsed) -> bool:
    return parsed[2:4] == (queue.queue_id, number) and parsed[1].decode("utf-8", "replace") == queue.topic
