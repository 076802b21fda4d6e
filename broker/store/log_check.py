"""LogCheck: checks the log's records before they leave, and knows which ones need no check.

Readers do not check bytes that this process wrote or received itself, or that were found whole since the
start; the scrub does. They check all other bytes. Owned by the event loop's thread; the functions of this
module run in any thread. Invariant: no byte that is_whole() vouches for is in a damaged range.
"""

import os
import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from broker.message.record import BLANK_BYTES, HEADER_BYTES, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, Parsed, parse
from broker.message.record_check import good_end, last_good, next_good
from broker.store.damage import DamagedRange, DamagedRanges
from broker.store.log.commit_log import CommitLog
from broker.store.whole_ranges import WholeRanges

PIECE_BYTES: Final = 256 << 10
"""Less than 0.2 ms of work while the interpreter lock is held."""
SEARCH_BYTES: Final = 8 << 20
"""Bytes of one search for the beginning of a good record."""
RECORD_BYTES_MAX: Final = 17 << 20
"""No record is larger: maxMessageSize is at most 16,000,000."""
_HEAD = struct.Struct(">iI")


class Piece(NamedTuple):
    """Bytes of the log that were checked. fault: why they are damaged; empty: they are whole records."""

    start: int
    end: int
    fault: str = ""


class LogCheck:
    """`is_all_whole`: no reader has to check any byte."""

    def __init__(self, log: CommitLog, damage: DamagedRanges) -> None:
        self.is_all_whole = False
        self.whole = WholeRanges()
        self._log, self._damage = log, damage
        self._fresh_offset = 0  # bytes behind it were written by this process
        damage.on_change.append(self._update)

    def loaded(self, checked_from: int) -> None:
        """Called at the end of a start, which has checked everything from checked_from on."""
        self._fresh_offset = max(checked_from, self._log.min_offset)
        self._update()

    def cut(self, offset: int) -> None:
        """Called when the log is cut at `offset`: bytes behind it will be new."""
        self.whole.remove_above(offset)
        self._fresh_offset = min(self._fresh_offset, offset)
        self._update()

    def reset(self, offset: int) -> None:
        """Called when the log is empty, and begins at `offset`."""
        self.whole.remove_above(0)
        self._fresh_offset = offset
        self._update()

    def found(self, piece: Piece) -> None:
        """Records the result of a check, of bytes that are still in the log."""
        if piece.fault:
            self._damage.add(piece.start, piece.end, piece.fault)
        else:
            self.whole.add(piece.start, piece.end)
            self._update()

    def _update(self) -> None:
        log = self._log
        known = max(self.whole.end_of(log.min_offset), log.min_offset)
        self.is_all_whole = not self._damage and known >= self._fresh_offset

    def known_end(self, offset: int) -> int:
        """Returns the offset up to which the log is known to be whole from `offset` on; `offset` if the byte
        there is damaged, or was not checked."""
        end = self.whole.end_of(offset)
        if end >= self._fresh_offset:
            end = self._log.max_offset
        damaged = self._damage.overlaps(offset, end) if self._damage and end > offset else None
        return end if damaged is None else max(damaged.start, offset)

    def check_some(self, offset: int) -> None:
        """Checks some records from the unchecked `offset` on, or the one that contains it; PIECE_BYTES at
        most, or one record."""
        view = self._log.view(offset, self._log.file_bytes)
        good = good_end(view, 0, min(PIECE_BYTES, len(view)), offset)
        if not good and len(view) >= BLANK_BYTES:
            size, _ = _HEAD.unpack_from(view)
            good = good_end(view, 0, size, offset) if PIECE_BYTES < size <= len(view) else 0
        if good:
            self.found(Piece(offset, offset + good))
        elif (around := self.record_around(offset)) is not None:
            self.found(around)
        elif view:
            end = self._record_end(view, offset, offset + min(len(view), SEARCH_BYTES))
            self.found(Piece(offset, end, why_bad(view, offset)))

    def needs_check(self, offset: int) -> bool:
        """Whether the byte at `offset` was neither checked nor found to be damaged."""
        known = self.whole.end_of(offset) > offset or offset >= self._fresh_offset
        return not known and self._damage.overlaps(offset, offset + 1) is None

    def record_around(self, offset: int) -> Piece | None:
        """Returns the good record that has the byte at `offset`: a replica's log may end in its middle. None:
        no whole good record is there."""
        log = self._log
        file_start = offset - offset % log.file_bytes
        begin = max(file_start, offset - RECORD_BYTES_MAX, log.min_offset)
        view = log.view(begin, log.file_bytes)
        at = last_good(view, offset - begin, begin)
        if at < 0:
            return None
        end = at + _HEAD.unpack_from(view, at)[0]
        if begin + end > offset:
            return Piece(begin + at, begin + end)
        return Piece(begin + end, file_start + log.file_bytes) if self._is_blank(view, end, begin) else None

    def _is_blank(self, view: memoryview, at: int, begin: int) -> bool:
        """Whether the blank record of the file's end is there. begin: the CommitLog offset of the view."""
        if len(view) - at < BLANK_BYTES:
            return False
        size, magic = _HEAD.unpack_from(view, at)
        file_left = self._log.file_bytes - (begin + at) % self._log.file_bytes
        return bool(magic == MAGIC_BLANK and size == file_left)

    def is_whole(self, start: int, end: int) -> bool:
        """Whether these bytes are known to be whole."""
        return self.is_all_whole or self.known_end(start) >= end

    def is_damaged(self, start: int, end: int) -> bool:
        """Whether a byte in between is known to be damaged."""
        return self._damage.overlaps(start, end) is not None

    def first_bad(self, start: int, end: int) -> DamagedRange | None:
        """Checks the adjacent whole records from start to end, which are in one file, if that is needed.
        Returns the first damaged range that has a byte of them; it is in `damage` now. ValueError: they are
        good, but do not begin or end there."""
        if self.is_whole(start, end):
            return None
        if (known := self._damage.overlaps(start, end)) is not None:
            return known
        view = self._log.view(start, end - start)
        at = good_end(view, 0, len(view), start)
        if at == end - start:
            return None
        offset = start + at
        rest = self._log.view(offset, self._log.file_bytes)
        parsed = parse(rest, 0, len(rest), offset=offset, check_crc=True)
        if parsed is not None:
            raise ValueError(f"the record at {offset} has {parsed[0]} bytes, and {end - offset} are named")
        if not at and (around := self.record_around(start)) is not None:
            raise ValueError(f"no record begins at {start}: the one at {around.start} has this byte")
        self._damage.add(offset, self._record_end(rest, offset, end), why_bad(rest, offset))
        return self._damage.overlaps(offset, end)

    def _record_end(self, rest: memoryview, offset: int, end: int) -> int:
        """Returns where the damaged record at `offset` ends, in front of the next good one."""
        file_left = self._log.file_bytes - offset % self._log.file_bytes
        at = next_good(rest, 0, min(end - offset, len(rest)), offset, file_left)
        return end if at < 0 else offset + at


def why_bad(view: memoryview, offset: int) -> str:
    """Returns why no good record is at the beginning of the view, which has this CommitLog offset."""
    if len(view) < HEADER_BYTES:
        return f"{len(view)} bytes at {offset} are no record"
    size, magic = _HEAD.unpack_from(view)
    if magic not in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK):
        return f"no record is at {offset}: size {size}, magic code {magic:#x}"
    if parse(view, 0, len(view), offset=offset) is None:
        return f"the header of the record at {offset} is damaged, or its lengths are"
    if parse(view, 0, len(view), offset=offset, check_crc=True) is None:
        return f"the checksum of the record at {offset} does not match its body"
    return f"the checksum of the whole record at {offset} does not match"


def past_damage(
    log: CommitLog, view: memoryview, pos: int, end: int, offset: int, *, may_be_cut: bool
) -> Parsed | None:
    """Returns how a reader of the log continues at `pos`, where no good record is, and the CommitLog offset
    is `offset`: the header of a record whose body alone is damaged, or the bytes to skip, as record.parse()
    returns a blank record. None: no good record follows in front of `end`, nor at the beginning of a later
    file: the log ends here. may_be_cut: `end` may be in the middle of a record that is still arriving, so the
    reader waits for one that claims to end behind it."""
    if end - pos < BLANK_BYTES:
        return None
    size, magic = _HEAD.unpack_from(view, pos)
    parsed = parse(view, pos, end, offset=offset)
    file_left, at = log.file_bytes - offset % log.file_bytes, pos
    is_cut = end - pos < size <= min(file_left, RECORD_BYTES_MAX)
    if may_be_cut and is_cut and parsed is None and magic in (MAGIC_V1, MAGIC_V2):
        return None
    found = next_good(view, at, min(at + SEARCH_BYTES, end), offset, file_left)
    while found < 0 and at + SEARCH_BYTES < end:
        at += SEARCH_BYTES // 2
        past = at - pos
        found = next_good(view, at, min(at + SEARCH_BYTES, end), offset + past, file_left - past)
    if found < 0:
        is_last = parsed is not None and pos + parsed[0] == end
        if not is_last and (end - pos != file_left or not _has_later_file(log, offset)):
            return None
        found = end
    if parsed is not None and pos + parsed[0] == found:
        return parsed
    return found - pos, b"", 0, 0, 0, 0, b""


def _has_later_file(log: CommitLog, offset: int) -> bool:
    """Whether a file that begins behind `offset` begins with a good record."""
    for start in log.file_starts():
        view = log.view(start, log.file_bytes) if start > offset else memoryview(b"")
        if view and parse(view, 0, len(view), offset=start, check_crc=True) is not None:
            return True
    return False


def check_file(
    descriptor: int,
    start: int,
    end: int,
    file_bytes: int,
    *,
    read: Callable[[int, int, int], bytes] = os.pread,
) -> Iterator[Piece]:
    """Checks the records of a file of the log from `start`, which is a record boundary, to `end`, which is
    one; in any thread. Reads PIECE_BYTES at a time. Yields adjacent pieces. OSError: the disk has an
    error."""
    at, file_start = start, start - start % file_bytes
    while at < end:
        data = memoryview(read(descriptor, min(PIECE_BYTES, end - at), at - file_start))
        if not data:
            raise OSError(f"the log file ends at {at}")
        good = good_end(data, 0, len(data), at)
        if not good and BLANK_BYTES <= len(data) < end - at:  # a record may be longer
            size, magic = _HEAD.unpack_from(data)
            if magic == MAGIC_BLANK and size == file_start + file_bytes - at:
                good = min(size, end - at)
            elif len(data) < size <= min(RECORD_BYTES_MAX, end - at):
                data = memoryview(read(descriptor, size, at - file_start))
                good = good_end(data, 0, len(data), at)
        if good:
            yield Piece(at, at + good)
            at += good
            continue
        window = memoryview(read(descriptor, min(SEARCH_BYTES + RECORD_BYTES_MAX, end - at), at - file_start))
        searched = min(SEARCH_BYTES, len(window))
        found = next_good(window, 0, searched, at, file_start + file_bytes - at)
        if found < 0:
            found = searched if searched == end - at else SEARCH_BYTES // 2
        yield Piece(at, at + found, why_bad(window, at))
        at += found
