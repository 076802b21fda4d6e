"""The content of a source file as blocks of bytes, decompressed, and as decoded lines."""

import hashlib
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from isal import isal_zlib
from isal.isal_zlib import IsalError

from analytics.compaction.decode import BAD_LISTED_MAX, LINE_BYTES_MAX, TOO_LONG, BadLine, decode_lines
from analytics.compaction.scan import SourceFile

BLOCK_BYTES = 1 << 20
"""Measured: the records of larger blocks do not fit the processor's cache."""
HEAD_BYTES = 4_096

_DAMAGED: tuple[type[Exception], ...] = (OSError, EOFError, zlib.error, IsalError, pa.ArrowInvalid)  # type: ignore[assignment]


@dataclass(slots=True)
class ReadResult:
    """The result of reading a file. `read_bytes`: up to the end of the last line that counts. `error`: why
    the rest could not be read; `failed`: probably for another reason than damage."""

    lines: int = 0
    read_bytes: int = 0
    bad: Counter[str] = field(default_factory=Counter)
    bad_lines: list[BadLine] = field(default_factory=list)
    error: str = ""
    failed: bool = False
    head: str = ""
    """A digest of the first bytes."""


def read_lines(source: SourceFile, start: int, add: Callable[[pa.Table], None]) -> ReadResult:
    """Decodes the file from the byte `start` and calls `add` with the rows of each block.

    Raises OSError if the file cannot be opened; a later error is in the result, and what was read counts.
    """
    result = ReadResult(read_bytes=start)
    rest, skips = b"", False
    with source.open() as file:
        result.head = _digest(file, source.size_bytes)
        file.seek(0)
        for block in _blocks(file, source, start, result):
            if skips:  # to the end of a line that is too long
                end = block.find(b"\n") + 1
                result.read_bytes += end or len(block)
                skips, block = not end, block[end:] if end else b""
            data = rest + block if rest else block
            rest = data[_decode(data, source, result, add, closed=False) :]
            if len(rest) > LINE_BYTES_MAX:
                _bad(result, [BadLine(result.read_bytes, TOO_LONG, f"over {LINE_BYTES_MAX} bytes")])
                result.read_bytes += len(rest)
                rest, skips = b"", True
    if rest and not source.grows and not result.error:
        _decode(rest, source, result, add, closed=True)
    return result


def head_digest(source: SourceFile, size_bytes: int) -> str:
    """Returns the digest of the first bytes that the file had when it had `size_bytes`. Raises OSError."""
    with source.open() as file:
        return _digest(file, size_bytes)


def _digest(file: Any, size_bytes: int) -> str:
    return hashlib.blake2b(file.read(min(size_bytes, HEAD_BYTES)), digest_size=8).hexdigest()


def _decode(
    data: bytes, source: SourceFile, result: ReadResult, add: Callable[[pa.Table], None], *, closed: bool
) -> int:
    """Returns the number of bytes that are decoded."""
    decoded = decode_lines(data, source.kind, first_offset=result.read_bytes, closed=closed)
    result.read_bytes += decoded.consumed
    result.bad += decoded.bad
    result.bad_lines += decoded.bad_lines[: BAD_LISTED_MAX - len(result.bad_lines)]
    result.lines += len(decoded.rows)
    if len(decoded.rows):
        add(decoded.rows)
    return decoded.consumed


def _bad(result: ReadResult, lines: list[BadLine]) -> None:
    result.bad.update(each.reason for each in lines)
    result.bad_lines += lines[: BAD_LISTED_MAX - len(result.bad_lines)]


def _blocks(file: Any, source: SourceFile, start: int, result: ReadResult) -> Iterator[bytes]:
    """Yields the blocks; an error ends them and is in the result."""
    try:
        if source.compression == "gz":
            yield from _gunzip(file)
        elif source.compression == "zst":
            with pa.CompressedInputStream(file, "zstd") as stream:
                while block := stream.read(BLOCK_BYTES):
                    yield block
        else:
            file.seek(start)
            left = source.size_bytes - start  # a growing file is read up to the size that is noted
            while left > 0 and (block := file.read(min(left, BLOCK_BYTES))):
                left -= len(block)
                yield block
    except _DAMAGED as error:
        result.failed = isinstance(error, OSError)  # a network error; zstd reports damage as OSError, too
        result.error = f"readable up to byte {result.read_bytes} only: {error}"


def _gunzip(file: Any) -> Iterator[bytes]:
    """Yields all that can be decompressed, in blocks; gzip.GzipFile does not return the last part of a
    damaged file. Raises EOFError if the file ends early, IsalError if it is damaged."""
    member = None
    while data := file.read(BLOCK_BYTES // 4):
        while data:
            if member is None:
                member = isal_zlib.decompressobj(wbits=31)
            block = member.decompress(data, BLOCK_BYTES)
            while len(block) == BLOCK_BYTES and not member.eof:
                yield block
                block = member.decompress(member.unconsumed_tail, BLOCK_BYTES)
            if block:
                yield block
            data = member.unconsumed_tail
            if member.eof:
                data, member = member.unused_data.lstrip(b"\0"), None  # zeros: padding
    if member is not None:
        raise EOFError("the compressed file ends early")
