"""Stores a client's batch: each item as a separate record, all adjacent in one file, or none at all. In a
BatchQueue the batch is one record, whose properties broker/message/inner_batch.py describes.

batch_records.py splits the batch and makes the records in one pass. The log grows once, after the last item,
so a bad item leaves nothing behind. The units of the queue are packed, and dispatched by one DispatchRequest.
Source: RocketMQ 5.3.3 CommitLog.asyncPutMessages,
SendMessageProcessor.sendBatchMessage, BatchConsumeQueue.assignQueueOffset.
"""

from typing import NamedTuple

from broker.message.batch_records import Batch, middle_of_header, records_of
from broker.message.inner_batch import INNER_BITS, MESSAGES_MAX, items_of
from broker.message.prop_crc import batch_without_crcs, with_empty_crc, with_prop_crcs
from broker.message.record import HOST_V6_BITS, HOSTS_V4_BYTES, host_bits, index_keys, tags_code
from broker.store.dispatching import DispatchRequest, QueueUnits
from broker.store.message_store import InnerMessage, MessageStore
from broker.store.queue.batch_queue import BatchQueue
from broker.store.settings import TopicLike


class StoredBatch(NamedTuple):
    """offsets: CommitLog offset of each item's record. end: where the last record ends. queue_offset: of the
    first item. properties: of the last item."""

    offsets: list[int]
    end: int
    queue_offset: int
    properties: bytes


def put_batch(
    store: MessageStore,
    topic: TopicLike,
    queue_id: int,
    body: bytes,
    shared: bytes,
    sys_flag: int,
    born_timestamp: int,
    born_host: bytes,
    reconsume_times: int,
    store_timestamp: int,
) -> StoredBatch:
    """Stores the items of a batch; master only. shared: properties that are appended to those of each item.
    Timestamps in ms. ValueError, struct.error: `body` is no batch, or larger than a file; OSError: as
    MessageStore.put()."""
    assert store.is_master, "put_batch() on a store that is not master"
    queue, log = store.queues.get(topic.name, queue_id), store.commit_log
    store_host = store.store_host
    if sys_flag & HOST_V6_BITS or len(born_host) + len(store_host) != HOSTS_V4_BYTES:
        sys_flag = host_bits(sys_flag, born_host, store_host)
    middle = middle_of_header(
        sys_flag, born_timestamp, born_host, store_timestamp, store_host, reconsume_times
    )
    has_prop_crc = store.config.append_prop_crc
    if has_prop_crc:
        body, shared = batch_without_crcs(body), with_empty_crc(shared)
    prefix_hash = queue.key_prefix_hash if store.index is not None else None
    batch = Batch(
        body, topic.topic_raw, queue_id, queue.next_offset, middle, shared, prefix_hash, store_timestamp
    )
    records = records_of(batch, log.max_offset)
    if not log.fits(len(records.raw)):
        records = records_of(batch, log.close_file(len(records.raw)))  # offsets are in the records
    log.store(with_prop_crcs(records.raw) if has_prop_crc else records.raw)
    end, first = log.max_offset, batch.queue_offset
    units = QueueUnits(queue, first, len(records.offsets), records.units, len(records.raw))
    store.add_dispatch_request(DispatchRequest(end, [units], store_timestamp, records.keys))
    return StoredBatch(records.offsets, end, first, records.last_properties)


def put_inner_batch(
    store: MessageStore,
    queue: BatchQueue,
    topic: TopicLike,
    body: bytes,
    properties: bytes,
    flag: int,
    sys_flag: int,
    born_timestamp: int,
    born_host: bytes,
    reconsume_times: int,
    store_timestamp: int,
) -> tuple[int, int, int]:
    """Stores a client's batch as one record; master only. Returns (physical offset, end offset, queue offset
    of the first message). ValueError, struct.error: it is no batch, has too many messages, or its properties
    are too long."""
    items = items_of(body)
    if not 1 <= len(items) <= MESSAGES_MAX:
        raise ValueError(f"a batch of {len(items)} items; 1 to {MESSAGES_MAX} are taken")
    keys = [index_keys(item.properties) for item in items] if store.index is not None else []
    message = InnerMessage(
        topic.topic_raw, body, properties, flag, sys_flag | INNER_BITS, born_timestamp, born_host,
        reconsume_times, tags_code(properties), store_timestamp,
    )  # fmt: skip
    return store.put_inner(queue, message, len(items), keys)
