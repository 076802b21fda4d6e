"""epochFileCheckpoint: the epochs of the log on disk, readable by RocketMQ's tools.

    number of entries
    CRC-32 & 0x7FFFFFFF of all entry lines with their line ends (0: do not check)
    epoch-startOffset        one line each

The previous version stays as .bak, for operators. Unlike RocketMQ, the broker never falls back to it: a list
without its last epoch would assign that epoch's bytes to an older one, and the truncation would keep bytes
that no other replica has.

A broker writes a new version into the write-ahead file first (epoch_wal.py): that is durable within one
fdatasync, and no caller waits until it is in this file, too. So this file may lack the newest version while a
broker runs, and after a crash. EpochFile.load() handles that; no other code may read the file.
"""

import logging
import zlib
from pathlib import Path

from broker.ha.core.epochs import Epochs
from broker.ha.epoch_wal import CONTENT_BYTES_MAX, EpochRecord, EpochWal, base_of, wal_of
from keelmq.runtime.durable_file import backup_of, replace_file

logger = logging.getLogger(__name__)


class EpochFileError(Exception):
    """The file cannot be trusted; the text has the reason and the remedy."""


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
    """The file at one path, with its write-ahead file. Used by one thread at a time.

    A record is pending until its content is durable in the file: while the file has the content that the
    record supersedes, and while it has the record's own, for a rename may be seen before it is durable.
    Another record is ignored. The file is replaced only while no record is there that supersedes the new
    content, or else that record would come back at the next load: save() of A over B must not leave the
    record that once replaced A by B, so finish() removes every record, durably, before save() replaces.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_pending = False
        """As far as this object knows, a version is in the write-ahead file only: finish() is due."""
        self._is_prepared = False
        self._ahead: bytes | None = None  # the content that save_ahead() wrote, until it is in the file
        self._backup, self._wal = backup_of(path), EpochWal(wal_of(path))

    # -- reading -----------------------------------------------------------------------------------------

    def load(self) -> Epochs:
        """Returns the newest epochs on disk, and changes nothing; no epochs if there never was a file. Raises
        EpochFileError if the file is damaged, or missing beside its .bak or a used write-ahead file, or if
        that one was truncated or lost and may have had a newer version."""
        content = self._content()
        pending = self._pending(content)
        wal_fault = "" if pending is not None else self._wal_fault()
        older = self._backup
        try:
            if pending is not None:
                return decode_epochs(pending)
            if content is not None:
                found = decode_epochs(content)
                if not wal_fault:
                    return found
                older = self.path
            if wal_fault:
                fault = f"{self._wal.path.name} {wal_fault}, and may have had a newer version"
            elif not self._backup.exists() and not self._wal.was_used():
                return Epochs()
            else:
                beside = self._backup if self._backup.exists() else self._wal.path
                fault = f"missing, although {beside.name} exists"
        except ValueError as error:
            fault = str(error)
        hint = (
            f" {older} has the version before the last change; it is right only if no epoch has begun"
            " since then"
        )
        raise EpochFileError(
            f"{self.path}: {fault}. Restore it, or use `keelmq repair` on the stopped broker."
            + (hint if older.exists() else "")
        )

    def load_older(self) -> Epochs:
        """Returns the newest epochs that can be read although load() fails, for a repair: of the record, of
        the file, or of the .bak. They may lack the last epoch. Raises OSError, ValueError."""
        record, content = self._wal.read(), self._content()
        if record is not None:
            return decode_epochs(record.content)
        if content is not None and _is_readable(content):
            return decode_epochs(content)
        return decode_epochs(self._backup.read_bytes())

    def _wal_fault(self) -> str:
        if self._wal.is_cut_short():
            return "was truncated"
        return "is lost" if self._wal.is_lost() else ""

    def _content(self) -> bytes | None:
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return None

    def _pending(self, content: bytes | None) -> bytes | None:
        """Returns the content of the pending record; None: there is none. content: the file's."""
        record = self._wal.read()
        if record is None or (record.base != base_of(content) and record.content != content):
            return None
        return record.content

    # -- writing: all methods raise OSError --------------------------------------------------------------

    def prepare(self) -> None:
        """Call this once before save_ahead(). Makes the result of load() durable, which a killed process may
        have written without syncing it."""
        self.is_pending = self._pending(self._content()) is not None
        self._wal.prepare()
        self._is_prepared = True

    def save_ahead(self, epochs: Epochs) -> None:
        """Makes the epochs durable in the write-ahead file; finish() puts them into the file. Does what
        save() does if there is no write-ahead file, or if it cannot hold them."""
        content = encode_epochs(epochs)
        if not self._is_prepared or len(content) > CONTENT_BYTES_MAX:
            self.save(epochs)
            return
        before = self._content()
        if (pending := self._pending(before)) is not None:
            self._replace(pending)  # the new record overwrites the only durable copy
            before = pending
        self.is_pending = True
        try:
            self._wal.write(EpochRecord(base_of(before), content))
            self._ahead = content
        except OSError as error:
            logger.warning("%s cannot be written (%s): %s is replaced", self._wal.path, error, self.path)
            self.save(epochs)

    def finish(self) -> None:
        """Puts the pending record into the file, and removes any record. A version that this object saved
        ahead is put there even if the record or the file was damaged since."""
        pending = self._ahead or self._pending(self._content())
        if pending is not None:
            self._replace(pending)
        self._wal.clear()
        self.is_pending, self._ahead = False, None

    def save(self, epochs: Epochs) -> None:
        """Replaces the file durably. An empty list is written, too (RocketMQ keeps the old entries)."""
        content = encode_epochs(epochs)
        if self._wal.is_lost() and len(content) <= CONTENT_BYTES_MAX:
            self._wal.create(EpochRecord(base_of(self._content()), content))  # in one step nothing is missed
            self._ahead = content
            self.finish()
            return
        self.finish()
        self._replace(content)
        if self._wal.is_lost():
            self._wal.unmark()

    def close(self) -> None:
        """Does what finish() does. Then the file is complete, and the next start does not need the
        write-ahead file. Call this after the last save; without prepare() it changes nothing."""
        if self._is_prepared:
            self.finish()
            self._wal.unmark()

    def _replace(self, content: bytes) -> None:
        before = self._content()
        # neither a damaged file nor the same version may replace a good .bak
        keep_backup = before is not None and before != content and _is_readable(before)
        replace_file(self.path, content, keep_backup=keep_backup)


def _is_readable(content: bytes) -> bool:
    try:
        decode_epochs(content)
    except ValueError:
        return False
    return True
