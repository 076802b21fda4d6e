"""Replaces small files durably: written to a temporary file, synced, renamed, and the directory synced.

After a crash at any point a reader finds the old content or the new, never a mixture. The previous version
can be kept as <name>.bak, a hard link, so that the file itself is never missing.
"""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path


def backup_of(path: Path) -> Path:
    """Returns the path of the previous version."""
    return path.with_name(path.name + ".bak")


def replace_file(
    path: Path,
    data: bytes | Iterable[bytes],
    *,
    keep_backup: bool = True,
    durable: bool = True,
    private: bool = False,
) -> None:
    """Replaces the content of `path`; a symbolic link stays one, and the file keeps its mode. data: the
    content, or its pieces. private: the mode is 600 before and after.

    durable False: nothing is synced, so a power failure may leave the old content, or an empty file. Raises
    OSError; the old content is still there then (unless only the last step failed, syncing the directory).
    """
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + ".tmp")
    try:
        # Secrets of a file with mode 600 must not be readable until the new file gets that mode.
        starts_private = private or path.exists()
        if starts_private:  # one that is left over may be readable by others
            aside.unlink(missing_ok=True)
        with open(aside, "wb", opener=_private_opener if starts_private else None) as file:
            file.writelines((data,) if isinstance(data, bytes) else data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        if path.exists():
            if not private:
                shutil.copymode(path, aside)
            if keep_backup:
                _keep_backup(path)
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    if durable:
        sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Makes created, renamed and deleted names durable. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _private_opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_EXCL, 0o600)


def _keep_backup(path: Path) -> None:
    link = path.with_name(path.name + ".bak.tmp")
    link.unlink(missing_ok=True)
    try:
        os.link(path, link)
    except OSError:  # a file system without hard links
        shutil.copy2(path, link)
    os.replace(link, backup_of(path))
