"""Counts large records by their size, for a histogram. Small ones are not counted: most records are small,
and their number is that of all messages minus the counted ones. Pure; a compiled leaf."""

import struct
from typing import Final, TypeAlias

from keelmq.runtime.compiled import is_compiled, prefer_twin

SMALL_BYTES: Final = 1_024
"""Records up to this size are not counted."""
SIZE_BITS: Final = 32
_IS_COMPILED: Final = is_compiled(__file__)
_UNIT = struct.Struct(">8xi8x")
_UNIT_BYTES: Final = 20
_SIZE_AT: Final = 8

SizeCounts: TypeAlias = list[int]
"""[n]: records with (size - 1).bit_length() == n, so that an upper bound of 2**n bytes is exact."""


def no_records() -> SizeCounts:
    """Returns counts without a record."""
    return [0] * (SIZE_BITS + 1)


def count_large(counts: SizeCounts, units: bytes, messages: int, log_bytes: int) -> None:
    """Counts the large ones of consecutive records of one queue; see QueueUnits. Messages that share a
    record, in a BatchQueue, count with their part of it."""
    if _IS_COMPILED:
        _count(counts, units, messages, log_bytes)
    elif len(units) != messages * _UNIT_BYTES:
        if log_bytes // messages > SMALL_BYTES:
            counts[(log_bytes // messages - 1).bit_length()] += messages
    else:
        for (size,) in _UNIT.iter_unpack(units):
            if size > SMALL_BYTES:
                counts[(size - 1).bit_length()] += 1


# -- compiled --------------------------------------------------------------------------------------


def _count(counts: SizeCounts, units: bytes, messages: int, log_bytes: int) -> None:
    """Counts runs of alike sizes at once: a list of numbers is slow to change."""
    at, end, raw = _SIZE_AT, len(units), units
    run = last = 0
    if end != messages * _UNIT_BYTES:
        run, last, at = messages, _bits(log_bytes // messages), end
    while at < end:
        bits = _bits(raw[at] << 24 | raw[at + 1] << 16 | raw[at + 2] << 8 | raw[at + 3])
        if bits != last:
            if last:
                counts[last] += run
            run, last = 0, bits
        run += 1
        at += _UNIT_BYTES
    if last:
        counts[last] += run


def _bits(size: int) -> int:
    """(size - 1).bit_length(); 0 for a small record."""
    bits, rest = 0, size - 1
    if size > SMALL_BYTES:
        while rest > 0:
            rest >>= 1
            bits += 1
    return bits


prefer_twin(__name__, globals(), "count_large")
