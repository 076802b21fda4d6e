"""The checksum of a whole record, as the last of its properties (enabledAppendPropCRC).

    PROPERTIES ... \\x02 | __CRC32# \\x01 dddddddddd \\x02        the last 20 bytes of the record

The digits are decimal, the lowest first, padded with 0 at the end. They are the CRC-32 (without its top bit)
of everything in front of the property: also of what BODYCRC leaves out, offsets, times, hosts, topic and
properties. One of that name anywhere else is no checksum: a copy has it of its original, or a client made it
up.
Source: RocketMQ 5.3.3 MessageExtEncoder, MessageDecoder.createCrc32, CommitLog.checkMessageAndReturnSize.
"""

import struct
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol, TypeAlias

from isal.isal_zlib import crc32

from broker.store.commit_log import CommitLog
from broker.store.consume_queue import UNIT
from broker.store.inner_batch import items_of
from broker.store.property_bytes import without
from broker.store.record import (
    BLANK,
    CRC_MASK,
    HOSTS_V4_BYTES,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    PACK_HEADER,
    PACK_I16,
    PROPERTIES_BYTES_MAX,
    TOPIC_V1_RAW_MAX,
    Buffer,
    Parsed,
    pack_wide_header,
    parse,
)
from broker.store.record_bytes import FIXED_BYTES

CRC_NAME: Final = b"__CRC32#"
_BEGIN: Final = CRC_NAME + b"\x01"
_END: Final = b"\x02"
_DIGITS: Final = 10
SEAL_BYTES: Final = len(_BEGIN) + _DIGITS + len(_END)
PROPERTY_ROOM_BYTES: Final = SEAL_BYTES + 1
"""What a record's other properties leave free, with a separator."""
_ITEM = struct.Struct(">iiiii")

Append: TypeAlias = Callable[[bytes, int, int, int, int, int, bytes, bytes, int, int, bytes, bytes, int], int]
"""CommitLog.append."""


class Look(Protocol):
    """As record.parse(): None is no whole good record."""

    def __call__(self, buffer: Buffer, pos: int, end: int, *, offset: int) -> Parsed | None: ...


def seal_of(crc: int) -> bytes:
    return b"%b%b%b" % (_BEGIN, str(crc)[::-1].ljust(_DIGITS, "0").encode(), _END)


EMPTY_SEAL: Final = seal_of(0)
"""Keeps the place, until the rest of the record is known."""


# -- writing -----------------------------------------------------------------------------------------------


def append_of(log: CommitLog, *, sealed: bool) -> Append:
    """How records get into the log."""
    return partial(append_sealed, log) if sealed else log.append


def append_sealed(
    log: CommitLog,
    topic_raw: bytes,
    queue_id: int,
    queue_offset: int,
    flag: int,
    sys_flag: int,
    born_timestamp: int,
    born_host: bytes,
    store_host: bytes,
    store_timestamp: int,
    reconsume_times: int,
    body: bytes,
    properties: bytes,
    prepared_offset: int = 0,
) -> int:
    """As CommitLog.append(); the seal comes behind the other properties, instead of one that is there. The
    log has the record whole or not at all: a thread may be sending it to a replica already."""
    properties = without(properties, CRC_NAME)
    properties_length, body_length = len(properties) + SEAL_BYTES, len(body)
    if properties_length > PROPERTIES_BYTES_MAX:
        raise ValueError(f"properties of {properties_length} bytes, with the checksum")
    magic = MAGIC_V1 if len(topic_raw) <= TOPIC_V1_RAW_MAX else MAGIC_V2
    hosts_extra = len(born_host) + len(store_host) - HOSTS_V4_BYTES
    size = FIXED_BYTES + hosts_extra + body_length + len(topic_raw) + properties_length
    offset = log.max_offset if log.fits(size) else log.close_file(size)
    pack_header = pack_wide_header if hosts_extra else PACK_HEADER
    # fmt: off
    header = pack_header(size, magic, crc32(body) & CRC_MASK, queue_id, flag, queue_offset, offset,
                         sys_flag, born_timestamp, born_host, store_timestamp, store_host,
                         reconsume_times, prepared_offset, body_length)
    # fmt: on
    raw = b"".join((header, body, topic_raw, PACK_I16(properties_length), properties))
    log.store(raw + seal_of(crc32(raw) & CRC_MASK))
    return offset


def seal_records(raw: bytes, units: bytes) -> bytes:
    """Records that end with EMPTY_SEAL; units: of their queue."""
    sealed, view, start = bytearray(raw), memoryview(raw), 0
    for _, size, _ in UNIT.iter_unpack(units):
        at = start + size - SEAL_BYTES
        sealed[at : at + SEAL_BYTES] = seal_of(crc32(view[start:at]) & CRC_MASK)
        start += size
    return bytes(sealed)


def unsealed_batch(body: bytes) -> bytes:
    """A client's batch without checksums among the properties of its items. ValueError, struct.error: it is
    no batch."""
    if _BEGIN not in body:
        return body
    parts: list[bytes] = []
    for flag, text, raw in items_of(body):
        properties = without(raw, CRC_NAME)
        size = _ITEM.size + len(text) + 2 + len(properties)
        parts += (_ITEM.pack(size, 0, 0, flag, len(text)), text, PACK_I16(len(properties)), properties)
    return b"".join(parts)


# -- reading -----------------------------------------------------------------------------------------------


def look_of(*, check_crc: bool, sealed: bool) -> Look:
    """How a start looks at the log. check_crc: checkCRCOnRecover; sealed: forceVerifyPropCRC."""
    if not check_crc:
        return parse
    return parse_sealed if sealed else partial(parse, check_crc=True)


def parse_sealed(buffer: Buffer, pos: int, end: int, *, offset: int) -> Parsed | None:
    """As record.parse(): with the record's own checksum, or with BODYCRC where it has none: the setting may
    be younger than the log. RocketMQ takes such a record for a bad one, and one whose checksum is 0."""
    parsed = parse(buffer, pos, end, offset=offset)
    if parsed is None or BLANK.unpack_from(buffer, pos)[1] == MAGIC_BLANK:
        return parsed
    seal_at = pos + parsed[0] - SEAL_BYTES
    seal = bytes(buffer[seal_at : seal_at + SEAL_BYTES])
    if not (seal.startswith(_BEGIN) and seal.endswith(_END) and seal[len(_BEGIN) : -1].isdigit()):
        return parse(buffer, pos, end, offset=offset, check_crc=True)
    return parsed if seal == seal_of(crc32(buffer[pos:seal_at]) & CRC_MASK) else None
