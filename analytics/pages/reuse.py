"""Series files that would be the same as in the generation before: hard links to them, which cost no bytes.

A generation records in series.json what each file was made of: a digest of the content of its roll-ups. Files
of a generation never change, so two generations may share them; a file is deleted with the last generation
that has it.
"""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from analytics.pages.grid import GroupName
from keelmq.web.page_files import CURRENT, PAGES, Current

MADE_OF = "series.json"
FORMAT = 3
"""To be incremented when equal roll-ups give other files."""


class Made(msgspec.Struct, frozen=True):
    """`groups`: how many have this file."""

    digest: str
    groups: int


class Reuse:
    """Links from one generation to the next."""

    def __init__(self, before: Path | None, to: Path) -> None:
        self._before, self._to = before, to
        self._known = {} if before is None else _read(before / MADE_OF)
        self._made: dict[str, Made] = {}
        self.linked = 0

    def link(self, file: str, digest: str, folders: Mapping[GroupName, Path]) -> bool:
        """Links a file of all groups if it was made of the same roll-ups; returns False if it must be
        written."""
        known = self._known.get(file)
        if self._before is None or known is None or known.digest != digest:
            return False
        done: list[Path] = []
        try:
            for folder in folders.values():
                old = self._before / folder.relative_to(self._to) / file
                if old.exists() and old.stat().st_size:  # a power cut leaves empty files
                    (folder / file).hardlink_to(old)
                    done.append(folder / file)
        except OSError:  # no file system for links, or too many of them
            is_whole = False
        else:
            is_whole = len(done) == known.groups
        if not is_whole:
            for path in done:
                path.unlink()
            return False
        self._made[file] = known
        self.linked += len(done)
        return True

    def written(self, file: str, digest: str, groups: int) -> None:
        """Records a written file."""
        self._made[file] = Made(digest, groups)

    def save(self) -> None:
        """Writes series.json. Raises OSError."""
        (self._to / MADE_OF).write_bytes(msgspec.json.encode(self._made))


def newest_pages(out: Path) -> Path | None:
    """Returns the folder of the generation that readers see; None: there is none."""
    try:
        current = msgspec.json.decode((out / CURRENT).read_bytes(), type=Current)
    except (OSError, msgspec.MsgspecError):
        return None
    return out / PAGES / str(current.generation)


def digest_of(paths: Iterable[Path], *more: object) -> str:
    """Returns a digest of the content of files, of their hours, and of `more`."""
    found = hashlib.sha256(repr((FORMAT, *more)).encode())
    for path in paths:
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        found.update(f"{path.parent.parent.name}/{path.parent.name} {content}\n".encode())
    return found.hexdigest()


def _read(path: Path) -> dict[str, Made]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Made])
    except (OSError, msgspec.MsgspecError):
        return {}
