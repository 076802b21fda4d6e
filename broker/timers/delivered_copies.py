"""Finds in the log which delayed messages were delivered, for a level whose offset is lost.

A delivered message has a copy in its real queue, which is stored after the message was due. Messages of a
level are delivered in the order of their queue, so one copy proves that all messages in front were
delivered. Only a copy that is found counts: if it was deleted, or is further away than SCAN_MAX messages,
messages are delivered again, and none is skipped.
"""

from collections.abc import Callable, Generator
from typing import Final

import msgspec

from broker.message.record import Record, decode, property_value
from broker.put.real_queue import real_queue
from broker.store.message_store import MessageStore
from broker.store.querying import header_of, offset_by_time
from broker.store.queue.consume_queue import ConsumeQueue

SCAN_MAX: Final = 1_024
"""Messages of the real queue that are compared for one delayed message, some 3 ms."""
ORDERED: Final = 16
"""This many consecutive messages must have copies in the same order: a producer that repeats a send stores
two equal delayed messages, and the copy of the first one is not one of the second."""
BY_TIME: Final = 32
"""Messages that a search by time reads."""
STEPS_MAX: Final = 256
"""Messages in which such a sequence is searched."""
_BORN_AT: Final = slice(40, 48)


class DelayedUnit(msgspec.Struct, frozen=True):
    """A message in the queue of its level: log offset, size, and when it is due (ms)."""

    log_offset: int
    size: int
    due_ms: int


def first_undelivered(
    store: MessageStore,
    queue: ConsumeQueue,
    *,
    now_ms: int,
    record_of: Callable[[int, int], Record | None],
) -> Generator[int, None, int]:
    """Returns a queue offset of a level: the messages in front of it were delivered. It is the lowest one if
    no copy is found. Yields how many messages were read since the last time, SCAN_MAX and a few at most.
    record_of: (log offset, size) -> the record; None: it cannot be read."""
    looks = 0

    def copy_of(at: int) -> int | None:
        nonlocal looks
        unit = DelayedUnit(*queue.unit(at))
        if unit.due_ms > now_ms:
            looks = 1
            return None
        copy, looks = _copy_offset(store, unit, record_of)
        return copy

    low, high = queue.min_offset, queue.max_offset
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if copy_of(middle) is not None else (low, middle)
        yield looks
    end, at, behind, ordered = low, low - 1, None, 0
    for _ in range(STEPS_MAX):
        if at < queue.min_offset or ordered == ORDERED:
            return end
        copy = copy_of(at)
        if copy is None or (behind is not None and copy >= behind):
            end, behind, ordered = at, None, 0
        else:
            behind, ordered = copy, ordered + 1
        at -= 1
        yield looks
    return queue.min_offset


def _copy_offset(
    store: MessageStore, unit: DelayedUnit, record_of: Callable[[int, int], Record | None]
) -> tuple[int | None, int]:
    """Returns the log offset of the copy, or None if none was found; and how many messages were read."""
    delayed = record_of(unit.log_offset, unit.size)
    where = None if delayed is None else real_queue(delayed.properties)
    queue = None if where is None else store.find_queue(*where)
    if delayed is None or where is None or queue is None:
        return None, 1
    born = delayed.born_timestamp.to_bytes(8, "big", signed=True)
    start = max(offset_by_time(store, *where, unit.due_ms, upper=False), queue.min_offset)
    at = start
    for at in range(start, min(start + SCAN_MAX, queue.max_offset)):
        header = header_of(store.commit_log, queue, at)
        if header is None or header[_BORN_AT] != born:
            continue
        log_offset, size, _ = queue.unit(at)
        view = store.commit_log.view(log_offset, size)
        if len(view) == size and log_offset > delayed.offset and _is_copy(delayed, decode(view)):
            return log_offset, at - start + BY_TIME
    return None, at - start + BY_TIME


def _is_copy(delayed: Record, record: Record) -> bool:
    return (
        record.body == delayed.body
        and (record.born_timestamp, record.born_host) == (delayed.born_timestamp, delayed.born_host)
        and (record.flag, record.reconsume_times) == (delayed.flag, delayed.reconsume_times)
        and property_value(record.properties, b"UNIQ_KEY") == property_value(delayed.properties, b"UNIQ_KEY")
    )
