"""A client batch: every item its own record, all of them behind each other in one file, or none at all.

One pass takes the items apart and makes their records (batch_records.py). The log grows once, after the last
item: so a bad item leaves nothing behind. The queue's units are packed and dispatched as one Run. Source:
RocketMQ 5.3.3 CommitLog.asyncPutMessages.
"""

import struct
from typing import NamedTuple

from broker.store.batch_records import Batch, records_of
from broker.store.message_store import MessageStore
from broker.store.property_bytes import without
from broker.store.record import HOST_V6_BITS, HOSTS_V4_BYTES, host_bits
from broker.store.record_crc import CRC_NAME, EMPTY_SEAL, seal_records, unsealed_batch
from broker.store.run import Part, Run
from broker.store.settings import TopicLike


class StoredBatch(NamedTuple):
    """CommitLog offset of each item, where the last one ends, the queue offset of the first; the properties
    of the last one."""

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
    """Master only; shared: properties that all items get behind their own. ValueError, struct.error: it is no
    batch, or more than a file takes; OSError: as MessageStore.put()."""
    assert store.is_master, "put_batch() on a store that is not master"
    queue, log = store.queues.get(topic.name, queue_id), store.commit_log
    store_host = store.store_host
    if sys_flag & HOST_V6_BITS or len(born_host) + len(store_host) != HOSTS_V4_BYTES:
        sys_flag = host_bits(sys_flag, born_host, store_host)
    middle = middle_of(sys_flag, born_timestamp, born_host, store_timestamp, store_host, reconsume_times)
    is_sealed = store.config.append_prop_crc
    if is_sealed:
        body, shared = unsealed_batch(body), without(shared, CRC_NAME) + EMPTY_SEAL
    prefix_hash = queue.key_prefix_hash if store.index is not None else None
    batch = Batch(
        body, topic.topic_raw, queue_id, queue.next_offset, middle, shared, prefix_hash, store_timestamp
    )
    records = records_of(batch, log.max_offset)
    if not log.fits(len(records.raw)):
        records = records_of(batch, log.close_file(len(records.raw)))  # offsets are in the records
    log.store(seal_records(records.raw, records.units) if is_sealed else records.raw)
    end = log.max_offset
    raw_bytes = len(records.raw)
    part = Part(queue, batch.queue_offset, len(records.offsets), records.units, raw_bytes)
    store.put_run(Run(end, [part], store_timestamp, records.keys))
    return StoredBatch(records.offsets, end, batch.queue_offset, records.last_properties)


def middle_of(
    sys_flag: int,
    born_timestamp: int,
    born_host: bytes,
    store_timestamp: int,
    store_host: bytes,
    reconsume_times: int,
) -> bytes:
    born = struct.pack(">iq", sys_flag, born_timestamp) + born_host
    stored = struct.pack(">q", store_timestamp) + store_host
    return born + stored + struct.pack(">iq", reconsume_times, 0)
