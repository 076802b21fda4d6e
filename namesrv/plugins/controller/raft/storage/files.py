"""File operations of the raft log. Each is durable when it returns, or raises OSError.

Code that writes raft files uses only this module and `os`, which tests replace by a disk that fails. It does
not use keelmq/runtime/durable_file.py, which keeps a backup of the old content and has no spare descriptors.
"""

import contextlib
import errno
import logging
import os
import struct
import zlib
from pathlib import Path

from keelmq.runtime.config import ConfigError

logger = logging.getLogger(__name__)

SPARE_FILES = 3  # storing a vote needs two descriptors at once, reading a snapshot one


class DamagedError(ConfigError):
    """A file lacks what this member has acknowledged to others; starting could lose acknowledged changes."""


class SpareFiles:
    """Descriptors in reserve, so that a vote can be stored when connections have used up all others.

    Process-wide, like the limit. release() gives them to the next open; refill() takes them again.
    """

    def __init__(self) -> None:
        self._files: list[int] = []

    def refill(self) -> None:
        """Opens the missing descriptors; without error if there are none."""
        with contextlib.suppress(OSError):
            while len(self._files) < SPARE_FILES:
                self._files.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def release(self) -> bool:
        """Closes the spare descriptors. False: there was none."""
        files, self._files = self._files, []
        for file in files:
            os.close(file)
        return bool(files)


spare_files = SpareFiles()


def open_file(path: Path, flags: int, mode: int = 0o600) -> int:
    """os.open, with the spare descriptors if no other is free. Raises OSError."""
    try:
        return os.open(path, flags | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE) or not spare_files.release():
            raise
        return os.open(path, flags | os.O_CLOEXEC, mode)


def write_all(file: int, data: bytes | bytearray, offset: int) -> None:
    """Writes all of `data` at `offset`. Raises OSError."""
    view, done = memoryview(bytes(data)), 0
    while done < len(view):
        done += os.pwrite(file, view[done:], offset + done)


def replace_file(
    path: Path, data: bytes | bytearray, suffix: str, *, sync: bool = True, keep_open: bool = False
) -> int:
    """Replaces a file by a new one, written beside it, synced and renamed: old or new content, never a mix.

    Returns the new file's descriptor if keep_open, else -1. Raises OSError.
    """
    fresh = path.with_suffix(suffix)
    file = open_file(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        write_all(file, data, 0)
        if sync:
            os.fsync(file)
            sync_directory(path.parent)  # a snapshot that was renamed before must be durable before this file
        os.rename(fresh, path)
        if sync:
            sync_directory(path.parent)
    except BaseException:
        os.close(file)
        raise
    if keep_open:
        return file
    os.close(file)
    return -1


def rename_durably(old: str, new: str) -> None:
    """Replaces the library's rename of snapshots. Raises OSError.

    The library does not sync a snapshot that a leader sent: after a power cut the new name would have no
    content, and the old snapshot would be gone.
    """
    try:
        sync_file(Path(old))
        sync_directory(Path(old).parent)
        os.rename(old, new)
        sync_directory(Path(new).parent)
    except OSError as error:  # the library logs no reason
        logger.error("cannot rename %s to %s: %s", old, new, os.strerror(error.errno or 0))
        raise


def write_new_file(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Writes a file whose content is durable; its name becomes durable when it is renamed."""
    file = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        write_all(file, data, 0)
        if sync:
            os.fsync(file)
    finally:
        os.close(file)


def sync_file(path: Path) -> None:
    """Makes the content of a file durable (fsync). Raises OSError."""
    file = open_file(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def sync_directory(directory: Path) -> None:
    """Makes new and renamed names in a directory durable (fsync). Raises OSError."""
    file = open_file(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def with_checksum(body: bytes) -> bytes:
    """Returns crc32 (4 bytes, little endian) + `body`."""
    return struct.pack("<I", zlib.crc32(body)) + body


def without_checksum(data: bytes) -> bytes | None:
    """Returns the body of with_checksum(); None: the checksum does not match."""
    if len(data) < 4 or zlib.crc32(data[4:]) != struct.unpack_from("<I", data)[0]:
        return None
    return data[4:]
