"""Where the messages are in the bytes of a file of the CommitLog, for tools that read files. Pure."""

from collections.abc import Iterator

from broker.message.record import HEADER_BYTES, parse

__all__ = ["HEADER_BYTES", "records_in"]


def records_in(raw: bytes, base: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yields position, size and end of the body of every message in a file of the log that begins at offset
    `base`, up to position `end` or the first byte that is no record."""
    position = 0
    while position < end:
        parsed = parse(raw, position, end, offset=base + position)
        if parsed is None:
            return
        size = parsed[0]
        if parsed[1]:
            length = int.from_bytes(raw[position + HEADER_BYTES - 4 : position + HEADER_BYTES], "big")
            yield position, size, position + HEADER_BYTES + length
        position += size
