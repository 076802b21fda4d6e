"""Finds stored messages by CommitLog offset, by key, or by time.

Finds only messages that consumers may read. Source: RocketMQ 5.3.3 DefaultMessageStore.queryMessage,
ConsumeQueue.getOffsetInQueueByTime.
"""

from typing import Final

from broker.message.inner_batch import keys_of, split
from broker.message.record import decode, encode, index_keys, java_hash, parse, store_timestamp
from broker.store.log.commit_log import CommitLog
from broker.store.message_store import MessageStore
from broker.store.queue.consume_queue import FILLER_SIZE, ConsumeQueue

_HEADER_BYTES: Final = 88  # no record is shorter


def record_at(store: MessageStore, offset: int) -> memoryview | None:
    """Returns the whole record that begins at this CommitLog offset. None: there is none, it is damaged or
    not confirmed yet, or no queue indexes it."""
    log = store.commit_log
    view = log.view(offset, log.file_bytes, end=store.confirm_offset)
    parsed = parse(view, 0, len(view), offset=offset)
    if parsed is None or not parsed[1] or store.log_check.first_bad(offset, offset + parsed[0]) is not None:
        return None
    return view[: parsed[0]]


def last_record(store: MessageStore) -> tuple[int, bytes] | None:
    """Returns offset and bytes of the last message of the log; None: there is none. It reads from the newest
    message of any queue on, so it reads little."""
    log = store.commit_log
    newest = max(store.queues.each(), key=lambda queue: queue.log_end_offset(), default=None)
    starts = log.file_starts()
    if newest is not None and log.min_offset < newest.log_end_offset() <= log.max_offset:
        starts.append(newest.unit(newest.max_offset - 1)[0])
    for start in reversed(starts):
        found, offset = None, start
        while view := log.view(offset, log.file_bytes):
            pos = 0
            while (parsed := parse(view, pos, len(view), offset=offset + pos)) is not None and parsed[0]:
                if parsed[1]:
                    found = offset + pos, bytes(view[pos : pos + parsed[0]])
                pos += parsed[0]
                if pos >= len(view):
                    break
            if not pos:
                break
            offset += pos
        if found is not None:
            return found
    return None


def find_by_key(
    store: MessageStore, topic: str, key: str, limit: int, begin_ms: int, end_ms: int
) -> list[memoryview]:
    """Returns the newest records of the topic with the key (UNIQ_KEY, or one of KEYS), at most `limit`, in
    log order; their store timestamps are from begin_ms to end_ms. A record of another key with the same hash
    is left out. A message of an inner batch becomes a separate record, because clients search for the key in
    the records that they get."""
    if store.index is None:
        return []
    key_bytes = key.encode()
    found = []
    for offset in store.index.find(java_hash(f"{topic}#"), key_bytes, limit, begin_ms, end_ms):
        view = record_at(store, offset)
        parsed = None if view is None else parse(view, 0, len(view), offset=offset)
        if view is None or parsed is None or parsed[1] != topic.encode():
            continue
        if not begin_ms <= parsed[5] <= end_ms:
            continue
        if _has_key(parsed[6], key_bytes):
            found.append(view)
        elif keys_of(view):
            messages = [each for each in split(decode(view)) if _has_key(each.properties, key_bytes)]
            found += [memoryview(encode(each)) for each in messages]
    return found[-limit:]


def _has_key(properties: bytes, key_bytes: bytes) -> bool:
    unique_key, keys = index_keys(properties)
    return key_bytes == unique_key or key_bytes in keys.split(b" ")


def stored_at(log: CommitLog, queue: ConsumeQueue, index: int) -> int:
    """Returns the store timestamp (ms) of the record of this unit; 0 if the record is deleted."""
    header = header_of(log, queue, index)
    return 0 if header is None else store_timestamp(header)


def header_of(log: CommitLog, queue: ConsumeQueue, index: int) -> memoryview | None:
    """Returns the first bytes of the record of this unit, without reading them; None: it is deleted."""
    offset, size, _ = queue.unit(index)
    view = log.view(offset, _HEADER_BYTES)
    return view if size not in (0, FILLER_SIZE) and len(view) == _HEADER_BYTES else None


def offset_by_time(store: MessageStore, topic: str, queue_id: int, timestamp: int, *, upper: bool) -> int:
    """Returns the first queue offset whose message was stored at or after `timestamp` (ms), or the queue's
    end. upper: the last one that was stored at or before it, or the queue's beginning. 0 for an unknown
    queue."""
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
    """Returns the store timestamp (ms) of the queue's oldest message; -1 if it has none."""
    queue = store.find_queue(topic, queue_id)
    if queue is None or queue.max_offset <= queue.min_offset:
        return -1
    return stored_at(store.commit_log, queue, queue.min_offset)
