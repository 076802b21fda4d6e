"""A record as it goes into the log: record.py's layout, written."""

import struct
from typing import Final

from isal.isal_zlib import crc32

from broker.store.record import (
    CRC_MASK,
    HEADER_BYTES,
    HOSTS_V4_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    PACK_HEADER,
    PACK_I16,
    PROPERTIES_BYTES_MAX,
    TOPIC_V1_RAW_MAX,
    pack_wide_header,
)
from remoting.compiled import is_compiled, prefer_twin

FIXED_BYTES: Final = HEADER_BYTES + 2
"""Of a record with IPv4 hosts, without body, topic and properties."""
_IS_COMPILED: Final = is_compiled(__file__)


def record_bytes(
    size: int,
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
) -> bytes | bytearray:
    """`size` bytes, which is what the parts need. struct.error: a number out of its field's range."""
    if not _IS_COMPILED:  # record_parts() written out: so many arguments cost more than the work
        magic = MAGIC_V1 if len(topic_raw) <= TOPIC_V1_RAW_MAX else MAGIC_V2
        pack = PACK_HEADER if len(born_host) + len(store_host) == HOSTS_V4_BYTES else pack_wide_header
        # fmt: off
        header = pack(size, magic, crc32(body) & CRC_MASK, queue_id, flag, queue_offset, offset, sys_flag,
                      born_timestamp, born_host, store_timestamp, store_host, reconsume_times,
                      prepared_offset, len(body))
        # fmt: on
        return b"".join((header, body, topic_raw, PACK_I16(len(properties)), properties))
    try:
        return _written(
            size, crc32(body) & CRC_MASK, queue_id, flag, queue_offset, offset, sys_flag, born_timestamp,
            born_host, store_timestamp, store_host, reconsume_times, prepared_offset, body, topic_raw,
            properties,
        )  # fmt: skip
    except OverflowError as error:
        raise struct.error(str(error)) from None


def record_parts(
    size: int,
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
) -> tuple[bytes, bytes, bytes, bytes, bytes]:
    """The same, not joined yet: a long body is copied once."""
    magic = MAGIC_V1 if len(topic_raw) <= TOPIC_V1_RAW_MAX else MAGIC_V2
    pack = PACK_HEADER if len(born_host) + len(store_host) == HOSTS_V4_BYTES else pack_wide_header
    # fmt: off
    header = pack(size, magic, crc32(body) & CRC_MASK, queue_id, flag, queue_offset, offset, sys_flag,
                  born_timestamp, born_host, store_timestamp, store_host, reconsume_times,
                  prepared_offset, len(body))
    # fmt: on
    return header, body, topic_raw, PACK_I16(len(properties)), properties


# -- the twin's way --------------------------------------------------------------------------------------


def _written(
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
) -> bytearray:
    topic_bytes, properties_bytes = len(topic_raw), len(properties)
    hosts_extra = len(born_host) + len(store_host) - HOSTS_V4_BYTES
    if properties_bytes > PROPERTIES_BYTES_MAX:
        raise struct.error(f"properties of {properties_bytes} bytes")
    if size != FIXED_BYTES + hosts_extra + len(body) + topic_bytes + properties_bytes:
        raise ValueError(f"{size} bytes are not what the record needs")
    whole = bytearray(size)
    target = whole
    _put(target, 0, 4, size)
    _put(target, 4, 4, MAGIC_V1 if topic_bytes <= TOPIC_V1_RAW_MAX else MAGIC_V2)
    _put(target, 8, 4, crc)
    _put(target, 12, 4, queue_id)
    _put(target, 16, 4, flag)
    _put(target, 20, 8, queue_offset)
    _put(target, 28, 8, offset)
    _put(target, 36, 4, sys_flag)
    _put(target, 40, 8, born_timestamp)
    at = _copy(target, 48, born_host, len(born_host))
    _put(target, at, 8, store_timestamp)
    at = _copy(target, at + 8, store_host, len(store_host))
    _put(target, at, 4, reconsume_times)
    _put(target, at + 4, 8, prepared_offset)
    _put(target, at + 12, 4, len(body))
    at = _copy(target, at + 16, body, len(body))
    at = _copy(target, at, topic_raw, topic_bytes)
    _put(target, at, 2, properties_bytes)
    _copy(target, at + 2, properties, properties_bytes)
    return whole


def _put(target: bytearray, at: int, width: int, value: int) -> None:
    """Big-endian; negative numbers, too."""
    for index in range(width):
        target[at + width - 1 - index] = value & 0xFF
        value >>= 8


def _copy(target: bytearray, at: int, source: bytes, count: int) -> int:
    """Where the copy ends."""
    for index in range(count):
        target[at + index] = source[index]
    return at + count


prefer_twin(__name__, globals(), "record_bytes")
