"""Reads the packages of requirements/*.txt, as `make lock` writes them."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

REQUIREMENTS: Final = Path(__file__).parent.parent / "requirements"
LOCKS: Final = ("run", "test", "analytics", "spark", "node", "supply", "grpc_client", "docs")

_PACKAGE = re.compile(r"(?P<name>[a-z0-9-]+)==(?P<version>\S+)(?: ; (?P<marker>.+))?")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@dataclass(frozen=True)
class Locked:
    """One package. `hashes`: SHA-256 of each file of this version. `parents`: names of the packages that need
    it, `keelmq (pyproject.toml)`, or `-r FILE`."""

    name: str
    version: str
    marker: str | None
    hashes: tuple[str, ...]
    parents: tuple[str, ...]


def parse_lock(text: str, source: str) -> list[Locked]:
    """Raises ValueError: a line that is not of a lock file, or a package without a hash."""
    found = []
    for block in re.split(r"\n(?=\S)", text.strip()):
        first, *more = (line.strip().removesuffix("\\").strip() for line in block.splitlines())
        package = _PACKAGE.fullmatch(first)
        if package is None:
            raise ValueError(f"{source}: not a locked package: {first}")
        hashes = [match[1] for line in more if (match := _HASH.fullmatch(line))]
        if not hashes:
            raise ValueError(f"{source}: {first} has no hash: run `make lock`")
        notes = [line.lstrip("# ").removeprefix("via").strip() for line in more if line.startswith("#")]
        parents = tuple(note for note in notes if note and not note.startswith("-c "))
        found.append(Locked(package["name"], package["version"], package["marker"], tuple(hashes), parents))
    return found


def read_lock(group: str) -> list[Locked]:
    """Returns the packages of requirements/GROUP.txt."""
    path = REQUIREMENTS / f"{group}.txt"
    return parse_lock(path.read_text(), path.name)
