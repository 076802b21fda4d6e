"""Messages of one producer, stored at once: what many requests brought in one read, for one queue or many.

The log grows once, by all of them or by none; the queues' units are packed and dispatched as one Run. By
itself a message costs mostly the way to its record (MessageStore.put), and that is gone once for all here.
"""

import struct

from broker.store.batch_queue import BatchQueue
from broker.store.consume_queue import ConsumeQueue
from broker.store.message_store import MessageStore
from broker.store.record import host_bits
from broker.store.record_bytes import Message, Place, Shared, Written, place_of, records_bytes
from broker.store.run import Part, Run
from broker.store.settings import TopicLike


class Together:
    """A read's messages on their way: place() for each queue, put() for all."""

    __slots__ = ("_places", "_store")

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._places: list[tuple[ConsumeQueue, Place]] = []

    def place(self, topic: TopicLike, queue_id: int) -> Place | None:
        """Of a queue, once. None: messages to it are put one by one, since it has wider units."""
        queue = self._store.queues.get(topic.name, queue_id)
        if isinstance(queue, BatchQueue):
            return None
        prefix_hash = queue.key_prefix_hash if self._store.index is not None else None
        place = place_of(topic.topic_raw, queue_id, queue.next_offset, prefix_hash)
        self._places.append((queue, place))
        return place

    def put(self, messages: list[Message], born_host: bytes, store_timestamp: int) -> Written | None:
        """Master only; never where records are sealed. None: nothing has happened, put them one by one. They
        do not fit into the log's file any more, or a number is out of its field's range."""
        store, log = self._store, self._store.commit_log
        assert store.is_master, "put() on a store that is not master"
        assert not store.config.append_prop_crc, "put() of records that would have no checksum"
        bits = host_bits(0, born_host, store.store_host)
        shared = Shared(born_host, store_timestamp, store.store_host, bits)
        try:
            written = records_bytes(messages, shared, log.max_offset)
        except struct.error:
            return None
        if not log.fits(len(written.raw)):
            return None
        log.store(written.raw)
        parts = []
        for queue, (_, _, end, units, log_bytes, _) in self._places:
            parts.append(Part(queue, queue.next_offset, end - queue.next_offset, bytes(units), log_bytes))
        store.put_run(Run(log.max_offset, parts, store_timestamp, written.keys))
        return written
