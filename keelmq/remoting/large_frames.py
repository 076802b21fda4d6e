"""Bounds the memory that the unfinished large frames of all connections hold."""

import sys
from dataclasses import dataclass


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
