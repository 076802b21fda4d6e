"""Makes the records of the log and the units of the queue from a client's batch, in one pass over its bytes.

An item of a batch as clients write it (magic and crc are not used):

    0 SIZE i32 | 4 magic | 8 crc | 12 FLAG i32 | 16 BODYLENGTH i32, BODY | PROPERTIESLENGTH i16, PROPERTIES

The fields that all items share are packed once. Pure; a compiled leaf. Source: RocketMQ 5.3.3 MessageDecoder,
MessageExtEncoder.
"""

import struct
from functools import lru_cache
from typing import Final, NamedTuple

from isal.isal_zlib import crc32

from broker.message.indexed_keys import Keyed
from broker.message.property_scan import scan
from broker.message.record import (
    CRC_MASK,
    MAGIC_V1,
    MAGIC_V2,
    PACK_I16,
    PROPERTIES_BYTES_MAX,
    TOPIC_V1_RAW_MAX,
    index_keys,
    tags_code,
)
from keelmq.runtime.compiled import is_compiled, prefer_twin

ITEMS_MAX: Final = 65_536
RECORDS_BYTES_MAX: Final = 32 << 20
"""Limit of the records of one batch: common fields are written for each item, and without a limit a small
request could fill the disk."""
UNIT_FORMAT: Final = "qiq"
_IS_COMPILED: Final = is_compiled(__file__)
_UNITS_AT_ONCE: Final = 128
_UNIT_BYTES: Final = 20
_ITEM = struct.Struct(">i8xii")
_ITEM_BYTES: Final = 20
_BEFORE_PROPERTIES: Final = _ITEM_BYTES + 2
_UNPACK_I16 = struct.Struct(">h").unpack_from
_PACK_HEAD = struct.Struct(">iIIiiqq").pack  # of a record, up to PHYSICALOFFSET
_HEAD_BYTES: Final = 36
_LENGTHS_AND_HEAD_BYTES: Final = _HEAD_BYTES + 4 + 2
_PACK_I32 = struct.Struct(">i").pack
_PACK_QUEUE = struct.Struct(">iqq").pack
_SEPARATOR: Final = 2
_SIGN: Final = 0x80000000
_READ_LATER: Final = (b"TAGS\x01", b"KEYS\x01", b"UNIQ_KEY\x01")


class Batch(NamedTuple):
    """A batch, and the fields that its items share. body: the items. queue_offset: of the first item. middle:
    the records' bytes from SYSFLAG to PREPAREDTRANSACTIONOFFSET, see middle_of_header(). shared: properties
    that are appended to each item's own. key_prefix_hash: java_hash(topic + "#"), or None if no keys are
    needed. store_timestamp: ms."""

    body: bytes
    topic_raw: bytes
    queue_id: int
    queue_offset: int
    middle: bytes
    shared: bytes
    key_prefix_hash: int | None
    store_timestamp: int


class Records(NamedTuple):
    """raw: all records. offsets: CommitLog offset of each. units: packed (offset, size, tags code) of each,
    as a ConsumeQueue stores them. last_properties: those of the last item, with `shared` behind them if that
    has tags or keys."""

    raw: bytes
    offsets: list[int]
    units: bytes
    keys: list[Keyed]
    last_properties: bytes


def middle_of_header(
    sys_flag: int,
    born_timestamp: int,
    born_host: bytes,
    store_timestamp: int,
    store_host: bytes,
    reconsume_times: int,
) -> bytes:
    """Returns Batch.middle. sys_flag: with the bits of the hosts' widths. Timestamps in ms."""
    born = struct.pack(">iq", sys_flag, born_timestamp) + born_host
    stored = struct.pack(">q", store_timestamp) + store_host
    return born + stored + struct.pack(">iq", reconsume_times, 0)


def records_of(batch: Batch, offset: int) -> Records:
    """Returns the records as they are in a log from `offset` on. ValueError: `body` is no batch, or its
    records are too large; struct.error: a number is out of its field's range."""
    shared_is_read = any(name in batch.shared for name in _READ_LATER)
    _PACK_QUEUE(batch.queue_id, batch.queue_offset, offset)
    if _IS_COMPILED:
        return _written(batch, offset, shared_is_read, _checked_bytes(batch.body, batch))
    body, topic_raw, queue_id, queue_offset, middle, shared, _, _ = batch
    shared_bytes, body_end = len(shared), len(body)
    fixed = _LENGTHS_AND_HEAD_BYTES + len(middle) + len(topic_raw) + shared_bytes
    magic = MAGIC_V1 if len(topic_raw) <= TOPIC_V1_RAW_MAX else MAGIC_V2
    parts: list[bytes] = []
    units: list[int] = []
    texts: list[bytes] = []
    lead = tail = b""
    lead_bytes = tail_bytes = -1  # sizes for which lead and tail were packed; most items have equal sizes
    at, room = 0, RECORDS_BYTES_MAX
    while at < body_end:
        if body_end - at < _BEFORE_PROPERTIES:
            raise _cut_off(len(texts), body_end - at)
        size, flag, body_bytes = _ITEM.unpack_from(body, at)
        text_at, properties_at, end = at + _ITEM_BYTES, at + _BEFORE_PROPERTIES + body_bytes, at + size
        if body_bytes < 0 or not properties_at <= end <= body_end:
            raise _wrong_size(len(texts), body_bytes, size)
        if properties_at + _UNPACK_I16(body, properties_at - 2)[0] != end:
            raise _wrong_end(len(texts))
        text, properties = body[text_at : properties_at - 2], body[properties_at:end]
        if properties and body[end - 1] != _SEPARATOR:
            properties += b"\x02"
        properties_bytes = len(properties)
        if properties_bytes != tail_bytes:
            tail_bytes = properties_bytes
            if properties_bytes + shared_bytes > PROPERTIES_BYTES_MAX:
                raise _too_long(len(texts), properties_bytes)
            tail = topic_raw + PACK_I16(properties_bytes + shared_bytes)
        if body_bytes != lead_bytes:
            lead_bytes, lead = body_bytes, middle + _PACK_I32(body_bytes)
        record_bytes = fixed + body_bytes + properties_bytes
        if (room := room - record_bytes) < 0:
            raise _too_large()
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
    if not 0 < len(texts) <= ITEMS_MAX:
        raise _wrong_count(len(texts))
    if b"\0" in b"".join(texts):
        raise _zero()
    offsets = units[0::3]
    return Records(b"".join(parts), offsets, _packed(units), _keys(batch, offsets, texts), texts[-1])


def _keys(batch: Batch, offsets: list[int], texts: list[bytes]) -> list[Keyed]:
    prefix_hash, timestamp = batch.key_prefix_hash, batch.store_timestamp
    if prefix_hash is None:
        return []
    return [
        (prefix_hash, offset, timestamp, *index_keys(properties))
        for offset, properties in zip(offsets, texts, strict=True)
    ]


@lru_cache(maxsize=_UNITS_AT_ONCE + 1)
def _units_of(count: int) -> struct.Struct:
    return struct.Struct(">" + UNIT_FORMAT * count)


def _packed(units: list[int]) -> bytes:
    step = 3 * _UNITS_AT_ONCE
    pieces = [units[at : at + step] for at in range(0, len(units), step)]
    return b"".join([_units_of(len(piece) // 3).pack(*piece) for piece in pieces])


def _cut_off(number: int, count: int) -> ValueError:
    return ValueError(f"item {number} is cut off after {count} bytes")


def _wrong_size(number: int, body_bytes: int, size: int) -> ValueError:
    return ValueError(f"item {number} has {body_bytes} bytes of body, and {size} in all")


def _wrong_end(number: int) -> ValueError:
    return ValueError(f"item {number} does not end where its size says")


def _too_long(number: int, properties_bytes: int) -> ValueError:
    return ValueError(f"the properties of item {number} have {properties_bytes} bytes")


def _too_large() -> ValueError:
    return ValueError(f"its records would have more than {RECORDS_BYTES_MAX} bytes")


def _wrong_count(count: int) -> ValueError:
    return ValueError(f"a batch of {count} items; 1 to {ITEMS_MAX} are taken")


def _zero() -> ValueError:
    """Zero bytes are refused, because recovery treats them as the end of the bytes written before a crash."""
    return ValueError("the properties of an item contain a zero byte")


# -- compiled --------------------------------------------------------------------------------------


def _checked_bytes(body: bytes, batch: Batch) -> int:
    """Returns the size of all records; makes the same refusals as the interpreted path, in the same order."""
    raw, body_end, shared_bytes = body, len(body), len(batch.shared)
    fixed = _LENGTHS_AND_HEAD_BYTES + len(batch.middle) + len(batch.topic_raw) + shared_bytes
    at = number = total = 0
    has_zero = False
    while at < body_end:
        if body_end - at < _BEFORE_PROPERTIES:
            raise _cut_off(number, body_end - at)
        size, body_bytes = _i32(raw, at), _i32(raw, at + 16)
        properties_at, end = at + _BEFORE_PROPERTIES + body_bytes, at + size
        if body_bytes < 0 or not properties_at <= end <= body_end:
            raise _wrong_size(number, body_bytes, size)
        stated_bytes = raw[properties_at - 2] << 8 | raw[properties_at - 1]
        if stated_bytes > PROPERTIES_BYTES_MAX or properties_at + stated_bytes != end:
            raise _wrong_end(number)
        properties_bytes = end - properties_at + (properties_at < end and raw[end - 1] != _SEPARATOR)
        if properties_bytes + shared_bytes > PROPERTIES_BYTES_MAX:
            raise _too_long(number, properties_bytes)
        for index in range(properties_at, end):
            if raw[index] == 0:
                has_zero = True
        total += fixed + body_bytes + properties_bytes
        if total > RECORDS_BYTES_MAX:
            raise _too_large()
        number += 1
        at = end
    if not 0 < number <= ITEMS_MAX:
        raise _wrong_count(number)
    if has_zero:
        raise _zero()
    return total


def _written(batch: Batch, offset: int, shared_is_read: bool, total: int) -> Records:
    """Makes the records of checked items; total: their size."""
    body, topic_raw, queue_id, queue_offset, middle, shared, prefix_hash, timestamp = batch
    raw, body_end, shared_bytes = body, len(body), len(shared)
    middle_bytes, topic_bytes = len(middle), len(topic_raw)
    fixed = _LENGTHS_AND_HEAD_BYTES + middle_bytes + topic_bytes + shared_bytes
    magic = MAGIC_V1 if topic_bytes <= TOPIC_V1_RAW_MAX else MAGIC_V2
    whole, packed = bytearray(total), bytearray(body_end // _BEFORE_PROPERTIES * _UNIT_BYTES)
    target, unit_target, middle_raw, topic_source, shared_raw = whole, packed, middle, topic_raw, shared
    offsets: list[int] = []
    keys: list[Keyed] = []
    properties, at, to, unit_to = b"", 0, 0, 0
    while at < body_end:
        text_at, body_bytes = at + _ITEM_BYTES, _i32(raw, at + 16)
        properties_at, end = text_at + body_bytes + 2, at + _i32(raw, at)
        properties = body[properties_at:end]
        if properties and raw[end - 1] != _SEPARATOR:
            properties += b"\x02"
        properties_bytes = len(properties)
        record_bytes = fixed + body_bytes + properties_bytes
        _put(target, to, 4, record_bytes)
        _put(target, to + 4, 4, magic)
        crc = crc32(body[text_at : properties_at - 2])
        _put(target, to + 8, 4, crc & CRC_MASK)
        _put(target, to + 12, 4, queue_id)
        _put(target, to + 16, 4, _i32(raw, at + 12))
        _put(target, to + 20, 8, queue_offset)
        _put(target, to + 28, 8, offset)
        to = _copy(target, to + _HEAD_BYTES, middle_raw, 0, middle_bytes)
        _put(target, to, 4, body_bytes)
        to = _copy(target, to + 4, raw, text_at, body_bytes)
        to = _copy(target, to, topic_source, 0, topic_bytes)
        _put(target, to, 2, properties_bytes + shared_bytes)
        properties_raw = properties
        to = _copy(target, to + 2, properties_raw, 0, properties_bytes)
        to = _copy(target, to, shared_raw, 0, shared_bytes)
        if shared_is_read:
            properties += shared
        _, _, _, code, unique_key, own_keys = scan(properties)
        _put(unit_target, unit_to, 8, offset)
        _put(unit_target, unit_to + 8, 4, record_bytes)
        _put(unit_target, unit_to + 12, 8, code)
        place = offset
        offsets.append(place)
        if prefix_hash is not None:
            keys.append((prefix_hash, place, timestamp, unique_key, own_keys))
        queue_offset += 1
        offset += record_bytes
        unit_to += _UNIT_BYTES
        at = end
    return Records(bytes(whole), offsets, bytes(packed[:unit_to]), keys, properties)


def _i32(raw: bytes, at: int) -> int:
    word = raw[at] << 24 | raw[at + 1] << 16 | raw[at + 2] << 8 | raw[at + 3]
    return word if word < _SIGN else word - 2 * _SIGN


def _put(target: bytearray, at: int, width: int, value: int) -> None:
    """Stores a number big-endian; it may be negative."""
    for index in range(width):
        target[at + width - 1 - index] = value & 0xFF
        value >>= 8


def _copy(target: bytearray, at: int, source: bytes, begin: int, count: int) -> int:
    """Copies `count` bytes. Returns where they end."""
    for index in range(count):
        target[at + index] = source[begin + index]
    return at + count


prefer_twin(__name__, globals(), "records_of")
