"""Where the last whole line of a growing file ends."""

from typing import BinaryIO

BLOCK_BYTES = 64 << 10


def last_line_end(file: BinaryIO, start: int, end: int) -> int:
    """Returns the position after the last newline in bytes [start, end); `start` if there is none."""
    while end > start:
        block = max(start, end - BLOCK_BYTES)
        file.seek(block)
        at = file.read(end - block).rfind(b"\n")
        if at >= 0:
            return block + at + 1
        end = block
    return start
