"""Reads ranges of the log, and computes their CRCs, in a thread, to compare replicas while they serve.

It reads the files, not their maps: a map of a file that is truncated meanwhile cannot be read.
"""

import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias, TypeVar

from broker.store.message_store import MessageStore
from keelmq.runtime.tasks import finished_in_thread

T = TypeVar("T")
Files: TypeAlias = Sequence[tuple[int, int, int]]
"""Of each file of a range: descriptor, position, count of bytes."""


class ChecksumError(Exception):
    """The range cannot be read. The text is the reason."""


async def log_crcs(store: MessageStore, start: int, end: int, size: int) -> list[int]:
    """Returns the CRC-32 of each `size` bytes of a range of the log, confirmed or not. Raises
    ChecksumError."""
    return await read_log(store, start, end, lambda files: _piece_crcs(files, size))


async def read_log(store: MessageStore, start: int, end: int, work: Callable[[Files], T]) -> T:
    """Runs `work` in a thread, with the files of a range of the log. Raises ChecksumError."""
    log, cut_count, files = store.commit_log, store.cutter.cut_count, list[tuple[int, int, int]]()
    try:
        while start < end:  # opened now: retention may delete a file meanwhile
            base = start - start % log.file_bytes
            stop = min(end, base + log.file_bytes)
            files.append((log.open_file(start), start - base, stop - start))
            start = stop
        result = await finished_in_thread(lambda: work(files))
    except OSError as error:
        raise ChecksumError(f"the log cannot be read: {error.strerror or error}") from None
    finally:
        for file, _, _ in files:
            os.close(file)
    if store.cutter.cut_count != cut_count:
        raise ChecksumError("the log was truncated meanwhile: repeat it")
    return result


def pieces(files: Files) -> Iterator[bytes]:
    """Yields the bytes of the files, at most 1 MiB at a time. Raises OSError."""
    for file, position, count in files:
        while count:
            piece = os.pread(file, min(count, 1 << 20), position)
            if not piece:
                raise OSError(0, "a file of the log is shorter than it was")
            position, count = position + len(piece), count - len(piece)
            yield piece


def _piece_crcs(files: Files, size: int) -> list[int]:
    """Returns the CRC-32 of each `size` bytes of all files together."""
    crcs, crc, left = list[int](), 0, size
    for piece in pieces(files):
        view = memoryview(piece)
        while view:
            part = view[:left]
            crc, left, view = zlib.crc32(part, crc), left - len(part), view[left:]
            if not left:
                crcs.append(crc)
                crc, left = 0, size
    if left < size:
        crcs.append(crc)
    return crcs
