"""Finds the damaged records in a part of the CommitLog whose record boundaries are not known. Pure.

A record has its own CommitLog offset, so a whole one is recognized wherever it is: a magic code with that
offset at the right distance, sizes that agree, BODYCRC and, where there is one, the checksum of the record.
What is between two whole records is damaged.
"""

import struct
from collections.abc import Iterator
from typing import Final

import msgspec

from broker.message.prop_crc import parse_with_prop_crc
from broker.message.record import BLANK, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, Buffer, parse

_MAGICS: Final = tuple(struct.pack(">I", magic) for magic in (MAGIC_V1, MAGIC_V2))
_MAGIC_AT: Final = 4


class DamagedPart(msgspec.Struct, frozen=True):
    """CommitLog offsets from start to end, exclusive. reason: what is wrong with the record at `start`."""

    start: int
    end: int
    reason: str


class Search(msgspec.Struct, frozen=True):
    """is_anchored: False if no record boundary was found in front of the range; then `damaged` is all of it.
    records: whole ones that overlap the range."""

    damaged: tuple[DamagedPart, ...]
    records: int
    is_anchored: bool


def search_damage(data: bytes, base: int, start: int, end: int, *, is_boundary: bool) -> Search:
    """Returns the damaged parts that overlap the log's [start, end).

    data: the log from offset `base` on, within one file; it should go on behind `end` for the longest record.
    is_boundary: a record begins at `base`."""
    assert base <= start < end <= base + len(data)
    at = _last_record_at(data, base, start)
    if at is None:
        if not is_boundary:
            part = DamagedPart(start, end, "no whole record is in front of it")
            return Search((part,), 0, is_anchored=False)
        at = 0
    damaged, records = [], 0
    while base + at < end:
        parsed = parse_with_prop_crc(data, at, len(data), offset=base + at)
        if parsed is not None:
            records += base + at + parsed[0] > start
            at += parsed[0]
            continue
        following = _next_record_at(data, base, at + 1)
        damaged.append(DamagedPart(base + at, base + following, _reason(data, base, at)))
        at = following
    return Search(tuple(damaged), records, is_anchored=True)


def _last_record_at(data: bytes, base: int, start: int) -> int | None:
    """Returns the position of the last whole record that begins at or in front of `start`."""
    high = start - base + 1
    while high > 0:
        found = max(data.rfind(magic, 0, high + _MAGIC_AT + 3) for magic in _MAGICS) - _MAGIC_AT
        if found < 0:
            return None
        if _is_record(data, base, found):
            return found
        high = found
    return None


def _next_record_at(data: bytes, base: int, position: int) -> int:
    """Returns the position of the next whole record at or behind `position`; without one, the data's end."""
    return next((at for at in _candidates(data, position) if _is_record(data, base, at)), len(data))


def _candidates(data: bytes, position: int) -> Iterator[int]:
    """Yields the positions that have a magic code, ascending, also of the blank record of a file's end."""
    magics = (*_MAGICS, struct.pack(">I", MAGIC_BLANK))
    nexts = [data.find(magic, position + _MAGIC_AT) for magic in magics]
    while any(at >= 0 for at in nexts):
        nearest = min(at for at in nexts if at >= 0)
        which = nexts.index(nearest)
        yield nearest - _MAGIC_AT
        nexts[which] = data.find(magics[which], nearest + 1)


def _is_record(data: bytes, base: int, at: int) -> bool:
    if len(data) - at < BLANK.size:
        return False
    size, magic = BLANK.unpack_from(data, at)
    if magic == MAGIC_BLANK:  # it has no offset of its own, but it ends where the file does
        return bool(at + size == len(data))
    return parse_with_prop_crc(data, at, len(data), offset=base + at) is not None


def _reason(data: Buffer, base: int, at: int) -> str:
    if not any(data[at : at + BLANK.size]):
        return "it is zeros"
    if parse(data, at, len(data), offset=base + at) is None:
        return "it has not the form of a record"
    return "its checksum does not match"
