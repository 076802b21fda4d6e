"""Reads a ConsumeQueue for a pull: the matching messages, or a status with the reason why there are none.

Source: RocketMQ 5.3.3 DefaultMessageStore.getMessage.
"""

import struct
from enum import Enum
from typing import Final, NamedTuple

from broker.message.record import HEADER_BYTES, MAGIC_V1, MAGIC_V2
from broker.store.log.commit_log import CommitLog
from broker.store.queue.consume_queue import FILLER_SIZE, ConsumeQueue
from broker.store.queue.unit_ranges import Ranges, copied, joined, next_records, ranges_of

SCAN_UNITS_MIN: Final = 800
"""Units that a filtered pull may scan at least (maxFilterMessageSize: 16000 bytes of units)."""
VIEWS_MAX: Final = 8
VIEW_BYTES_MIN: Final = 4_096
"""See _should_copy()."""
_PLACE = struct.Struct(">iI4xi4xq")
"""TOTALSIZE, MAGICCODE, QUEUEID and QUEUEOFFSET of a record."""


class DamagedQueueError(Exception):
    """A ConsumeQueue names records that the log does not have."""


class GetStatus(Enum):
    """The names are RocketMQ's, since they are the remark of a pull's response."""

    FOUND = 0
    NO_MATCHED_MESSAGE = 1
    MESSAGE_WAS_REMOVING = 2
    OFFSET_FOUND_NULL = 3
    OFFSET_OVERFLOW_BADLY = 4
    OFFSET_OVERFLOW_ONE = 5
    OFFSET_TOO_SMALL = 6
    NO_MATCHED_LOGIC_QUEUE = 7
    NO_MESSAGE_IN_QUEUE = 8
    OFFSET_RESET = 9


OUTSIDE: Final = frozenset(
    {
        GetStatus.NO_MATCHED_LOGIC_QUEUE,
        GetStatus.NO_MESSAGE_IN_QUEUE,
        GetStatus.OFFSET_TOO_SMALL,
        GetStatus.OFFSET_OVERFLOW_BADLY,
    }
)
"""Statuses of an offset that the queue does not have."""


class GetResult(NamedTuple):
    """views: the stored records, adjacent ones in one view, or all in one copy. The three offsets are queue
    offsets. body_bytes: size of the views."""

    status: GetStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    views: list[memoryview]
    message_count: int = 0
    body_bytes: int = 0


def read_queue(
    log: CommitLog,
    queue: ConsumeQueue | None,
    offset: int,
    max_nums: int,
    max_bytes: int,
    tag_codes: frozenset[int] | None,
) -> GetResult:
    """Reads at most max_nums messages and max_bytes bytes from the queue offset on. The first matching
    message is returned at any size. queue: None if it does not exist. tag_codes: None if all messages match.
    ValueError: the queue is damaged."""
    if queue is None:
        return GetResult(GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0, [])
    low, high = queue.min_offset, queue.max_offset
    if not low <= offset < high:
        return outside(offset, low, high)
    if tag_codes is None:
        result = _next_ones(log, queue, offset, max_nums, max_bytes)
        if result is not None:
            return result
    ranges: Ranges = []  # adjacent records merged
    range_start = range_end = -1
    count = total = 0
    removed = False
    index = offset
    log_min = log.min_offset
    for log_offset, size, tags_code in queue.units(offset, max(SCAN_UNITS_MIN, max_nums)):
        if size > 0 and (log_offset < log_min or size == FILLER_SIZE):
            removed = True
        elif size <= 0 or tag_codes is None or tags_code in tag_codes:  # size 0: it is lost, with its tag
            if count and (count >= max_nums or total + size > max_bytes):
                break
            if size <= 0 or log_offset < range_end or log_offset + size > log.max_offset:
                if count:
                    break  # records in front of the damage are good
                raise ValueError(f"{size} bytes at {log_offset} are not in the log, or not in its order")
            if log_offset != range_end:
                if count:
                    ranges.append((range_start, range_end))
                range_start = log_offset
            range_end = log_offset + size
            count += 1
            total += size
        index += 1
    if count == 0:
        status = GetStatus.MESSAGE_WAS_REMOVING if removed else GetStatus.NO_MATCHED_MESSAGE
        return GetResult(status, index, low, high, [])
    ranges.append((range_start, range_end))
    return GetResult(GetStatus.FOUND, index, low, high, whole_views(log, ranges, total), count, total)


def _next_ones(
    log: CommitLog, queue: ConsumeQueue, offset: int, max_nums: int, max_bytes: int
) -> GetResult | None:
    """The usual pull without a filter: all of the next units. None: they have too many bytes, or one has no
    record, or is damaged."""
    units = bytes(queue.raw(offset, max_nums))
    found = next_records(units, max_bytes, log.min_offset)
    if found is None:
        return None
    count, total, begin, end, runs = found
    if end > log.max_offset:
        return None
    piece = log.view(begin, end - begin)
    is_whole = len(piece) == end - begin  # else they are in several files
    if is_whole and runs == 1:
        views = [piece]
    elif is_whole and _should_copy(runs, total):
        views = [memoryview(copied(piece, begin, units))]
    else:
        views = whole_views(log, ranges_of(units), total)
    low, high = queue.min_offset, queue.max_offset
    return GetResult(GetStatus.FOUND, offset + count, low, high, views, count, total)


def whole_views(log: CommitLog, ranges: Ranges, total: int) -> list[memoryview]:
    """Returns the bytes of the ranges; those of many or short ones as one copy. ValueError: the log does not
    have all of them, so the queue is damaged."""
    count = len(ranges)
    if count > 1 and _should_copy(count, total):
        begin, end = ranges[0][0], ranges[-1][1]
        piece = log.view(begin, end - begin)
        if len(piece) == end - begin:  # of one file
            return [memoryview(joined(piece, begin, ranges))]
    views = log.views(ranges)
    if sum(map(len, views)) != total:
        raise ValueError(f"the queue has records that are not in the log: {ranges}")
    return views


def _should_copy(pieces: int, total: int) -> bool:
    """Returns whether pieces with this many bytes in all are cheaper to copy than to send as they are."""
    return pieces > VIEWS_MAX or total < VIEW_BYTES_MIN * pieces


def check_records(result: GetResult, queue_id: int, offset: int) -> None:
    """Raises ValueError unless the views are that many whole records of this queue, from `offset` on: it is
    damaged."""
    count, before = 0, offset - 1
    for view in result.views:
        at, end = 0, len(view)
        while at < end:
            if end - at <= HEADER_BYTES:
                raise ValueError("it names bytes that are not in a record")
            size, magic, found_id, queue_offset = _PLACE.unpack_from(view, at)
            if magic not in (MAGIC_V1, MAGIC_V2) or not HEADER_BYTES < size <= end - at:
                raise ValueError(f"it names bytes that are not in a record: size {size}, magic {magic:#x}")
            if found_id != queue_id or not before < queue_offset < result.next_begin_offset:
                raise ValueError(f"it names message {queue_offset} of a queue {found_id}, which is not in it")
            before = queue_offset
            at += size
            count += 1
    if count != result.message_count:
        raise ValueError(f"it names {result.message_count} records that are {count}, not in their places")


def outside(offset: int, low: int, high: int) -> GetResult:
    """The result for a queue offset that is not in low..high - 1."""
    if high == 0:
        return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, low, high, [])
    if offset < low:
        return GetResult(GetStatus.OFFSET_TOO_SMALL, low, low, high, [])
    if offset == high:
        return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, low, high, [])
    return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, high, low, high, [])
