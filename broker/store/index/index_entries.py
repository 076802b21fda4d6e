"""Writes entries into the map of an IndexFile (index_file.py has the layout). Pure; a compiled leaf."""

import array
import sys
from collections.abc import Iterable
from typing import Final

from broker.message.indexed_keys import Columns
from keelmq.runtime.compiled import is_compiled, prefer_twin

HEADER_BYTES: Final = 40
SLOT_BYTES: Final = 4
ENTRY_BYTES: Final = 20
SECONDS_MAX: Final = 2**31 - 1
_ENTRY_WORDS: Final = 5
_IS_COMPILED: Final = is_compiled(__file__)


def write_entries(file: memoryview, slots: int, first: int, begin_timestamp: int, columns: Columns) -> int:
    """Writes entries from number `first` on, one for each hash, and their slots. Returns how many of the
    slots were empty.

    file: the whole file, with room for the entries. begin_timestamp: of the file, in ms. columns: of equal
    length."""
    if _IS_COMPILED:
        return _one_after_the_other(file, slots, first, begin_timestamp, columns)
    hashes, offsets, timestamps = columns
    count, entries_at = len(hashes), HEADER_BYTES + slots * SLOT_BYTES
    # Big-endian numbers of the file, read in this machine's order: they are moved, never calculated with.
    raw_slots = file[HEADER_BYTES:entries_at].cast("I")
    previous: list[int] = []
    for hashed, number in zip(hashes, _raw("I", range(first, first + count)), strict=True):
        slot = hashed % slots
        previous.append(raw_slots[slot])
        raw_slots[slot] = number
    seconds = {each: min(max((each - begin_timestamp) // 1000, 0), SECONDS_MAX) for each in set(timestamps)}
    raw_offsets = memoryview(_raw("q", offsets)).cast("B").cast("I")
    at = entries_at + first * ENTRY_BYTES
    entries = file[at : at + count * ENTRY_BYTES].cast("I")
    entries[0::_ENTRY_WORDS] = memoryview(_raw("I", hashes))
    entries[1::_ENTRY_WORDS] = raw_offsets[0::2]
    entries[2::_ENTRY_WORDS] = raw_offsets[1::2]
    entries[3::_ENTRY_WORDS] = memoryview(_raw("I", [seconds[each] for each in timestamps]))
    entries[4::_ENTRY_WORDS] = memoryview(array.array("I", previous))
    return previous.count(0)


def _raw(kind: str, values: Iterable[int]) -> "array.array[int]":
    """The values in big-endian order, as the file has them."""
    found = array.array(kind, values)
    if sys.byteorder == "little":
        found.byteswap()
    return found


# -- compiled --------------------------------------------------------------------------------------


def _one_after_the_other(
    file: memoryview, slots: int, first: int, begin_timestamp: int, columns: Columns
) -> int:
    hashes, offsets, timestamps = columns
    number, empty_count = first, 0
    at = HEADER_BYTES + slots * SLOT_BYTES + first * ENTRY_BYTES
    for index in range(len(hashes)):
        hashed, offset, seconds = hashes[index], offsets[index], 0
        timestamp = timestamps[index]
        if timestamp > begin_timestamp:
            seconds = min((timestamp - begin_timestamp) // 1000, SECONDS_MAX)
        slot_at = HEADER_BYTES + hashed % slots * SLOT_BYTES
        previous = file[slot_at] << 24 | file[slot_at + 1] << 16 | file[slot_at + 2] << 8 | file[slot_at + 3]
        empty_count += previous == 0
        _put(file, slot_at, number)
        _put(file, at, hashed)
        _put(file, at + 4, offset >> 32)
        _put(file, at + 8, offset & 0xFFFFFFFF)
        _put(file, at + 12, seconds)
        _put(file, at + 16, previous)
        number += 1
        at += ENTRY_BYTES
    return empty_count


def _put(file: memoryview, at: int, word: int) -> None:
    file[at] = word >> 24
    file[at + 1] = word >> 16 & 0xFF
    file[at + 2] = word >> 8 & 0xFF
    file[at + 3] = word & 0xFF


prefer_twin(__name__, globals(), "write_entries")
