"""Records of topics with queue.type=BatchCQ. A client's batch is one of them, its body stored as it came.

Every record of a BatchQueue has INNER_BATCH in its sysFlag, and says with INNER_NUM how many messages it has,
with INNER_BASE which queue offset the first one has: so a replica, or a start after a crash, knows what it is
before it knows the topic. A batch has NEED_UNWRAP, too: consumers take it apart; its items are as batch.py
shows them. A message that was sent alone is stored as any other, with INNER_NUM 1; RocketMQ leaves the two
properties out there, and then shows no consumer such a message. Source: RocketMQ 5.3.3
SendMessageProcessor.sendBatchMessage, MessageDecoder.decodeMessage, BatchConsumeQueue.assignQueueOffset.
"""

import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from broker.store.batch_queue import MESSAGES_MAX, BatchQueue, BatchUnit
from broker.store.indexed_keys import Keyed
from broker.store.property_bytes import without
from broker.store.record import (
    HOST_V6_BITS,
    PROPERTIES_BYTES_MAX,
    Buffer,
    Record,
    decode,
    host_bits,
    index_keys,
    property_value,
    tags_code,
)
from broker.store.run import Part, Run
from broker.store.settings import TopicLike

if TYPE_CHECKING:
    from broker.store.message_store import MessageStore

NEED_UNWRAP: Final = 0x40
INNER_BATCH: Final = 0x80
INNER_BITS: Final = NEED_UNWRAP | INNER_BATCH
INNER_NUM: Final = b"INNER_NUM"
INNER_BASE: Final = b"INNER_BASE"
_SYS_FLAG_AT: Final = 36
_ITEM = struct.Struct(">i8xii")
_UNPACK_I16 = struct.Struct(">h").unpack_from
_UNPACK_I32 = struct.Struct(">i").unpack_from


class Item(NamedTuple):
    flag: int
    body: bytes
    properties: bytes


def sys_flag_at(buffer: Buffer, pos: int) -> int:
    """SYSFLAG of the record there."""
    sys_flag: int = _UNPACK_I32(buffer, pos + _SYS_FLAG_AT)[0]
    return sys_flag


def items_of(body: Buffer) -> list[Item]:
    """The messages of a client's batch. ValueError, struct.error: it is none."""
    items: list[Item] = []
    at, end = 0, len(body)
    while at < end:
        size, flag, body_bytes = _ITEM.unpack_from(body, at)
        text_at = at + _ITEM.size
        properties_at, at = text_at + body_bytes + 2, at + size
        if body_bytes < 0 or not properties_at <= at <= end:
            raise ValueError(f"item {len(items)} has {body_bytes} bytes of body, and {size} in all")
        if properties_at + _UNPACK_I16(body, properties_at - 2)[0] != at:
            raise ValueError(f"item {len(items)} does not end where its size says")
        items.append(Item(flag, bytes(body[text_at : properties_at - 2]), bytes(body[properties_at:at])))
    return items


def message_count(properties: bytes) -> int:
    """INNER_NUM of a stored record; 1 where there is no good one."""
    text = property_value(properties, INNER_NUM)
    if text is None or not text.isdigit() or len(text) > 5:
        return 1
    return min(max(int(text), 1), MESSAGES_MAX)


# -- writing -----------------------------------------------------------------------------------------------


def put_inner_batch(
    store: "MessageStore",
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
    """A client's batch as one record: (physical offset, end offset, queue offset of the first message).
    ValueError, struct.error: it is no batch, has too many messages, or its properties are too long."""
    items = items_of(body)
    if not 1 <= len(items) <= MESSAGES_MAX:
        raise ValueError(f"a batch of {len(items)} items; 1 to {MESSAGES_MAX} are taken")
    keys = [index_keys(item.properties) for item in items] if store.index is not None else []
    # fmt: off
    return _put(store, queue, topic, body, properties, flag, sys_flag | INNER_BITS, born_timestamp,
                born_host, reconsume_times, tags_code(properties), store_timestamp, 0, len(items), keys)
    # fmt: on


def put_single(
    store: "MessageStore",
    queue: BatchQueue,
    topic: TopicLike,
    body: bytes,
    properties: bytes,
    flag: int,
    sys_flag: int,
    born_timestamp: int,
    born_host: bytes,
    reconsume_times: int,
    tag: int,
    store_timestamp: int,
    prepared_offset: int,
) -> tuple[int, int, int]:
    """A message that was sent alone. As MessageStore.put()."""
    # fmt: off
    return _put(store, queue, topic, body, properties, flag, sys_flag & ~NEED_UNWRAP | INNER_BATCH,
                born_timestamp, born_host, reconsume_times, tag, store_timestamp, prepared_offset, 1, [])
    # fmt: on


def _put(
    store: "MessageStore",
    queue: BatchQueue,
    topic: TopicLike,
    body: bytes,
    properties: bytes,
    flag: int,
    sys_flag: int,
    born_timestamp: int,
    born_host: bytes,
    reconsume_times: int,
    tag: int,
    store_timestamp: int,
    prepared_offset: int,
    messages: int,
    keys: list[tuple[bytes, bytes]],
) -> tuple[int, int, int]:
    assert store.is_master, "put on a store that is not master"
    base, store_host, log = queue.next_offset, store.store_host, store.commit_log
    properties = without(properties, INNER_NUM, INNER_BASE)
    properties += b"INNER_NUM\x01%d\x02INNER_BASE\x01%d\x02" % (messages, base)
    if len(properties) > PROPERTIES_BYTES_MAX:
        raise ValueError(f"properties of {len(properties)} bytes, with those of the broker")
    sys_flag = host_bits(sys_flag & ~HOST_V6_BITS, born_host, store_host)
    # fmt: off
    offset = store.append(topic.topic_raw, queue.queue_id, base, flag, sys_flag, born_timestamp, born_host,
                          store_host, store_timestamp, reconsume_times, body, properties, prepared_offset)
    # fmt: on
    end = log.max_offset
    unit = BatchUnit(offset, end - offset, tag, store_timestamp, base, messages)
    found: list[Keyed] = []
    if store.index is not None:
        prefix = queue.key_prefix_hash
        found = [(prefix, offset, store_timestamp, *each) for each in (index_keys(properties), *keys)]
    part = Part(queue, base, messages, unit.packed(), end - offset)
    store.put_run(Run(end, [part], store_timestamp, found))
    return offset, end, base


# -- reading -----------------------------------------------------------------------------------------------


def split(record: Record) -> list[Record]:
    """The messages of a record, each as a record of its own: what it would be if it had been sent alone, but
    at the place of the batch. A record that is no batch is its own only message. ValueError, struct.error: it
    is a peer's, who stored what is no batch."""
    if not record.sys_flag & INNER_BATCH:
        return [record]
    if not record.sys_flag & NEED_UNWRAP:
        properties = without(record.properties, INNER_NUM, INNER_BASE)
        return [replace(record, sys_flag=record.sys_flag & ~INNER_BITS, properties=properties)]
    return [
        replace(
            record,
            flag=item.flag,
            body=item.body,
            properties=item.properties,
            sys_flag=record.sys_flag & ~INNER_BITS,
            queue_offset=record.queue_offset + number,
        )
        for number, item in enumerate(items_of(record.body))
    ]


def keys_of(raw: Buffer) -> list[tuple[bytes, bytes]]:
    """(UNIQ_KEY, KEYS) of each message of a stored batch; [] for any other record, and for one that a peer
    stored without looking into it."""
    if sys_flag_at(raw, 0) & INNER_BITS != INNER_BITS:
        return []
    try:
        return [index_keys(item.properties) for item in items_of(decode(raw).body)]
    except (ValueError, struct.error):
        return []
