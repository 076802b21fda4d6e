"""Writes records in the layout of record.py: one, or those of many messages at once. Pure; a compiled
leaf."""

import struct
from typing import Any, Final, NamedTuple, TypeAlias

from isal.isal_zlib import crc32

from broker.message.indexed_keys import Keyed
from broker.message.record import (
    BORN_HOST_V6,
    CRC_MASK,
    HEADER_BYTES,
    HEADERS,
    HOST_V4_BYTES,
    HOST_V6_BITS,
    HOSTS_V4_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    PACK_I16,
    PROPERTIES_BYTES_MAX,
    TOPIC_V1_RAW_MAX,
)
from keelmq.runtime.compiled import is_compiled, prefer_twin

FIXED_BYTES: Final = HEADER_BYTES + 2
"""Size of a record with IPv4 hosts, without its body, topic and properties."""
_IS_COMPILED: Final = is_compiled(__file__)
_UNIT = struct.Struct(">qiq")
_UNIT_BYTES: Final = 20
_TOPIC, _NEXT, _BYTES = 0, 2, 4  # in a QueueCursor

QueueCursor: TypeAlias = list[Any]
"""[topic_bytes(), queueId, queue offset of the next record, packed units (a bytearray), total size of their
records, key_prefix_hash or None if no keys are needed] of one queue. records_bytes() advances the three in
the middle."""
RecordFields: TypeAlias = tuple[
    int, int, int, int, int, int, int, bytes, int, bytes, int, int, bytes, bytes, bytes
]
"""(size, queueId, flag, queueOffset, physicalOffset, sysFlag, born timestamp, born host, store timestamp,
store host, reconsumeTimes, preparedTransactionOffset, body, topic_bytes(), properties) of one record. size:
computed from the others. sysFlag: with the bits of the hosts' widths. Timestamps in ms."""
Message: TypeAlias = tuple[QueueCursor, int, int, int, bytes, int, bytes, bytes, int, bytes, bytes]
"""(cursor of the queue, flag, sysFlag, born timestamp in ms, born host, reconsumeTimes, body, properties,
tags code, UNIQ_KEY, KEYS)"""


class CommonFields(NamedTuple):
    """Fields shared by messages that are stored together. store_timestamp: ms. host_bits: for each sysFlag;
    that of a wide born host is added."""

    store_timestamp: int
    store_host: bytes
    host_bits: int


class EncodedRecords(NamedTuple):
    """raw: all records. offsets, queue_offsets: the CommitLog offset and the queue offset of each. keys: of
    the queues whose cursor has a key_prefix_hash."""

    raw: bytes | bytearray
    offsets: list[int]
    queue_offsets: list[int]
    keys: list[Keyed]


def queue_cursor(
    topic_raw: bytes, queue_id: int, queue_offset: int, key_prefix_hash: int | None
) -> QueueCursor:
    """Returns a cursor without units. queue_offset: of the queue's next record."""
    return [topic_raw, queue_id, queue_offset, bytearray(), 0, key_prefix_hash]


def record_bytes(fields: RecordFields) -> bytes | bytearray:
    """Returns one record. struct.error: a number is out of its field's range."""
    if not _IS_COMPILED:
        return b"".join(record_parts(fields))
    try:
        return _written(fields)
    except OverflowError as error:
        raise struct.error(str(error)) from None


def record_parts(fields: RecordFields) -> tuple[bytes, bytes, bytes, bytes, bytes]:
    """As record_bytes(), but not joined, so that a long body is copied only once."""
    (
        size, queue_id, flag, queue_offset, offset, sys_flag, born_timestamp, born_host, store_timestamp,
        store_host, reconsume_times, prepared_offset, body, topic_raw, properties,
    ) = fields  # fmt: skip
    header = HEADERS[len(born_host), len(store_host)].pack(
        size, MAGIC_V1 if len(topic_raw) <= TOPIC_V1_RAW_MAX else MAGIC_V2, crc32(body) & CRC_MASK, queue_id,
        flag, queue_offset, offset, sys_flag, born_timestamp, born_host, store_timestamp, store_host,
        reconsume_times, prepared_offset, len(body),
    )  # fmt: skip
    return header, body, topic_raw, PACK_I16(len(properties)), properties


def records_bytes(messages: list[Message], shared: CommonFields, offset: int) -> EncodedRecords:
    """Returns the records as they are in a log from `offset` on, and advances the cursors. struct.error: a
    number is out of its field's range; the cursors are invalid then."""
    if _IS_COMPILED:
        try:
            return _all_written(messages, shared, offset)
        except OverflowError as error:
            raise struct.error(str(error)) from None
    timestamp, store_host, host_bits = shared
    fixed = FIXED_BYTES + len(store_host) - HOSTS_V4_BYTES
    parts: list[bytes] = []
    offsets: list[int] = []
    queue_offsets: list[int] = []
    keys: list[Keyed] = []
    for message in messages:
        (
            place, flag, sys_flag, born_timestamp, born_host, times, body, properties, code, unique_key, more
        ) = message  # fmt: skip
        topic_raw, queue_id, queue_offset, units, _, prefix_hash = place
        size = fixed + len(born_host) + len(body) + len(topic_raw) + len(properties)
        bits = host_bits if len(born_host) == HOST_V4_BYTES else host_bits | BORN_HOST_V6
        parts += record_parts((
            size, queue_id, flag, queue_offset, offset, sys_flag & ~HOST_V6_BITS | bits, born_timestamp,
            born_host, timestamp, store_host, times, 0, body, topic_raw, properties,
        ))  # fmt: skip
        units += _UNIT.pack(offset, size, code)
        place[_NEXT] = queue_offset + 1
        place[_BYTES] += size
        offsets.append(offset)
        queue_offsets.append(queue_offset)
        if prefix_hash is not None:
            keys.append((prefix_hash, offset, timestamp, unique_key, more))
        offset += size
    return EncodedRecords(b"".join(parts), offsets, queue_offsets, keys)


# -- compiled --------------------------------------------------------------------------------------


def _written(fields: RecordFields) -> bytearray:
    (
        size, queue_id, flag, queue_offset, offset, sys_flag, born_timestamp, born_host, store_timestamp,
        store_host, reconsume_times, prepared_offset, body, topic_raw, properties,
    ) = fields  # fmt: skip
    topic_bytes, properties_bytes = len(topic_raw), len(properties)
    hosts_extra = len(born_host) + len(store_host) - HOSTS_V4_BYTES
    if properties_bytes > PROPERTIES_BYTES_MAX:
        raise struct.error(f"properties of {properties_bytes} bytes")
    if size != FIXED_BYTES + hosts_extra + len(body) + topic_bytes + properties_bytes:
        raise ValueError(f"{size} bytes are not what the record needs")
    whole = bytearray(size)
    target = whole
    crc = crc32(body)
    _fill(
        target, 0, size, crc & CRC_MASK, queue_id, flag, queue_offset, offset, sys_flag, born_timestamp,
        born_host, store_timestamp, store_host, reconsume_times, prepared_offset, body, topic_raw, properties,
    )  # fmt: skip
    return whole


def _all_written(messages: list[Message], shared: CommonFields, offset: int) -> EncodedRecords:
    timestamp, store_host, host_bits = shared
    fixed = FIXED_BYTES + len(store_host) - HOSTS_V4_BYTES
    total = 0
    for place, _, _, _, born_host, _, body, properties, _, _, _ in messages:
        if len(properties) > PROPERTIES_BYTES_MAX:
            raise struct.error(f"properties of {len(properties)} bytes")
        topic_raw = place[_TOPIC]
        total += fixed + len(born_host) + len(topic_raw) + len(body) + len(properties)
    whole, unit = bytearray(total), bytearray(_UNIT_BYTES)
    target, unit_target, at = whole, unit, 0
    offsets: list[int] = []
    queue_offsets: list[int] = []
    keys: list[Keyed] = []
    for message in messages:
        (
            place, flag, sys_flag, born_timestamp, born_host, times, body, properties, code, unique_key, more
        ) = message  # fmt: skip
        topic_raw, queue_id, queue_offset, units, log_bytes, prefix_hash = place
        size = fixed + len(born_host) + len(topic_raw) + len(body) + len(properties)
        bits = host_bits if len(born_host) == HOST_V4_BYTES else host_bits | BORN_HOST_V6
        crc = crc32(body)
        _fill(
            target, at, size, crc & CRC_MASK, queue_id, flag, queue_offset, offset,
            sys_flag & ~HOST_V6_BITS | bits, born_timestamp, born_host, timestamp, store_host, times, 0,
            body, topic_raw, properties,
        )  # fmt: skip
        _put(unit_target, 0, 8, offset)
        _put(unit_target, 8, 4, size)
        _put(unit_target, 12, 8, code)
        units += unit
        place[_NEXT] = queue_offset + 1
        place[_BYTES] = log_bytes + size
        where = offset
        offsets.append(where)
        queue_offsets.append(queue_offset)
        if prefix_hash is not None:
            keys.append((prefix_hash, where, timestamp, unique_key, more))
        offset += size
        at += size
    return EncodedRecords(whole, offsets, queue_offsets, keys)


def _fill(
    target: bytearray,
    start: int,
    size: int,
    crc: int,
    queue_id: int,
    flag: int,
    queue_offset: int,
    offset: int,
    sys_flag: int,
    born_timestamp: int,
    born_host: bytes,
    store_timestamp: int,
    store_host: bytes,
    reconsume_times: int,
    prepared_offset: int,
    body: bytes,
    topic_raw: bytes,
    properties: bytes,
) -> None:
    """Writes one record of `size` bytes at `start`; the caller has checked all sizes."""
    topic_bytes, properties_bytes = len(topic_raw), len(properties)
    _put(target, start, 4, size)
    _put(target, start + 4, 4, MAGIC_V1 if topic_bytes <= TOPIC_V1_RAW_MAX else MAGIC_V2)
    _put(target, start + 8, 4, crc)
    _put(target, start + 12, 4, queue_id)
    _put(target, start + 16, 4, flag)
    _put(target, start + 20, 8, queue_offset)
    _put(target, start + 28, 8, offset)
    _put(target, start + 36, 4, sys_flag)
    _put(target, start + 40, 8, born_timestamp)
    at = _copy(target, start + 48, born_host, len(born_host))
    _put(target, at, 8, store_timestamp)
    at = _copy(target, at + 8, store_host, len(store_host))
    _put(target, at, 4, reconsume_times)
    _put(target, at + 4, 8, prepared_offset)
    _put(target, at + 12, 4, len(body))
    at = _copy(target, at + 16, body, len(body))
    at = _copy(target, at, topic_raw, topic_bytes)
    _put(target, at, 2, properties_bytes)
    _copy(target, at + 2, properties, properties_bytes)


def _put(target: bytearray, at: int, width: int, value: int) -> None:
    """Stores a number big-endian; it may be negative."""
    for index in range(width):
        target[at + width - 1 - index] = value & 0xFF
        value >>= 8


def _copy(target: bytearray, at: int, source: bytes, count: int) -> int:
    """Copies `count` bytes. Returns where they end."""
    for index in range(count):
        target[at + index] = source[index]
    return at + count


prefer_twin(__name__, globals(), "record_bytes", "records_bytes")
