"""epochFileCheckpoint: the epochs of the log on disk, readable by RocketMQ's tools.

    number of entries
    CRC-32 & 0x7FFFFFFF of all entry lines with their line ends (0: do not check)
    epoch-startOffset        one line each

The previous version stays as .bak, for operators. Unlike RocketMQ, the broker never falls back to it: a list
without its last epoch would assign that epoch's bytes to an older one, and the truncation would keep bytes
that no other replica has.
"""

import zlib
from pathlib import Path

from broker.ha.core.epochs import Epochs
from keelmq.runtime.durable_file import backup_of, replace_file


class EpochFileError(Exception):
    """The file cannot be trusted; the text says why and what to do."""


def encode_epochs(epochs: Epochs) -> bytes:
    """Returns the content of the file for these epochs."""
    lines = "".join(f"{epoch}-{start}\n" for epoch, start in epochs.pairs).encode()
    return b"%d\n%d\n" % (len(epochs.pairs), zlib.crc32(lines) & 0x7FFFFFFF) + lines


def decode_epochs(content: bytes) -> Epochs:
    """Parses the content of the file; lines may end with LF or CRLF. Raises ValueError if it is truncated,
    altered or no epoch file."""
    head = content.split(b"\n", 2)
    if len(head) < 3:
        raise ValueError("fewer than two lines")
    count, crc, body = int(head[0]), int(head[1]), head[2]
    if crc and zlib.crc32(body) & 0x7FFFFFFF != crc:
        raise ValueError(f"checksum {zlib.crc32(body) & 0x7FFFFFFF}, the file says {crc}")
    pairs = [_pair(line) for line in body.decode("ascii").splitlines() if line]
    if len(pairs) != count:
        raise ValueError(f"{len(pairs)} entries, the file says {count}")
    return Epochs.of(pairs)


def _pair(line: str) -> tuple[int, int]:
    epoch, _, start = line.partition("-")
    return int(epoch), int(start)


class EpochFile:
    """The file at one path: load() once, save() on every change."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._backup = backup_of(path)

    def load(self) -> Epochs:
        """Returns the epochs on disk; no epochs if neither the file nor its .bak exists. Raises
        EpochFileError if the file is damaged, or missing beside its .bak."""
        try:
            return decode_epochs(self.path.read_bytes())
        except FileNotFoundError:
            fault = "missing, although its .bak exists"
            if not self._backup.exists():
                return Epochs()
        except ValueError as error:
            fault = str(error)
        raise EpochFileError(
            f"{self.path}: {fault}. Restore it, or use `keelmq repair` on the stopped broker."
            f" {self._backup} has the version before the last change; it is right only if no epoch has begun"
            " since then"
        )

    def save(self, epochs: Epochs) -> None:
        """Replaces the file durably. Raises OSError. An empty list is written, too (RocketMQ keeps the old
        entries)."""
        replace_file(self.path, encode_epochs(epochs), keep_backup=self._is_readable())

    def _is_readable(self) -> bool:
        """Returns whether the file can be read: a damaged one must not replace a good .bak."""
        try:
            decode_epochs(self.path.read_bytes())
        except (FileNotFoundError, ValueError):
            return False
        return True
