"""The `checkpoint` file: one 4096-byte page of i64 values that limit how much a recovery must scan.

    0 physicMsgTimestamp | 8 logicsMsgTimestamp | 16 indexMsgTimestamp
    24 masterFlushedOffset | 32 confirmPhyOffset
    40 "KSUM" | 44 CRC-32 of the 40 bytes in front of it

RocketMQ neither reads nor writes the last two. A page without "KSUM" is taken as it is. One whose checksum
does not match is damaged, or RocketMQ has written it since: no value of it is used, and a start after a crash
scans the whole log. Source: RocketMQ 5.3.3 StoreCheckpoint (4.9 writes only the first three; missing values
read as 0).
"""

import logging
import os
import struct
import zlib
from pathlib import Path
from typing import Final

import msgspec

logger = logging.getLogger(__name__)

PAGE_BYTES: Final = 4096
_VALUES = struct.Struct(">qqqqq")
_SUM = struct.Struct(">4sI")
_MARK: Final = b"KSUM"
_SAFETY_MS: Final = 3000


class StoreCheckpoint(msgspec.Struct):
    """Store timestamps (ms) of the newest record that is durable in the log, in the queues and in the index.
    Log and queues are durable up to the CommitLog offset confirm_offset."""

    physic_msg_timestamp: int = 0
    logics_msg_timestamp: int = 0
    index_msg_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_offset: int = 0

    def min_timestamp(self) -> int:
        """Records that were stored before this time (ms) are durable in the log and in the queues."""
        return max(min(self.physic_msg_timestamp, self.logics_msg_timestamp) - _SAFETY_MS, 0)


def read_checkpoint(path: Path) -> StoreCheckpoint:
    """Returns the file's values, zeros if there is no file, or if it is damaged, which the log says."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return StoreCheckpoint()
    if fault := _fault(raw):
        logger.error("%s: %s: it is not used; after a crash the whole log is scanned", path, fault)
        return StoreCheckpoint()
    return StoreCheckpoint(*_VALUES.unpack_from(raw)) if raw else StoreCheckpoint()


def _fault(raw: bytes) -> str:
    """Returns why the content of the file cannot be used; empty: it can."""
    if 0 < len(raw) < PAGE_BYTES:
        return f"{len(raw)} bytes instead of {PAGE_BYTES}"
    values, end = raw[: _VALUES.size], _VALUES.size + _SUM.size
    if raw[_VALUES.size : end] in (_SUM.pack(_MARK, zlib.crc32(values)), bytes(_SUM.size), b""):
        return ""
    return "its checksum does not match"


def write_checkpoint(path: Path, checkpoint: StoreCheckpoint) -> None:
    """Overwrites the page durably. A torn write leaves the old or the new values, since it is one page.

    OSError: the file has the old or the new values, and both are true. The next call writes the whole page
    again, so its failed sync is no SyncError.
    """
    # fmt: off
    values = _VALUES.pack(checkpoint.physic_msg_timestamp, checkpoint.logics_msg_timestamp,
                          checkpoint.index_msg_timestamp, checkpoint.master_flushed_offset,
                          checkpoint.confirm_offset)
    # fmt: on
    values += _SUM.pack(_MARK, zlib.crc32(values))
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if os.fstat(fd).st_size < PAGE_BYTES:
            os.ftruncate(fd, PAGE_BYTES)
        os.pwrite(fd, values, 0)
        os.fdatasync(fd)
    finally:
        os.close(fd)
