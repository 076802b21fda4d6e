"""Records that replace bytes that no replica has any more. Pure.

The log stays one chain of records, which RocketMQ's tools read and its brokers replicate: such a record is
one of a rolled back transaction (sysFlag 0xC), which gets an entry in no queue and none in the index. FLAG is
LOST_FLAG, the topic is LOST_TOPIC, cut to the available room, and the body is zeros with a correct BODYCRC.
Its bytes depend on the range, the size of the log's files and a timestamp of an adjacent record, so two
replicas with the same marked range have the same bytes.
"""

import struct
from typing import Final

from broker.message.record import (
    BLANK,
    BLANK_BYTES,
    HEADER_BYTES,
    MAGIC_BLANK,
    MAGIC_V1,
    PACK_HEADER,
    Buffer,
    body_crc,
)

LOST_FLAG: Final = 0x4C4F5354
LOST_TOPIC: Final = b"KEELMQ_LOST_RECORD"
ROLLED_BACK: Final = 0xC
LOST_BYTES_MIN: Final = HEADER_BYTES + 4
"""No record is smaller: its topic has one byte."""
LOST_BYTES_MAX: Final = 1 << 20
"""Of one record. A longer range gets several."""
_HOST: Final = bytes(8)
_FLAGS = struct.Struct(">4xI8xi16xi").unpack_from
"""MAGICCODE, FLAG and SYSFLAG."""


def lost_records(start: int, end: int, *, file_bytes: int, stored_ms: int) -> bytes:
    """Returns the records for the log's [start, end). stored_ms: STORETIMESTAMP, of a record beside the
    range. ValueError: the range is smaller than any record, so its bounds are no record boundaries."""
    parts: list[bytes] = []
    while start < end:
        file_end = start - start % file_bytes + file_bytes
        stop = min(end, file_end)
        room = stop - start
        if stop == file_end:  # the last bytes of a file are a blank record
            if room < LOST_BYTES_MIN + BLANK_BYTES:
                parts.append(_blank(room))
                start = stop
                continue
            room -= BLANK_BYTES
        if room < LOST_BYTES_MIN:
            raise ValueError(f"[{start}, {end}) has no room for a record")
        size = room if room <= LOST_BYTES_MAX else min(LOST_BYTES_MAX, room - LOST_BYTES_MIN)
        parts.append(_lost(start, size, stored_ms))
        start += size
        if stop == file_end and start + BLANK_BYTES == stop:
            parts.append(_blank(BLANK_BYTES))
            start = stop
    return b"".join(parts)


def _blank(size: int) -> bytes:
    if size < BLANK_BYTES:
        raise ValueError(f"{size} bytes at the end of a file have no room for a blank record")
    return BLANK.pack(size, MAGIC_BLANK).ljust(size, b"\0")


def _lost(offset: int, size: int, stored_ms: int) -> bytes:
    topic = LOST_TOPIC[: size - HEADER_BYTES - 3]
    body = bytes(size - HEADER_BYTES - 3 - len(topic))
    # fmt: off
    header = PACK_HEADER(size, MAGIC_V1, body_crc(body), 0, LOST_FLAG, 0, offset, ROLLED_BACK, stored_ms,
                         _HOST, stored_ms, _HOST, 0, 0, len(body))
    # fmt: on
    return b"".join((header, body, bytes([len(topic)]), topic, b"\0\0"))


def is_lost_record(buffer: Buffer, pos: int) -> bool:
    """Returns whether the whole record at `pos` is a lost record."""
    magic, flag, sys_flag = _FLAGS(buffer, pos)
    return bool(magic == MAGIC_V1 and flag == LOST_FLAG and sys_flag == ROLLED_BACK)
