"""The few things that raft does to files. Everything here is durable when it returns, or raises OSError.

Writers of raft files use this module and `os`, nothing else: tests put a disk that breaks in its place.
"""

import contextlib
import errno
import logging
import os
import struct
import zlib
from pathlib import Path

from remoting.config import ConfigError

logger = logging.getLogger(__name__)

SPARE_FILES = 3  # a vote needs two descriptors at once, the library's reader of snapshots one


class DamagedError(ConfigError):
    """A file does not hold what this member promised to others; starting could lose acknowledged writes."""


class SpareFiles:
    """Descriptors kept for the moment in which strangers have taken all others: a vote must still be stored.

    Process-wide, like the limit. refill() after a peak; release() gives them back to the system.
    """

    def __init__(self) -> None:
        self._files: list[int] = []

    def refill(self) -> None:
        with contextlib.suppress(OSError):
            while len(self._files) < SPARE_FILES:
                self._files.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def release(self) -> bool:
        """False: there was none left."""
        files, self._files = self._files, []
        for file in files:
            os.close(file)
        return bool(files)


spare_files = SpareFiles()


def open_file(path: Path, flags: int, mode: int = 0o600) -> int:
    """os.open, with the spare descriptors when there is no other. Raises OSError."""
    try:
        return os.open(path, flags | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE) or not spare_files.release():
            raise
        return os.open(path, flags | os.O_CLOEXEC, mode)


def write_all(file: int, data: bytes | bytearray, offset: int) -> None:
    """pwrite until everything is out. OSError as it comes."""
    view, done = memoryview(bytes(data)), 0
    while done < len(view):
        done += os.pwrite(file, view[done:], offset + done)


def replace_file(
    path: Path, data: bytes | bytearray, suffix: str, *, sync: bool = True, keep_open: bool = False
) -> int:
    """Write beside, fsync, rename, fsync the directory: old or new content, never a mixture.

    Returns the new file's descriptor when keep_open, else -1.
    """
    fresh = path.with_suffix(suffix)
    file = open_file(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        write_all(file, data, 0)
        if sync:
            os.fsync(file)
            sync_directory(path.parent)  # a snapshot renamed before us must not arrive after us
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
    """In the place of the library's rename of snapshots: one that a leader sent was never synced, and a power
    cut right after the rename would leave a name without content where a good snapshot was."""
    try:
        sync_file(Path(old))
        sync_directory(Path(old).parent)
        os.rename(old, new)
        sync_directory(Path(new).parent)
    except OSError as error:  # the library says only that it failed
        logger.error("cannot rename %s to %s: %s", old, new, os.strerror(error.errno or 0))
        raise


def write_new_file(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Content durable, the name not yet: whoever renames it makes it so."""
    file = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        write_all(file, data, 0)
        if sync:
            os.fsync(file)
    finally:
        os.close(file)


def sync_file(path: Path) -> None:
    file = open_file(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def sync_directory(directory: Path) -> None:
    file = open_file(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def seal(body: bytes) -> bytes:
    """`body` with its checksum in front."""
    return struct.pack("<I", zlib.crc32(body)) + body


def unseal(data: bytes) -> bytes | None:
    """None: damaged."""
    if len(data) < 4 or zlib.crc32(data[4:]) != struct.unpack_from("<I", data)[0]:
        return None
    return data[4:]
