"""Reads the files of audit logs: rotated files in their order, those of several programs merged by time.

A line that is not complete yet, or was torn by a crash at the end of a file, is left out. Other lines that
cannot be read are counted."""

import heapq
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

_NAME: Final = re.compile(r"(?P<series>.+\.log)(?:\.(?P<number>\d{1,6}))?")
READ_BYTES: Final = 1_048_576
KEPT_IN: Final = "auditPath, or audit/ below storePathRootDir or controllerStorePath or beside kvConfigPath"
"""Where the files of a program are, for messages."""

Entry = Mapping[str, Any]
"""One line, see log.py."""


class AuditReadError(Exception):
    """The text says what to do."""


class AuditFilter(msgspec.Struct, frozen=True):
    """Which entries are shown. Times are as in the files: ISO, UTC, with a Z. Empty or None: all."""

    since: str = ""
    until: str = ""
    user: str = ""
    codes: frozenset[int] = frozenset()
    operation: str = ""
    resource: str = ""
    topic: str = ""
    outcomes: frozenset[str] = frozenset()

    def matches(self, entry: Entry) -> bool:
        """user: verified or claimed. operation and resource: a part of the name, in any case."""
        time = str(entry.get("ts", ""))
        return (
            (not self.since or time >= self.since)
            and (not self.until or time < self.until)
            and (not self.user or self.user in (entry.get("user"), entry.get("claimed")))
            and (not self.codes or entry.get("code") in self.codes)
            and self.operation.lower() in str(entry.get("operation", "")).lower()
            and (not self.outcomes or entry.get("outcome") in self.outcomes)
            and (not self.topic or self.topic in _topics(entry))
            and self.resource.lower() in _named(entry).lower()
        )


class AuditReader(msgspec.Struct):
    """read() returns the present entries, and at the next call the new ones."""

    places: Sequence[Path]
    """Directories and files."""
    unreadable_lines: int = 0
    _tails: "dict[Path, Tail]" = msgspec.field(default_factory=dict)

    def read(self) -> Iterator[Entry]:
        """Yields entries in the order of their time. Raises AuditReadError."""
        try:
            series = [self._lines(older, newest) for older, newest in self._new_series()]
            yield from heapq.merge(
                *(self._entries(lines) for lines in series), key=lambda entry: str(entry.get("ts", ""))
            )
        except OSError as error:
            raise AuditReadError(_advice(error)) from error

    def close(self) -> None:
        for tail in self._tails.values():
            tail.close()

    def _new_series(self) -> Iterator[tuple[list[Path], "Tail"]]:
        for newest, older in series_of(self.places).items():
            tail = self._tails.get(newest)
            if tail is None:
                tail = self._tails[newest] = Tail(newest)
                yield older, tail
            else:
                yield [], tail

    def _lines(self, older: Iterable[Path], newest: "Tail") -> Iterator[bytes]:
        for path in older:
            with path.open("rb") as file:
                yield from file
        yield from newest.read()

    def _entries(self, lines: Iterable[bytes]) -> Iterator[Entry]:
        for line in lines:
            if not line.endswith(b"\n"):
                continue  # torn, at the end of a file
            if (entry := parsed(line)) is not None:
                yield entry
            elif line.strip():
                self.unreadable_lines += 1


def parsed(line: bytes) -> dict[str, Any] | None:
    """Returns the entry of a line; None: it is not one."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None


class Tail:
    """Reads a file that grows, and its successor after a rotation."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._rest = b""

    def read(self) -> Iterator[bytes]:
        """Yields the complete lines since the last call."""
        while True:
            if self._file is None:
                try:
                    self._file = self._path.open("rb")
                except FileNotFoundError:
                    return
            while piece := self._file.read(READ_BYTES):
                *lines, self._rest = (self._rest + piece).split(b"\n")
                yield from (line + b"\n" for line in lines)
            if self._is_current(self._file):
                return
            self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self._rest = None, b""

    def _is_current(self, file: BinaryIO) -> bool:
        """Returns whether the name still means this file, or nothing at all."""
        try:
            return os.path.samestat(os.fstat(file.fileno()), os.stat(self._path))
        except FileNotFoundError:
            return True


def series_of(places: Iterable[Path]) -> dict[Path, list[Path]]:
    """Returns the file that is written -> its older ones, the oldest first. Raises AuditReadError: a place is
    not there, or is no audit log."""
    found: dict[Path, dict[int, Path]] = {}
    for place in places:
        try:
            files = sorted(place.iterdir()) if place.is_dir() else [place]
            if not place.is_dir():
                place.stat()
        except OSError as error:
            raise AuditReadError(_advice(error)) from error
        named = [(each, _NAME.fullmatch(each.name)) for each in files]
        if not any(match for _, match in named) and not place.is_dir():
            raise AuditReadError(
                f"{place} is no file of an audit log: their names end with .log or .log.NUMBER"
            )
        for path, match in named:
            if match is not None:
                newest = path.with_name(match["series"])
                found.setdefault(newest, {})[int(match["number"] or 0)] = path
    return {
        newest: [numbers[number] for number in sorted(numbers, reverse=True) if number]
        for newest, numbers in sorted(found.items())
    }


def _advice(error: OSError) -> str:
    what = f"cannot read {error.filename}: {error.strerror}"
    if isinstance(error, FileNotFoundError):
        return f"{what}. Programs keep it in {KEPT_IN}"
    if isinstance(error, PermissionError):
        return f"{what}. Only the user that runs the program may read its audit log: be that user, or root"
    return what


def _topics(entry: Entry) -> set[object]:
    fields = entry.get("fields")
    fields = fields if isinstance(fields, dict) else {}
    resources = entry.get("resources")
    named = {
        str(each).removeprefix("Topic:")
        for each in (resources if isinstance(resources, list) else ())
        if str(each).startswith("Topic:")
    }
    return named | {fields.get("topic"), fields.get("b")}


def _named(entry: Entry) -> str:
    """Returns every name in an entry that --resource may mean."""
    return json.dumps([entry.get(name) for name in ("fields", "resources", "changes")], ensure_ascii=False)
