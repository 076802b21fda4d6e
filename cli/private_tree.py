"""A directory of new files, some of which only their owner may open: all of it, or none."""

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

PRIVATE_DIRECTORY, PRIVATE_FILE = 0o700, 0o600


def is_in_use(directory: Path) -> bool:
    """Returns whether something is there that write_tree() would mix its files with."""
    return directory.exists() and (not directory.is_dir() or any(directory.iterdir()))


def write_tree(directory: Path, files: Mapping[str, str], is_private: Callable[[str], bool]) -> None:
    """Creates the directory, which only its owner may open. `files`: path below it -> text. It must not
    exist, or be empty. A failure leaves nothing behind. Raises OSError."""
    existed = directory.exists()
    directory.mkdir(parents=True, exist_ok=True, mode=PRIVATE_DIRECTORY)
    directory.chmod(PRIVATE_DIRECTORY)
    try:
        for name, text in files.items():
            path = directory / name
            if is_private(name):
                if not path.parent.exists():
                    path.parent.mkdir(parents=True)
                    path.parent.chmod(PRIVATE_DIRECTORY)
                write_private(path, text)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
    except BaseException:
        for each in directory.iterdir():
            shutil.rmtree(each) if each.is_dir() else each.unlink()
        if not existed:
            directory.rmdir()
        raise


def write_private(path: Path, text: str) -> None:
    """Creates a file that only its owner may open. Raises OSError, also if it exists."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
