"""The telemetry files below a directory while they grow: their names, whole lines, and bytes.

A name is "[<path of a telemetry folder>/]<record>/dt=.../hour=.../<file>.jsonl", below the directory, whether
the file still grows or not.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from analytics.compaction.columns import KINDS
from analytics.compaction.scan import OPEN, TELEMETRY
from keelmq.runtime.clock import now_ms

CLOSED = ".jsonl"
BLOCK_BYTES = 64 << 10
CHUNK_BYTES = 8 << 20
FOLDERS_PERIOD_MS = 30_000
"""How often new nodes are looked for."""


def telemetry_folders(directory: Path) -> list[Path]:
    """Returns the directory itself if it has record folders, else every folder named telemetry below it that
    has."""
    if _has_records(directory):
        return [directory]
    found = []
    for folder, below, _ in os.walk(directory):
        path = Path(folder)
        if path.name == TELEMETRY and _has_records(path):
            found.append(path)
            below.clear()
        below.sort()
    return found


def kind_of(name: str) -> str:
    """Returns the kind of record in a file."""
    return name.split("/")[-4]


class GrowingFiles:
    """Finds files; remembers where the last whole line of each ended, so that only changed files are looked
    into."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._folders: list[Path] = []
        self._folders_at_ms = 0
        self._ends: dict[str, tuple[int, int]] = {}

    def whole_lines(self, from_hour: int, to_hour: int) -> dict[str, int]:
        """Returns the bytes of each file up to the end of its last whole line. Of the files in folders of
        these hours since 1970, both included."""
        found: dict[str, tuple[int, int]] = {}
        for name, path in self._found(from_hour, to_hour):
            try:
                size = path.stat().st_size
                known = self._ends.get(name)
                found[name] = known if known is not None and known[0] == size else (size, _end(path, 0, size))
            except OSError:
                continue  # renamed or deleted since it was listed: the next look finds it or not
        self._ends = found
        return {name: end for name, (_, end) in found.items()}

    def cut(self, name: str, start: int, end: int) -> int:
        """Returns the largest line end in (start, end]; if a line is that long, the first one after `end`."""
        path = self.path_of(name)
        at = _end(path, start, end) if path is not None else start
        if at > start or path is None:
            return at
        with path.open("rb") as file:
            file.seek(end)
            for line in iter(lambda: file.readline(BLOCK_BYTES), b""):
                if line.endswith(b"\n"):
                    return file.tell()
        return start

    def path_of(self, name: str) -> Path | None:
        """Returns the file of this name, growing or closed; None: it is gone."""
        closed = self._directory / name
        for path in (closed, closed.with_name(closed.name + OPEN), closed):
            if path.exists():  # the third look: it was renamed between the first two
                return path
        return None

    def chunks(self, name: str, start: int, end: int) -> Iterator[bytes]:
        """Yields bytes [start, end) in pieces of whole lines. A file that is gone or shorter yields less."""
        path = self.path_of(name)
        if path is None:
            return
        with path.open("rb") as file:
            file.seek(start)
            rest, left = b"", end - start
            while left > 0 and (piece := file.read(min(CHUNK_BYTES, left))):
                left -= len(piece)
                lines, newline, tail = piece.rpartition(b"\n")
                if newline:
                    yield rest + lines + newline
                    rest = tail
                else:
                    rest += piece
            if rest:
                yield rest

    def _found(self, from_hour: int, to_hour: int) -> Iterator[tuple[str, Path]]:
        if not self._folders or now_ms() >= self._folders_at_ms:
            self._folders = telemetry_folders(self._directory)
            self._folders_at_ms = now_ms() + FOLDERS_PERIOD_MS
        hours = [
            time.strftime("dt=%Y-%m-%d/hour=%H", time.gmtime(h * 3_600))
            for h in range(from_hour, to_hour + 1)
        ]
        for folder in self._folders:
            for kind in KINDS:
                for hour in hours:
                    yield from self._in_hour(folder / kind / hour)

    def _in_hour(self, folder: Path) -> Iterator[tuple[str, Path]]:
        try:
            names = os.listdir(folder)
        except OSError:
            return  # not there, or deleted meanwhile
        for name in sorted(names, reverse=True):  # a closed file counts, after a copy from when it grew
            if name.endswith((CLOSED, CLOSED + OPEN)):
                closed = folder / name.removesuffix(OPEN)
                yield str(closed.relative_to(self._directory)), folder / name


def _has_records(directory: Path) -> bool:
    return any((directory / kind).is_dir() for kind in KINDS)


def last_line_end(file: BinaryIO, start: int, end: int) -> int:
    """Returns the position after the last newline in bytes [start, end); `start` if there is none."""
    while end > start:
        block = max(start, end - BLOCK_BYTES)
        file.seek(block)
        at = file.read(end - block).rfind(b"\n")
        if at >= 0:
            return block + at + 1
        end = block
    return start


def _end(path: Path, start: int, end: int) -> int:
    with path.open("rb") as file:
        return last_line_end(file, start, end)
