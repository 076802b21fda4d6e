"""Reading a ConsumeQueue: which messages a pull gets, and what it is told otherwise.

Source: RocketMQ 5.3.3 DefaultMessageStore.getMessage.
"""

from enum import Enum
from typing import Final, NamedTuple

from broker.store.commit_log import CommitLog
from broker.store.consume_queue import ConsumeQueue

SCAN_UNITS_MIN: Final = 800  # looked at while filtering, at least (maxFilterMessageSize 16000 bytes of units)


class GetStatus(Enum):
    """Names as the peer spells them: they are the remark of a pull's answer."""

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
"""Of an offset that the queue does not have."""


class GetResult(NamedTuple):
    """views: the stored records, adjacent ones in one view; offsets count queue units."""

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
    """The first matching message is given whatever its size; tag_codes None: all match."""
    if queue is None:
        return GetResult(GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0, [])
    low, high = queue.min_offset, queue.max_offset
    if not low <= offset < high:
        return outside(offset, low, high)
    if tag_codes is None:
        result = _next_ones(log, queue, offset, max_nums, max_bytes)
        if result is not None:
            return result
    runs: list[tuple[int, int]] = []  # (start, end) in the log, adjacent records merged
    run_start = run_end = -1
    count = total = 0
    removed = False
    index = offset
    log_min = log.min_offset
    for log_offset, size, tags_code in queue.units(offset, max(SCAN_UNITS_MIN, max_nums)):
        if log_offset < log_min:
            removed = True  # also the filler of a queue that begins mid-way
        elif tag_codes is None or tags_code in tag_codes:
            if count and (count >= max_nums or total + size > max_bytes):
                break
            if log_offset != run_end:
                if run_end >= 0:
                    runs.append((run_start, run_end))
                run_start = log_offset
            run_end = log_offset + size
            count += 1
            total += size
        index += 1
    if count == 0:
        status = GetStatus.MESSAGE_WAS_REMOVING if removed else GetStatus.NO_MATCHED_MESSAGE
        return GetResult(status, index, low, high, [])
    runs.append((run_start, run_end))
    return GetResult(GetStatus.FOUND, index, low, high, log.views(runs), count, total)


def _next_ones(
    log: CommitLog, queue: ConsumeQueue, offset: int, max_nums: int, max_bytes: int
) -> GetResult | None:
    """The usual pull: all of the next units. None: too many bytes, or one has no record."""
    offsets, sizes, _ = zip(*queue.units(offset, max_nums), strict=True)
    total, begin = sum(sizes), offsets[0]
    if total > max_bytes or begin < log.min_offset:  # a filler's size is above every max_bytes
        return None
    runs: list[tuple[int, int]] = []
    end = offsets[-1] + sizes[-1]
    if end - begin != total:  # offsets ascend: else all of them are adjacent
        end = begin
        for log_offset, size in zip(offsets, sizes, strict=True):
            if log_offset != end:
                runs.append((begin, end))
                begin = log_offset
            end = log_offset + size
    runs.append((begin, end))
    return GetResult(
        GetStatus.FOUND,
        offset + len(sizes),
        queue.min_offset,
        queue.max_offset,
        log.views(runs),
        len(sizes),
        total,
    )


def outside(offset: int, low: int, high: int) -> GetResult:
    if high == 0:
        return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, low, high, [])
    if offset < low:
        return GetResult(GetStatus.OFFSET_TOO_SMALL, low, low, high, [])
    if offset == high:
        return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, low, high, [])
    return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, high, low, high, [])
