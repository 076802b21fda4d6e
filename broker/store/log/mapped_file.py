"""One fixed-size file of a log, mapped into memory, named by the offset of its first byte (20 digits).

Never calls mmap.flush: it would stop every thread (fdatasync in a helper thread does the same work).
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
    """The files on disk cannot be used as they are; the text says which and why."""


def file_name(start_offset: int) -> str:
    return f"{start_offset:0{NAME_DIGITS}d}"


def is_file_name(name: str) -> bool:
    """May a directory be called so? Topics of damaged or foreign records never lead out of ours."""
    return 0 < len(name.encode()) <= 255 and name not in (".", "..") and not {"/", "\0"} & set(name)


def listed_files(directory: Path) -> list[Path]:
    """The log's files by ascending start offset; anything with another kind of name is ignored."""
    if not directory.is_dir():
        return []
    return sorted(path for path in directory.iterdir() if _NAME.match(path.name))


def lock_directory(root: Path) -> int:
    """The descriptor that holds the lock, until it is closed. StoreError: another process has it."""
    descriptor = os.open(root / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        take_lock(descriptor)
    except BlockingIOError as error:
        os.close(descriptor)
        raise StoreError(f"{root} is in use by another broker process (lock file held)") from error
    os.pwrite(descriptor, b"lock", 0)
    return descriptor


def take_lock(descriptor: int) -> None:
    """Until the descriptor is closed: the whole file, as ours know each other, and its first byte, which is
    what RocketMQ's broker locks. BlockingIOError: somebody has one of them."""
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if hasattr(fcntl, "F_OFD_SETLK"):  # of the open file, not of the process; Linux
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))


def sync_directory(directory: Path) -> None:
    """Make created, renamed and deleted names durable."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_mark(path: Path, text: str) -> None:
    """A file whose presence means something: durable when it returns."""
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    sync_directory(path.parent)


class MappedFile:
    """`view` is writable and pins the map: close() lets the map live on until the last view of it is gone."""

    __slots__ = ("_fd", "file_bytes", "map", "path", "start_offset", "view")

    def __init__(self, path: Path, start_offset: int, file_bytes: int, *, allocate: bool) -> None:
        """Open or create. allocate: reserve the blocks (no SIGBUS on a full disk); else a sparse file."""
        self.path = path
        self.start_offset = start_offset
        self.file_bytes = file_bytes
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            self._extend(allocate)
            self.map = mmap.mmap(self._fd, file_bytes)
        except OSError:
            os.close(self._fd)
            raise
        self.view = memoryview(self.map)

    @property
    def end_offset(self) -> int:
        return self.start_offset + self.file_bytes

    def _extend(self, allocate: bool) -> None:
        if os.fstat(self._fd).st_size >= self.file_bytes:
            return
        if allocate:
            os.posix_fallocate(self._fd, 0, self.file_bytes)
        else:
            os.ftruncate(self._fd, self.file_bytes)

    def duplicate(self) -> int:
        """A descriptor of this file that outlives close() and delete(); the caller closes it."""
        return os.dup(self._fd)

    def read(self, start: int, count: int) -> bytes:
        """Of what may be a hole: in the map, a look at one takes a block of a tmpfs; on a full one that is a
        SIGBUS."""
        return os.pread(self._fd, count, start)

    def reserve(self, start: int, count: int) -> None:
        """Blocks for these bytes of a sparse file. OSError if the disk has none: better than a SIGBUS."""
        os.posix_fallocate(self._fd, start, count)

    def zero_from(self, position: int, *, allocate: bool) -> None:
        """All bytes from `position` on become zero, durably, whatever was there and however long it was."""
        os.ftruncate(self._fd, position)
        self._extend(allocate)
        os.fsync(self._fd)

    def is_zero_from(self, position: int) -> bool:
        """Looks at what the file system has data of: holes would become pages in memory."""
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
        """Fault pages in ahead of the writer; from a helper thread. Without kernel support: no effect."""
        try:
            pin = ctypes.c_char.from_buffer(self.map)  # while it lives, the map does
        except ValueError:  # the file was closed meanwhile
            return
        base, end = ctypes.addressof(pin), min(end, self.file_bytes)
        for at in range(start, end, _TOUCH_PIECE_BYTES):
            if _MADVISE(base + at, min(_TOUCH_PIECE_BYTES, end - at), _MADV_POPULATE_WRITE):
                return  # an old kernel

    def read_ahead(self, on: bool) -> None:
        """May the system read pages of it that nobody has asked for yet?"""
        pin = ctypes.c_char.from_buffer(self.map)
        _MADVISE(ctypes.addressof(pin), self.file_bytes, _MADV_NORMAL if on else _MADV_RANDOM)

    def write_zeros(self, start: int, end: int, stop: threading.Event) -> None:
        """From a helper thread, into a file that nobody writes to, until `stop`: its blocks are written once
        then. Errors do not matter: the file is as good without."""
        for at in range(start, end, len(_ZEROS)):
            if stop.is_set():
                return
            with contextlib.suppress(OSError):
                os.pwrite(self._fd, _ZEROS[: end - at], at)

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def rename(self, path: Path) -> None:
        os.rename(self.path, path)
        self.path = path

    def close(self) -> None:
        if self._fd < 0:
            return
        os.close(self._fd)
        self._fd = -1
        self.view.release()
        with contextlib.suppress(BufferError):  # a reply still points into it: freed with its last view
            self.map.close()

    def delete(self) -> None:
        self.path.unlink(missing_ok=True)
        self.close()
