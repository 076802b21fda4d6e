"""RocketMQ's config/*.json files: read with their .bak, written whole or not at all; a journal of changes.

A file is written aside, renamed, and the version before stays as .bak. Saves come from the event loop and
from a helper thread: each carries its turn, and a late one does not overwrite a newer one. A journal holds
the changes since the file was written, one JSON line each; half a last line is what a crash leaves.
"""

import json
import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from broker.store.mapped_file import StoreError, sync_directory
from remoting.lenient_json import to_standard_json, without_nulls

logger = logging.getLogger(__name__)

FILE_BYTES_MAX = 256 << 20
JOURNAL_BYTES_MAX = 64 << 20
"""A journal that grew to this makes its owner write the file, whatever the period."""

T = TypeVar("T")


class MetadataFile:
    """`what` is for people: "the topic table"."""

    def __init__(self, path: Path, what: str) -> None:
        self.path = path
        self.what = what
        self._turn = 0
        self._saved_turn = 0
        self._lock = threading.Lock()

    @property
    def backup_path(self) -> Path:
        return self.path.with_name(self.path.name + ".bak")

    def load(self) -> Mapping[str, Any] | None:
        """The newest content that can be read; None: there is no file. StoreError: all that exist are
        damaged."""
        problems: list[str] = []
        for path in (self.path, self.backup_path):
            try:
                value = read_json(path)
            except FileNotFoundError:
                continue
            except ValueError as error:
                problems.append(f"{path}: {error}")
                continue
            if problems:
                logger.warning("%s; using %s", problems[0], path)
            return value
        if problems:
            raise StoreError(
                f"{self.what} is damaged: {'; '.join(problems)}; restore it from a backup or from another "
                f"replica's {self.path.parent.name}/{self.path.name}, or remove the files: an empty slave "
                "gets them from its master"
            )
        return None

    def next_turn(self) -> int:
        """For a save(): taken when its content is."""
        self._turn += 1
        return self._turn

    def is_latest(self, turn: int) -> bool:
        """Has nothing newer been saved? Only the loop's thread may ask."""
        return turn == self._saved_turn

    def save(self, value: Mapping[str, Any], turn: int) -> bool:
        """Durable. False: something newer has been saved meanwhile. OSError: the old file is still there."""
        with self._lock:
            if turn <= self._saved_turn:
                return False
            self.path.parent.mkdir(parents=True, exist_ok=True)
            aside = self.path.with_name(self.path.name + ".tmp")
            with aside.open("wb") as file:
                file.write(json.dumps(value, indent="\t", ensure_ascii=False).encode())
                file.flush()
                os.fsync(file.fileno())
            if self.path.exists():
                os.replace(self.path, self.backup_path)
            os.replace(aside, self.path)
            sync_directory(self.path.parent)
            self._saved_turn = turn
            return True

    def keep_copy(self, suffix: str) -> Path | None:
        """A second name for the present content, never overwritten by save(); None: there is no file."""
        copy = self.path.with_name(f"{self.path.name}.{suffix}")
        try:
            copy.unlink(missing_ok=True)
            os.link(self.path, copy)
        except FileNotFoundError:
            return None
        return copy


def read_json(path: Path) -> Mapping[str, Any]:
    """An object in JSON as RocketMQ writes it (bare number keys). ValueError: it is none."""
    with path.open("rb") as file:
        raw = file.read(FILE_BYTES_MAX + 1)
    if len(raw) > FILE_BYTES_MAX:
        raise ValueError(f"more than {FILE_BYTES_MAX} bytes")
    if not raw.strip():
        raise ValueError("is empty")
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        try:
            value = msgspec.json.decode(to_standard_json(raw))
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise ValueError(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    found: Mapping[str, Any] = without_nulls(value)
    return found


class Journal:
    """Changes since the file. Appended in one write each; survives a killed process, not a power cut."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._fd = -1

    def load(self) -> list[Any]:
        """The whole lines, oldest first; what is behind the last of them does not count."""
        try:
            raw = self.path.read_bytes()
        except FileNotFoundError:
            return []
        values, end = [], 0
        for line in raw.splitlines(keepends=True):
            try:
                if not line.endswith(b"\n"):
                    break
                values.append(msgspec.json.decode(line))
            except (msgspec.MsgspecError, ValueError):
                break
            end += len(line)
        if end < len(raw):  # cut by the first append: another process may have the store, for now
            lost = len(raw) - end
            logger.warning("%s: %d bytes behind byte %d are no whole line: dropped", self.path, lost, end)
        self.size = end
        return values

    def append(self, line: bytes) -> None:
        """OSError: nothing of it is there."""
        if self._fd < 0:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.ftruncate(self._fd, self.size)
        data = line + b"\n"
        try:
            written = os.write(self._fd, data)
            if written < len(data):
                raise OSError(28, f"only {written} of {len(data)} bytes fit", str(self.path))
        except OSError:
            os.ftruncate(self._fd, self.size)
            raise
        self.size += len(data)

    def drop(self, size: int) -> None:
        """Forget the first `size` bytes: the file has them."""
        self.close()
        if size >= self.size:
            self.path.unlink(missing_ok=True)
            self.size = 0
            return
        rest = self.path.read_bytes()[size : self.size]
        aside = self.path.with_name(self.path.name + ".tmp")
        aside.write_bytes(rest)
        os.replace(aside, self.path)
        self.size = len(rest)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
