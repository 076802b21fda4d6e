"""A file layer below one broker process that remembers what a power failure would leave.

    python -m tests.crash.power_layer STORE IMAGE -c broker.conf

runs a broker whose fsync and fdatasync write a durable image of the synced file or directory into IMAGE, in
place of the disk. Then a kill -9 and restore() are a power failure: what was written and not synced is gone,
through maps as well, and so are names that were created, renamed or deleted since the last sync of their
directory. The rules are those of POSIX, which are stricter than those of ext4: a new file that is synced has
no name until its directory is synced, too.

In IMAGE, `files/INODE` has the content of a file at its last sync, and `names/INODE` the names in a
directory, with their inodes. An inode stays open until the process ends, so its number is not used again.
"""

import json
import os
import shutil
import stat
import sys
import threading
from pathlib import Path
from typing import Any

from tests.support.store_disk import boot_again

Names = dict[str, tuple[int, bool]]
"""name -> (inode, whether it is a directory)"""


class PowerLayer:
    """Any thread. What is below `root` when it is made counts as durable."""

    def __init__(self, root: Path, image: Path) -> None:
        self._root, self._image = root, image
        self._locks: dict[int, threading.Lock] = {}
        self._open: dict[int, int] = {}  # inode -> descriptor
        self._table = threading.Lock()
        self.power_on()

    def power_on(self) -> None:
        """Begins a new image, in which all that is there is durable."""
        self.close()
        shutil.rmtree(self._image, ignore_errors=True)
        for part in ("files", "names"):
            (self._image / part).mkdir(parents=True)
        self._root.mkdir(parents=True, exist_ok=True)
        for path in (self._root, *self._root.rglob("*")):
            self._sync_path(path)
        (self._image / "root").write_text(str(self._root.stat().st_ino))

    def close(self) -> None:
        """Closes the inodes."""
        while self._open:
            os.close(self._open.popitem()[1])

    def _sync_path(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            self.sync(descriptor)
        finally:
            os.close(descriptor)

    def sync(self, file: Any) -> None:
        """In place of os.fsync and os.fdatasync. The image has what was there when the call began."""
        descriptor = file if isinstance(file, int) else file.fileno()
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path != self._root and not path.is_relative_to(self._root):
            return
        inode = os.fstat(descriptor).st_ino
        with self._lock_of(inode, descriptor):
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                self._publish("names", inode, json.dumps(self._names(path)).encode())
            else:
                with open(f"/proc/self/fd/{descriptor}", "rb") as content:
                    self._publish("files", inode, content.read())

    def _lock_of(self, inode: int, descriptor: int) -> threading.Lock:
        with self._table:
            if inode not in self._open:
                self._open[inode] = os.dup(descriptor)
            return self._locks.setdefault(inode, threading.Lock())

    def _names(self, directory: Path) -> Names:
        found: Names = {}
        for entry in os.scandir(directory):
            try:
                descriptor = os.open(entry.path, os.O_RDONLY)
            except FileNotFoundError:
                continue  # deleted meanwhile
            try:
                status = os.fstat(descriptor)
                self._lock_of(status.st_ino, descriptor)
            finally:
                os.close(descriptor)
            found[entry.name] = status.st_ino, stat.S_ISDIR(status.st_mode)
        return found

    def _publish(self, part: str, inode: int, data: bytes) -> None:
        new = self._image / part / f"{inode}.new"
        new.write_bytes(data)
        new.rename(self._image / part / str(inode))


def restore(root: Path, image: Path) -> None:
    """Makes `root` what a power failure leaves of it. The process must have ended."""
    shutil.rmtree(root)
    _restore_directory(root, image, int((image / "root").read_text()))
    boot_again(root)


def _restore_directory(path: Path, image: Path, inode: int) -> None:
    path.mkdir()
    names = image / "names" / str(inode)
    found: Names = json.loads(names.read_bytes()) if names.exists() else {}
    for name, (child, is_directory) in found.items():
        content = image / "files" / str(child)
        if is_directory:
            _restore_directory(path / name, image, child)
        elif content.exists():
            shutil.copyfile(content, path / name)
        else:  # it has a name, and was never synced
            (path / name).touch()


def main(arguments: list[str]) -> int:
    """Runs a broker on the layer. Returns its exit code."""
    root, image, *rest = arguments
    layer = PowerLayer(Path(root), Path(image))
    os.fsync = os.fdatasync = layer.sync
    from broker.app.program import run

    return run(rest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
