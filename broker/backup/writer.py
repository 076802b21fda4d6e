"""BackupWriter: writes a backup's directory, in steps of bounded size, for any thread.

It is NAME.partial until everything is on the disk, so a crash or a full disk leaves nothing under NAME.
"""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from broker.backup.manifest import (
    MANIFEST_NAME,
    PARTIAL_SUFFIX,
    BackupError,
    FileEntry,
    Manifest,
    encode_manifest,
)
from keelmq.runtime.durable_file import sync_directory

STEP_BYTES: Final = 4 << 20
"""One step of a copy: some milliseconds of a disk, in a thread."""


class BackupWriter:
    """`target`: the directory that the backup will be. Files and directories are only for their owner."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.partial = target.with_name(target.name + PARTIAL_SUFFIX)
        self.entries: list[FileEntry] = []
        self._lock, self._owns = -1, False

    def begin(self) -> None:
        """Makes the directory. Raises BackupError: the backup exists; OSError."""
        if self.target.exists():
            raise BackupError(
                f"{self.target} exists: choose another name; a backup never replaces another one"
            )
        if self.partial.exists():  # of a process that was killed, unless a process has it locked
            self._take_lock()
            shutil.rmtree(self.partial)
            self._release()
        self.partial.mkdir(mode=0o700, parents=True)
        self._take_lock()

    def _take_lock(self) -> None:
        """Locks the directory, until _release(). Raises BackupError: another process or broker has it."""
        self._lock = os.open(self.partial, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._release()
            raise BackupError(
                f"{self.partial} is being written by another broker or command: choose another name"
            ) from None
        self._owns = True

    def _release(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
        self._lock, self._owns = -1, False

    def add(self, path: str, data: bytes) -> None:
        """Writes a small file. Raises OSError."""
        target = self._made(path)
        with open(target, "wb", opener=_private) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self.entries.append(FileEntry(path, len(data), hashlib.sha256(data).hexdigest()))

    def copy(self, path: str, source: int, count: int) -> Iterator[int]:
        """Copies the first `count` bytes of the open file `source`; yields after each step how many it has
        copied. Raises OSError; BackupError: the file is shorter."""
        digest, done = hashlib.sha256(), 0
        with open(self._made(path), "wb", buffering=0, opener=_private) as file:
            while done < count:
                piece = os.pread(source, min(STEP_BYTES, count - done), done)
                if not piece:
                    raise BackupError(f"{path} has {done} bytes instead of {count}: it changed meanwhile")
                digest.update(piece)
                write_all(file.fileno(), piece)
                done += len(piece)
                yield len(piece)
            os.fsync(file.fileno())
        self.entries.append(FileEntry(path, count, digest.hexdigest()))

    def finish(self, manifest: Manifest) -> None:
        """Writes the manifest and gives the directory its name, durably. Raises OSError."""
        with open(self.partial / MANIFEST_NAME, "wb", opener=_private) as file:
            file.write(encode_manifest(manifest))
            file.flush()
            os.fsync(file.fileno())
        for directory in (*(each for each in self.partial.iterdir() if each.is_dir()), self.partial):
            sync_directory(directory)
        os.rename(self.partial, self.target)
        sync_directory(self.target.parent)
        self._release()

    def discard(self) -> None:
        """Deletes the written files; does nothing if begin() has failed or finish() has succeeded."""
        if self._owns:
            shutil.rmtree(self.partial, ignore_errors=True)
            self._release()

    def _made(self, path: str) -> Path:
        target = self.partial / path
        target.parent.mkdir(mode=0o700, exist_ok=True)
        return target


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_EXCL | os.O_CLOEXEC, 0o600)


def write_all(file: int, data: bytes) -> None:
    """Writes all of `data` to a descriptor. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
