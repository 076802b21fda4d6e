"""RotatedFile: lines that are appended to NAME.log, which becomes NAME.log.1 when it is full.

Older files have higher numbers; the oldest one is deleted. Used by one thread, which may wait for the disk.
A write is complete or undone, so only a crash can leave half a line, at the end of a file."""

import contextlib
import errno
import os
from pathlib import Path

DIRECTORY_MODE = 0o700
FILE_MODE = 0o600


class RotatedFile:
    """Nothing is made before the first line. OSError of append(): nothing was written."""

    def __init__(self, directory: Path, name: str, *, bytes_max: int, files: int) -> None:
        """files: how many are kept, with the one that is written."""
        self.path = directory / f"{name}.log"
        self._bytes_max, self._files = bytes_max, files
        self._descriptor: int | None = None
        self._size = 0

    def append(self, lines: bytes) -> None:
        """Writes whole lines. A single write may exceed the size of a file: it gets its own file."""
        self._open()
        if self._size and self._size + len(lines) > self._bytes_max:
            self._rotate()
        assert self._descriptor is not None
        try:
            if os.write(self._descriptor, lines) < len(lines):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        except OSError:
            self._undo()
            raise
        self._size += len(lines)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> None:
        """A file that was moved or deleted is created again."""
        if self._descriptor is not None and not self._is_mine(self._descriptor):
            self.close()
        if self._descriptor is None:
            self.path.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._descriptor = os.open(self.path, flags, FILE_MODE)
            try:
                os.fchmod(self._descriptor, FILE_MODE)
                self._size = os.fstat(self._descriptor).st_size
                self._end_torn_line(self._descriptor)
            except OSError:
                self.close()
                raise

    def _is_mine(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(self.path))
        except FileNotFoundError:
            return False

    def _end_torn_line(self, descriptor: int) -> None:
        """After a crash: what comes next must not continue half a line."""
        if self._size and os.pread(descriptor, 1, self._size - 1) != b"\n":
            self._size += os.write(descriptor, b"\n")

    def _undo(self) -> None:
        """Leaves no half a line. Without that, the file is opened again, and the line ended there."""
        assert self._descriptor is not None
        try:
            os.ftruncate(self._descriptor, self._size)
        except OSError:
            self.close()

    def _rotate(self) -> None:
        """If a step fails, the file goes on: too long is better than lost."""
        with contextlib.suppress(OSError):
            for number in range(self._files - 1, 0, -1):
                older = self.path if number == 1 else self._numbered(number - 1)
                with contextlib.suppress(FileNotFoundError):
                    os.replace(older, self._numbered(number))
            self.close()
        self._open()

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")
