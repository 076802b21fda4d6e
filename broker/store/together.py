"""Messages of one producer to one queue, stored at once: what many requests brought in one read.

The log grows once, by all of them or by none; the queue's units are packed and dispatched as one Run. By
itself a message costs mostly the way to its record (MessageStore.put), and that is gone once for all here.
"""

import struct
from typing import NamedTuple

from broker.store.batch_queue import BatchQueue
from broker.store.message_store import MessageStore
from broker.store.record import host_bits
from broker.store.record_bytes import Message, Shared, records_bytes
from broker.store.run import Run
from broker.store.settings import TopicLike


class StoredTogether(NamedTuple):
    """CommitLog offset of each message, where the last one ends, the queue offset of the first."""

    offsets: list[int]
    end: int
    queue_offset: int


def put_together(
    store: MessageStore,
    topic: TopicLike,
    queue_id: int,
    messages: list[Message],
    born_host: bytes,
    store_timestamp: int,
) -> StoredTogether | None:
    """Master only. None: nothing has happened, put them one by one. The queue has wider units, records are
    sealed, these do not fit into the log's file any more, or a number is out of its field's range."""
    assert store.is_master, "put_together() on a store that is not master"
    queue, log, store_host = store.queues.get(topic.name, queue_id), store.commit_log, store.store_host
    if isinstance(queue, BatchQueue) or store.config.append_prop_crc:
        return None
    queue_offset, offset = queue.next_offset, log.max_offset
    prefix_hash = queue.key_prefix_hash if store.index is not None else None
    bits = host_bits(0, born_host, store_host)
    shared = Shared(
        topic.topic_raw, queue_id, queue_offset, born_host, store_timestamp, store_host, bits, prefix_hash
    )
    try:
        raw, units, offsets, keys = records_bytes(messages, shared, offset)
    except struct.error:
        return None
    if not log.fits(len(raw)):
        return None
    log.store(raw)
    end = log.max_offset
    store.put_run(Run(end, queue, queue_offset, units, len(raw), store_timestamp, keys))
    return StoredTogether(offsets, end, queue_offset)
