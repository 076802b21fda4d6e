"""Small files that must not be lost: replaced whole, durable, with the version before as .bak."""

import os
import shutil
from pathlib import Path


def backup_of(path: Path) -> Path:
    return path.with_name(path.name + ".bak")


def replace_file(path: Path, data: bytes) -> None:
    """Old or new content, never a mixture, whenever the machine stops. OSError: the old one is still there
    (unless only the directory could not be synced at the end)."""
    path = path.resolve()  # a link stays a link
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + ".tmp")
    try:
        with aside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, aside)
            _keep_backup(path)
        os.replace(aside, path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _keep_backup(path: Path) -> None:
    """By a second name, so that `path` itself is never missing."""
    link = path.with_name(path.name + ".bak.tmp")
    link.unlink(missing_ok=True)
    try:
        os.link(path, link)
    except OSError:  # a file system without hard links
        shutil.copy2(path, link)
    os.replace(link, backup_of(path))
