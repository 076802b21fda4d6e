"""Inflates compressed bytes up to a limit: zlib, LZ4 frames and Zstandard frames.

Bytes in, bytes out. Everything that others have compressed is inflated here, because some kilobytes can
inflate to gigabytes: no more than the limit, and one block of the codec, is ever held in memory. LZ4's and
Zstandard's libraries are imported with the first body that needs them.
"""

import struct
import zlib
from collections.abc import Callable
from enum import Enum
from typing import Any, Final

PIECE_BYTES: Final = 1 << 16
_ZSTD_RLE: Final = 1
_ZSTD_CHECKSUM_BYTES: Final = 4


class Codec(Enum):
    """The codecs of RocketMQ's compressed bodies, by their names in its producers' `compressType`."""

    ZLIB = "ZLIB"
    LZ4 = "LZ4"
    ZSTD = "ZSTD"


class InflateError(ValueError):
    """The bytes cannot be inflated: they are damaged, or of another codec. The text names the codec."""


class InflatedTooLarge(InflateError):
    """More than the limit."""


def inflated(data: bytes, codec: Codec, limit: int) -> bytes:
    """Returns the inflated bytes, `limit` at most. Bytes behind the compressed ones are ignored.
    InflateError: `data` is damaged or cut. InflatedTooLarge: there are more than `limit` bytes."""
    try:
        found = _INFLATE[codec](data, limit + 1)
    except ImportError as error:
        raise InflateError(f"{codec.value} needs the package {error.name}, which is not installed") from None
    if len(found) > limit:
        raise InflatedTooLarge(f"{codec.value} of {len(data)} bytes inflates to more than {limit} bytes")
    return found


def _zlib(data: bytes, count: int) -> bytes:
    inflate = zlib.decompressobj()
    try:
        found = inflate.decompress(data, count)
    except zlib.error as error:
        raise InflateError(f"not ZLIB: {error}") from None
    if len(found) < count and not inflate.eof:
        raise _cut(Codec.ZLIB)
    return found


def _lz4(data: bytes, count: int) -> bytes:
    import lz4.frame

    inflate: Any = lz4.frame.LZ4FrameDecompressor()  # type: ignore[no-untyped-call]
    left = data

    def read(piece: int) -> bytes:
        nonlocal left
        if inflate.eof:
            return b""
        part: bytes = inflate.decompress(left, max_length=piece)
        left = b""
        return part

    try:
        found = _drained(read, count, len(data))
    except RuntimeError as error:
        raise InflateError(f"not LZ4: {error}") from None
    if len(found) < count and not inflate.eof:
        raise _cut(Codec.LZ4)
    return found


def _zstd(data: bytes, count: int) -> bytes:
    import zstandard

    try:
        end = _frame_end(data, zstandard.frame_header_size(data))
        if end is None:
            raise _cut(Codec.ZSTD)
        with zstandard.ZstdDecompressor().stream_reader(data[:end]) as reader:
            return _drained(reader.read, count, len(data))
    except zstandard.ZstdError as error:
        raise InflateError(f"not ZSTD: {error}") from None


def _frame_end(data: bytes, position: int) -> int | None:
    """Returns where the frame ends; None: it is cut, which zstandard's reader does not report. `position`: of
    the first block. Source: RFC 8878, 3.1.1."""
    checksum_bytes = _ZSTD_CHECKSUM_BYTES if data[4] & 0x04 else 0
    is_last = False
    while not is_last:
        if position + 3 > len(data):
            return None
        (head,) = struct.unpack("<I", data[position : position + 3] + b"\0")
        is_last, kind, size = bool(head & 1), head >> 1 & 3, head >> 3
        position += 3 + (1 if kind == _ZSTD_RLE else size)
    end = position + checksum_bytes
    return end if end <= len(data) else None


def _drained(read: Callable[[int], bytes], count: int, packed_bytes: int) -> bytes:
    """Returns `count` bytes, or fewer if there are no more. Reads in pieces that grow: a decoder reserves as
    much memory as is requested."""
    pieces, size, total = list[bytes](), max(PIECE_BYTES, 4 * packed_bytes), 0
    while total < count:
        piece = read(min(size, count - total))
        if not piece:
            break
        pieces.append(piece)
        total += len(piece)
        size *= 2
    return b"".join(pieces)


def _cut(codec: Codec) -> InflateError:
    return InflateError(f"{codec.value} that is cut")


_INFLATE: Final = {Codec.ZLIB: _zlib, Codec.LZ4: _lz4, Codec.ZSTD: _zstd}
