"""The checksum of a whole record, stored as its last property (enabledAppendPropCRC). Pure.

    PROPERTIES ... \\x02 | __CRC32# \\x01 dddddddddd \\x02        the last 20 bytes of the record

The digits are decimal, the lowest first, padded with zeros at the end. They are the CRC-32 (without its top
bit) of all bytes of the record in front of the property. BODYCRC covers the body alone; this checksum also
covers offsets, timestamps, hosts, topic and properties. A property __CRC32# at any other place is no
checksum: it comes from the original of a copied record, or from a client. Source: RocketMQ 5.3.3
MessageExtEncoder, MessageDecoder.createCrc32, CommitLog.checkMessageAndReturnSize.
"""

import struct
from functools import partial
from typing import Final, Protocol

from isal.isal_zlib import crc32

from broker.message.inner_batch import items_of
from broker.message.properties import without
from broker.message.record import BLANK, CRC_MASK, MAGIC_BLANK, PACK_I16, Buffer, Parsed, parse

CRC_NAME: Final = b"__CRC32#"
_BEGIN: Final = CRC_NAME + b"\x01"
_END: Final = b"\x02"
_DIGITS: Final = 10
PROP_CRC_BYTES: Final = len(_BEGIN) + _DIGITS + len(_END)
PROPERTY_ROOM_BYTES: Final = PROP_CRC_BYTES + 1
"""Bytes of a record's properties that are reserved for the checksum and a separator in front of it."""
_ITEM = struct.Struct(">iiiii")


class RecordParser(Protocol):
    """record.parse(), or a function with more checks. None: no whole good record."""

    def __call__(self, buffer: Buffer, pos: int, end: int, *, offset: int) -> Parsed | None: ...


def prop_crc(crc: int) -> bytes:
    """The property with this CRC-32, which has no top bit."""
    return b"%b%b%b" % (_BEGIN, str(crc)[::-1].ljust(_DIGITS, "0").encode(), _END)


EMPTY_PROP_CRC: Final = prop_crc(0)
"""Reserves the bytes of the checksum until the rest of the record is known."""


# -- writing -----------------------------------------------------------------------------------------------


def with_empty_crc(properties: bytes) -> bytes:
    """The properties with EMPTY_PROP_CRC as the last one, and without any other checksum."""
    return without(properties, CRC_NAME) + EMPTY_PROP_CRC


def with_prop_crcs(raw: bytes | bytearray) -> bytes:
    """Whole records, each of which ends with EMPTY_PROP_CRC, with their checksums in its place."""
    result, view, start = bytearray(raw), memoryview(raw), 0
    while start < len(raw):
        end = start + BLANK.unpack_from(raw, start)[0]
        crc_at = end - PROP_CRC_BYTES
        result[crc_at:end] = prop_crc(crc32(view[start:crc_at]) & CRC_MASK)
        start = end
    return bytes(result)


def batch_without_crcs(body: bytes) -> bytes:
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


def recovery_parser(*, check_crc: bool, check_prop_crc: bool) -> RecordParser:
    """The parser with which a start checks the log. check_crc: checkCRCOnRecover; check_prop_crc:
    forceVerifyPropCRC."""
    if not check_crc:
        return parse
    return parse_with_prop_crc if check_prop_crc else parse_checked


parse_checked: Final[RecordParser] = partial(parse, check_crc=True)
"""record.parse(), which also checks BODYCRC."""


def parse_with_prop_crc(buffer: Buffer, pos: int, end: int, *, offset: int) -> Parsed | None:
    """As record.parse(); checks the record's own checksum, or BODYCRC where it has none, since the setting
    may be younger than the log. RocketMQ treats a record without a checksum, or with the checksum 0, as
    bad."""
    parsed = parse(buffer, pos, end, offset=offset)
    if parsed is None or BLANK.unpack_from(buffer, pos)[1] == MAGIC_BLANK:
        return parsed
    crc_at = pos + parsed[0] - PROP_CRC_BYTES
    found = bytes(buffer[crc_at : crc_at + PROP_CRC_BYTES])
    if not (found.startswith(_BEGIN) and found.endswith(_END) and found[len(_BEGIN) : -1].isdigit()):
        return parse(buffer, pos, end, offset=offset, check_crc=True)
    return parsed if found == prop_crc(crc32(buffer[pos:crc_at]) & CRC_MASK) else None
