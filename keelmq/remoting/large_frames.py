"""Bounds the memory that the unfinished large frames of all connections hold."""

import contextlib
import mmap
import sys
from dataclasses import dataclass
from typing import Final

_NO_HUGE_PAGES: Final[int | None] = getattr(mmap, "MADV_NOHUGEPAGE", None)


class NoRoomError(Exception):
    """The frame may be valid, but its bytes would exceed the bound now."""


@dataclass(slots=True)
class LargeFrames:
    """The received bytes of unfinished large frames of many connections; announced sizes do not count."""

    bytes_max: int = sys.maxsize
    held_bytes: int = 0

    def take(self, count: int) -> None:
        """Counts bytes that arrived. NoRoomError: they would exceed bytes_max, and are not counted."""
        if self.held_bytes + count > self.bytes_max:
            raise NoRoomError(f"unfinished large frames hold {self.held_bytes} of {self.bytes_max} bytes")
        self.held_bytes += count


def unwritten_memory(size: int) -> mmap.mmap:
    """Allocates memory whose unwritten pages cost nothing; a bytearray is filled with zeros at once."""
    made = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if _NO_HUGE_PAGES is not None:
        with contextlib.suppress(OSError):  # a kernel that has none
            made.madvise(_NO_HUGE_PAGES)
    return made
