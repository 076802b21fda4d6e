"""One IndexFile: a hash table on disk from message keys to CommitLog offsets.

    0 beginTimestamp i64 | 8 endTimestamp i64 | 16 beginPhyOffset i64 | 24 endPhyOffset i64
    32 used slots i32 | 36 entry count i32, which begins at 1: entry 0 is never used
    40 slots, i32 each: number of the slot's newest entry, 0: none
    then entries: key hash i32 | CommitLog offset i64 | seconds since beginTimestamp i32 | previous entry i32

Entries ascend by CommitLog offset. The header on disk never counts an entry that is not durable: append()
changes the header in memory only, and save() writes it after the entries. So after a crash a file is whole up
to its header's count. Only its slots may be newer, and mend_slots() repairs them. Source: RocketMQ 5.3.3
IndexFile.
"""

import array
import struct
import sys
import threading
from pathlib import Path
from typing import Final

from broker.store.index.index_entries import ENTRY_BYTES, HEADER_BYTES, SLOT_BYTES, write_entries
from broker.store.log.mapped_file import MappedFile, StoreError

HEADER = struct.Struct(">qqqqii")
ENTRY = struct.Struct(">iqi4s")
RESERVE_BYTES: Final = 1 << 20
SLOTS_AT_ONCE: Final = 8_192
"""Slots checked before other threads may run: a quarter of a millisecond. All of them need 200 ms."""
_NO_ENTRY: Final = bytes(SLOT_BYTES)
_HASH_ONLY = struct.Struct(">i16x")
_OFFSET_AT: Final = 4
_PREVIOUS_AT: Final = 16


State = tuple[int, int, int, int, int, int]


def file_bytes_of(slots: int, entries: int) -> int:
    """Size of a file with these numbers of slots and entries."""
    return HEADER_BYTES + slots * SLOT_BYTES + entries * ENTRY_BYTES


class IndexFile:
    """`count` is the number of the next entry; the file is full when it is entries_max. Timestamps in ms."""

    __slots__ = (
        "_cutting", "_entries_at", "_file", "_room_end", "_slots", "begin_offset", "begin_timestamp", "count",
        "end_offset", "end_timestamp", "entries_max", "used_slots",
    )  # fmt: skip

    def __init__(self, path: Path, slots: int, entries: int) -> None:
        """Opens or creates the file. OSError: no room for the slots; StoreError: the file was made with other
        settings."""
        size = file_bytes_of(slots, entries)
        if path.exists() and path.stat().st_size not in (0, size):
            raise StoreError(
                f"{path} does not have the {size} bytes of maxHashSlotNum {slots} and maxIndexNum {entries}"
            )
        self._cutting = threading.Lock()  # truncate() against state(); held for an instant
        self._file = MappedFile(path, 0, size, allocate=False)
        self._slots = slots
        self.entries_max = entries
        self._entries_at = HEADER_BYTES + slots * SLOT_BYTES
        self._room_end = self._entries_at
        try:
            self._file.reserve(0, self._entries_at)
        except OSError:
            self.close()
            raise
        header: State = HEADER.unpack_from(self._file.map)
        self.begin_timestamp, self.end_timestamp, self.begin_offset, self.end_offset = header[:4]
        self.used_slots, self.count = header[4], min(max(header[5], 1), entries)

    @property
    def path(self) -> Path:
        """The file's path."""
        return self._file.path

    @property
    def is_empty(self) -> bool:
        """Whether it has no entry: the count starts at 1, as in RocketMQ."""
        return self.count == 1

    def _entry_at(self, number: int) -> int:
        return self._entries_at + number * ENTRY_BYTES

    # -- writing -----------------------------------------------------------------------------------------

    def make_room(self, keys: int) -> None:
        """Reserves blocks for `keys` more entries. OSError: the disk has none; without this call, the write
        would be a SIGBUS."""
        needed = min(self._entry_at(self.count + keys), self._file.file_bytes)
        if needed > self._room_end:
            begin = min(self._room_end, self._entry_at(self.count))
            end = min(needed + RESERVE_BYTES, self._file.file_bytes)
            self._file.reserve(begin, end - begin)
            self._room_end = end

    @property
    def room_count(self) -> int:
        """While `count` is below this number, there is room for one more entry."""
        return (self._room_end - self._entries_at) // ENTRY_BYTES

    def append(self, hashes: list[int], offsets: list[int], timestamps: list[int]) -> None:
        """Appends entries in log order, one for each hash. There is at least one hash, and room for all."""
        first, count = self.count, len(hashes)
        if first == 1:
            self.begin_offset, self.begin_timestamp = offsets[0], timestamps[0]
        columns = (hashes, offsets, timestamps)
        empty_count = write_entries(self._file.view, self._slots, first, self.begin_timestamp, columns)
        self.count, self.used_slots = first + count, self.used_slots + empty_count
        self.end_offset, self.end_timestamp = offsets[-1], timestamps[-1]

    # -- reading -----------------------------------------------------------------------------------------

    def overlaps(self, begin_ms: int, end_ms: int) -> bool:
        """Whether a record of this file may have a store timestamp in [begin_ms, end_ms]."""
        return self.count > 1 and begin_ms <= self.end_timestamp and end_ms >= self.begin_timestamp

    def find(self, wanted: int, limit: int, begin_ms: int, end_ms: int) -> list[int]:
        """Offsets of at most `limit` entries with this hash, newest first. Times are known to a second."""
        data, found = self._file.map, list[int]()
        at = HEADER_BYTES + wanted % self._slots * SLOT_BYTES
        number, before = int.from_bytes(data[at : at + SLOT_BYTES], "big"), self.count
        while 0 < number < before and len(found) < limit:  # descending: a damaged chain is never endless
            entry_hash, offset, seconds, previous = ENTRY.unpack_from(data, self._entry_at(number))
            stored_ms = self.begin_timestamp + seconds * 1000
            if entry_hash == wanted and begin_ms < stored_ms + 1000 and stored_ms <= end_ms:
                found.append(offset)
            before, number = number, int.from_bytes(previous, "big")
        return found

    # -- cutting and repair -----------------------------------------------------------------------------

    def truncate(self, offset: int) -> None:
        """Removes the entries of records at or behind `offset`, and restores the earlier chains."""
        data = self._file.map
        low, high = 1, self.count
        while low < high:
            middle = (low + high) // 2
            at = self._entry_at(middle) + _OFFSET_AT
            low, high = (
                (middle + 1, high) if int.from_bytes(data[at : at + 8], "big") < offset else (low, middle)
            )
        for number in range(self.count - 1, low - 1, -1):
            at = self._entry_at(number)
            slot = HEADER_BYTES + int.from_bytes(data[at : at + 4], "big") % self._slots * SLOT_BYTES
            previous = data[at + _PREVIOUS_AT : at + ENTRY_BYTES]
            data[slot : slot + SLOT_BYTES] = previous
            self.used_slots -= previous == _NO_ENTRY
        with self._cutting:
            self.count = low
            if low > 1:
                _, last, seconds, _ = ENTRY.unpack_from(data, self._entry_at(low - 1))
                self.end_offset, self.end_timestamp = last, self.begin_timestamp + seconds * 1000
            else:
                self.begin_offset = self.end_offset = self.begin_timestamp = self.end_timestamp = 0

    def mend_slots(self) -> None:
        """After a crash: a slot that names an entry which the header does not count gets the newest entry
        that it counts."""
        newest, empty_count = dict[int, int](), 0
        for first in range(0, self._slots, SLOTS_AT_ONCE):
            at = HEADER_BYTES + first * SLOT_BYTES
            end = min(at + SLOTS_AT_ONCE * SLOT_BYTES, self._entries_at)
            slots = array.array("i", self._file.map[at:end])
            if sys.byteorder == "little":
                slots.byteswap()
            empty_count += slots.count(0)
            if min(slots) < 0 or max(slots) >= self.count:
                bad = (slot for slot, number in enumerate(slots, first) if not 0 <= number < self.count)
                newest |= dict.fromkeys(bad, 0)
        if not newest:
            return
        view = self._file.view[self._entry_at(1) : self._entry_at(self.count)]
        for number, (name_hash,) in enumerate(_HASH_ONLY.iter_unpack(view), 1):
            slot = name_hash % self._slots
            if slot in newest:
                newest[slot] = number
        view.release()
        for slot, number in newest.items():
            at = HEADER_BYTES + slot * SLOT_BYTES
            self._file.map[at : at + SLOT_BYTES] = number.to_bytes(SLOT_BYTES, "big")
        empty_count += list(newest.values()).count(0)
        self.used_slots = self._slots - empty_count

    # -- durability --------------------------------------------------------------------------------------

    def state(self) -> State:
        """The header's values, for save(). end_offset is read last, so that it shows whether the other values
        were read in the middle of a record."""
        with self._cutting:
            begin_timestamp, begin_offset, count, used = (
                self.begin_timestamp, self.begin_offset, self.count, self.used_slots
            )  # fmt: skip
            return begin_timestamp, self.end_timestamp, begin_offset, self.end_offset, used, count

    def save(self, state: State) -> None:
        """Makes the entries durable, then the header that counts them; any thread."""
        self._file.sync()
        HEADER.pack_into(self._file.map, 0, *state)
        self._file.sync()

    def close(self) -> None:
        """Closes the file; it stays on disk."""
        self._file.close()

    def delete(self) -> None:
        """Deletes the file and closes it. Raises OSError."""
        self.path.unlink(missing_ok=True)
        self.close()
