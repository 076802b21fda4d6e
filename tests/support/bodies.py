"""Compressed bodies as Java producers make them, and 40 that no consumer can inflate."""

import zlib
from collections.abc import Callable
from typing import Final

import lz4.frame
import zstandard

ZLIB, LZ4, ZSTD, OLD = 0x301, 0x101, 0x201, 0x001
"""sysFlag of a body that is compressed; OLD: by a producer that does not name the codec."""


def zstd(body: bytes) -> bytes:
    """Without the content's size and with a checksum, as a stream has it."""
    packer = zstandard.ZstdCompressor(write_checksum=True, write_content_size=False).compressobj()
    return packer.compress(body) + packer.flush()


def lz4_frame(body: bytes) -> bytes:
    """Returns an LZ4 frame with a checksum."""
    packed: bytes = lz4.frame.compress(body, content_checksum=True)
    return packed


PACKERS: Final[dict[int, Callable[[bytes], bytes]]] = {
    OLD: zlib.compress, ZLIB: zlib.compress, LZ4: lz4_frame, ZSTD: zstd,
}  # fmt: skip


def malformed(limit: int) -> list[tuple[str, int, bytes]]:
    """Returns (name, sysFlag, body): none can be inflated to `limit` bytes or fewer."""
    found = list[tuple[str, int, bytes]]()
    for flag, pack in PACKERS.items():
        good = pack(b"the quick brown fox " * 200)
        middle = len(good) // 2
        others = [each for name, each in PACKERS.items() if each is not pack]
        bodies = {
            "bomb": pack(bytes(limit + 1)),
            "large bomb": pack(bytes(40 * limit)),
            "empty": b"",
            "text": b"plain text, which nobody has compressed",
            "first bytes": good[:3],
            "half": good[:middle],
            "cut": good[:-1],
            "flipped checksum": good[:-1] + bytes([good[-1] ^ 1]),
            "other codec": others[-1](b"x" * 500),
            "zeros": bytes(500),
        }
        found += [(f"{flag:#x} {name}", flag, body) for name, body in bodies.items()]
    unknown = [(f"codec {kind}", kind << 8 | 1, zlib.compress(b"x")) for kind in (4, 5, 6, 7)]
    return found + unknown
