"""Questions about stored messages that do not go along a queue: one record, a key, a time.

Only what consumers may read is found. Source: RocketMQ 5.3.3 DefaultMessageStore.queryMessage,
ConsumeQueue.getOffsetInQueueByTime.
"""

from typing import Final

from broker.store.commit_log import CommitLog
from broker.store.consume_queue import FILLER_SIZE, ConsumeQueue
from broker.store.inner_batch import keys_of, split
from broker.store.message_store import MessageStore
from broker.store.record import decode, encode, index_keys, java_hash, parse, store_timestamp

_HEADER_BYTES: Final = 88  # no record is shorter


def record_at(store: MessageStore, offset: int) -> memoryview | None:
    """The whole record that begins at `offset`; None: there is none, or not yet."""
    log = store.commit_log
    view = log.view(offset, log.file_bytes, end=store.confirm_offset)
    parsed = parse(view, 0, len(view), offset=offset)
    return view[: parsed[0]] if parsed is not None and parsed[1] else None


def find_by_key(
    store: MessageStore, topic: str, key: str, limit: int, begin_ms: int, end_ms: int
) -> list[memoryview]:
    """At most `limit` records of the topic with the key (UNIQ_KEY, or one of KEYS), the newest ones, in log
    order. Another key with the same hash never comes out. A message of an inner batch comes as a record of
    its own: clients look for the key in what they get."""
    if store.index is None:
        return []
    wanted = key.encode()
    found = []
    for offset in store.index.find(java_hash(f"{topic}#"), wanted, limit, begin_ms, end_ms):
        view = record_at(store, offset)
        parsed = None if view is None else parse(view, 0, len(view), offset=offset)
        if view is None or parsed is None or parsed[1] != topic.encode():
            continue
        if not begin_ms <= parsed[5] <= end_ms:
            continue
        if _has_key(parsed[6], wanted):
            found.append(view)
        elif keys_of(view):
            messages = [each for each in split(decode(view)) if _has_key(each.properties, wanted)]
            found += [memoryview(encode(each)) for each in messages]
    return found[-limit:]


def _has_key(properties: bytes, wanted: bytes) -> bool:
    unique_key, keys = index_keys(properties)
    return wanted == unique_key or wanted in keys.split(b" ")


def stored_at(log: CommitLog, queue: ConsumeQueue, index: int) -> int:
    """Store timestamp (ms) of the unit's record; 0 where there is none any more."""
    offset, size, _ = queue.unit(index)
    view = log.view(offset, _HEADER_BYTES)
    return store_timestamp(view) if size != FILLER_SIZE and len(view) == _HEADER_BYTES else 0


def offset_by_time(store: MessageStore, topic: str, queue_id: int, timestamp: int, *, upper: bool) -> int:
    """The first queue offset stored at or after `timestamp` (none: the queue's end), or with `upper` the last
    one stored at or before it (none: the queue's beginning). 0 for an unknown queue."""
    queue = store.find_queue(topic, queue_id)
    if queue is None or queue.max_offset <= queue.min_offset:
        return 0 if queue is None else queue.max_offset
    low, high = queue.min_offset, queue.max_offset
    while low < high:
        middle = (low + high) // 2
        stored = stored_at(store.commit_log, queue, middle)
        is_before = stored <= timestamp if upper else stored < timestamp
        low, high = (middle + 1, high) if is_before else (low, middle)
    return max(low - 1, queue.min_offset) if upper else low


def earliest_time(store: MessageStore, topic: str, queue_id: int) -> int:
    """Store timestamp (ms) of the queue's oldest message; -1: it has none."""
    queue = store.find_queue(topic, queue_id)
    if queue is None or queue.max_offset <= queue.min_offset:
        return -1
    return stored_at(store.commit_log, queue, queue.min_offset)
