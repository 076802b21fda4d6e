"""Disks of simulated processes: real files below a directory, and what a crash leaves of them.

Each run of a process has a directory of its own. A crash copies what survives it into the next run's: after
kill -9 everything, after a power cut what was synced, plus any sectors of the rest (support/store_disk.py).
The file functions of `os` tell the process that calls them, so a crash may come before any operation.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest import mock

from tests.sim.whole.machines import PROCESS
from tests.support.store_disk import StoreDisk

ON_DESCRIPTOR = ("ftruncate", "posix_fallocate", "pwrite", "fsync", "fdatasync")
ON_PATH = ("unlink", "rename", "replace", "link")


class Disk:
    """Of one machine, over all runs of its process. `watched`: power cuts are possible, so it is remembered
    what was synced."""

    def __init__(self, base: Path, name: str, dice: Random, *, watched: bool) -> None:
        self._base, self._name, self._dice, self._watched = base, name, dice, watched
        self._runs = 0
        self.root = self._next()
        self.operations: dict[str, Callable[..., Any]] = {}
        self._store: StoreDisk | None = None

    def _next(self) -> Path:
        self._runs += 1
        return self._base / f"{self._name}-{self._runs}"

    def mount(self) -> Path:
        """For the next run; call it outside of any process."""
        self.root.mkdir(parents=True, exist_ok=True)
        if self._watched:
            self._store = store = StoreDisk(self.root)
            self.operations = {name: store._on_descriptor(name) for name in ON_DESCRIPTOR}
            self.operations |= {name: store._on_path(name) for name in ON_PATH}
        return self.root

    def wipe(self) -> None:
        """Another, empty disk."""
        self.root = self._next()

    def crash(self, *, power: bool) -> None:
        """The run's directory is abandoned as it is; the next run gets the survivors."""
        before, self.root = self.root, self._next()
        if power:
            assert self._store is not None, "this world has no power cuts"
            self._store.survivors_of_a_power_cut(self.root, self._dice, journal=True)
        else:
            shutil.copytree(before, self.root)


@contextmanager
def watched_files() -> Iterator[None]:
    """Inside, os functions report to the process that calls them."""
    with ExitStack() as stack:
        for name in (*ON_DESCRIPTOR, *ON_PATH):
            stack.enter_context(mock.patch.object(os, name, _reporting(name)))
        yield


@contextmanager
def small_disks(disks: Iterable[Disk], bytes_each: int) -> Iterator[None]:
    """Inside, each of these disks has so many bytes, and its CommitLog is all that is on it: retention is in
    earnest."""
    every, real = tuple(disks), os.statvfs

    def statvfs(path: Any) -> Any:
        disk = next((each for each in every if Path(path).is_relative_to(each.root)), None)
        if disk is None:
            return real(path)
        log = disk.root / "commitlog"
        used = sum(each.stat().st_size for each in log.iterdir()) if log.exists() else 0
        free = max(bytes_each - used, 0)
        return SimpleNamespace(f_frsize=1, f_blocks=bytes_each, f_bfree=free, f_bavail=free)

    with mock.patch.object(os, "statvfs", statvfs):
        yield


def _reporting(name: str) -> Callable[..., Any]:
    real = getattr(os, name)

    def call(*arguments: Any, **named: Any) -> Any:
        process = PROCESS.get()
        if process is None or not process.alive or process.disk is None:
            return real(*arguments, **named)
        if process.on_disk is not None:
            process.on_disk(name)
        operation = process.disk.operations.get(name)
        if operation is None:
            return real(*arguments, **named)
        token = PROCESS.set(None)  # its own file operations are nobody's
        try:
            return operation(*arguments, **named)
        finally:
            PROCESS.reset(token)

    return call
