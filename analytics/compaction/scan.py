"""Which telemetry files there are, and which are not read, each with its reason.

A root is a folder with record folders in it (`ha_sample/`, `controller_event/`, ...), as brokers, controllers
and the demo write them, or any directory or URL with such folders, named telemetry, below it.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow.fs as pa_fs

from analytics.compaction.columns import KINDS
from analytics.compaction.manifest import hour_of
from analytics.compaction.storage import file_system
from analytics.errors import AnalyticsError

TELEMETRY = "telemetry"
"""The folder that every program writes into."""
OPEN = ".open"
FILES = "*.jsonl, *.jsonl.open, *.jsonl.gz, *.jsonl.zst"
ADVICE = (
    "give the directory of a demo (keelmq demo --keep), a broker's storePathRootDir or "
    "a controller's controllerStorePath"
)

_NAME = re.compile(r".+\.jsonl(?P<open>\.open)?(?P<compression>\.gz|\.zst)?", re.DOTALL)
_HOUR = re.compile(r"dt=(\d{4}-\d\d-\d\d)/hour=(\d\d)", re.ASCII)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """`path`: where it is. `name`: without ".open", unless there is a file of that name, too; so a file that
    is renamed at the end of its hour keeps it. `home_ts`: the hour of its folder; None: not in such a folder.
    `grows`: it may end with half a line."""

    path: str
    name: str
    kind: str
    size_bytes: int
    modified_ns: int
    home_ts: int | None
    grows: bool
    compression: str
    open: Callable[[], Any]
    """Returns a binary file. Raises OSError."""
    delete: Callable[[], bool]
    """Deletes the file if it has not changed since it was found; returns whether it did. Raises OSError."""


@dataclass(frozen=True, slots=True)
class NotRead:
    """A file or folder that is not read."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"not read: {self.path}: {self.reason}"


@dataclass(slots=True)
class Sources:
    """`files` are sorted by name."""

    roots: list[str] = field(default_factory=list)
    files: list[SourceFile] = field(default_factory=list)
    not_read: list[NotRead] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.files)

    def __str__(self) -> str:
        return f"{len(self.roots)} telemetry folders, {len(self.files)} files, {self.size_bytes / 1e6:.1f} MB"


@dataclass(frozen=True, slots=True)
class _Entry:
    """`below`: the path below the root that was given."""

    below: PurePosixPath
    path: str
    size_bytes: int
    modified_ns: int
    open: Callable[[], Any]
    delete: Callable[[], bool]


def find_sources(roots: Sequence[str]) -> Sources:
    """Returns the telemetry files of all roots (directories or URLs). A file counts once.

    Raises AnalyticsError if a root does not exist, or has no telemetry.
    """
    found = Sources()
    for root in roots:
        before = len(found.files)
        entries, unreadable = _local(root) if _is_local(root) else _remote(root)
        found.not_read += unreadable
        _classify(root, entries, found)
        if len(found.files) == before:
            folders = ", ".join(f"{kind}/" for kind in KINDS)
            others = "".join(f"; {each}" for each in found.not_read[:3])
            raise AnalyticsError(
                f"no telemetry in {_shown(root)}: looked for {FILES} "
                f"in {folders} there and in every folder named {TELEMETRY} below it; {ADVICE}{others}"
            )
    found.files = sorted({each.path: each for each in found.files}.values(), key=lambda each: each.name)
    found.roots = sorted(set(found.roots))
    return found


def _classify(root: str, entries: Iterable[_Entry], found: Sources) -> None:
    entries = sorted(entries, key=lambda each: each.below)
    at_root = any(each.below.parts[0] in KINDS and len(each.below.parts) > 1 for each in entries)
    paths = {each.path for each in entries}
    unknown: set[str] = set()
    for entry in entries:
        depth = 0 if at_root else _depth(entry.below)
        if depth is None or len(entry.below.parts) < depth + 2:
            continue  # not below a folder of telemetry
        kind = entry.below.parts[depth]
        base = entry.path.removesuffix(str(PurePosixPath(*entry.below.parts[depth:]))).rstrip("/")
        if kind in KINDS:
            found.roots.append(base)
            _add_file(entry, kind, paths, found)
        elif (folder := f"{base}/{kind}") not in unknown and (not at_root or _looks_like_ours(entry)):
            unknown.add(folder)
            found.not_read.append(NotRead(f"{folder}/", "no known kind of record"))


def _depth(below: PurePosixPath) -> int | None:
    """Returns how many folders are above the record folder."""
    parts = below.parts
    return parts.index(TELEMETRY) + 1 if TELEMETRY in parts[:-1] else None


def _looks_like_ours(entry: _Entry) -> bool:
    return _NAME.fullmatch(entry.below.name) is not None


def _add_file(entry: _Entry, kind: str, paths: set[str], found: Sources) -> None:
    match = _NAME.fullmatch(entry.below.name)
    if match is None:
        suffix = entry.below.name.partition(".jsonl")[2] or entry.below.suffix
        found.not_read.append(NotRead(entry.path, f"unknown suffix {suffix or entry.below.name}"))
        return
    closed = entry.path.removesuffix(OPEN)
    found.files.append(
        SourceFile(
            path=entry.path,
            name=entry.path if closed in paths else closed,
            kind=kind,
            size_bytes=entry.size_bytes,
            modified_ns=entry.modified_ns,
            home_ts=_home(entry.below),
            grows=match["open"] is not None,
            compression=(match["compression"] or "").removeprefix("."),
            open=entry.open,
            delete=entry.delete,
        )
    )


def _home(below: PurePosixPath) -> int | None:
    match = _HOUR.fullmatch("/".join(below.parent.parts[-2:]))
    try:
        return None if match is None else hour_of(match[1], match[2])
    except ValueError:
        return None


def _is_local(root: str) -> bool:
    return "://" not in root or root.startswith("file://")


def _shown(root: str) -> str:
    return str(Path(root.removeprefix("file://")).absolute()) if _is_local(root) else root


def _local(root: str) -> tuple[list[_Entry], list[NotRead]]:
    directory = Path(_shown(root))
    if not directory.is_dir():
        what = "is not a directory" if directory.exists() else "does not exist"
        raise AnalyticsError(f"{directory} {what}; {ADVICE}")
    not_read: list[NotRead] = []

    def unreadable(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):  # its writer has deleted the folder meanwhile
            not_read.append(NotRead(f"{error.filename}/", error.strerror or str(error)))

    entries = []
    for folder, _, names in os.walk(directory, onerror=unreadable):
        below = Path(folder).relative_to(directory)
        if not {TELEMETRY, *KINDS} & {*below.parts, directory.name}:
            continue
        for name in names:
            path = Path(folder, name)
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            if not os.access(path, os.R_OK):
                not_read.append(NotRead(str(path), "permission denied"))
                continue
            entries.append(
                _Entry(
                    PurePosixPath(below / name),
                    str(path),
                    status.st_size,
                    status.st_mtime_ns,
                    _opener(path),
                    _deleter(path, status),
                )
            )
    return entries, not_read


def _opener(path: Path) -> Callable[[], Any]:
    def opened() -> Any:
        try:
            return path.open("rb", buffering=0)
        except FileNotFoundError:
            if path.suffix != OPEN:
                raise
            return path.with_suffix("").open("rb", buffering=0)  # renamed since: its hour is over

    return opened


def _deleter(path: Path, found: os.stat_result) -> Callable[[], bool]:
    def deleted() -> bool:
        try:
            status = path.stat()
        except FileNotFoundError:
            return False
        if (status.st_size, status.st_mtime_ns) != (found.st_size, found.st_mtime_ns):
            return False
        path.unlink(missing_ok=True)
        return True

    return deleted


def _remote(root: str) -> tuple[list[_Entry], list[NotRead]]:
    system, base = file_system(root)
    try:
        infos = list(_infos(system, base))
    except OSError as error:
        raise AnalyticsError(f"cannot list {root}: {error}") from None
    return [
        _Entry(
            PurePosixPath(info.path.removeprefix(base).lstrip("/")),
            f"{root.rstrip('/')}/{info.path.removeprefix(base).lstrip('/')}",
            info.size,
            info.mtime_ns or 0,
            _remote_opener(system, info.path),
            _remote_deleter(system, info.path),
        )
        for info in infos
    ], []


def _infos(system: pa_fs.FileSystem, base: str) -> Iterator[pa_fs.FileInfo]:
    found = system.get_file_info(pa_fs.FileSelector(base, recursive=True))
    return (info for info in found if info.type == pa_fs.FileType.File)


def _remote_opener(system: pa_fs.FileSystem, path: str) -> Callable[[], Any]:
    return lambda: system.open_input_file(path)


def _remote_deleter(system: pa_fs.FileSystem, path: str) -> Callable[[], bool]:
    def deleted() -> bool:
        system.delete_file(path)
        return True

    return deleted
