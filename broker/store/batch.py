"""A client batch: every item its own record, all of them behind each other in one file, or none at all.

An item as clients write it; magic and crc are their own business:

    0 SIZE i32 | 4 magic | 8 crc | 12 FLAG i32 | 16 BODYLENGTH i32, BODY | PROPERTIESLENGTH i16, PROPERTIES

One pass takes the items apart and makes their records. What is the same for all of them is made once, and
the log grows once, after the last item: so a bad item leaves nothing behind. The queue's units are packed
here and dispatched as one Run. Source: RocketMQ 5.3.3 MessageDecoder, MessageExtEncoder,
CommitLog.asyncPutMessages.
"""

import struct
from functools import lru_cache
from typing import Final, NamedTuple

from isal.isal_zlib import crc32

from broker.store.consume_queue import UNIT, ConsumeQueue
from broker.store.indexed_keys import Keyed
from broker.store.message_store import MessageStore
from broker.store.property_bytes import without
from broker.store.record import (
    CRC_MASK,
    HOST_V6_BITS,
    HOSTS_V4_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    PACK_I16,
    PROPERTIES_BYTES_MAX,
    TOPIC_V1_RAW_MAX,
    host_bits,
    index_keys,
    tags_code,
)
from broker.store.record_crc import CRC_NAME, EMPTY_SEAL, seal_records, unsealed_batch
from broker.store.run import Run
from broker.store.settings import TopicLike

ITEMS_MAX: Final = 65_536
_UNITS_AT_ONCE: Final = 128
_ITEM = struct.Struct(">i8xii")
_ITEM_BYTES: Final = _ITEM.size
_BEFORE_PROPERTIES: Final = _ITEM_BYTES + 2
_UNPACK_I16 = struct.Struct(">h").unpack_from
_HEAD = struct.Struct(">iIIiiqq")  # of a record, up to PHYSICALOFFSET
_PACK_HEAD = _HEAD.pack
_LENGTHS_AND_HEAD_BYTES: Final = _HEAD.size + 4 + 2
_PACK_I32 = struct.Struct(">i").pack
_SEPARATOR: Final = 2
_READ_LATER: Final = (b"TAGS\x01", b"KEYS\x01", b"UNIQ_KEY\x01")


class StoredBatch(NamedTuple):
    """CommitLog offset of each item, where the last one ends, the queue offset of the first; the properties
    of the last one."""

    offsets: list[int]
    end: int
    queue_offset: int
    properties: bytes


class Batch(NamedTuple):
    """What all items have in common. middle: the records' bytes from SYSFLAG to PREPAREDTRANSACTIONOFFSET."""

    body: bytes
    topic_raw: bytes
    queue_id: int
    queue_offset: int
    middle: bytes
    shared: bytes


class Records(NamedTuple):
    """units: (CommitLog offset, size, tags code) of each record, flat; properties: of each record, as far as
    tags and keys are in them."""

    raw: bytes
    units: list[int]
    properties: list[bytes]


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
    batch = Batch(body, topic.topic_raw, queue_id, queue.next_offset, middle, shared)
    records = records_of(batch, log.max_offset)
    if not log.fits(len(records.raw)):
        records = records_of(batch, log.close_file(len(records.raw)))  # offsets are in the records
    log.store(seal_records(records.raw, records.units) if is_sealed else records.raw)
    offsets, end = records.units[0::3], log.max_offset
    keys = _keys(records, queue, store_timestamp) if store.index is not None else []
    store.put_run(
        Run(end, queue, batch.queue_offset, _packed(records.units), len(records.raw), store_timestamp, keys)
    )
    return StoredBatch(offsets, end, batch.queue_offset, records.properties[-1])


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


def records_of(batch: Batch, offset: int) -> Records:
    """The records as they are in a log from `offset` on."""
    body, topic_raw, queue_id, queue_offset, middle, shared = batch
    shared_bytes, body_end = len(shared), len(body)
    shared_is_read = any(name in shared for name in _READ_LATER)
    fixed = _LENGTHS_AND_HEAD_BYTES + len(middle) + len(topic_raw) + shared_bytes
    magic = MAGIC_V1 if len(topic_raw) <= TOPIC_V1_RAW_MAX else MAGIC_V2
    parts: list[bytes] = []
    units: list[int] = []
    texts: list[bytes] = []
    lead = tail = b""
    lead_bytes = tail_bytes = -1  # which body, which properties these are for: items are alike, mostly
    at = 0
    while at < body_end:
        size, flag, body_bytes = _ITEM.unpack_from(body, at)
        text_at, properties_at, end = at + _ITEM_BYTES, at + _BEFORE_PROPERTIES + body_bytes, at + size
        if body_bytes < 0 or not properties_at <= end <= body_end:
            raise ValueError(f"item {len(texts)} has {body_bytes} bytes of body, and {size} in all")
        if properties_at + _UNPACK_I16(body, properties_at - 2)[0] != end:
            raise ValueError(f"item {len(texts)} does not end where its size says")
        text, properties = body[text_at : properties_at - 2], body[properties_at:end]
        if properties and body[end - 1] != _SEPARATOR:
            properties += b"\x02"
        properties_bytes = len(properties)
        if properties_bytes != tail_bytes:
            tail_bytes = properties_bytes
            if properties_bytes + shared_bytes > PROPERTIES_BYTES_MAX:
                raise ValueError(f"the properties of item {len(texts)} have {properties_bytes} bytes")
            tail = topic_raw + PACK_I16(properties_bytes + shared_bytes)
        if body_bytes != lead_bytes:
            lead_bytes, lead = body_bytes, middle + _PACK_I32(body_bytes)
        record_bytes = fixed + body_bytes + properties_bytes
        crc = crc32(text) & CRC_MASK
        head = _PACK_HEAD(record_bytes, magic, crc, queue_id, flag, queue_offset, offset)
        parts += (head, lead, text, tail, properties, shared)
        if shared_is_read:
            properties += shared
        units += (offset, record_bytes, tags_code(properties))
        texts.append(properties)
        queue_offset += 1
        offset += record_bytes
        at = end
    if not texts or len(texts) > ITEMS_MAX:
        raise ValueError(f"a batch of {len(texts)} items; 1 to {ITEMS_MAX} are taken")
    if b"\0" in b"".join(texts):  # recovery takes a zero for what a crash has torn off
        raise ValueError("the properties of an item contain a zero byte")
    return Records(b"".join(parts), units, texts)


def _keys(records: Records, queue: ConsumeQueue, timestamp: int) -> list[Keyed]:
    prefix_hash = queue.key_prefix_hash
    return [
        (prefix_hash, offset, timestamp, *index_keys(properties))
        for offset, properties in zip(records.units[0::3], records.properties, strict=True)
    ]


@lru_cache(maxsize=_UNITS_AT_ONCE + 1)
def _units_of(count: int) -> struct.Struct:
    return struct.Struct(">" + UNIT.format.lstrip(">") * count)


def _packed(units: list[int]) -> bytes:
    step = 3 * _UNITS_AT_ONCE
    pieces = [units[at : at + step] for at in range(0, len(units), step)]
    return b"".join([_units_of(len(piece) // 3).pack(*piece) for piece in pieces])
