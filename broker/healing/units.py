"""The ConsumeQueue units of records that were healed, or that are lost.

A record that could not be dispatched because it was damaged has a filler, or no unit if the queue ended with
it. It gets its unit, by the rules of the dispatch. Units of lost records become fillers, which consumers
skip, as in the queues of a replica that copies the log from its beginning. Queues of batches
(queue.type=BatchCQ) have no fillers: a healed record gets its unit only at the end of its queue, units stay,
and reading one that points at a lost record fails.
"""

from collections.abc import Iterable, Iterator

from broker.healing.evidence import Pairs, Placed
from broker.message.delay_levels import SCHEDULED_TOPICS
from broker.message.inner_batch import sys_flag_at
from broker.message.record import HEADER_BYTES
from broker.store.dispatching import has_its_number
from broker.store.message_store import MessageStore
from broker.store.queue.batch_queue import BatchQueue
from broker.store.queue.consume_queue import FILLER_SIZE, GAP_CODE, ConsumeQueue
from broker.store.unread_numbers import PARSED_BYTES_MAX

QUEUES_AT_ONCE = 64
GAP_MAX = PARSED_BYTES_MAX // HEADER_BYTES
"""Queue offsets that a healed record may be ahead of its queue."""


def unit_of(store: MessageStore, topic: bytes, queue_id: int, number: int) -> tuple[int, int] | None:
    """Returns (CommitLog offset, size) of a queue's unit; None: it has none, or a filler."""
    queue = store.queues.find(topic.decode("utf-8", "replace"), queue_id)
    if queue is None or isinstance(queue, BatchQueue) or not queue.min_offset <= number < queue.max_offset:
        return None
    offset, size, _ = queue.unit(number)
    return None if size in (0, FILLER_SIZE) else (offset, size)


def restore_units(store: MessageStore, records: Iterable[Placed], epochs: Pairs = ()) -> int:
    """Gives healed records the units that they lack. Returns how many. epochs: those that cover the records.
    Records that are not dispatched yet are left to the dispatch; when they were scanned, their queues were
    not known. OSError: no room; it may be repeated."""
    count = 0
    for offset, parsed, _ in records:
        size, topic, queue_id, number, tags_code, stored, properties = parsed
        if not topic:
            continue
        dispatcher, sys_flag = store.dispatcher, sys_flag_at(store.commit_log.view(offset, size), 0)
        if offset >= store.dispatch_offset:
            dispatcher.reserve(parsed, sys_flag, offset=offset)
            continue
        queue = store.queues.find(topic.decode("utf-8", "replace"), queue_id)
        if queue is None or not queue.max_offset:  # no record of it was dispatched
            queue = store.queues.of_record(parsed, sys_flag, dispatcher.on_queue)
        if queue is None:
            continue
        if queue.topic in SCHEDULED_TOPICS:
            tags_code = store.delay_levels.queue_code(queue.topic, properties, stored)
        if number < queue.max_offset:
            if not isinstance(queue, BatchQueue) and queue.has_filler(number):
                store.rewrite_unit(queue, number, offset, size, tags_code)
                if number < queue.min_offset:  # a new master has begun this queue behind it
                    queue.begin_with(number)
                count += 1
        elif offset >= queue.log_end_offset() and (
            has_its_number(queue, parsed, offset) or _is_behind_gap(queue, number, offset, epochs)
        ):
            dispatcher.append_unit(queue, offset, parsed)
            count += 1
    store.queues.wake()
    return count


def _is_behind_gap(queue: ConsumeQueue, number: int, offset: int, epochs: Pairs) -> bool:
    """Whether a new master may have left out queue offsets in front of this record (UnreadNumbers): it is the
    first one of its queue in its masterEpoch."""
    term = max((start for _, start in epochs if start <= offset), default=-1)
    is_plain = not isinstance(queue, BatchQueue)
    return is_plain and number - queue.max_offset <= GAP_MAX and queue.log_end_offset() <= term


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
