"""The ConsumeQueue units of records that were healed, or that are lost.

A record that could not be dispatched because it was damaged has a filler, or no unit if the queue ended with
it. It gets its unit, by the rules of the dispatch. Units of lost records become fillers, which consumers
skip, as in the queues of a replica that copies the log from its beginning. Queues of batches
(queue.type=BatchCQ) have no fillers: a healed record gets its unit only at the end of its queue, units stay,
and reading one that points at a lost record fails.
"""

import logging
from collections.abc import Iterable, Iterator

from broker.healing.evidence import Placed
from broker.message.delay_levels import SCHEDULED_TOPICS
from broker.message.inner_batch import sys_flag_at
from broker.message.record import Parsed
from broker.store.message_store import MessageStore
from broker.store.queue.batch_queue import BatchQueue
from broker.store.queue.consume_queue import FILLER_SIZE, GAP_CODE, ConsumeQueue
from broker.store.queue.opening import how_to_repair

logger = logging.getLogger(__name__)

QUEUES_AT_ONCE = 64


def unit_of(store: MessageStore, topic: bytes, queue_id: int, number: int) -> tuple[int, int] | None:
    """Returns (CommitLog offset, size) of a queue's unit; None: it has none, or a filler."""
    queue = store.queues.find(topic.decode("utf-8", "replace"), queue_id)
    if queue is None or isinstance(queue, BatchQueue) or not queue.min_offset <= number < queue.max_offset:
        return None
    offset, size, _ = queue.unit(number)
    return None if size in (0, FILLER_SIZE) else (offset, size)


def restore_units(store: MessageStore, records: Iterable[Placed]) -> int:
    """Gives healed records the units that they lack. Returns how many. Logs each record that can get none.
    Records that are not dispatched yet are left to the dispatch; when they were scanned, their queues were
    not known. OSError: no room; it may be repeated."""
    count = 0
    for offset, parsed, _ in records:
        if not parsed[1]:
            continue
        sys_flag = sys_flag_at(store.commit_log.view(offset, parsed[0]), 0)
        if offset >= store.dispatch_offset:
            store.dispatcher.reserve(parsed, sys_flag, offset=offset)
        else:
            count += _restore_unit(store, offset, parsed, sys_flag)
    store.queues.wake()
    return count


def _restore_unit(store: MessageStore, offset: int, parsed: Parsed, sys_flag: int) -> bool:
    size, topic, queue_id, number, tags_code, stored, properties = parsed
    queue = store.queues.find(topic.decode("utf-8", "replace"), queue_id)
    if queue is None or not queue.max_offset:  # no record of it was dispatched
        queue = store.queues.of_record(parsed, sys_flag, store.dispatcher.on_queue)
    if queue is None:
        return False
    if number >= queue.max_offset:
        if offset >= queue.log_end_offset() and store.numbers.has_its_number(queue, parsed, offset):
            store.dispatcher.append_unit(queue, offset, parsed)
            return True
    elif not isinstance(queue, BatchQueue) and queue.has_filler(number):
        if queue.topic in SCHEDULED_TOPICS:
            tags_code = store.delay_levels.queue_code(queue.topic, properties, stored)
        store.rewrite_unit(queue, number, offset, size, tags_code)
        if number < queue.min_offset:  # a new master has begun this queue behind it
            queue.begin_with(number)
        return True
    elif number >= queue.min_offset and queue.unit(number)[:2] == (offset, size):
        return False
    logger.error(
        "the healed record at %d, message %d of %s/%d, gets no ConsumeQueue entry, because the queue has"
        " messages %d to %d, the last one in front of %d: consumers do not receive it from this broker. Next:"
        " %s",
        offset, number, queue.topic, queue_id, queue.min_offset, queue.max_offset - 1, queue.log_end_offset(),
        how_to_repair(queue.directory),
    )  # fmt: skip
    return False


def units_between(queue: ConsumeQueue, start: int, end: int) -> Iterator[int]:
    """Yields the numbers of the units whose records begin in the log's [start, end)."""
    low, high = queue.min_offset, queue.max_offset
    while low < high:
        middle = number = (low + high) // 2
        while number < high and queue.unit(number)[1] in (0, FILLER_SIZE):
            number += 1
        if number < high and queue.unit(number)[0] < start:
            low = number + 1
        else:
            high = middle
    for number in range(low, queue.max_offset):
        offset, size, _ = queue.unit(number)
        if size in (0, FILLER_SIZE):
            continue
        if offset >= end:
            return
        yield number


def give_up_units(store: MessageStore, queues: Iterable[ConsumeQueue], start: int, end: int) -> int:
    """Replaces the units of these queues whose records begin in the lost range by fillers. Returns how
    many."""
    count = 0
    for queue in queues:
        if isinstance(queue, BatchQueue):
            continue
        for number in list(units_between(queue, start, end)):
            store.rewrite_unit(queue, number, 0, FILLER_SIZE, GAP_CODE)
            count += 1
    return count
