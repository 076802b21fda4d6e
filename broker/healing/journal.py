"""The journal of a healing: the new bytes of a range, durable before the first of them is written into the
log.

healJournal in the store's directory: the CRC-32 of what follows, 8 hex digits and a blank, then a MessagePack
array (start offset, epochs of the bytes, bytes). One range at a time. A journal that was not written as a
whole fails its checksum: then the log is unchanged.
"""

import os
import zlib
from pathlib import Path
from typing import Final

import msgspec

from broker.healing.evidence import Piece
from broker.store.log.mapped_file import sync_directory

FILE_NAME: Final = "healJournal"
_PREFIX_BYTES: Final = 9


class _Entry(msgspec.Struct, frozen=True, array_like=True):
    start: int
    epochs: tuple[tuple[int, int], ...]
    data: bytes


class HealJournal:
    """The journal of the store at `root`. All methods raise OSError, and may run in any thread."""

    def __init__(self, root: Path) -> None:
        self._path = root / FILE_NAME

    def write(self, piece: Piece) -> None:
        """Makes the piece durable in the journal."""
        body = msgspec.msgpack.encode(_Entry(piece.start, piece.epochs, piece.data))
        with self._path.open("wb") as file:
            file.write(b"%08x " % zlib.crc32(body) + body)
            file.flush()
            os.fsync(file.fileno())
        sync_directory(self._path.parent)

    def read(self) -> Piece | None:
        """Returns the piece of an interrupted healing; None: there is none, or it was not written as a
        whole."""
        try:
            raw = self._path.read_bytes()
        except FileNotFoundError:
            return None
        body = raw[_PREFIX_BYTES:]
        if raw[:_PREFIX_BYTES] != b"%08x " % zlib.crc32(body):
            return None
        try:
            entry = msgspec.msgpack.decode(body, type=_Entry)
        except msgspec.DecodeError:
            return None
        return Piece(entry.start, entry.data, entry.epochs)

    def clear(self) -> None:
        """Deletes the journal durably."""
        if self._path.exists():
            os.unlink(self._path)
            sync_directory(self._path.parent)
