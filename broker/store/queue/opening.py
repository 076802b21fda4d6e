"""Opens the files of a queue at a start, and finds which of its units are lost.

A lost file in the middle is replaced by a sparse one, whose units were never written, and a file that has
lost its end gets its size again. So each unit is at the place of its number, and only reading a lost one
fails.
"""

import logging
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from broker.store.log.file_sizes import FileKind, sized_files
from broker.store.log.mapped_file import MappedFile, file_name

logger = logging.getLogger(__name__)

NEW_FILE: Final = "lost.new"
PAGE_BYTES: Final = 4_096
"""The unit that a disk writes, or loses, as a whole."""
NEXT_UNITS: Final = 8
"""Units that show whether one in front of them is damaged; as many adjacent ones may be damaged."""
FILLER_SIZE: Final = 2147483647
"""Size in a unit without a record."""
_PLACE = struct.Struct(">qi")


class OpenedFiles(NamedTuple):
    """is_end_lost: the last file that has units, or one behind it, was too short. shortened: the files that
    had some bytes, and too few."""

    files: list[MappedFile]
    is_end_lost: bool
    shortened: list[Path]


def open_files(directory: Path, kind: FileKind, has_units: Callable[[MappedFile], bool]) -> OpenedFiles:
    """Opens all files that have a unit; if none has, the first file. To be called when the size fits all
    queues of the store. StoreError, before any change: a file has more bytes, or an impossible name."""
    found = sized_files(directory)
    kind.check([found], how_to_repair(directory), is_size_sure=True)
    short = [file for file in found if file.size < kind.file_bytes]
    for file in short:
        if not file.size:  # a power cut or a kill came between its name and its size
            file.path.unlink()
        elif rest := file.size % kind.unit_bytes:  # with zeros behind it, it might pass for a unit
            os.truncate(file.path, file.size - rest)
    files = [MappedFile(file.path, file.start, kind.file_bytes, allocate=False) for file in kind.used(found)]
    while len(files) > 1 and not has_units(files[-1]):
        files.pop().delete()
    is_end_lost = bool(short) and (not files or short[-1].start >= files[-1].start_offset)
    shortened = [file.path for file in short if file.size]
    if shortened:
        text = "%s has lost its end, at %d of %d bytes: its entries are made again from the log"
        logger.error(text, shortened[0], next(file.size for file in short if file.size), kind.file_bytes)
    return OpenedFiles(list(_without_gaps(directory, files)), is_end_lost, shortened)


def _without_gaps(directory: Path, files: list[MappedFile]) -> Iterator[MappedFile]:
    """Yields the files, and a new one for each that is missing between them."""
    for before, file in zip([None, *files], files, strict=False):
        if before is not None:
            for start in range(before.end_offset, file.start_offset, file.file_bytes):
                new = MappedFile(directory / NEW_FILE, start, file.file_bytes, allocate=False)
                new.sync()  # after a power cut, no file in the middle is short
                new.rename(directory / file_name(start))
                yield new
        yield file


def lost_files(files: list[MappedFile]) -> list[MappedFile]:
    """Returns the files in front of the last one whose first unit is lost."""
    return [file for file in files[:-1] if _PLACE.unpack(file.read(0, _PLACE.size))[1] <= 0]


def how_to_repair(directory: Path) -> str:
    """The remedy for a queue with lost files. directory: the queue's."""
    root, kind = directory.parents[2], directory.parents[1].name
    if kind.startswith("batch"):
        return (
            "stop the broker; if keelmq verify finds a replica with sound copies, run keelmq repair --resync"
        )
    return f"stop the broker and run keelmq repair --store {root} --queues"


def units_in(file: MappedFile, unit_bytes: int, is_written: Callable[[bytes], bool]) -> int:
    """Returns where the units of a file end: by binary search, and behind the last one if lost ones are in
    front of it."""

    def look(number: int) -> bool:
        return is_written(file.read(number * unit_bytes, unit_bytes))

    def log_offset(number: int) -> int:
        offset, _ = _PLACE.unpack(file.read(number * unit_bytes, _PLACE.size))
        return int(offset)

    count = first_behind(0, file.file_bytes // unit_bytes, unit_bytes, file.file_bytes, look)
    if not file.is_zero_from(count * unit_bytes):
        rest = file.read(count * unit_bytes, file.file_bytes - count * unit_bytes).rstrip(b"\0")
        last = count + (len(rest) - 1) // unit_bytes
        while last >= count and not look(last):
            last -= 1
        if last >= count and (not count or log_offset(count - 1) < log_offset(last)):
            count = last + 1  # else it remains from before a crash of RocketMQ, which zeros nothing
    return count


def first_behind(
    low: int, high: int, unit_bytes: int, file_bytes: int, is_in_front: Callable[[int], bool | None]
) -> int:
    """Returns the first unit in low..high - 1 that is not in front, by binary search; `high` if all are.
    is_in_front: None for a unit that was never written. It is like the first one of the next page that has
    one; if there is none, it is behind. The first one is never there in part."""
    while low < high:
        middle = number = (low + high) // 2
        while (answer := is_in_front(number)) is None:
            number = _next_page(number, unit_bytes, file_bytes)
            if number >= high:
                break
        low, high = (number + 1, high) if answer else (low, middle)
    return low


def end_in_front(
    low: int, high: int, unit_bytes: int, file_bytes: int, is_in_front: Callable[[int], bool | None]
) -> int:
    """As first_behind(), for units that a disk may have damaged: one that is behind, and has one in front
    among the next NEXT_UNITS, has a wrong place, and is ignored."""
    while True:
        found = first_behind(low, high, unit_bytes, file_bytes, is_in_front)
        next_ones = range(found + 1, min(found + 1 + NEXT_UNITS, high))
        in_front = next((number for number in next_ones if is_in_front(number)), None)
        if in_front is None:
            return found
        low = in_front + 1


def _next_page(number: int, unit_bytes: int, file_bytes: int) -> int:
    """Returns the first unit that begins in the next page of its file, or in the next file."""
    start, at = divmod(number * unit_bytes, file_bytes)
    at = (at // PAGE_BYTES + 1) * PAGE_BYTES
    units = file_bytes // unit_bytes
    return start * units + min(-(-at // unit_bytes), units)


def is_torn(place_of: Callable[[int], tuple[int, int] | None], first: int, end: int) -> bool:
    """Returns whether the last unit of a queue is on disk in part, after a power cut: it lies on two pages,
    and the first bytes of its CommitLog offset are 0. place_of: (CommitLog offset, size) of a unit."""
    if end - 1 <= first:
        return False
    before, last = place_of(end - 2), place_of(end - 1)
    if before is None or last is None or FILLER_SIZE in (before[1], last[1]):
        return False
    return last[0] < sum(before)
