"""DamagedRanges: the parts of the CommitLog that failed their checksum and are not healed yet.

A damaged range is not served to consumers and not sent to a replica as if it were whole; the good records
around it are. Ranges are found by reads, by the scrub and at a start. They end when they are healed from
another replica, cut off, or deleted by retention.

Owned by the event loop's thread; save() may run in any thread. Invariant: `ranges` ascends, and no two of
them overlap or touch.

The file, damagedRanges in the store's directory, is one line of JSON behind its CRC-32 in hex and a blank. A
range that was found and not saved yet is found again after a crash.
"""

import logging
import sys
import threading
import zlib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec

from keelmq.runtime.clock import wall_ms
from keelmq.runtime.durable_file import replace_file

log = logging.getLogger(__name__)

RANGES_MAX: Final = 256
"""With more, the two nearest ranges are merged, with the bytes between them."""
TOLD_MAX: Final = 3
FILE_NAME: Final = "damagedRanges"


class DamagedRange(msgspec.Struct, frozen=True):
    """CommitLog offsets from start to end, exclusive. found_ms: wall clock. is_unread: dispatch or scan has
    skipped it without a readable header, so it may have had queue offsets that no queue has."""

    start: int
    end: int
    reason: str
    found_ms: int
    is_unread: bool = False


class _Content(msgspec.Struct, frozen=True):
    ranges: tuple[DamagedRange, ...] = ()
    lost_end: int = 0


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Content).decode


class DamagedRanges:
    """The ranges of one store. `on_change`: called after each change of `ranges`, in the loop's thread, and
    when the end is restored. path: of the file. is_file_lost: the file could not be read, so the ranges that
    it had must be searched for again. lost_end: a start found that the log ends in front of this offset, up
    to which it was confirmed and on disk; 0: it does not, or was copied up to there since."""

    def __init__(self, root: Path, *, clock: Callable[[], int] = wall_ms) -> None:
        """root: storePathRootDir. clock: wall clock in ms."""
        self.ranges: tuple[DamagedRange, ...] = ()
        self.on_change: list[Callable[[], None]] = []
        self.is_file_lost = False
        self.lost_end = 0
        self.healing = ""
        """Why the last attempt to heal the ranges has left some, and the remedy; empty: there was none."""
        self.path, self._clock = root / FILE_NAME, clock
        self._saved = _Content()
        self._lock = threading.Lock()  # of save()

    def __bool__(self) -> bool:
        return bool(self.ranges)

    @property
    def is_there(self) -> bool:
        """Whether the file has ranges or a lost end, as of the last load() or save()."""
        return self._saved != _Content()

    # -- the file ----------------------------------------------------------------------------------------

    def load(self) -> None:
        """Reads the file; changes nothing on disk."""
        try:
            self._saved = _decode_content(self.path.read_bytes())
            self.ranges, self.lost_end = self._saved.ranges, self._saved.lost_end
        except FileNotFoundError:
            return
        except ValueError as error:
            self.is_file_lost = True
            log.error("%s: %s; the whole log will be checked again", self.path, error)

    def save(self) -> None:
        """Writes the ranges durably if they have changed. OSError: the file has the ranges of the last
        save."""
        with self._lock:
            content = _Content(self.ranges, self.lost_end)
            if content != self._saved or (self.is_file_lost and self.path.exists()):
                if content != _Content():
                    replace_file(self.path, _encode_content(content), keep_backup=False)
                else:
                    self.path.unlink(missing_ok=True)
                self._saved = content

    # -- changes -----------------------------------------------------------------------------------------

    def end_must_be_at(self, offset: int) -> None:
        """Records durably, before the files lose it, that the log was confirmed up to `offset`: its end
        counts as lost until confirmed() is called with it."""
        if offset > self.lost_end:
            self.lost_end = offset
            self.save()

    def confirmed(self, offset: int) -> bool:
        """The log is whole up to `offset`: its lost end may be restored. Returns whether it is."""
        if not 0 < self.lost_end <= offset:
            return False
        self.lost_end = 0
        self._changed()
        return True

    def add(self, start: int, end: int, reason: str) -> bool:
        """Adds a range that was found to be damaged. Returns False if it was known already."""
        assert 0 <= start < end
        free = [(start, end)]
        for known in self.ranges:
            free = [piece for at in free for piece in _without(at, known.start, known.end)]
        if not free:
            return False
        found_ms = self._clock()
        log.error("the log is damaged at %d..%d: %s", start, end, reason)
        self._set([*self.ranges, *(DamagedRange(low, high, reason, found_ms) for low, high in free)])
        return True

    def passed_over(self, start: int, end: int) -> None:
        """Dispatch or scan continues behind these bytes, of which it has read no header."""
        after = []
        for known in self.ranges:
            low, high = max(known.start, start), min(known.end, end)
            if known.is_unread or low >= high:
                after.append(known)
                continue
            after.append(msgspec.structs.replace(known, start=low, end=high, is_unread=True))
            for at, to in _without((known.start, known.end), start, end):
                after.append(msgspec.structs.replace(known, start=at, end=to))
        self._set(after)

    def healed(self, start: int, end: int) -> None:
        """Removes the range from start to end: it is good again, on disk."""
        kept = []
        for known in self.ranges:
            for low, high in _without((known.start, known.end), start, end):
                kept.append(msgspec.structs.replace(known, start=low, end=high))
        self._set(kept)

    def remove_below(self, min_offset: int) -> None:
        """Forgets the ranges that retention has deleted."""
        if self.ranges and self.ranges[0].start < min_offset:
            self.healed(0, min_offset)

    def remove_above(self, max_offset: int) -> None:
        """Forgets the ranges that a cut has removed."""
        if self.ranges and self.ranges[-1].end > max_offset:
            self.healed(max_offset, self.ranges[-1].end)

    def _set(self, ranges: list[DamagedRange]) -> None:
        ranges.sort(key=lambda item: item.start)
        merged: list[DamagedRange] = []
        for item in ranges:
            if merged and merged[-1].end == item.start and merged[-1].is_unread == item.is_unread:
                merged[-1] = _joined(merged[-1], item)
            else:
                merged.append(item)
        while len(merged) > RANGES_MAX:
            gaps = [right.start - left.end for left, right in pairwise(merged)]
            at = gaps.index(min(gaps))
            merged[at : at + 2] = [_joined(merged[at], merged[at + 1])]
        after = tuple(merged)
        if after != self.ranges:
            self.ranges = after
            self._changed()

    def _changed(self) -> None:
        for listener in self.on_change:
            listener()

    # -- queries -----------------------------------------------------------------------------------------

    def overlaps(self, start: int, end: int) -> DamagedRange | None:
        """Returns the first damaged range with a byte between start and end, or None."""
        for known in self.ranges:
            if known.end > start:
                return known if known.start < end else None
        return None

    @property
    def unhealed_bytes(self) -> int:
        """Bytes in all ranges."""
        return self.unhealed_below(sys.maxsize)

    def unhealed_below(self, offset: int) -> int:
        """Returns how many bytes in front of `offset` are damaged."""
        return sum(min(item.end, offset) - item.start for item in self.ranges if item.start < offset)

    def describe(self) -> str:
        """Returns the ranges as a text; empty: there are none."""
        found = self.ranges
        if not found:
            return self.end_fault
        shown = "; ".join(f"{item.start}..{item.end}: {item.reason}" for item in found[:TOLD_MAX])
        more = f"; {len(found) - TOLD_MAX} more" if len(found) > TOLD_MAX else ""
        healing = f"; not healed: {self.healing}" if self.healing else ""
        return f"{self.unhealed_bytes} bytes of the log are damaged: {shown}{more}{healing}" + (
            f"; {self.end_fault}" if self.lost_end else ""
        )

    @property
    def end_fault(self) -> str:
        """Why the log ends below the confirmed offset; empty: it does not."""
        if not self.lost_end:
            return ""
        return (
            f"the end of the log is lost: it was confirmed up to {self.lost_end}, and another replica may"
            f" have it. If no replica has it, stop this broker and remove {self.path}"
        )

    def first_unhealed(self, below: int) -> DamagedRange | None:
        """Returns the first range if it begins in front of `below`, or None."""
        return self.ranges[0] if self.ranges and self.ranges[0].start < below else None


def _without(piece: tuple[int, int], start: int, end: int) -> list[tuple[int, int]]:
    """The rest of a piece without start..end."""
    low, high = piece
    if end <= low or high <= start:
        return [piece]
    return [(at, to) for at, to in ((low, start), (end, high)) if at < to]


def _joined(left: DamagedRange, right: DamagedRange) -> DamagedRange:
    is_unread = left.is_unread or right.is_unread
    return DamagedRange(left.start, right.end, left.reason, left.found_ms, is_unread)


def _encode_content(content: _Content) -> bytes:
    body = _encode(content)
    return b"%08x " % zlib.crc32(body) + body + b"\n"


def encode_ranges(ranges: tuple[DamagedRange, ...]) -> bytes:
    """Returns the content of the file."""
    return _encode_content(_Content(ranges))


def _decode_content(content: bytes) -> _Content:
    crc, _, body = content.rstrip(b"\n").partition(b" ")
    if crc != b"%08x" % zlib.crc32(body):
        raise ValueError("its checksum is wrong")
    try:
        return _decode(body)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error


def decode_ranges(content: bytes) -> tuple[DamagedRange, ...]:
    """Parses the content of the file. ValueError: it is damaged."""
    return _decode_content(content).ranges
