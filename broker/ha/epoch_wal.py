"""epochFileCheckpoint.wal: the newest version of the epoch file, written ahead of it.

    magic       8 bytes
    crc         4, CRC-32 of everything behind it
    base length 8, of the epoch file that this version supersedes; -1: there was none
    base crc    4, CRC-32 of that file's content
    length      4, of the content
    content     what the epoch file will hold

All integers are big-endian. The file has a fixed size, and its blocks are written once before they are used,
so fdatasync of a record writes the record alone. A new or a renamed file needs commits of the file system's
journal, which also write the changes of others. A torn record has another checksum.

The record is there twice, at byte 0 and at byte WAL_BYTES, because a disk may damage one copy: between an
election and the next replacement of the epoch file, no other file has the newest version. The second copy
counts only if the first one is damaged. It may then be older, if a power failure came between both: but then
the new version was not acknowledged, and the old one is in the epoch file. Earlier releases wrote and removed
the first copy alone, so where that one was removed, the second one does not count.

Beside it is an empty file, epochFileCheckpoint.wal.used, from the start of a broker to its clean stop: if the
write-ahead file is missing, this mark shows that a disk has lost it, and maybe a record with it.
"""

import logging
import os
import struct
import zlib
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from keelmq.runtime.durable_file import replace_file, sync_directory

logger = logging.getLogger(__name__)

WAL_BYTES: Final = 16_384
"""Of one copy."""
FILE_BYTES: Final = 2 * WAL_BYTES
PAGE_BYTES: Final = 4_096
MAGIC: Final = b"KEELEPO1"
HEAD: Final = struct.Struct(">8sI")
BODY: Final = struct.Struct(">qII")
CONTENT_BYTES_MAX: Final = WAL_BYTES - HEAD.size - BODY.size
_NO_RECORD: Final = bytes(HEAD.size)


class Base(NamedTuple):
    """Identifies a content of the epoch file. length -1: there is no file."""

    length: int
    crc: int


def base_of(content: bytes | None) -> Base:
    """Returns the base of a record that supersedes this content; None: there is no file."""
    return Base(-1, 0) if content is None else Base(len(content), zlib.crc32(content))


class EpochRecord(msgspec.Struct, frozen=True):
    """`content` supersedes the content that `base` identifies."""

    base: Base
    content: bytes


def encode_record(record: EpochRecord) -> bytes:
    """Returns the bytes at the start of the file. The content has at most CONTENT_BYTES_MAX bytes."""
    body = BODY.pack(*record.base, len(record.content)) + record.content
    return HEAD.pack(MAGIC, zlib.crc32(body)) + body


def decode_record(data: bytes) -> EpochRecord | None:
    """Returns the record at the start of the file; None: there is none, or it was torn."""
    if len(data) < HEAD.size + BODY.size:
        return None
    magic, crc = HEAD.unpack_from(data)
    base_length, base_crc, length = BODY.unpack_from(data, HEAD.size)
    end = HEAD.size + BODY.size + length
    if magic != MAGIC or end > len(data) or zlib.crc32(data[HEAD.size : end]) != crc:
        return None
    return EpochRecord(Base(base_length, base_crc), data[end - length : end])


def wal_of(path: Path) -> Path:
    """Returns the path of the write-ahead file of the epoch file at `path`."""
    return path.with_name(path.name + ".wal")


class EpochWal:
    """The file at one path. Every change is durable when the method returns. All methods raise OSError."""

    def __init__(self, path: Path) -> None:
        self.path, self.mark = path, path.with_name(path.name + ".used")

    def prepare(self) -> None:
        """Creates the file, or completes one that is too short, then the mark. Then names and content are
        durable, including the writes of a process that was killed before it could sync."""
        if self.path.exists():
            self._complete()
        else:
            self.create()
        if not self.mark.exists():
            replace_file(self.mark, b"", keep_backup=False)

    def create(self, record: EpochRecord | None = None) -> None:
        """Creates the file anew. It is never visible in part: a short file was truncated."""
        content = b"" if record is None else encode_record(record)
        replace_file(self.path, content.ljust(WAL_BYTES, b"\0") * 2, keep_backup=False)

    def _complete(self) -> None:
        file = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            size = os.fstat(file).st_size
            if size < FILE_BYTES:
                try:
                    _write_all(file, bytes(FILE_BYTES - size), size)
                except OSError:  # a file of an earlier release may have a record to use
                    if size < WAL_BYTES:
                        raise
            os.fsync(file)
        finally:
            os.close(file)
        sync_directory(self.path.parent)

    def read(self) -> EpochRecord | None:
        """Returns the record; None: there is none, or no file."""
        data = self._content()
        first = decode_record(data[:WAL_BYTES])
        if first is not None or _is_removed(data):
            return first
        second = decode_record(data[WAL_BYTES:])
        if second is not None:
            logger.error("%s is damaged, its second copy is used", self.path)
        return second

    def is_cut_short(self) -> bool:
        """Whether the file was truncated, and may have had a record."""
        data = self._content()
        has_record = decode_record(data[:WAL_BYTES]) is not None
        return self.path.exists() and len(data) < WAL_BYTES and not has_record and data[:1] != b"\0"

    def is_lost(self) -> bool:
        """Whether the file is gone, and may have had a record."""
        return not self.path.exists() and self.mark.exists()

    def unmark(self) -> None:
        """Removes the mark: from now on, a missing file is no loss."""
        if self.mark.exists():
            self.mark.unlink()
            sync_directory(self.mark.parent)

    def _content(self) -> bytes:
        try:
            with open(self.path, "rb") as file:
                return file.read(FILE_BYTES)
        except FileNotFoundError:
            return b""

    def was_used(self) -> bool:
        """Whether a record was ever written: clear() leaves its content."""
        return any(self._content())

    def write(self, record: EpochRecord) -> None:
        """Overwrites the record. The file must be there."""
        self._overwrite(encode_record(record))

    def clear(self) -> None:
        """Removes the record. Without a file there is nothing to do."""
        try:
            self._overwrite(_NO_RECORD)
        except FileNotFoundError:
            return

    def _overwrite(self, data: bytes) -> None:
        file = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            _write_all(file, data, 0)
            _write_all(file, data, WAL_BYTES)
            os.fdatasync(file)
        finally:
            os.close(file)


def _is_removed(data: bytes) -> bool:
    """Whether clear() has removed the first copy, which leaves its content; a zeroed page has none."""
    return data.startswith(_NO_RECORD) and any(data[:PAGE_BYTES])


def _write_all(file: int, data: bytes, offset: int) -> None:
    while data:
        written = os.pwrite(file, data, offset)
        data, offset = data[written:], offset + written
