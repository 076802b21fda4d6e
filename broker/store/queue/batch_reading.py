"""Reading a BatchQueue: whole records for a pull, also where it asks for a message in the middle of one.

max_nums counts messages; the first matching record is given whatever it has. Source: RocketMQ 5.3.3
DefaultMessageStore.getMessage, isTheBatchFull.
"""

from collections.abc import Iterable
from itertools import islice

from broker.store.batch_queue import BatchQueue, BatchUnit
from broker.store.commit_log import CommitLog
from broker.store.inner_batch import NEED_UNWRAP, sys_flag_at
from broker.store.reading import SCAN_UNITS_MIN, GetResult, GetStatus, outside
from broker.store.record import HEADER_BYTES


def read_batch_queue(
    log: CommitLog,
    queue: BatchQueue,
    offset: int,
    max_nums: int,
    max_bytes: int,
    tag_codes: frozenset[int] | None,
) -> GetResult:
    """As reading.read_queue(); tag_codes let every batch pass that has no tag itself: the tags are its
    messages', and the consumer looks at them when it has taken the batch apart."""
    low, high = queue.min_offset, queue.max_offset
    if not low <= offset < high:
        return outside(offset, low, high)
    found: list[BatchUnit] = []
    count = total = 0
    removed = False
    next_offset = offset
    for unit in islice(queue.records(offset), max(SCAN_UNITS_MIN, max_nums)):
        if unit.log_offset < log.min_offset:
            removed = True  # also a filler
        elif _is_wanted(log, unit, tag_codes):
            if found and (count + unit.messages > max_nums or total + unit.size > max_bytes):
                break
            found.append(unit)
            count += unit.messages
            total += unit.size
        next_offset = unit.end_offset
    if not found:
        status = GetStatus.MESSAGE_WAS_REMOVING if removed else GetStatus.NO_MATCHED_MESSAGE
        return GetResult(status, next_offset, low, high, [])
    views = log.views(_runs(found))
    return GetResult(GetStatus.FOUND, next_offset, low, high, views, count, total)


def _is_wanted(log: CommitLog, unit: BatchUnit, tag_codes: frozenset[int] | None) -> bool:
    if tag_codes is None or unit.tags_code in tag_codes:
        return True
    return not unit.tags_code and bool(sys_flag_at(log.view(unit.log_offset, HEADER_BYTES), 0) & NEED_UNWRAP)


def _runs(units: Iterable[BatchUnit]) -> list[tuple[int, int]]:
    """(start, end) in the log, adjacent records merged."""
    runs: list[tuple[int, int]] = []
    for unit in units:
        end = unit.log_offset + unit.size
        if runs and runs[-1][1] == unit.log_offset:
            runs[-1] = (runs[-1][0], end)
        else:
            runs.append((unit.log_offset, end))
    return runs
