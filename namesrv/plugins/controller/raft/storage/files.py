"""File operations of the raft log. Each is durable when it returns, or raises OSError.

Code that writes raft files uses only this module and `os`, which tests replace with a failing disk. It does
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

SPARE_FILES = 3  # storing a vote needs two descriptors at a time, reading a snapshot one


class DamagedError(ConfigError):
    """A file lacks entries that this member has acknowledged: with it, acknowledged changes could be lost."""


class SpareFiles:
    """Reserved descriptors, so that a vote can be stored when connections have used up all others.

    Process-wide, like the limit. release() frees them for the next open; refill() reserves them again.
    """

    def __init__(self) -> None:
        self._files: list[int] = []

    def refill(self) -> None:
        """Opens the missing descriptors; as many as possible if the limit is reached."""
        with contextlib.suppress(OSError):
            while len(self._files) < SPARE_FILES:
                self._files.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def release(self) -> bool:
        """Closes the reserved descriptors. False: there was none."""
        files, self._files = self._files, []
        for file in files:
            os.close(file)
        return bool(files)


spare_files = SpareFiles()


def open_file(path: Path, flags: int, mode: int = 0o600) -> int:
    """Calls os.open, and if no descriptor is free, uses a reserved one. Raises OSError."""
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
    """Replaces a file with a new one, which is written beside it, synced and renamed: never a mix of both.

    Returns the new file's descriptor if keep_open, else -1. Raises OSError.
    """
    fresh = path.with_suffix(suffix)
    file = open_file(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        write_all(file, data, 0)
        if sync:
            os.fsync(file)
            sync_directory(
                path.parent
            )  # a snapshot that was renamed earlier must be durable before this file
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
    """Syncs and renames a snapshot, in place of the library's function. Raises OSError.

    The library does not sync a snapshot that a leader has sent: after a power failure the new file could be
    empty, and the old snapshot would be lost.
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
    """Writes a file durably, except for its name, which becomes durable when it is renamed. Raises
    OSError."""
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
