"""epochFileCheckpoint.wal: the newest version of the epoch file, written ahead of it.

    magic       8 bytes
    crc         4, CRC-32 of everything behind it
    base length 8, of the epoch file that this version supersedes; -1: there was none
    base crc    4, CRC-32 of that file's content
    length      4, of the content
    content     what the epoch file will hold

All integers are big-endian. The file has a fixed size, and its blocks are written once before they are used,
so fdatasync of a record writes the record alone. A new or a renamed file needs commits of the file system's
journal, which also write what others have changed. A record that was torn has another checksum.
"""

import os
import struct
import zlib
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from keelmq.runtime.durable_file import sync_directory

WAL_BYTES: Final = 16_384
MAGIC: Final = b"KEELEPO1"
HEAD: Final = struct.Struct(">8sI")
BODY: Final = struct.Struct(">qII")
CONTENT_BYTES_MAX: Final = WAL_BYTES - HEAD.size - BODY.size


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
        self.path = path

    def prepare(self) -> None:
        """Creates the file, or completes one that is too short. Then name and content are durable, also what
        a process wrote that was killed before it could sync."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            size = os.fstat(file).st_size
            if size < WAL_BYTES:
                _write_all(file, bytes(WAL_BYTES - size), size)
            os.fsync(file)
        finally:
            os.close(file)
        sync_directory(self.path.parent)

    def read(self) -> EpochRecord | None:
        """Returns the record; None: there is none, or no file."""
        try:
            with open(self.path, "rb") as file:
                return decode_record(file.read(WAL_BYTES))
        except FileNotFoundError:
            return None

    def was_used(self) -> bool:
        """Whether a record was ever written: clear() leaves its content."""
        try:
            return any(self.path.read_bytes())
        except FileNotFoundError:
            return False

    def write(self, record: EpochRecord) -> None:
        """Overwrites the record. The file must be there."""
        self._overwrite(encode_record(record))

    def clear(self) -> None:
        """Removes the record. Without a file there is nothing to do."""
        try:
            self._overwrite(bytes(HEAD.size))
        except FileNotFoundError:
            return

    def _overwrite(self, data: bytes) -> None:
        file = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            _write_all(file, data, 0)
            os.fdatasync(file)
        finally:
            os.close(file)


def _write_all(file: int, data: bytes, offset: int) -> None:
    while data:
        written = os.pwrite(file, data, offset)
        data, offset = data[written:], offset + written
