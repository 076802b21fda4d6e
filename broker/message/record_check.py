"""Checks runs of records of a log: sizes, own offsets and BODYCRC, as record.parse() with check_crc. Pure; a
compiled leaf.

A record carries its own CommitLog offset, so the next good record behind a damaged one, and the last one in
front of any byte, are found by search: a copy of a record in the body of another one has another offset.
"""

import struct
from typing import Final

from isal.isal_zlib import crc32

from broker.message.record import (
    BLANK_BYTES,
    BORN_HOST_V6,
    CRC_MASK,
    HEADER_BYTES,
    HOST_V6_BITS,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    STORE_HOST_V6,
    parse,
)
from keelmq.runtime.compiled import is_compiled, prefer_twin

_IS_COMPILED: Final = is_compiled(__file__)
_MAGIC_AT: Final = 4
RECORD_MAGICS: Final = (MAGIC_V1.to_bytes(4, "big"), MAGIC_V2.to_bytes(4, "big"))
_BLANK_MAGIC: Final = MAGIC_BLANK.to_bytes(4, "big")
_WIDER: Final = 12
"""Bytes by which an IPv6 host is wider."""
_I16_SIGN: Final = 0x8000
_SIZE = struct.Struct(">i")
_UNIT = struct.Struct(">qi8x")
_UNIT_BYTES: Final = _UNIT.size


def good_end(view: memoryview, pos: int, end: int, offset: int) -> int:
    """Follows the records from `pos` on, whose own CommitLog offsets begin with `offset`; reads nothing at or
    after `end`. Returns the position behind the last good one: `end`, or where a record is damaged, or cut by
    `end`. IndexError: `end` is not in the view."""
    if not 0 <= pos <= end <= len(view):
        raise IndexError(f"{pos}..{end} of {len(view)} bytes")
    if _IS_COMPILED:
        return _good_end(view, view, pos, end, offset)
    begin = pos
    while pos < end:
        parsed = parse(view, pos, end, offset=offset + pos - begin, check_crc=True)
        if parsed is None:
            return pos
        pos += parsed[0]
    return pos


def all_good(view: memoryview, offset: int, units: bytes) -> bool:
    """Whether each of these units of a ConsumeQueue names whole good records in the view, which has the
    CommitLog offset `offset`."""
    if _IS_COMPILED:
        return _all_good(view, view, offset, units)
    for start, size in _UNIT.iter_unpack(units):
        at, end = start - offset, start - offset + size
        if not 0 <= at < end <= len(view) or good_end(view, at, end, start) != end:
            return False
    return True


def next_good(view: memoryview, pos: int, end: int, offset: int, file_left: int) -> int:
    """Returns the position of the first good record behind `pos`, where the CommitLog offset is `offset`; -1:
    none begins in front of `end`. file_left: bytes from `pos` to the end of the log's file; a blank record
    must end there."""
    found = [_first(view, pos, end, offset, magic, file_left) for magic in (*RECORD_MAGICS, _BLANK_MAGIC)]
    return min([at for at in found if at >= 0], default=-1)


def last_good(view: memoryview, pos: int, offset: int) -> int:
    """Returns the position of the last good record that begins at or in front of `pos`; -1: there is none.
    Blank records do not count. offset: CommitLog offset of the view."""
    raw, last = bytes(view[: pos + BLANK_BYTES]), -1  # the magic code behind `pos` as well
    for magic in RECORD_MAGICS:
        at = raw.rfind(magic)
        while at >= _MAGIC_AT + max(last, 0):
            start = at - _MAGIC_AT
            if parse(view, start, len(view), offset=offset + start, check_crc=True) is not None:
                last = start
            at = raw.rfind(magic, 0, at)
    return last


def _first(view: memoryview, pos: int, end: int, offset: int, magic: bytes, file_left: int) -> int:
    raw = bytes(view[pos:end])
    at = raw.find(magic, 1 + _MAGIC_AT)
    while at >= 0:
        start = at - _MAGIC_AT
        if magic == _BLANK_MAGIC:
            if _SIZE.unpack_from(raw, start)[0] == file_left - start:
                return pos + start
        elif parse(view, pos + start, len(view), offset=offset + start, check_crc=True) is not None:
            return pos + start
        at = raw.find(magic, at + 1)
    return -1


# -- compiled --------------------------------------------------------------------------------------


def _good_end(view: memoryview, raw: memoryview, begin: int, end: int, offset: int) -> int:
    pos = begin
    while pos < end:
        room = end - pos
        if room < BLANK_BYTES:
            return pos
        size = _number(raw, pos, 4)
        magic = _number(raw, pos + 4, 4)
        if magic == MAGIC_BLANK:
            if not BLANK_BYTES <= size <= room:
                return pos
            pos += size
            continue
        if room < HEADER_BYTES + 3 or not HEADER_BYTES < size <= room:
            return pos
        if _number(raw, pos + 28, 8) != offset + (pos - begin) or raw[pos + 20] > 127:
            return pos
        sys_flag = _number(raw, pos + 36, 4)
        body_at, record_end = pos + HEADER_BYTES, pos + size
        if sys_flag & HOST_V6_BITS:
            body_at += _WIDER if sys_flag & BORN_HOST_V6 else 0
            body_at += _WIDER if sys_flag & STORE_HOST_V6 else 0
        if body_at >= record_end:
            return pos
        body_bytes = _number(raw, body_at - 4, 4)
        if body_bytes > record_end - body_at - 3:  # also a negative one
            return pos
        at = body_at + body_bytes
        if magic == MAGIC_V1:
            topic_end = at + 1 + raw[at]
            topic_at = at + 1
        elif magic == MAGIC_V2:
            topic_bytes = _number(raw, at, 2)
            topic_at = at + 2
            topic_end = topic_at + topic_bytes if topic_bytes < _I16_SIGN else 0
        else:
            return pos
        if topic_end <= topic_at or topic_end + 2 > record_end:
            return pos
        properties_bytes = _number(raw, topic_end, 2)
        if properties_bytes >= _I16_SIGN or topic_end + 2 + properties_bytes != record_end:
            return pos
        if _has_zero(raw, topic_at, topic_end) or _has_zero(raw, topic_end + 2, record_end):
            return pos
        found = crc32(view[body_at:at])
        if found & CRC_MASK != _number(raw, pos + 8, 4):
            return pos
        pos = record_end
    return pos


def _all_good(view: memoryview, raw: memoryview, offset: int, units: bytes) -> bool:
    place, at, units_end, count = units, 0, len(units), len(raw)
    while at < units_end:
        start = _place_number(place, at, 8) - offset
        size = _place_number(place, at + 8, 4)
        if start < 0 or size <= 0 or size > count - start:
            return False
        if _good_end(view, raw, start, start + size, offset + start) != start + size:
            return False
        at += _UNIT_BYTES
    return True


def _place_number(raw: bytes, at: int, width: int) -> int:
    value = 0
    for index in range(width):
        value = value << 8 | raw[at + index]
    return value


def _has_zero(raw: memoryview, at: int, end: int) -> bool:
    for index in range(at, end):  # noqa: SIM110 - a loop in C
        if raw[index] == 0:
            return True
    return False


def _number(raw: memoryview, at: int, width: int) -> int:
    """Reads a big-endian number without a sign."""
    value = 0
    for index in range(width):
        value = value << 8 | raw[at + index]
    return value


prefer_twin(__name__, globals(), "good_end", "all_good")
