"""MappedFile: one fixed-size file, mapped into memory and named by the offset of its first byte (20 digits).
Also the names, locks and marks in a store's directory.

Never calls mmap.flush, which would stop every thread; fdatasync in a helper thread does the same. Source of
the names: RocketMQ 5.3.3 DefaultMappedFile.
"""

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import re
import struct
import threading
from pathlib import Path
from typing import Final

from broker.store.log.sync_fault import sync_all, sync_file

NAME_DIGITS: Final = 20
_NAME = re.compile(r"\d{20}\Z")
_FLOCK = struct.Struct("@hhqqi")  # struct flock: type, whence, start, length, process (0)
_TOUCH_PIECE_BYTES: Final = 1 << 20
_MADVISE: Final = ctypes.CDLL(None).madvise  # mmap's own keeps the interpreter lock, 1 ms per MiB
_MADVISE.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_ZEROS: Final = bytes(1 << 20)
_MADV_NORMAL: Final = 0
_MADV_RANDOM: Final = 1
_MADV_POPULATE_WRITE: Final = 23  # Linux 5.14; not yet named in Python 3.11's mmap


class StoreError(Exception):
    """The files on disk cannot be used as they are; the text names them and the reason."""


def file_name(start_offset: int) -> str:
    """The name of the file that begins at this offset."""
    return f"{start_offset:0{NAME_DIGITS}d}"


def is_file_name(name: str) -> bool:
    """Whether a directory may have this name. A topic from a damaged or foreign record must not lead out of
    the store's directory."""
    return 0 < len(name.encode()) <= 255 and name not in (".", "..") and not {"/", "\0"} & set(name)


def is_log_file_name(name: str) -> bool:
    """Whether it is the name of a file of the log, or of a queue: 20 digits."""
    return _NAME.match(name) is not None


def listed_files(directory: Path) -> list[Path]:
    """The log's files by ascending start offset, without files of other names; [] if there is no
    directory."""
    if not directory.is_dir():
        return []
    return sorted(path for path in directory.iterdir() if is_log_file_name(path.name))


def lock_directory(root: Path) -> int:
    """Locks the store for this process. Returns the descriptor that holds the lock until it is closed.
    StoreError: another process has the lock."""
    descriptor = os.open(root / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        take_lock(descriptor)
    except BlockingIOError as error:
        os.close(descriptor)
        raise StoreError(f"{root} is in use by another broker process (lock file held)") from error
    os.pwrite(descriptor, b"lock", 0)
    return descriptor


def is_locked(root: Path) -> bool:
    """Returns whether a process has the store's lock. Changes nothing."""
    try:
        descriptor = os.open(root / "lock", os.O_RDWR)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        take_lock(descriptor)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def take_lock(descriptor: int) -> None:
    """Locks the whole file, which KeelMQ's brokers check, and its first byte, which RocketMQ's broker locks;
    until the descriptor is closed. BlockingIOError: another process has one of the locks."""
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if hasattr(fcntl, "F_OFD_SETLK"):  # of the open file, not of the process; Linux
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))


def sync_directory(directory: Path) -> None:
    """Makes created, renamed and deleted names durable. SyncError: some of them may not be."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        sync_all(fd, directory)
    finally:
        os.close(fd)


def write_mark(path: Path, text: str) -> None:
    """Writes a small marker file; durable when it returns."""
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    sync_directory(path.parent)


class MappedFile:
    """`view` is writable and keeps the map alive: after close() the map exists until its last view is
    gone."""

    __slots__ = ("_fd", "file_bytes", "map", "path", "start_offset", "view")

    def __init__(self, path: Path, start_offset: int, file_bytes: int, *, allocate: bool) -> None:
        """Opens or creates the file. allocate: reserve its blocks, so that a full disk is an OSError here and
        no SIGBUS later; otherwise the file is sparse. After an OSError the file is as it was."""
        self.path = path
        self.start_offset = start_offset
        self.file_bytes = file_bytes
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        bytes_before = os.fstat(self._fd).st_size
        try:
            self._extend(allocate)
            self.map = mmap.mmap(self._fd, file_bytes)
        except OSError:
            self._give_back(bytes_before)
            raise
        self.view = memoryview(self.map)

    @property
    def end_offset(self) -> int:
        """The log offset behind the file's last byte."""
        return self.start_offset + self.file_bytes

    def _extend(self, allocate: bool) -> None:
        if os.fstat(self._fd).st_size >= self.file_bytes:
            return
        if allocate:
            os.posix_fallocate(self._fd, 0, self.file_bytes)
        else:
            os.ftruncate(self._fd, self.file_bytes)

    def _give_back(self, bytes_before: int) -> None:
        """Closes a file that could not be created. On ext4 it has used all remaining room by then."""
        with contextlib.suppress(OSError):  # the first error is reported
            if bytes_before:
                os.ftruncate(self._fd, bytes_before)
            else:
                self.path.unlink(missing_ok=True)
        os.close(self._fd)

    def duplicate(self) -> int:
        """Returns a descriptor of this file that stays valid after close() and delete(); the caller closes
        it."""
        return os.dup(self._fd)

    def read(self, start: int, count: int) -> bytes:
        """Returns bytes that may be in a hole. Reading a hole through the map allocates a block of a tmpfs,
        and raises SIGBUS if that is full."""
        return os.pread(self._fd, count, start)

    def reserve(self, start: int, count: int) -> None:
        """Reserves blocks for these bytes of a sparse file. OSError: the disk has none; without this call,
        the write would raise SIGBUS."""
        os.posix_fallocate(self._fd, start, count)

    def zero_from(self, position: int, *, allocate: bool) -> None:
        """Sets all bytes from `position` on to zero, durably."""
        os.ftruncate(self._fd, position)
        self._extend(allocate)
        sync_all(self._fd, self.path)

    def is_zero_from(self, position: int) -> bool:
        """Whether all bytes from `position` on are zero. Skips holes, which would become pages in memory."""
        while position < self.file_bytes:
            try:
                start = os.lseek(self._fd, position, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    return True
                raise
            position = os.lseek(self._fd, start, os.SEEK_HOLE)
            for at in range(start, position, len(_ZEROS)):
                piece = os.pread(self._fd, min(position - at, len(_ZEROS)), at)
                if piece != _ZEROS[: len(piece)]:
                    return False
        return True

    def touch(self, start: int, end: int) -> None:
        """Faults in these pages ahead of the writer; called in a helper thread. No effect on a kernel before
        5.14."""
        try:
            pin = ctypes.c_char.from_buffer(self.map)  # while it lives, the map does
        except ValueError:  # the file was closed meanwhile
            return
        base, end = ctypes.addressof(pin), min(end, self.file_bytes)
        for at in range(start, end, _TOUCH_PIECE_BYTES):
            if _MADVISE(base + at, min(_TOUCH_PIECE_BYTES, end - at), _MADV_POPULATE_WRITE):
                return  # an old kernel

    def read_ahead(self, on: bool) -> None:
        """Turns the system's read-ahead of this file on or off."""
        pin = ctypes.c_char.from_buffer(self.map)
        _MADVISE(ctypes.addressof(pin), self.file_bytes, _MADV_NORMAL if on else _MADV_RANDOM)

    def write_zeros(self, start: int, end: int, stop: threading.Event) -> None:
        """Writes zeros, so that the blocks of these bytes are allocated, until `stop` is set. Called in a
        helper thread, for a file without other writers. Errors are ignored: the zeros only save time
        later."""
        for at in range(start, end, len(_ZEROS)):
            if stop.is_set():
                return
            with contextlib.suppress(OSError):
                os.pwrite(self._fd, _ZEROS[: end - at], at)

    def drop_cached(self, start: int = 0, end: int | None = None) -> None:
        """Makes the system read the file, or the whole pages of a part of it, from the disk again. Pages that
        are not written yet stay. Any thread; no effect on a closed file."""
        begin, end = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, self.file_bytes if end is None else end
        count = (end - begin) // mmap.PAGESIZE * mmap.PAGESIZE if end < self.file_bytes else end - begin
        if count <= 0:
            return
        try:
            pin = ctypes.c_char.from_buffer(self.map)
        except ValueError:  # it was closed meanwhile
            return
        # A page that is mapped here would not be dropped.
        _MADVISE(ctypes.addressof(pin) + begin, count, mmap.MADV_DONTNEED)
        del pin
        if self._fd >= 0:
            os.posix_fadvise(self._fd, begin, count, os.POSIX_FADV_DONTNEED)

    def sync(self) -> None:
        """Makes the file's content durable. SyncError: it may not be."""
        sync_file(self._fd, self.path)

    def rename(self, path: Path) -> None:
        """Moves the file within its file system; not durable before sync_directory()."""
        os.rename(self.path, path)
        self.path = path

    def close(self) -> None:
        """Closes the file, once; the map lives until its last view is gone."""
        if self._fd < 0:
            return
        os.close(self._fd)
        self._fd = -1
        self.view.release()
        with contextlib.suppress(BufferError):  # a reply still points into it: freed with its last view
            self.map.close()

    def delete(self) -> None:
        """Unlinks the file and closes it; not durable before sync_directory()."""
        self.path.unlink(missing_ok=True)
        self.close()
