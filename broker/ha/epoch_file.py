"""epochFileCheckpoint: the epochs of the log on disk, readable by RocketMQ's tools.

    number of entries
    CRC-32 & 0x7FFFFFFF of all entry lines with their line ends (0: do not check)
    epoch-startOffset        one line each

Written aside, synced, then renamed over the old file; the version before stays as .bak, for people. We never
fall back to it by ourselves, as the peer does: a list that lacks its last epoch takes that epoch's bytes for
older ones, and the truncation would keep bytes that no other replica has.
"""

import os
import zlib
from pathlib import Path

from broker.ha.core.epochs import Epochs


class EpochFileError(Exception):
    """The file cannot be believed; the text says why and what to do."""


def encode_epochs(epochs: Epochs) -> bytes:
    lines = "".join(f"{epoch}-{start}\n" for epoch, start in epochs.pairs).encode()
    return b"%d\n%d\n" % (len(epochs.pairs), zlib.crc32(lines) & 0x7FFFFFFF) + lines


def decode_epochs(content: bytes) -> Epochs:
    """ValueError if the content is cut, altered or not an epoch file. Line ends may be of either kind."""
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
    """One path; load() once, save() on every change."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._backup = path.with_name(path.name + ".bak")

    def load(self) -> Epochs:
        """Empty if neither file exists. EpochFileError if what exists cannot be believed."""
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
            f" {self._backup} holds the version before the last change; it is right only if no epoch began"
            " since"
        )

    def save(self, epochs: Epochs) -> None:
        """Durable when it returns. An empty list is written too (the peer keeps the old entries then)."""
        content = encode_epochs(epochs)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        aside = self.path.with_name(self.path.name + ".tmp")
        with open(aside, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        self._keep_backup()
        os.replace(aside, self.path)
        _sync_directory(self.path.parent)

    def _keep_backup(self) -> None:
        """The present version under the second name too; a damaged one never replaces a good .bak."""
        try:
            decode_epochs(self.path.read_bytes())
        except (FileNotFoundError, ValueError):
            return
        link = self._backup.with_name(self._backup.name + ".tmp")
        link.unlink(missing_ok=True)
        os.link(self.path, link)
        os.replace(link, self._backup)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
