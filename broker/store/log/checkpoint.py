"""The `checkpoint` file: one 4096-byte page of i64 values that bound what a recovery must look at.

    0 physicMsgTimestamp | 8 logicsMsgTimestamp | 16 indexMsgTimestamp
    24 masterFlushedOffset | 32 confirmPhyOffset

Source: RocketMQ 5.3.3 StoreCheckpoint (4.9 writes only the first three; missing values read as 0).
"""

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PAGE_BYTES: Final = 4096
_VALUES = struct.Struct(">qqqqq")
_SAFETY_MS: Final = 3000


@dataclass(slots=True)
class Checkpoint:
    """Timestamps in ms of the newest record that is durable in the log, the queues and the index."""

    physic_msg_timestamp: int = 0
    logics_msg_timestamp: int = 0
    index_msg_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_offset: int = 0

    def min_timestamp(self) -> int:
        """Records stored before it (ms) are durable and indexed."""
        return max(min(self.physic_msg_timestamp, self.logics_msg_timestamp) - _SAFETY_MS, 0)


def read_checkpoint(path: Path) -> Checkpoint:
    """Zeros when there is no file."""
    try:
        raw = path.read_bytes()[: _VALUES.size]
    except FileNotFoundError:
        raw = b""
    return Checkpoint(*_VALUES.unpack(raw.ljust(_VALUES.size, b"\0")))


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Overwrite the page and make it durable. One page: a torn write keeps old or new values."""
    # fmt: off
    values = _VALUES.pack(checkpoint.physic_msg_timestamp, checkpoint.logics_msg_timestamp,
                          checkpoint.index_msg_timestamp, checkpoint.master_flushed_offset,
                          checkpoint.confirm_offset)
    # fmt: on
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if os.fstat(fd).st_size < PAGE_BYTES:
            os.ftruncate(fd, PAGE_BYTES)
        os.pwrite(fd, values, 0)
        os.fdatasync(fd)
    finally:
        os.close(fd)
