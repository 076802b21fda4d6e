"""The `checkpoint` file: one 4096-byte page of i64 values that limit how much a recovery must scan.

    0 physicMsgTimestamp | 8 logicsMsgTimestamp | 16 indexMsgTimestamp
    24 masterFlushedOffset | 32 confirmPhyOffset
    40 "KSUM" | 44 CRC-32 of the 40 bytes in front of it
    48 mappedFileSizeCommitLog | 56 mappedFileSizeConsumeQueue | 64 mapperFileSizeBatchConsumeQueue
    72 "KSIZ" | 76 CRC-32 of the 24 bytes in front of it

RocketMQ neither reads nor writes the last two lines. A page without "KSUM" is accepted unchecked. One whose
checksum does not match is damaged, or RocketMQ has written it since: none of its values is used, and a start
after a crash scans the whole log. Source: RocketMQ 5.3.3 StoreCheckpoint (4.9 writes only the first three;
missing values read as 0).
"""

import logging
import os
import struct
import zlib
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from broker.store.log.mapped_file import sync_directory

logger = logging.getLogger(__name__)

PAGE_BYTES: Final = 4096
_VALUES = struct.Struct(">qqqqq")
_SUM = struct.Struct(">4sI")
_MARK: Final = b"KSUM"
_SIZES: Final = struct.Struct(">qqq")
_SIZES_MARK: Final = b"KSIZ"
_SIZES_AT: Final = _VALUES.size + _SUM.size
_SAFETY_MS: Final = 3000


class FileSizes(NamedTuple):
    """Bytes of each file of the log, of ConsumeQueues and of BatchQueues, as the broker that ran last was
    configured; 0: not known."""

    log: int = 0
    queue: int = 0
    batch_queue: int = 0


class StoreCheckpoint(msgspec.Struct):
    """Store timestamps (ms) of the newest record that is durable in the log, in the queues and in the index.
    Log and queues are durable up to the CommitLog offset confirm_offset."""

    physic_msg_timestamp: int = 0
    logics_msg_timestamp: int = 0
    index_msg_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_offset: int = 0
    file_sizes: FileSizes = FileSizes()

    def min_timestamp(self) -> int:
        """Records that were stored before this time (ms) are durable in the log and in the queues."""
        return max(min(self.physic_msg_timestamp, self.logics_msg_timestamp) - _SAFETY_MS, 0)


def read_checkpoint(path: Path) -> StoreCheckpoint:
    """Returns the file's values, zeros if there is no file, or if it is damaged, which is logged."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return StoreCheckpoint()
    if fault := _fault(raw):
        logger.error("%s: %s: it is not used; after a crash the whole log is scanned", path, fault)
        return StoreCheckpoint()
    found = StoreCheckpoint(*_VALUES.unpack_from(raw)) if raw else StoreCheckpoint()
    found.file_sizes = _sizes_in(raw)
    return found


def read_file_sizes(path: Path) -> FileSizes:
    """Returns the sizes in the file, which are not known if it is damaged. Logs nothing."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return FileSizes()
    return FileSizes() if _fault(raw) else _sizes_in(raw)


def _sizes_in(raw: bytes) -> FileSizes:
    """Returns the sizes. If RocketMQ has written the page, the checksum of the values does not match."""
    sizes = raw[_SIZES_AT : _SIZES_AT + _SIZES.size]
    has_sum = raw[_VALUES.size : _VALUES.size + len(_MARK)] == _MARK
    if not has_sum or raw[_SIZES_AT + _SIZES.size :][: _SUM.size] != _SUM.pack(
        _SIZES_MARK, zlib.crc32(sizes)
    ):
        return FileSizes()
    return FileSizes(*_SIZES.unpack(sizes))


def _fault(raw: bytes) -> str:
    """Returns why the content of the file cannot be used; empty: it can."""
    if 0 < len(raw) < PAGE_BYTES:
        return f"{len(raw)} bytes instead of {PAGE_BYTES}"
    values, end = raw[: _VALUES.size], _VALUES.size + _SUM.size
    if raw[_VALUES.size : end] in (_SUM.pack(_MARK, zlib.crc32(values)), bytes(_SUM.size), b""):
        return ""
    return "its checksum does not match"


def write_checkpoint(path: Path, checkpoint: StoreCheckpoint) -> None:
    """Overwrites the page durably, and the name of a new file. A torn write leaves the old or the new values,
    since it is one page.

    OSError: the file has the old or the new values, and both are true. The next call writes the whole page
    again, so its failed sync is no SyncError; that of the directory, where other new names may be lost, is.
    """
    # fmt: off
    values = _VALUES.pack(checkpoint.physic_msg_timestamp, checkpoint.logics_msg_timestamp,
                          checkpoint.index_msg_timestamp, checkpoint.master_flushed_offset,
                          checkpoint.confirm_offset)
    # fmt: on
    sizes = _SIZES.pack(*checkpoint.file_sizes)
    values += _SUM.pack(_MARK, zlib.crc32(values)) + sizes + _SUM.pack(_SIZES_MARK, zlib.crc32(sizes))
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if os.fstat(fd).st_size < PAGE_BYTES:
            sync_directory(path.parent)  # in front of the size: a file with all its bytes has a durable name
            os.ftruncate(fd, PAGE_BYTES)
        os.pwrite(fd, values, 0)
        os.fdatasync(fd)
    finally:
        os.close(fd)
