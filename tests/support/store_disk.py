"""A directory tree that a process or a whole machine is torn away from, at any operation on its files.

Inside `with disk.watched(hook)` the mutating functions of `os` call the hook first, with their name and path,
and what fsync makes durable is remembered. Writes through a map need no function: what they wrote is in the
page cache, so a kill finds it, and a power cut finds any part of it. survivors_of_a_kill() and
survivors_of_a_power_cut() write what is left into another directory; a store is opened there.
"""

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from broker.store.last_exit import boot_id

SECTOR_BYTES = 512
SECRETS = ("users.json", "acls.json")
PRIVATE_MODE = 0o600

Hook = Callable[[str, Path], None]


class Torn(BaseException):
    """The process, or the machine, is gone. BaseException: no handler may tidy up after it."""


class After:
    """Lets `count` operations pass and then none."""

    def __init__(self, count: int) -> None:
        self.left = count

    def __call__(self, operation: str, path: Path) -> None:
        if self.left <= 0:
            raise Torn(f"{operation} {path.name}")
        self.left -= 1


class FailsOnce:
    """Operation number `at` finds no room."""

    def __init__(self, at: int) -> None:
        self.at, self.failed = at, False

    def __call__(self, operation: str, path: Path) -> None:
        self.at -= 1
        if self.at == -1:
            self.failed = True
            raise OSError(errno.ENOSPC, "No space left on device", str(path))


class File:
    """`durable`: the content at the last fsync; `last`: at the moment when its last name was removed."""

    def __init__(self, durable: bytes = b"") -> None:
        self.durable = durable
        self.last: bytes | None = None


class StoreDisk:
    """Below `root`. What is there at first is durable, or only in the page cache."""

    def __init__(self, root: Path, *, is_durable: bool = True) -> None:
        self.root = root
        self._files: dict[Path, File] = {}
        self._durable_names: dict[Path, File] = {}
        self._hook: Hook = lambda operation, path: None
        for path in self._present():
            self._files[path] = File(path.read_bytes() if is_durable else b"")
            if is_durable:
                self._durable_names[path] = self._files[path]

    def _present(self) -> list[Path]:
        return sorted(path for path in self.root.rglob("*") if path.is_file())

    def _file(self, path: Path) -> File:
        return self._files.setdefault(path, File())

    def _remove(self, path: Path) -> None:
        file = self._files.pop(path, None)
        if file is not None and path.exists():
            file.last = path.read_bytes()

    # -- os ----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def watched(self, hook: Hook) -> Iterator[None]:
        self._hook = hook
        with contextlib.ExitStack() as stack:
            for name in ("ftruncate", "posix_fallocate", "pwrite", "fsync", "fdatasync"):
                stack.enter_context(mock.patch.object(os, name, self._on_descriptor(name)))
            for name in ("unlink", "rename", "replace", "link", "mkdir", "rmdir"):
                stack.enter_context(mock.patch.object(os, name, self._on_path(name)))
            yield

    def _on_descriptor(self, name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def call(descriptor: int, *rest: Any) -> Any:
            path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
            if not path.is_relative_to(self.root):
                return real(descriptor, *rest)
            self._hook(name, path)
            if not name.startswith("f") or name == "ftruncate":
                self._file(path)
                return real(descriptor, *rest)
            if path.is_dir():  # durable from here on; the real disk is not the one under test
                inside = {each: self._file(each) for each in self._present() if each.parent == path}
                kept = {each: file for each, file in self._durable_names.items() if each.parent != path}
                self._durable_names = kept | inside
            elif path.exists():
                self._file(path).durable = path.read_bytes()
            return None

        return call

    def _on_path(self, name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def call(path: Any, *rest: Any, **named: Any) -> Any:
            here = Path(path)
            if not here.is_absolute() or not here.is_relative_to(self.root):
                return real(path, *rest, **named)
            self._hook(name, here)
            if name == "unlink":
                self._remove(here)
            elif name in ("rename", "replace", "link"):
                there = Path(rest[0])
                self._remove(there)
                self._files[there] = self._file(here)
                if name != "link":
                    del self._files[here]
            return real(path, *rest, **named)

        return call

    def lasting(self, path: Path) -> bool:
        """Has everything at or below `path` a durable name?"""
        return all(each in self._durable_names for each in self._present() if each.is_relative_to(path))

    # -- afterwards --------------------------------------------------------------------------------------

    def survivors_of_a_kill(self, target: Path) -> Path:
        """The page cache lives on."""
        shutil.copytree(self.root, target)
        return target

    def survivors_of_a_power_cut(self, target: Path, random: Random, *, journal: bool = False) -> Path:
        """Names as of the last fsync of their directory, plus some of the changes since; of each file the
        durable bytes, plus any sectors of what came later. journal: no new name without those before it, as
        ext4 and xfs have it."""
        names = {path: file for path, file in self._durable_names.items() if path in self._files}
        present = self._present()
        for path in [each for each in self._files if each in present] if journal else present:
            if path not in names:
                if random.random() < 0.5:
                    names[path] = self._file(path)
                elif journal:
                    break
        for path, file in self._durable_names.items():
            if path not in self._files and random.random() < 0.5:
                names[path] = file  # its unlink was not durable
        target.mkdir(parents=True)
        lives_at = {id(file): path for path, file in self._files.items()}  # it may have been renamed
        for path, file in sorted(names.items(), key=lambda item: item[0]):
            copy = target / path.relative_to(self.root)
            copy.parent.mkdir(parents=True, exist_ok=True)
            place = lives_at.get(id(file))
            now = place.read_bytes() if place is not None and place.exists() else file.last or b""
            copy.write_bytes(_mixed(file.durable, now, random))
            if path.name.startswith(SECRETS):
                copy.chmod(PRIVATE_MODE)  # a power cut keeps modes, and a broker refuses these with others
        boot_again(target)
        return target


def boot_again(root: Path) -> None:
    """The system has another boot id than the one that a store has noted."""
    mark, boot = root / "abort", boot_id()
    if boot and mark.exists():
        mark.write_bytes(mark.read_bytes().replace(boot.encode(), b"an-earlier-boot"))


def _mixed(durable: bytes, now: bytes, random: Random) -> bytes:
    """Any of both, sector by sector; the length is one of both."""
    kind = random.choice(("durable", "now", "sectors"))
    if kind != "sectors":
        return durable if kind == "durable" else now
    size = len(random.choice((durable, now)))
    old, new = durable.ljust(size, b"\0"), now.ljust(size, b"\0")
    return b"".join(
        (new if random.random() < 0.5 else old)[at : min(at + SECTOR_BYTES, size)]
        for at in range(0, size, SECTOR_BYTES)
    )
