"""Disks that forget: takes the place of the module `os` (and of open) in everything that writes raft files.

Operations are done on real files at once, so that a killed process finds all of them. What was not made
durable by fsync is remembered, and after a power cut the directory is written anew as a disk may leave it:
each file as of its last fsync, plus any part of what came later, whole, torn or in pieces of a sector; each
name as of the last fsync of the directory, plus some of the changes that came later.
"""

import contextlib
import errno
import io
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import pysyncobj.serializer as serializer

from namesrv.plugins.controller.raft.storage import directory, files, journal

SECTOR_BYTES = 512


class PowerCut(BaseException):
    """The machine is gone in the middle of an operation. BaseException: no handler may tidy up after it."""


@dataclass(eq=False)
class Inode:
    """`late`: writes (offset, data) and truncations (length, None) since the last fsync, in order."""

    content: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    late: list[tuple[int, bytes | None]] = field(default_factory=list)

    def write(self, offset: int, data: bytes) -> None:
        _write(self.content, offset, data)
        self.late.append((offset, data))

    def truncate(self, length: int) -> None:
        _truncate(self.content, length)
        self.late.append((length, None))

    def sync(self) -> None:
        self.durable, self.late = bytes(self.content), []

    def after_power_cut(self, random: Random) -> bytes:
        """What the disk holds when the power is back."""
        kind = random.choice(("synced only", "all", "torn", "sectors"))
        content = bytearray(self.durable)
        late = self.late
        if kind == "synced only":
            late = []
        elif kind in ("torn", "sectors") and late:
            late = late[: random.randrange(len(late)) + 1]
        for position, (offset, data) in enumerate(late):
            if data is None:
                _truncate(content, offset)
            elif kind == "sectors":
                _some_sectors(content, offset, data, random)
            else:
                torn = kind == "torn" and position == len(late) - 1
                _write(content, offset, data[: random.randint(0, len(data))] if torn else data)
        return bytes(content)


def _write(content: bytearray, offset: int, data: bytes) -> None:
    if len(content) < offset:
        content += bytes(offset - len(content))
    content[offset : offset + len(data)] = data


def _truncate(content: bytearray, length: int) -> None:
    if length < len(content):
        del content[length:]
    else:
        content += bytes(length - len(content))


def _some_sectors(content: bytearray, offset: int, data: bytes, random: Random) -> None:
    """The size may arrive without the data: what did not arrive reads as zeros, or as it was."""
    end, position = offset + len(data), offset
    while position < end:
        until = min(end, (position // SECTOR_BYTES + 1) * SECTOR_BYTES)
        if random.random() < 0.6:
            _write(content, position, data[position - offset : until - offset])
        position = until
    if random.random() < 0.5:
        _truncate(content, max(len(content), end))


Hook = Callable[[str, Path], None]
"""Called before each operation that changes a disk: may raise OSError or PowerCut."""


class Disk:
    """One directory. `hook` may break operations; `capacity` limits the sum of all contents."""

    syncs_lie = False

    def __init__(self, root: Path) -> None:
        self.root = root
        self.names: dict[str, Inode] = {}
        self.durable_names: dict[str, Inode] = {}
        self.late_names: list[tuple[str, Inode | None, str | None]] = []  # (name, inode, name it left)
        self.hook: Hook = lambda _operation, _path: None
        self.capacity: int | None = None

    def used(self) -> int:
        return sum(len(inode.content) for inode in self.names.values())

    def created(self, name: str, inode: Inode) -> None:
        self.names[name] = inode
        self.late_names.append((name, inode, None))

    def renamed(self, old: str, new: str) -> None:
        inode = self.names.pop(old)
        self.names[new] = inode
        self.late_names.append((new, inode, old))

    def unlinked(self, name: str) -> None:
        if self.names.pop(name, None) is not None:
            self.late_names.append((name, None, name))

    def sync_names(self) -> None:
        if not self.syncs_lie:
            self.durable_names, self.late_names = dict(self.names), []

    def power_cut(self, random: Random) -> None:
        """Rewrites the directory as it is found afterwards."""
        names, late = dict(self.durable_names), self.late_names
        if random.random() < 0.5:
            late = late[: random.randint(0, len(late))]
        else:  # POSIX promises no order between two names
            late = [each for each in late if random.random() < 0.6]
        for name, inode, left in late:
            if left is not None:
                names.pop(left, None)
            if inode is not None:
                names[name] = inode
        self.replace({name: inode.after_power_cut(random) for name, inode in sorted(names.items())})

    def replace(self, contents: dict[str, bytes]) -> None:
        """The directory has exactly these files, all durable."""
        for path in list(self.root.iterdir()) if self.root.exists() else []:
            path.unlink()
        self.names = {}
        for name, content in contents.items():
            (self.root / name).write_bytes(content)
            self.names[name] = Inode(bytearray(content), content)
        self.durable_names, self.late_names = dict(self.names), []

    def wipe(self) -> None:
        self.replace({})


class Disks:
    """Stands in for `os`. Paths outside of the disks' directories go to the real one."""

    def __init__(self) -> None:
        self._disks: dict[Path, Disk] = {}
        self._open: dict[int, tuple[Disk, Inode, Path]] = {}
        self._directories: dict[int, Disk] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def add(self, root: Path) -> Disk:
        root.mkdir(parents=True, exist_ok=True)
        disk = self._disks[root] = Disk(root)
        return disk

    def close_all(self, disk: Disk) -> None:
        """The process died."""
        for file in [file for file, (owner, _, _) in self._open.items() if owner is disk]:
            self.close(file)
        for file in [file for file, owner in self._directories.items() if owner is disk]:
            self.close(file)

    # ------------------------------------------------------------------ os
    def open(self, path: str | Path, flags: int, mode: int = 0o777) -> int:
        path = Path(path)
        if path in self._disks:
            file = os.open(path, flags, mode)
            self._directories[file] = self._disks[path]
            return file
        disk = self._disks.get(path.parent)
        if disk is None:
            return os.open(path, flags, mode)
        if flags & (os.O_CREAT | os.O_TRUNC):
            disk.hook("open", path)
        file = os.open(path, flags, mode)
        inode = disk.names.get(path.name)
        if inode is None:
            inode = Inode(bytearray(path.read_bytes()))
            disk.created(path.name, inode)
        elif flags & os.O_TRUNC:
            inode.truncate(0)
        self._open[file] = disk, inode, path
        return file

    def close(self, file: int) -> None:
        self._open.pop(file, None)
        self._directories.pop(file, None)
        os.close(file)

    def pwrite(self, file: int, data: bytes, offset: int) -> int:
        if file not in self._open:
            return os.pwrite(file, data, offset)
        disk, inode, path = self._open[file]
        data = bytes(data)
        try:
            disk.hook("pwrite", path)
        except PowerCut:  # a part of it may have been on its way
            os.pwrite(file, data[: len(data) // 2], offset)
            inode.write(offset, data[: len(data) // 2])
            raise
        if disk.capacity is not None:
            room = disk.capacity - disk.used() + max(0, len(inode.content) - offset)
            if room <= 0 < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            data = data[:room]
        written = os.pwrite(file, data, offset)
        inode.write(offset, data)
        return written

    def ftruncate(self, file: int, length: int) -> None:
        if file in self._open:
            disk, inode, path = self._open[file]
            disk.hook("ftruncate", path)
            inode.truncate(length)
        os.ftruncate(file, length)

    def fsync(self, file: int) -> None:
        if file in self._directories:
            disk = self._directories[file]
            disk.hook("fsync", disk.root)
            disk.sync_names()
        elif file in self._open:
            disk, inode, path = self._open[file]
            disk.hook("fsync", path)
            if not disk.syncs_lie:
                inode.sync()
        # no real fsync: the real disk is not the one under test

    fdatasync = fsync

    def rename(self, old: str | Path, new: str | Path) -> None:
        old, new = Path(old), Path(new)
        disk = self._disks.get(new.parent)
        if disk is not None:
            disk.hook("rename", new)
            disk.renamed(old.name, new.name)
        os.rename(old, new)

    def unlink(self, path: str | Path) -> None:
        path = Path(path)
        disk = self._disks.get(path.parent)
        if disk is not None:
            disk.hook("unlink", path)
            disk.unlinked(path.name)
        os.unlink(path)

    # ------------------------------------------------------------------ the library's open()
    def open_stream(self, path: str, mode: str) -> Any:
        return io.BytesIO(Path(path).read_bytes()) if "r" in mode else _Stream(self, path)

    @contextlib.contextmanager
    def installed(self) -> Iterator["Disks"]:
        with contextlib.ExitStack() as stack:
            for module in (files, journal, directory):
                stack.enter_context(mock.patch.object(module, "os", self))
            stack.enter_context(mock.patch.object(serializer, "open", self.open_stream, create=True))
            yield self


class _Stream:
    """A file that the library writes from its beginning; it never syncs."""

    def __init__(self, disks: Disks, path: str) -> None:
        self._disks, self._offset = disks, 0
        self._file = disks.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)

    def write(self, data: bytes) -> None:
        self._offset += self._disks.pwrite(self._file, data, self._offset)

    def close(self) -> None:
        if self._file >= 0:
            self._disks.close(self._file)
            self._file = -1
