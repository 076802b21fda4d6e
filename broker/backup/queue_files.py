"""The files of a stopped broker's ConsumeQueues, read and written by their repair."""

import errno
import mmap
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeAlias

from broker.admin.repair import QUEUE_FILE_BYTES_DEFAULT, RepairError
from broker.store.log.file_sizes import FileKind, SizedFile, sized_files
from broker.store.log.mapped_file import file_name, listed_files, sync_directory
from broker.store.log.sync_fault import sync_file
from broker.store.queue.batch_queue import BATCH_UNIT, BATCH_UNIT_BYTES
from broker.store.queue.consume_queue import FILLER, UNIT, UNIT_BYTES

NEW_SUFFIX: Final = ".repair"
"""Suffix of a file until it has all of its entries: a broker ignores such names."""
Unit: TypeAlias = tuple[int, int, int]
"""(log offset, size, tags code)"""
NOTHING: Final[Unit] = (0, 0, 0)
Mapped: TypeAlias = Callable[[Path], mmap.mmap]
CHUNK_BYTES: Final = 1 << 20


def known_file_bytes(root: Path) -> int:
    """Returns the size of the files of ConsumeQueues: the default, or a size derived from two files or from
    the name of one, because any file may have been shortened. RepairError: it cannot be derived."""
    files = [path for each in (root / "consumequeue").glob("*/*") for path in listed_files(each)]
    sizes = Counter(path.stat().st_size for path in files)
    largest = max(sizes, default=0)
    if largest in (0, QUEUE_FILE_BYTES_DEFAULT):
        return QUEUE_FILE_BYTES_DEFAULT
    starts = [int(path.name) for path in files]
    if largest % UNIT_BYTES == 0 and (
        sizes[largest] > 1 or any(each and not each % largest for each in starts)
    ):
        return largest
    raise RepairError(
        f"the largest file of a ConsumeQueue has {largest} bytes, and may have lost some: "
        "give the broker's mappedFileSizeConsumeQueue with --queue-file-bytes"
    )


class QueueFiles:
    """The files of one queue. False: there is none."""

    def __init__(self, queues: Path, topic: str, queue_id: int, file_bytes: int, mapped: Mapped) -> None:
        """queues: the directory of all queues."""
        self.file_bytes, self._mapped = file_bytes, mapped
        self._directory = queues / topic / str(queue_id)
        self._sizes = {int(path.name): path.stat().st_size for path in listed_files(self._directory)}
        self._new: dict[int, Path] = {}  # start -> a file that is not in its place yet

    def __bool__(self) -> bool:
        return bool(self._sizes)

    def where(self, number: int) -> tuple[Path, int]:
        """Returns the file of an entry, which may be missing, and the index of the entry in it."""
        start, position = self._start(number), number * UNIT_BYTES
        return self._path(start), (position - start) // UNIT_BYTES

    def _path(self, start: int) -> Path:
        return self._new.get(start) or self._directory / file_name(start)

    def _start(self, number: int) -> int:
        return number * UNIT_BYTES // self.file_bytes * self.file_bytes

    def read(self, number: int) -> Unit:
        """Returns the entry; NOTHING if its file is missing or too short. A start fills a short file with
        zeros, so that the first bytes of an entry may pass for one."""
        path, at = self.where(number)
        if at * UNIT_BYTES >= self._sizes.get(self._start(number), 0):
            return NOTHING
        raw = self._mapped(path)[at * UNIT_BYTES : (at + 1) * UNIT_BYTES]
        unit: Unit = UNIT.unpack(raw.ljust(UNIT_BYTES, b"\0"))
        return unit

    def behind(self, last: int) -> Iterator[tuple[int, Unit]]:
        """Yields each entry behind number `last` that is not empty."""
        for start in sorted(self._sizes):
            first = max(last + 1 - start // UNIT_BYTES, 0)
            if first * UNIT_BYTES >= self._sizes[start]:
                continue
            path = self._path(start)
            with memoryview(self._mapped(path)) as view:
                rest = bytes(view[first * UNIT_BYTES :]).rstrip(b"\0")
            for at in range(-(-len(rest) // UNIT_BYTES)):
                number = start // UNIT_BYTES + first + at
                if (unit := self.read(number))[1]:
                    yield number, unit

    def gaps(self, first: int, last: int) -> Iterator[tuple[int, Unit]]:
        """Yields each entry in front of `last` that is empty or negative, from the file with `first` on."""
        for start in range(self._start(first), last * UNIT_BYTES, self.file_bytes):
            path, count = self._path(start), min(self.file_bytes, last * UNIT_BYTES - start) // UNIT_BYTES
            if self._sizes.get(start, 0) < count * UNIT_BYTES:
                continue  # a file that is to be replaced
            raw = self._mapped(path)[: count * UNIT_BYTES]
            for number, unit in enumerate(UNIT.iter_unpack(raw), start // UNIT_BYTES):
                if not (unit[0] >= 0 and unit[1] > 0):
                    yield number, unit

    def fault(self) -> str | None:
        """Returns why the files are not those of a queue; None: they are."""
        for start, size in self._sizes.items():
            if start % self.file_bytes or size > self.file_bytes:
                path = self._directory / file_name(start)
                return f"{path} has {size} bytes, and the files of other queues {self.file_bytes}"
        return None

    def incomplete(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Yields (start, number of entries) of each file that lacks one of the entries first..end - 1, or is
        in front of these and too short."""
        for start, size in sorted(self._sizes.items()):
            if start < self._start(first) and size < self.file_bytes:
                yield start, self.file_bytes // UNIT_BYTES
        for start in range(self._start(first), end * UNIT_BYTES, self.file_bytes):
            entries = min(self.file_bytes, end * UNIT_BYTES - start) // UNIT_BYTES
            if self._sizes.get(start, 0) < entries * UNIT_BYTES:
                yield start, entries

    def replace(self, start: int, entries: int) -> None:
        """Begins a file with fillers for the entries that are missing. It replaces the old file in finish():
        a broker that started before would skip the fillers' messages."""
        path = self._directory / file_name(start)
        kept = path.read_bytes() if start in self._sizes else b""
        kept = kept[: len(kept) // UNIT_BYTES * UNIT_BYTES]
        self._new[start] = new = path.with_name(f"{path.name}{NEW_SUFFIX}")
        with new.open("wb") as file:
            file.write(kept + FILLER * (entries - len(kept) // UNIT_BYTES))
            file.truncate(self.file_bytes)
            file.flush()
            owner = self._directory.stat()
            if os.geteuid() == 0:  # the broker must be able to open what root has repaired
                os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
        self._sizes[start] = self.file_bytes

    def finish(self) -> None:
        """Puts the new files into their places. Durable when it returns."""
        for new in self._new.values():
            sync(new)
        for start in sorted(self._new):
            self._new.pop(start).rename(self._directory / file_name(start))
            sync_directory(self._directory)

    def discard(self) -> None:
        """Deletes the new files that are not in their places."""
        for new in self._new.values():
            new.unlink(missing_ok=True)


def other_sizes(directory: Path, kind: FileKind) -> bool:
    """Returns whether a queue has files that were made with another size. A file that is shorter than the
    others has lost its end and is ignored; one that begins within an entry belongs to no queue."""
    files, size = kind.used(sized_files(directory)), kind.file_bytes
    if any(file.start % kind.unit_bytes for file in files):
        return False
    if any(file.size > size or file.start % size for file in files):
        return True
    return len(files) == 1 and kind.misfit(files, size) is not None


def resize(directory: Path, file_bytes: int) -> None:
    """Writes the same entries into files of another size. Raises OSError: also if the disk is full, and
    nothing has changed then.

    The new files get their names from the last one to the first, then the other old ones go. So after a crash
    in between, no size fits the files, no broker starts, and a second call finds all entries.
    """
    old = [file for file in sized_files(directory) if file.size]
    new = dict[int, Path]()
    try:
        for start in _starts_with_content(old, file_bytes):
            path = directory / file_name(start)
            new[start] = path.with_name(f"{path.name}{NEW_SUFFIX}")
            _write_part(new[start], old, start, file_bytes)
        for start in sorted(new, reverse=True):
            new[start].rename(directory / file_name(start))
            sync_directory(directory)
    finally:
        for path in new.values():
            path.unlink(missing_ok=True)
    for file in reversed(old):
        if file.start not in new:
            file.path.unlink()
            sync_directory(directory)


def _starts_with_content(files: list[SizedFile], file_bytes: int) -> list[int]:
    """Returns where the new files begin, ascending: those with an entry, and the first one of all."""
    found = {file.start // file_bytes * file_bytes for file in files[:1]}
    for file in files:
        data = file.path.read_bytes()
        at = 0
        while at < len(data):
            start = (file.start + at) // file_bytes * file_bytes
            end = min(start + file_bytes - file.start, len(data))
            if any(data[at:end]):
                found.add(start)
            at = end
    return sorted(found)


def _write_part(path: Path, files: list[SizedFile], start: int, file_bytes: int) -> None:
    """Writes the bytes start..start + file_bytes - 1 of the old files. Where two of them overlap, as after a
    crash of resize(), both have the same entries, or one has none."""
    with path.open("wb") as new:
        new.truncate(file_bytes)
        for file in files:
            low, high = max(start, file.start), min(start + file_bytes, file.end)
            if low < high:
                with file.path.open("rb") as source:
                    source.seek(low - file.start)
                    data = source.read(high - low)
                if kept := data.rstrip(b"\0"):
                    new.seek(low - start)
                    new.write(kept)
        new.flush()
        owner = path.parent.stat()
        if os.geteuid() == 0:  # the broker must be able to open what root has repaired
            os.fchown(new.fileno(), owner.st_uid, owner.st_gid)
    sync(path)


def remove_new(root: Path) -> None:
    """Deletes the new files that a killed repair has left."""
    for queues in ("consumequeue", "batchconsumequeue"):
        for path in (root / queues).glob(f"*/*/*{NEW_SUFFIX}"):
            path.unlink()


def newest_batches(root: Path) -> Iterator[tuple[int, int]]:
    """Yields (log offset, size) of the newest entry of each queue of batches."""
    for directory in (root / "batchconsumequeue").glob("*/*"):
        for path in reversed(listed_files(directory)):
            if raw := path.read_bytes().rstrip(b"\0"):
                at = (len(raw) - 1) // BATCH_UNIT_BYTES * BATCH_UNIT_BYTES
                offset, size, *_ = BATCH_UNIT.unpack(raw[at:].ljust(BATCH_UNIT_BYTES, b"\0"))
                yield offset, size
                break


def mapped(path: Path) -> mmap.mmap:
    """The file, until no reference to the map is left."""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def is_zero(path: Path, position: int) -> bool:
    """Returns whether all bytes from `position` on are zero."""
    with path.open("rb") as file:
        file.seek(position)
        while piece := file.read(CHUNK_BYTES):
            if piece.strip(b"\0"):
                return False
    return True


def write(path: Path, position: int, data: bytes) -> None:
    """Writes in the middle of a file. Raises OSError: it is not written, or only in part."""
    # Not through a map: writing to a hole of a sparse file on a full disk would raise SIGBUS.
    descriptor = os.open(path, os.O_RDWR)
    try:
        if os.pwrite(descriptor, data, position) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(descriptor)


def sync(path: Path) -> None:
    """Makes the file durable. Raises SyncError."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        sync_file(descriptor, path)
    finally:
        os.close(descriptor)
