"""Opens the files of a queue at a start, and finds which of its units are lost.

A lost file in the middle is replaced by a sparse one, whose units were never written. So each unit is where
its number says, and to read a lost one is an error of that read only.
"""

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from broker.store.log.mapped_file import MappedFile, StoreError, file_name, listed_files

LOST_FILES_MAX: Final = 10_000
"""Of one queue: more are the sign of a file with a wrong name."""
NEW_FILE: Final = "lost.new"
_PLACE = struct.Struct(">qi")


def open_files(
    directory: Path, file_bytes: int, size_setting: str, units_in: Callable[[MappedFile], int]
) -> list[MappedFile]:
    """Opens all files that have a unit; if none has, the first file. units_in: counts the units of a file.
    StoreError: a file has another size than `size_setting` says, or a name that none can have."""
    paths, files = listed_files(directory), list[MappedFile]()
    for path in paths:
        size = path.stat().st_size
        if size == 0:  # a power cut or a kill came between its name and its size
            path.unlink()
            continue
        if size > file_bytes or (size < file_bytes and path is not paths[-1]):
            text = f"{path} has {size} bytes, {size_setting} says {file_bytes}"
            hint = f": if that is right, {how_to_repair(directory)}" if size < file_bytes else ""
            raise StoreError(text + hint)
        files.append(MappedFile(path, int(path.name), file_bytes, allocate=False))
    while len(files) > 1 and units_in(files[-1]) == 0:
        files.pop().delete()
    return list(_without_gaps(directory, files))


def _without_gaps(directory: Path, files: list[MappedFile]) -> Iterator[MappedFile]:
    """Yields the files, and a new one for each that is missing between them."""
    for before, file in zip([None, *files], files, strict=False):
        if before is not None:
            lost = (file.start_offset - before.end_offset) // file.file_bytes
            if lost > LOST_FILES_MAX or (file.start_offset - before.start_offset) % file.file_bytes:
                raise StoreError(f"{file.path} does not continue {before.path}")
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
    """What an operator can do for a queue with lost files. directory: the queue's."""
    root, kind = directory.parents[2], directory.parents[1].name
    if kind.startswith("batch"):
        return "copy the store of a replica, or stop the broker and run keelmq repair --resync"
    return f"stop the broker and run keelmq repair --store {root} --queues"


def first_behind(low: int, high: int, file_units: int, is_in_front: Callable[[int], bool | None]) -> int:
    """Returns the first unit in low..high - 1 that is not in front, by binary search; `high` if all are.
    is_in_front: None for a unit that was never written. It is like the first one of the next file, which no
    lost page can have in part; if there is none, it is behind."""
    while low < high:
        middle = number = (low + high) // 2
        while (answer := is_in_front(number)) is None:
            number = (number // file_units + 1) * file_units
            if number >= high:
                break
        low, high = (number + 1, high) if answer else (low, middle)
    return low
