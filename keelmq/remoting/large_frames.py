"""Bounds the memory that the unfinished large frames of all connections hold."""

import contextlib
import mmap
import sys
from typing import Final

import msgspec

_NO_HUGE_PAGES: Final[int | None] = getattr(mmap, "MADV_NOHUGEPAGE", None)


class NoRoomError(Exception):
    """The frame may be valid, but its bytes would exceed the bound now."""


class LargeFrames(msgspec.Struct):
    """The received bytes of unfinished large frames of many connections; announced sizes do not count."""

    bytes_max: int = sys.maxsize
    held_bytes: int = 0

    def take(self, count: int) -> None:
        """Counts bytes that arrived. NoRoomError: they would exceed bytes_max, and are not counted."""
        if self.held_bytes + count > self.bytes_max:
            raise NoRoomError(f"unfinished large frames hold {self.held_bytes} of {self.bytes_max} bytes")
        self.held_bytes += count

    def begin(self, received: bytes, size: int) -> mmap.mmap:
        """Returns a buffer for a frame of `size` bytes that begins with these, and counts them. NoRoomError:
        there is no room for them now."""
        self.take(len(received))
        try:
            made = _unwritten_memory(size)
        except OSError as error:
            self.held_bytes -= len(received)
            raise NoRoomError(f"no memory for a frame of {size} bytes: {error.strerror}") from error
        made[: len(received)] = received
        return made


def _unwritten_memory(size: int) -> mmap.mmap:
    """Allocates memory whose unwritten pages cost nothing; a bytearray is filled with zeros at once."""
    made = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if _NO_HUGE_PAGES is not None:
        with contextlib.suppress(OSError):  # a kernel that has none
            made.madvise(_NO_HUGE_PAGES)
    return made
