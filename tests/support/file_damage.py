"""What a bad disk does to a file: a flipped bit, a zeroed page, a part that is gone, or all of it.

The times of the file stay as they were: no program wrote it.
"""

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

from cli.lab.chaos.damage import same_time
from tests.support.slices import share

PAGE_BYTES = 4_096


def changed(path: Path, content: bytes) -> None:
    """Another content in place, with the times of the old one."""
    with same_time(path):
        path.write_bytes(content)


def flip(path: Path, dice: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
    changed(path, bytes(content))


def zero(path: Path, dice: random.Random) -> None:
    content = bytearray(path.read_bytes())
    start = dice.randrange(0, len(content), PAGE_BYTES)
    end = min(start + PAGE_BYTES, len(content))
    content[start:end] = bytes(end - start)
    changed(path, bytes(content))


def truncate(path: Path, dice: random.Random) -> None:
    content = path.read_bytes()
    changed(path, content[: dice.randrange(len(content))])


def lose(path: Path, dice: random.Random) -> None:
    path.unlink()


DAMAGE: dict[str, Callable[[Path, random.Random], None]] = {
    "flip": flip,
    "zero": zero,
    "truncate": truncate,
    "lose": lose,
}


def tries(kind: str, count: int) -> Iterator[random.Random]:
    """Dice for as many different damages as the kind has in a small file; a share of them without --ci."""
    for seed in range(share(count) if kind in ("flip", "truncate") else 1):
        yield random.Random(seed)


def content_of(root: Path) -> dict[str, bytes]:
    """All files below a directory."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def put_back(root: Path, files: dict[str, bytes], times: dict[str, int]) -> None:
    """Makes the directory what content_of() and times_of() found."""
    for path in root.rglob("*"):
        if path.is_file() and str(path.relative_to(root)) not in files:
            path.unlink()
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
        os.utime(root / name, ns=(times[name], times[name]))


def times_of(root: Path) -> dict[str, int]:
    """When each file below a directory was written last, in ns."""
    return {
        str(path.relative_to(root)): path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()
    }
