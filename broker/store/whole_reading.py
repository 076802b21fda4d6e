"""Removes damaged records from the result of a pull or pop: those in front of the first one are delivered.

Reading a damaged record as the first one is an error until it is healed, or replaced by a lost record.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

from broker.message.record_check import all_good
from broker.store.damage import DamagedRange
from broker.store.log.commit_log import CommitLog
from broker.store.log_check import LogCheck
from broker.store.queue.batch_queue import BatchQueue
from broker.store.queue.batch_reading import is_wanted
from broker.store.queue.consume_queue import FILLER_SIZE, UNIT_BYTES, ConsumeQueue
from broker.store.queue.reading import DamagedQueueError, GetResult
from keelmq.remoting.damage_remarks import DamagedMessage, message_remark, record_remark

UNITS_AT_ONCE = 1_024


class DamagedRecordError(DamagedQueueError):
    """A record failed its checksum. range: the damaged part of the log."""

    def __init__(self, text: str, damage: DamagedRange) -> None:
        super().__init__(text)
        self.range = damage


class _Named(NamedTuple):
    """A record that a queue names. queue_offset: of its first message; next_offset: behind its last one."""

    queue_offset: int
    next_offset: int
    start: int
    end: int


def whole_part(
    check: LogCheck,
    log: CommitLog,
    queue: ConsumeQueue,
    result: GetResult,
    *,
    offset: int,
    tag_codes: frozenset[int] | None,
    read: Callable[[int], GetResult],
) -> GetResult:
    """Returns the result, which was read from the queue offset on, if its records are whole. Otherwise those
    in front of the first damaged one: read(n) reads n messages from `offset` on. Raises DamagedRecordError if
    there are none, ValueError if the queue is damaged."""
    if tag_codes is None and _are_whole(check, log, queue, offset, result.next_begin_offset):
        return result
    named = list(_named(log, queue, offset, result.next_begin_offset, tag_codes))
    found = _first_damaged(check, log, named)
    if found is None:
        return result
    number, damage = found
    if number:
        return read(sum([each.next_offset - each.queue_offset for each in named[:number]]))
    first, behind = named[0].queue_offset, named[0].next_offset
    message = DamagedMessage(
        queue.topic, queue.queue_id, first, behind, damage.start, damage.end, damage.reason
    )
    raise DamagedRecordError(message_remark(message), damage)


def check_record(check: LogCheck, start: int, size: int) -> None:
    """Raises DamagedRecordError if the record of `size` bytes at `start` is damaged, and ValueError if it has
    another size."""
    damage = check.first_bad(start, start + size)
    if damage is not None:
        text = record_remark(f"the record at {start}", damage.start, damage.end, damage.reason)
        raise DamagedRecordError(text, damage)


def _are_whole(check: LogCheck, log: CommitLog, queue: ConsumeQueue, begin: int, end: int) -> bool:
    """Whether all units name whole records in one file of the log: the usual case, in compiled code."""
    if isinstance(queue, BatchQueue):
        return False
    units = bytes(queue.raw(begin, end - begin))
    if len(units) != (end - begin) * UNIT_BYTES:
        return False
    first, last, size = queue.unit(begin)[0], *queue.unit(end - 1)[:2]
    if check.is_damaged(first, last + size):
        return False
    view = log.view(first, last + size - first)
    return len(view) == last + size - first and all_good(view, first, units)


def _named(
    log: CommitLog, queue: ConsumeQueue, begin: int, end: int, tag_codes: frozenset[int] | None
) -> Iterator[_Named]:
    """The records from one queue offset to another that read_queue() and read_batch_queue() return."""
    if isinstance(queue, BatchQueue):
        for unit in islice(queue.records(begin), max(end - begin, 0)):
            if unit.end_offset > end:
                return
            if unit.log_offset >= log.min_offset and is_wanted(log, unit, tag_codes):
                first = unit.end_offset - unit.messages
                yield _Named(first, unit.end_offset, unit.log_offset, unit.log_offset + unit.size)
        return
    while begin < end:
        before = begin
        for start, size, code in queue.units(begin, min(end - begin, UNITS_AT_ONCE)):
            if start >= log.min_offset and size != FILLER_SIZE and (tag_codes is None or code in tag_codes):
                yield _Named(begin, begin + 1, start, start + size)
            begin += 1
        if begin == before:
            return


def _first_damaged(check: LogCheck, log: CommitLog, named: list[_Named]) -> tuple[int, DamagedRange] | None:
    """Returns the place of the first damaged record, and the range. Adjacent records are checked at once."""
    first = 0
    while first < len(named):
        last, limit = first, named[first].start - named[first].start % log.file_bytes + log.file_bytes
        while last + 1 < len(named) and named[last + 1].start == named[last].end < limit:
            last += 1
        damage = check.first_bad(named[first].start, named[last].end)
        if damage is not None:
            return next(n for n in range(first, last + 1) if named[n].end > damage.start), damage
        first = last + 1
    return None
