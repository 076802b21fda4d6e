# cython: boundscheck=False, wraparound=False
"""Where the next records of a queue are in the log, and copies of scattered ones. Pure; a compiled leaf.

Units are those of a ConsumeQueue: the records' CommitLog offsets ascend. Ranges are (start, end) in the log,
and adjacent records share one. A pull without a filter makes none: it copies scattered records by their
units.
"""

import struct
from typing import Final, TypeAlias

from keelmq.runtime.compiled import is_compiled, prefer_twin

_IS_COMPILED: Final = is_compiled(__file__)
_UNIT = struct.Struct(">qI8x")
_UNIT_BYTES: Final = 20
_OFFSET_MAX: Final = 1 << 62  # no log reaches it, and sums fit into 64 bits

Ranges = list[tuple[int, int]]


NextRecords: TypeAlias = tuple[int, int, int, int, int]
"""(records, total_bytes, begin, end, runs): their number, the sum of their sizes, where the first one begins
and the last one ends in the log, and into how many ranges they fall."""


def next_records(units: bytes, bytes_max: int, log_min: int) -> NextRecords | None:
    """Checks the records of all units, at least one. None: they have more than bytes_max bytes, as a filler
    has, or the first one lies below log_min, or one is empty or begins before the end of the one before, or
    beyond any log."""
    if _IS_COMPILED:
        return _next_records(units, bytes_max, log_min)
    offsets, sizes = zip(*_UNIT.iter_unpack(units), strict=True)
    total, begin = sum(sizes), offsets[0]
    if total > bytes_max or begin < log_min or not all(sizes) or max(offsets) > _OFFSET_MAX:
        return None
    if any(later < offset + size for offset, size, later in zip(offsets, sizes, offsets[1:], strict=False)):
        return None
    end, runs = offsets[-1] + sizes[-1], 1
    if end - begin != total:  # offsets ascend: else all of them are adjacent
        runs = len(ranges_of(units))
    return len(sizes), total, begin, end, runs


def ranges_of(units: bytes) -> Ranges:
    """Returns the ranges of the records of all units, at least one."""
    begin, _ = _UNIT.unpack_from(units)
    end, ranges = begin, list[tuple[int, int]]()
    for log_offset, size in _UNIT.iter_unpack(units):
        if log_offset != end:
            ranges.append((begin, end))
            begin = log_offset
        end = log_offset + size
    ranges.append((begin, end))
    return ranges


def copied(log: memoryview, base: int, units: bytes) -> bytes | bytearray:
    """Returns a copy of the records of all units, one after the other. log: the bytes of the log from offset
    `base` on. ValueError: a record is not in it."""
    if _IS_COMPILED:
        return _copied(log, base, units)
    places = list(_UNIT.iter_unpack(units))
    for start, size in places:
        if start < base or size > len(log) - (start - base):
            raise ValueError(f"the record at {start} is not in {base}..{base + len(log)}")
    return b"".join([log[start - base : start - base + size] for start, size in places])


def joined(log: memoryview, base: int, ranges: Ranges) -> bytes | bytearray:
    """Returns a copy of the ranges, one after the other. log: the bytes of the log from offset `base` on.
    ValueError: a range is not in it."""
    low, high = base, base + len(log)
    for start, end in ranges:
        if not low <= start <= end <= high:
            raise ValueError(f"{start}..{end} is not in {low}..{high}")
    if _IS_COMPILED:
        return _joined(log, base, ranges)
    return b"".join([log[start - base : end - base] for start, end in ranges])


# -- compiled --------------------------------------------------------------------------------------


def _next_records(units: bytes, bytes_max: int, log_min: int) -> NextRecords | None:
    raw, at, units_end = units, 0, len(units)
    count = total = begin = end = runs = 0
    while at < units_end:
        log_offset = _number(raw, at, 8)
        size = _number(raw, at + 8, 4)
        if not count:
            if log_offset < log_min:
                return None
            begin = end = log_offset
        if not size or log_offset < end or log_offset > _OFFSET_MAX:
            return None
        runs += not count or log_offset != end
        end = log_offset + size
        total += size
        count += 1
        at += _UNIT_BYTES
        if total > bytes_max:
            return None
    return count, total, begin, end, runs


def _copied(log: memoryview, base: int, units: bytes) -> bytearray:
    raw, at, units_end = units, 0, len(units)
    total, log_bytes = 0, len(log)
    while at < units_end:
        start, size = _number(raw, at, 8), _number(raw, at + 8, 4)
        if start < base or size > log_bytes - (start - base):  # start + size may not fit into 64 bits
            raise ValueError(f"the record at {start} is not in {base}..{base + log_bytes}")
        total += size
        at += _UNIT_BYTES
    whole = bytearray(total)
    target, to, at = whole, 0, 0
    while at < units_end:
        to = _copy(target, to, log, _number(raw, at, 8) - base, _number(raw, at + 8, 4))
        at += _UNIT_BYTES
    return whole


def _number(raw: bytes, at: int, width: int) -> int:
    """Reads a big-endian number that is not negative."""
    value = 0
    for index in range(width):
        value = value << 8 | raw[at + index]
    return value


def _joined(log: memoryview, base: int, ranges: Ranges) -> bytearray:
    total = 0
    for start, end in ranges:
        total += end - start
    whole = bytearray(total)
    target, at = whole, 0
    for start, end in ranges:
        at = _copy(target, at, log, start - base, end - start)
    return whole


def _copy(target: bytearray, at: int, source: memoryview, begin: int, count: int) -> int:
    """Copies `count` bytes; returns where they end."""
    for index in range(count):
        target[at + index] = source[begin + index]
    return at + count


prefer_twin(__name__, globals(), "next_records", "copied", "joined")
