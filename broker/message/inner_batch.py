"""Records of topics with queue.type=BatchCQ: a client's batch is one record, with its body as it was sent.
Pure.

Every record of a BatchQueue has INNER_BATCH in its sysFlag, its number of messages in the property INNER_NUM,
and the queue offset of its first message in INNER_BASE. So a replica, or a start after a crash, can place the
record before it knows the topic. A batch also has NEED_UNWRAP, since consumers split it; batch_records.py
shows its items. A message that was sent alone has INNER_NUM 1. RocketMQ omits both properties there, and then
never delivers such a message. Source: RocketMQ 5.3.3 SendMessageProcessor.sendBatchMessage,
MessageDecoder.decodeMessage, BatchConsumeQueue.assignQueueOffset.
"""

import struct
from typing import Final, NamedTuple

from msgspec.structs import replace

from broker.message.properties import without
from broker.message.record import (
    PROPERTIES_BYTES_MAX,
    Buffer,
    Record,
    decode,
    index_keys,
    property_value,
)

NEED_UNWRAP: Final = 0x40
INNER_BATCH: Final = 0x80
INNER_BITS: Final = NEED_UNWRAP | INNER_BATCH
INNER_NUM: Final = b"INNER_NUM"
INNER_BASE: Final = b"INNER_BASE"
MESSAGES_MAX: Final = 32_767
"""In one record: a unit of a BatchQueue has the count as an i16."""
_SYS_FLAG_AT: Final = 36
_ITEM = struct.Struct(">i8xii")
_UNPACK_I16 = struct.Struct(">h").unpack_from
_UNPACK_I32 = struct.Struct(">i").unpack_from


class Item(NamedTuple):
    """One message of a client's batch."""

    flag: int
    body: bytes
    properties: bytes


def sys_flag_at(buffer: Buffer, pos: int) -> int:
    """Returns SYSFLAG of the record at `pos`."""
    sys_flag: int = _UNPACK_I32(buffer, pos + _SYS_FLAG_AT)[0]
    return sys_flag


def items_of(body: Buffer) -> list[Item]:
    """Returns the messages of a client's batch. ValueError, struct.error: it is no batch."""
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
    """Returns INNER_NUM of a stored record; 1 if it is absent or no number."""
    text = property_value(properties, INNER_NUM)
    if text is None or not text.isdigit() or len(text) > 5:
        return 1
    return min(max(int(text), 1), MESSAGES_MAX)


def with_inner_batch(properties: bytes, messages: int, base: int) -> bytes:
    """Returns the properties with these values of INNER_NUM and INNER_BASE. ValueError: they are too long."""
    properties = without(properties, INNER_NUM, INNER_BASE)
    properties += b"INNER_NUM\x01%d\x02INNER_BASE\x01%d\x02" % (messages, base)
    if len(properties) > PROPERTIES_BYTES_MAX:
        raise ValueError(f"properties of {len(properties)} bytes, with those of the broker")
    return properties


def split(record: Record) -> list[Record]:
    """Returns the messages of a record, each as a record as if it had been sent alone, but at the batch's
    CommitLog offset. A record that is no batch is its only message. ValueError, struct.error: the body is no
    batch; RocketMQ may have stored it without a check."""
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
    """Returns (UNIQ_KEY, KEYS) of each message of a stored batch; [] for any other record, and for a body
    that is no batch."""
    if sys_flag_at(raw, 0) & INNER_BITS != INNER_BITS:
        return []
    try:
        return [index_keys(item.properties) for item in items_of(decode(raw).body)]
    except (ValueError, struct.error):
        return []
