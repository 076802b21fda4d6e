"""Stores many messages at once: those of one socket read, or of many connections, for one queue or more.

The log grows once, by all records or by none. The units of the queues are packed, and dispatched by one
DispatchRequest. Most of a single message's cost is the overhead of its put (MessageStore.put); here it is
paid once for all messages.
"""

import struct

from broker.message.record import HOST_V4_BYTES, STORE_HOST_V6
from broker.message.record_bytes import (
    CommonFields,
    EncodedRecords,
    Message,
    QueueCursor,
    queue_cursor,
    records_bytes,
)
from broker.store.dispatching import DispatchRequest, QueueUnits
from broker.store.message_store import MessageStore
from broker.store.queue.batch_queue import BatchQueue
from broker.store.queue.consume_queue import ConsumeQueue
from broker.store.settings import TopicLike


class BatchedPut:
    """One put of many messages: call cursor() for each queue, then put() once."""

    __slots__ = ("_cursors", "_store")

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._cursors: list[tuple[ConsumeQueue, QueueCursor]] = []

    def cursor(self, topic: TopicLike, queue_id: int) -> QueueCursor | None:
        """The cursor for messages to this queue; to be called once for each queue. None: the queue is a
        BatchQueue, so its messages must be put one by one."""
        queue = self._store.queues.get(topic.name, queue_id)
        if isinstance(queue, BatchQueue):
            return None
        prefix_hash = queue.key_prefix_hash if self._store.index is not None else None
        cursor = queue_cursor(topic.topic_raw, queue_id, queue.next_offset, prefix_hash)
        self._cursors.append((queue, cursor))
        return cursor

    def put(self, messages: list[Message], store_timestamp: int) -> EncodedRecords | None:
        """Stores the messages; master only, and only without enabledAppendPropCRC. store_timestamp: ms.

        None: nothing was stored, because the records do not fit into the current file or a number is out of
        its field's range. The caller puts the messages one by one.
        """
        store, log = self._store, self._store.commit_log
        assert store.is_master, "put() on a store that is not master"
        assert not store.config.append_prop_crc, "put() of records that would have no checksum"
        bits = STORE_HOST_V6 if len(store.store_host) != HOST_V4_BYTES else 0
        common = CommonFields(store_timestamp, store.store_host, bits)
        try:
            encoded = records_bytes(messages, common, log.max_offset)
        except struct.error:
            return None
        if not log.fits(len(encoded.raw)):
            return None
        log.store(encoded.raw)
        queue_units = []
        for queue, (_, _, end, units, log_bytes, _) in self._cursors:
            first = queue.next_offset
            queue_units.append(QueueUnits(queue, first, end - first, bytes(units), log_bytes))
        store.add_dispatch_request(
            DispatchRequest(log.max_offset, queue_units, store_timestamp, encoded.keys)
        )
        return encoded
