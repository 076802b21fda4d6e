"""Disks of a few megabytes for single directories, in a mount namespace of their own: file systems in files.

A process holds the namespace until the block ends. The kernel removes mounts and loop devices with the last
process inside, however that ends. Outside of the namespace the directories are empty: seen() gives the path
of what is inside. Needs Linux, root, util-linux and e2fsprogs.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

TOOLS = ("unshare", "nsenter", "mount", "umount", "mkfs.ext4", "e2fsck")
BALLAST = "ballast"
TRY_BYTES = 8 << 20


class OwnDisks:
    """`with OwnDisks(tmp_path) as disks: disks.add(store, 64 << 20)`. Programs that are to see the disks are
    started with the prefix inside()."""

    def __init__(self, images: Path) -> None:
        """images: a directory for the files that hold the file systems."""
        self._images = images
        self._disks: dict[Path, Path] = {}

    def __enter__(self) -> Self:
        holds = ["unshare", "--mount", "--propagation", "private", "sh", "-c", "echo ready; exec cat"]
        self._holder = subprocess.Popen(holds, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._holder.stdout is not None
        if not self._holder.stdout.readline():
            self.__exit__(None, None, None)
            raise OSError("no mount namespace can be made here")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for path in self._disks:
            subprocess.run([*self.inside(), "umount", "--lazy", str(path)], check=False, capture_output=True)
        self._holder.kill()
        self._holder.communicate()

    def inside(self) -> list[str]:
        """The prefix of a command line that runs in the namespace, in the present directory."""
        return ["nsenter", f"--mount=/proc/{self._holder.pid}/ns/mnt", f"--wdns={Path.cwd()}"]

    def seen(self, path: Path) -> Path:
        """Where this process finds a path of the namespace."""
        return Path(f"/proc/{self._holder.pid}/root{path.absolute()}")

    def add(self, path: Path, size_bytes: int) -> None:
        """Mounts a new disk of that size over the directory, which is made if it does not exist."""
        path.mkdir(parents=True, exist_ok=True)
        image = self._images / f"{path.name}.disk"
        with image.open("wb") as file:
            file.truncate(size_bytes)
        _run("mkfs.ext4", "-q", "-F", "-m", "0", str(image))
        self._disks[path] = image
        self._mount(path)

    def fill(self, path: Path, ratio: float) -> None:
        """Leaves so much of the disk used, by one more file."""
        room = os.statvfs(self.seen(path))
        used = (room.f_blocks - room.f_bfree) * room.f_frsize
        with (self.seen(path) / BALLAST).open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, int(room.f_blocks * room.f_frsize * ratio) - used)

    def relieve(self, path: Path) -> None:
        """Undoes fill()."""
        (self.seen(path) / BALLAST).unlink()

    def make_read_only(self, path: Path) -> None:
        """As Linux does after an error of the file system: every write fails, also to open files (EROFS)."""
        self._inside("mount", "-o", "remount,abort", str(path))

    def repair(self, path: Path) -> None:
        """Makes the disk writable again. No program may have a file of it open."""
        self._inside("umount", str(path))
        checked = subprocess.run(
            ["e2fsck", "-f", "-y", str(self._disks[path])], capture_output=True, text=True
        )
        assert checked.returncode in (0, 1), checked.stdout + checked.stderr  # 1: errors were corrected
        self._mount(path)

    def _mount(self, path: Path) -> None:
        self._inside("mount", "-o", "loop,errors=remount-ro", str(self._disks[path]), str(path))

    def _inside(self, *command: str) -> None:
        _run(*self.inside(), *command)


@cache
def why_not() -> str:
    """Why this machine cannot have such disks; "": it can."""
    if os.geteuid() != 0:
        return "mounts disks: root only"
    missing = [each for each in TOOLS if shutil.which(each) is None]
    if missing:
        return f"there is no {missing[0]} on this machine"
    line = f"truncate -s {TRY_BYTES} d && mkfs.ext4 -q -F d && mkdir m && mount -o loop d m"
    tried = _tried(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", f'cd "$(mktemp -d)" && {line}']
    )
    return "" if tried.returncode == 0 else f"cannot mount a file: {tried.stderr.strip()}"


def _tried(command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _run(*command: str) -> None:
    done = _tried(command)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"
