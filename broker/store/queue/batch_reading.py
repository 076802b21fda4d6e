"""Reads a BatchQueue: a pull gets whole records, also if it asks for a message in the middle of one.

max_nums counts messages; the first matching record is returned with any number of messages. Source: RocketMQ
5.3.3 DefaultMessageStore.getMessage, isTheBatchFull.
"""

from collections.abc import Iterable
from itertools import islice

from broker.message.inner_batch import NEED_UNWRAP, sys_flag_at
from broker.message.record import HEADER_BYTES
from broker.store.log.commit_log import CommitLog
from broker.store.queue.batch_check import is_right, names_its_record
from broker.store.queue.batch_queue import BatchQueue, BatchUnit
from broker.store.queue.reading import SCAN_UNITS_MIN, GetResult, GetStatus, outside, whole_views


def read_batch_queue(
    log: CommitLog,
    queue: BatchQueue,
    offset: int,
    max_nums: int,
    max_bytes: int,
    tag_codes: frozenset[int] | None,
) -> GetResult:
    """As reading.read_queue(), and raises the same. A batch that has no tag itself passes any tag_codes: its
    messages have tags, and the consumer filters by them when it has split the batch."""
    low, high = queue.min_offset, queue.max_offset
    if not low <= offset < high:
        return outside(offset, low, high)
    found: list[BatchUnit] = []
    count = total = 0
    removed = False
    next_offset, before = offset, queue.unit_in_front(offset)
    for unit in islice(queue.records(offset), max(SCAN_UNITS_MIN, max_nums) + 1):
        if (wrong := _wrong_unit(log, before, unit, next_offset)) is not None:
            if wrong is before and next_offset == wrong.end_offset:  # it names other messages than it has
                next_offset = max(offset, wrong.base_offset)
                if found and found[-1] is wrong:
                    found.pop()
                    count, total = count - wrong.messages, total - wrong.size
            if next_offset > offset:
                break  # records in front of the damage are good
            raise ValueError(f"a unit does not say what its record does: {wrong}")
        if not next_offset < unit.end_offset <= high:
            if found:
                break
            raise ValueError(f"a unit is not in the order of the queue: {unit}")
        if unit.log_offset < log.min_offset:
            removed = True  # also a filler
        elif not _follows(unit, found, log.max_offset):
            if found:
                break
            raise ValueError(f"a unit is not in the log, or not in its order: {unit}")
        elif is_wanted(log, unit, tag_codes):
            if found and (count + unit.messages > max_nums or total + unit.size > max_bytes):
                break
            found.append(unit)
            count += unit.messages
            total += unit.size
        next_offset, before = unit.end_offset, unit
    if next_offset == offset:
        raise ValueError(f"its units have no message {offset}, which is not in the order of the queue")
    if not found:
        status = GetStatus.MESSAGE_WAS_REMOVING if removed else GetStatus.NO_MATCHED_MESSAGE
        return GetResult(status, next_offset, low, high, [])
    views = whole_views(log, _ranges(found), total)
    return GetResult(GetStatus.FOUND, next_offset, low, high, views, count, total)


def _wrong_unit(
    log: CommitLog, before: BatchUnit | None, unit: BatchUnit, next_offset: int
) -> BatchUnit | None:
    """Returns this unit or the one in front of it if it contradicts its record: a consumer that continues
    from next_offset would miss messages."""
    if not names_its_record(log, unit):
        return unit
    is_gap = unit.base_offset > next_offset or (before is not None and before.end_offset > unit.base_offset)
    return before if is_gap and before is not None and not is_right(log, before) else None


def _follows(unit: BatchUnit, found: list[BatchUnit], log_end: int) -> bool:
    begin = found[-1].log_offset + found[-1].size if found else 0
    return unit.size > 0 and begin <= unit.log_offset and unit.log_offset + unit.size <= log_end


def is_wanted(log: CommitLog, unit: BatchUnit, tag_codes: frozenset[int] | None) -> bool:
    """Whether a pull with these tag_codes gets the record."""
    if tag_codes is None or unit.tags_code in tag_codes:
        return True
    header = log.view(unit.log_offset, HEADER_BYTES)
    if unit.tags_code or len(header) < HEADER_BYTES:
        return False
    return bool(sys_flag_at(header, 0) & NEED_UNWRAP)


def _ranges(units: Iterable[BatchUnit]) -> list[tuple[int, int]]:
    """Returns the ranges (start, end) of the records in the CommitLog, adjacent ones merged."""
    ranges: list[tuple[int, int]] = []
    for unit in units:
        end = unit.log_offset + unit.size
        if ranges and ranges[-1][1] == unit.log_offset:
            ranges[-1] = (ranges[-1][0], end)
        else:
            ranges.append((unit.log_offset, end))
    return ranges
