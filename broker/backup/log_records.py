"""Positions of the messages in the bytes of a CommitLog file, and the bytes of the log to which the entries
of a ConsumeQueue point, for tools that read files. Opens no file."""

from collections.abc import Iterator

from broker.message.record import HEADER_BYTES, parse
from broker.store.queue.consume_queue import UNIT, UNIT_BYTES

__all__ = ["HEADER_BYTES", "UNIT_BYTES", "record_ends", "records_in"]


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


def record_ends(raw: bytes) -> Iterator[int]:
    """Yields for each entry in the bytes of a ConsumeQueue, which are a multiple of UNIT_BYTES, where its
    record ends in the log; 0 for one that was never written."""
    return (offset + size if size > 0 else 0 for offset, size, _ in UNIT.iter_unpack(raw))
