"""The sizes of a store's fixed-size files, and whether a configured size fits them. Only reads.

All files of one kind have one size, and the name of a file is the offset of its first byte. Two files may be
shorter: an empty one, which a crash left before it got its size, and the last one of its directory, which a
cut or a restore ends behind its last record. So the only file of a directory, if it is short, fits the
configured size if it ends in unwritten bytes and, in the log, has whole sectors.

A file of a queue may also have lost its end, since its entries are rebuilt from the log. No size ends within
an entry. Any other short file has lost its end if the size is known to be right: the broker that ran last had
it, or another file proves it, see FileKind.is_proved(). Otherwise the configured size may be the wrong one.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from broker.store.log.mapped_file import StoreError, is_log_file_name

SIZES_TRIED_MAX: Final = 8
LOG_END_BYTES: Final = 8
"""A file of the log has this many bytes behind its last record, and no record ends in as many zeros."""
SECTOR_BYTES: Final = 512
"""A file of the log with another size was shortened by a power cut: such sizes are never configured."""
LOST_FILES_MAX: Final = 10_000
"""Between two files of a queue: more are the sign of a file with a wrong name."""


_WITHOUT_IT: Final = (
    "the broker then serves the rest of the log, and copies these messages from a replica that has them"
)


def _is_most_common(file_bytes: int, counts: Mapping[int, int]) -> bool:
    """Whether a file has this size, and no other size is more common."""
    return 0 < counts.get(file_bytes, 0) == max(counts.values(), default=0)


class SizedFile:
    """A file of the log or of a queue. start: the offset in its name; size: its bytes."""

    __slots__ = ("_path", "size", "start", "status")

    def __init__(self, path: str, start: int, status: os.stat_result) -> None:
        self._path, self.start, self.size, self.status = path, start, status.st_size, status

    @property
    def path(self) -> Path:
        """The file's path."""
        return Path(self._path)

    @property
    def end(self) -> int:
        """The offset behind its last byte."""
        return self.start + self.size

    def has_empty_end(self, count: int) -> bool:
        """Whether its first `count` bytes have content, and its last ones have none. OSError: it cannot be
        read."""
        with self.path.open("rb") as file:
            if not any(file.read(count)):
                return False
            file.seek(max(self.size - count, 0))
            return not any(file.read(count))


def sized_files(directory: Path | str) -> list[SizedFile]:
    """The files of the directory by ascending start offset; [] if there is none. Other names are skipped."""
    try:
        entries = os.scandir(directory)
    except FileNotFoundError:
        return []
    with entries:
        found = [
            SizedFile(entry.path, int(entry.name), entry.stat())
            for entry in entries
            if is_log_file_name(entry.name)
        ]
    return sorted(found, key=lambda file: file.start)


class FileKind:
    """Files that have one size: those of queues with entries of unit_bytes, or, without them, those of the
    log. setting: the key of the size."""

    def __init__(self, setting: str, file_bytes: int, unit_bytes: int | None = None) -> None:
        self.setting, self.file_bytes = setting, file_bytes
        self.unit_bytes, self._has_gaps = unit_bytes or 1, unit_bytes is not None
        self._whole_bytes = unit_bytes or SECTOR_BYTES
        self._end_bytes = unit_bytes or LOG_END_BYTES

    def used(self, files: Sequence[SizedFile]) -> list[SizedFile]:
        """Returns the files of one directory without the empty ones that a start removes. A lost file of a
        queue is replaced by a sparse one, one of the log is not."""
        if self._has_gaps:
            return [file for file in files if file.size]
        end = len(files)
        while end and not files[end - 1].size:
            end -= 1
        return list(files[:end])

    def misfit(
        self, files: Sequence[SizedFile], file_bytes: int, *, is_proved: bool = False
    ) -> SizedFile | None:
        """Returns the first of the used files of one directory that cannot be one of `file_bytes`. is_proved:
        the files have this size, so a shorter one of a queue, or the only one of the log, has lost its
        end."""
        for file in files:
            if file.size > file_bytes or file.start % file_bytes:
                return file
            if file.size == file_bytes or (self._has_gaps and (is_proved or file.size % self.unit_bytes)):
                continue
            if file is not files[-1] or (len(files) == 1 and not is_proved and self._is_whole(file)):
                return file
        return None

    def is_proved(self, file_bytes: int, counts: Mapping[int, int]) -> bool:
        """Whether files of queues have this size: at least one has it, and no other size is more common.
        counts: of the files of all directories, by size."""
        return self._has_gaps and _is_most_common(file_bytes, counts)

    def _is_whole(self, file: SizedFile) -> bool:
        return file.size % self._whole_bytes == 0 and file.has_empty_end(self._end_bytes)

    def out_of_place(self, files: Sequence[SizedFile]) -> tuple[SizedFile, SizedFile] | None:
        """Returns the first two files of one directory of which the second does not continue the first."""
        for before, file in pairwise(files):
            lost = (file.start - before.start) // self.file_bytes - 1
            if lost > (LOST_FILES_MAX if self._has_gaps else 0):
                return before, file
        return None

    def check(
        self, directories: Iterable[Sequence[SizedFile]], how_to_mend: str, *, is_size_sure: bool = False
    ) -> None:
        """Raises StoreError if the configured size does not fit all files, with the size that fits.
        directories: all of the store; or some, after a check of all has passed. is_size_sure: it has passed,
        or the broker that ran last had this size. how_to_mend: the remedy if no size fits."""
        found = [self.used(files) for files in directories]
        counts = Counter(file.size for files in found for file in files)
        is_proved = is_size_sure or self.is_proved(self.file_bytes, counts)
        misfits = (self.misfit(files, self.file_bytes, is_proved=is_proved) for files in found)
        wrong = next((file for file in misfits if file is not None), None)
        if wrong is not None and wrong.size == self.file_bytes:
            raise StoreError(f"{wrong.path} does not continue the files in front of it: {how_to_mend}")
        if (
            wrong is not None
            and not self._has_gaps
            and self._has_lost_end(wrong, found, counts, is_size_sure)
        ):
            raise StoreError(self._lost_end(wrong))
        if wrong is not None:
            raise StoreError(
                f"{wrong.path} has {wrong.size} bytes, {self.setting} says {self.file_bytes}: "
                + self._advice(counts, found, how_to_mend)
            )
        for files in found:
            if pair := self.out_of_place(files):
                raise StoreError(self._missing(*pair, how_to_mend))

    def _has_lost_end(
        self,
        wrong: SizedFile,
        directories: Sequence[Sequence[SizedFile]],
        counts: Mapping[int, int],
        is_size_sure: bool,
    ) -> bool:
        """Whether the file is too short, and so would be with every size that may be right."""
        is_large = any(file.size > self.file_bytes for files in directories for file in files)
        return (
            not is_large
            and wrong.size < self.file_bytes
            and (is_size_sure or _is_most_common(self.file_bytes, counts))
        )

    def _lost_end(self, file: SizedFile) -> str:
        """Returns the remedy for a file of the log that has lost its end, and is not the last one."""
        end = file.start + self.file_bytes
        return (
            f"{file.path} has {file.size} of {self.file_bytes} bytes: it has lost its end, after a power"
            f" failure or a fault of the disk. The messages at {file.end}..{end} were there. Restore it from"
            f" a copy of this store. If there is none, give it its size (truncate -s {self.file_bytes}"
            f" {file.path}): {_WITHOUT_IT}"
        )

    def _missing(self, before: SizedFile, file: SizedFile, how_to_mend: str) -> str:
        """Returns which files are missing between the two, and the remedy."""
        begin = before.start + self.file_bytes
        missing = before.path.with_name(f"{begin:020d}")
        lost = (file.start - begin) // self.file_bytes
        more = f" and {lost - 1} behind it are" if lost > 1 else " is"
        text = (
            f"{file.path} does not continue {before.path}: {missing}{more} missing after a"
            " power failure or a fault of the disk, or its name is wrong: "
        )
        if self._has_gaps:
            return text + how_to_mend
        each = "it" if lost == 1 else "each"
        return (
            f"{text}the messages at {begin}..{file.start} were there. Restore {each} from a copy of this "
            f"store. If there is none, make {each} anew from zeros (truncate -s {self.file_bytes} {missing})"
            f": {_WITHOUT_IT}"
        )

    def _advice(
        self, counts: Counter[int], directories: Sequence[Sequence[SizedFile]], how_to_mend: str
    ) -> str:
        fitting = list(self._fitting(counts, directories))
        if len(fitting) == 1:
            return f"the files have {fitting[0]} bytes: set {self.setting}={fitting[0]}"
        sizes = ", ".join(f"{count} of {size} bytes" for size, count in counts.most_common(SIZES_TRIED_MAX))
        return f"no size fits all files ({sizes}): {how_to_mend}"

    def _fitting(self, counts: Counter[int], directories: Sequence[Sequence[SizedFile]]) -> Iterator[int]:
        for size, _ in counts.most_common(SIZES_TRIED_MAX):
            is_proved = self.is_proved(size, counts)
            if size % self.unit_bytes == 0 and not any(
                self.misfit(files, size, is_proved=is_proved) for files in directories
            ):
                yield size
