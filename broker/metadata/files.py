"""RocketMQ's config/*.json files: read with their .bak, replaced as a whole; and journals of changes.

The event loop and a helper thread both save: each save carries its turn, and a late one never overwrites a
newer one. Checksums are beside the files (file_sums.py). A journal holds the changes since its file was
written, one line of JSON with its checksum each; a crash may leave a partial last line.
"""

import contextlib
import heapq
import json
import logging
import os
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from broker.metadata.file_sums import FileSums, FileVersion, check
from broker.store.log.mapped_file import StoreError
from keelmq.remoting.lenient_json import to_standard_json, without_nulls
from keelmq.runtime.durable_file import backup_of, replace_file
from keelmq.runtime.long_work import LongWork
from keelmq.security.private_file import exposed

logger = logging.getLogger(__name__)

FILE_BYTES_MAX = 256 << 20
JOURNAL_BYTES_MAX = 64 << 20
"""A journal of this size makes its owner write the file before the period is over."""
PIECE_ROWS: Final = 64
"""Rows that one C call converts, sorts or writes: such a call blocks the event loop."""
SORTED_ROWS: Final = 2_048
"""As PIECE_ROWS, for sorting."""


class MetadataFile:
    """One file and its backup. `what` names it in logs and errors: "the topic table".

    private: it contains secrets. Others must not be able to open it, and there is no backup: it would keep a
    deleted user's secret, and a damaged file would admit that user again."""

    def __init__(self, path: Path, what: str, *, private: bool = False) -> None:
        self.path = path
        self.what = what
        self._private = private
        self._turn = 0
        self._saved_turn = 0
        self._lock = threading.Lock()
        self._sums = FileSums(path, private=private)
        self._is_damaged = False  # the file; its backup was used

    @property
    def backup_path(self) -> Path:
        """The path of the previous version, which load() uses if the file is damaged; not if it is
        private."""
        return backup_of(self.path)

    def load(self) -> Mapping[str, Any] | None:
        """Returns the newest content that can be read and has its checksum; None: there is no file. Raises
        StoreError if all that exist are damaged, if the file is lost, or if others may open a private one."""
        if self._private and (problem := exposed(self.path)):
            raise StoreError(f"{self.what} is not used: {problem}")
        versions, problems = self._sums.read(), list[str]()
        for path in (self.path,) if self._private else (self.path, self.backup_path):
            try:
                raw = _read(path)
                check(path, raw, versions)
                value = parse_json(raw)
            except FileNotFoundError:
                is_lost = path == self.path and not self._private and self.backup_path.exists()
                if versions or problems or is_lost:
                    problems.append(f"{path}: missing")
                continue
            except ValueError as error:
                problems.append(f"{path}: {error}")
                continue
            if problems:
                logger.error("%s; using %s, the version before the last change", problems[0], path)
            self._is_damaged = bool(problems)
            return value
        if problems:
            raise StoreError(
                f"{self.what} is damaged: {'; '.join(problems)}; restore it from a backup or from another "
                f"replica's {self.path.parent.name}/{self.path.name}, or remove {self.path}*: an empty slave "
                "gets them from its master"
            )
        return None

    def next_turn(self) -> int:
        """Returns the turn for a save(); call it together with reading the content."""
        self._turn += 1
        return self._turn

    def is_latest(self, turn: int) -> bool:
        """Returns whether no newer content was saved. Only the loop's thread may call it."""
        return turn == self._saved_turn

    def save(self, value: Mapping[str, Any], turn: int, work: LongWork | None = None) -> bool:
        """Writes the file durably. Returns False if newer content was saved meanwhile. Raises OSError, or
        GivenUp if `work` is given up; the old file is still there then."""
        with self._lock:
            if turn <= self._saved_turn:
                return False
            content = _Summed(piece.encode() for piece in document_pieces(value, work))
            keep_backup = not self._private and not self._is_damaged  # the backup is the only sound version
            replace_file(self.path, content, keep_backup=keep_backup, private=self._private)
            self._saved_turn = turn
            version = FileVersion(content.crc32, content.size, self.path.stat().st_mtime_ns)
            self._sums.add(version, replaces_damaged=self._is_damaged)
            self._is_damaged = False
            return True

    def keep_copy(self, suffix: str) -> Path | None:
        """Links the present content to a second path, which save() never overwrites. Returns that path; None:
        there is no file."""
        copy = self.path.with_name(f"{self.path.name}.{suffix}")
        try:
            copy.unlink(missing_ok=True)
            os.link(self.path, copy)
        except FileNotFoundError:
            return None
        return copy


class _Summed:
    """Yields pieces, once; then crc32 and size are those of all of them."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = pieces
        self.crc32 = self.size = 0

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._pieces:
            self.crc32, self.size = zlib.crc32(piece, self.crc32), self.size + len(piece)
            yield piece


class RowTexts(dict[str, str]):
    """A member of a file whose rows are converted to text: key -> row_text()."""


class LazyRows(NamedTuple):
    """A member of a file whose rows are converted while it is written, in the order of their keys. text_of:
    returns what row_text() returns for a row."""

    rows: Mapping[str, Any]
    text_of: Callable[[Any], str]

    def items(self) -> Iterator[tuple[str, str]]:
        """Yields (key, text)."""
        for key in sorted_keys(self.rows):
            yield key, self.text_of(self.rows[key])


def sorted_keys(rows: Iterable[str], work: LongWork | None = None) -> Iterator[str]:
    """Yields the keys in their order; a thread that reads them yields to others. work: of that thread."""
    keys, runs = list(rows), list[list[str]]()
    for at in range(0, len(keys), SORTED_ROWS):
        if work is not None:
            work.between()
        runs.append(sorted(keys[at : at + SORTED_ROWS]))
    yield from runs[0] if len(runs) == 1 else heapq.merge(*runs)


def row_text(plain: Any) -> str:
    """Returns the text of a row in a file, indented by two levels."""
    return json.dumps(plain, indent="\t", ensure_ascii=False).replace("\n", "\n\t\t")


def document(value: Mapping[str, Any]) -> str:
    """Returns the text that json.dumps(value, indent="\\t") returns."""
    return "".join(document_pieces(value))


def document_pieces(value: Mapping[str, Any], work: LongWork | None = None) -> Iterator[str]:
    """Yields the text of document() in pieces. The thread that reads them yields to the event loop."""
    work = work or LongWork(is_shared=True)
    for number, (name, member) in enumerate(value.items()):
        yield f"{',' if number else '{'}\n\t{json.dumps(name, ensure_ascii=False)}: "
        if isinstance(member, RowTexts | LazyRows):
            yield from _row_pieces(member, work)
        else:
            yield json.dumps(member, indent="\t", ensure_ascii=False).replace("\n", "\n\t")
    yield "\n}" if value else "{}"


def _row_pieces(member: RowTexts | LazyRows, work: LongWork) -> Iterator[str]:
    rows, first = iter(member.items()), True
    while piece := list(islice(rows, PIECE_ROWS)):
        work.between()
        texts = (f"\t\t{json.dumps(key, ensure_ascii=False)}: {text}" for key, text in piece)
        yield ("{\n" if first else ",\n") + ",\n".join(texts)
        first = False
    yield "{}" if first else "\n\t}"


def read_json(path: Path) -> Mapping[str, Any]:
    """Reads a JSON object as RocketMQ writes it (with unquoted number keys). Raises ValueError for other
    content."""
    return parse_json(_read(path))


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        raw = file.read(FILE_BYTES_MAX + 1)
    if len(raw) > FILE_BYTES_MAX:
        raise ValueError(f"more than {FILE_BYTES_MAX} bytes")
    return raw


def parse_json(raw: bytes) -> Mapping[str, Any]:
    """Does read_json() for the content of a file."""
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


GO_BACK: Final = (
    "offsets go back by some seconds, and messages are delivered again. If another replica of the group runs,"
    " it has them: let it become the master before this one (mqadmin electMaster)"
)


class Journal:
    """The changes since the file. Each is appended in one write: it survives a killed process, but not a
    power failure. From the first one to a clean stop the file exists, empty or not, and so does a second one,
    `mark`, which tells a start that the journal was lost."""

    def __init__(self, path: Path) -> None:
        self.path, self.mark = path, path.with_name(path.name + ".used")
        self.size = 0
        self.is_lost = False
        """load() has found the mark alone."""
        self._fd = -1

    def load(self) -> list[Any]:
        """Returns the complete lines, oldest first. A partial or damaged line ends the journal."""
        try:
            raw = self.path.read_bytes()
        except FileNotFoundError:
            self.is_lost = self.mark.exists()
            if self.is_lost:
                logger.error("%s is lost: %s", self.path, GO_BACK)
            return []
        values, end = [], 0
        for line in raw.split(b"\n")[:-1]:
            try:
                values.append(_line_value(line))
            except (msgspec.MsgspecError, ValueError):
                break
            end += len(line) + 1
        if end < len(raw):  # the first append cuts it off; until then another process may own the store
            self._report(end, raw)
        self.size = end
        return values

    def _report(self, end: int, raw: bytes) -> None:
        """Logs the content behind the last good line."""
        lost = len(raw) - end
        if b"\n" in raw[end:]:
            logger.error(
                "%s is damaged at byte %d: the changes from there on are lost, %d bytes; %s",
                self.path, end, lost, GO_BACK,
            )  # fmt: skip
        else:
            logger.warning("%s: dropped %d bytes of a partial line at byte %d", self.path, lost, end)

    def append(self, lines: bytes) -> None:
        """Appends lines of JSON, with a checksum each. Raises OSError; then none of them is in the file."""
        if self._fd < 0:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.ftruncate(self._fd, self.size)
            self.mark.touch()
        data = b"".join(b"%b #%08x\n" % (line, zlib.crc32(line)) for line in lines.split(b"\n"))
        try:
            written = os.write(self._fd, data)
            if written < len(data):
                raise OSError(28, f"only {written} of {len(data)} bytes fit", str(self.path))
        except OSError:
            os.ftruncate(self._fd, self.size)
            raise
        self.size += len(data)

    def drop(self, size: int) -> None:
        """Drops the first `size` bytes, whose changes are in the file."""
        self.close()
        if size >= self.size:
            with contextlib.suppress(FileNotFoundError):
                os.truncate(self.path, 0)
            self.size = 0
            return
        with self.path.open("rb") as file:
            file.seek(size)
            rest = file.read(self.size - size)
        replace_file(self.path, rest, keep_backup=False, durable=False)
        self.size = len(rest)

    def end(self) -> None:
        """Called at a clean stop: removes a journal whose changes are in the file."""
        self.close()
        if not self.size:
            self.mark.unlink(missing_ok=True)
            self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Closes the file; the next append opens it again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _line_value(line: bytes) -> Any:
    """Returns the value of a line. Earlier releases wrote no checksums. Raises ValueError, MsgspecError."""
    body, mark, crc = line.rpartition(b" #")
    if mark and len(crc) == 8:
        if crc != b"%08x" % zlib.crc32(body):
            raise ValueError("its checksum does not match")
        line = body
    return msgspec.json.decode(line)
