"""The raft log on disk, and the vote beside it. Never rewritten in place, never trusted before fdatasync.

    journal = MAGIC record* zeros*        record, little endian:

      0        4        8        12                20                28                36
      +--------+--------+--------+-----------------+-----------------+-----------------+-----------+
      | "KRec" | length | crc32  | index           | term            | synced offset   | command   |
      +--------+--------+--------+-----------------+-----------------+-----------------+-----------+
                          crc32 of everything after it; `length` is the command's

`synced offset` is how far the file was durable when the record was written. So recovery can tell a torn tail
(never acknowledged: cut it) from a damaged record that had been durable (refuse to start): in the second case
a later record, or the commit index in the vote file, proves it. Positions are list positions, not indexes.

Behind the log the file has zeros that are durable already: a record that replaces them changes no size and no
block map, and its fdatasync has half the work.
"""

import contextlib
import errno
import logging
import os
import struct
import time
import zlib
from pathlib import Path
from typing import Protocol, overload

import msgspec

from namesrv.plugins.controller.raft.codec import Number
from namesrv.plugins.controller.raft.fatal import EXIT_JOURNAL, EXIT_TRUNCATION, Fatal
from namesrv.plugins.controller.raft.files import (
    DamagedError,
    open_file,
    replace_file,
    seal,
    spare_files,
    sync_directory,
    unseal,
    write_all,
)
from remoting.histogram import Histogram

logger = logging.getLogger(__name__)

MAGIC = b"KeelRJ1\n"
MARK = b"KRec"
HEAD = struct.Struct("<4sIIQQQ")
CRC_FROM = 12  # crc32 covers the record from here
COMMAND_BYTES_MAX = 64 * 1024 * 1024
WRITE_AT_BYTES = 1024 * 1024  # buffered records beyond this are written (not synced) at once
RESERVE_BYTES_MIN, RESERVE_BYTES_MAX = 16 * 1024, 1024 * 1024  # zeros added at once: as much as there is

LogEntry = tuple[bytes, int, int]  # (command, index, term): the library's shape


class LogObserver(Protocol):
    """Hears of every entry that comes or goes, before anybody counts it."""

    def appended(self, command: bytes, index: int, term: int) -> None: ...
    def cut(self, first: int) -> None: ...
    def cleared(self) -> None: ...


class _Vote(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    term: Number
    voted_for: str | None
    commit_index: Number


class Journal:
    """Implements what pysyncobj calls on a journal. One thread."""

    def __init__(
        self, path: Path, *, fatal: Fatal, sync: bool = True, observer: LogObserver | None = None
    ) -> None:
        self._path, self._vote_path = path, path.with_suffix(".vote")
        self._fatal, self._fdatasync, self._observer = fatal, sync, observer
        self._entries: list[LogEntry] = []
        self._offsets: list[int] = []
        self._buffer = bytearray()
        self._end = self._written = self._synced = 0  # end of the log; of it on the file; of it durable
        self._reserved = 0  # end of the zeros behind it
        self._rewrite_due = self._vote_due = False
        self.syncs, self.sync_seconds = 0, Histogram()
        self._file = -1
        spare_files.refill()
        vote = self._read_vote()
        self._term, self._voted_for, self._commit_index = vote.term, vote.voted_for, vote.commit_index
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path.with_suffix(".new"))
        fresh = not path.exists()
        self._file = open_file(path, os.O_RDWR | os.O_CREAT)
        try:
            if fresh:
                self._create()
            else:
                self._recover(os.pread(self._file, os.fstat(self._file).st_size, 0))
        except BaseException:
            os.close(self._file)
            raise

    def _create(self) -> None:
        if self._vote_path.exists():
            raise DamagedError(f"{self._path}: missing or empty, although {self._vote_path.name} exists")
        os.pwrite(self._file, MAGIC, 0)
        os.fsync(self._file)
        sync_directory(self._path.parent)
        self._end = self._written = self._synced = len(MAGIC)

    def _recover(self, data: bytes) -> None:
        """Reads what is whole; cuts a torn tail; raises DamagedError when something durable is damaged."""
        if data[: len(MAGIC)] != MAGIC:
            if len(data) > len(MAGIC) or not MAGIC.startswith(data.rstrip(b"\0")):
                raise DamagedError(f"{self._path}: not a raft journal of this version")
            self._create()  # crashed while it was created: of what was written the size came first
            return
        position = len(MAGIC)
        while (record := parse_record(data, position)) is not None:
            entry, _ = record
            if self._entries and entry[1] != self._entries[-1][1] + 1:
                raise DamagedError(f"{self._path}: index {entry[1]} follows {self._entries[-1][1]}")
            self._entries.append(entry)
            self._offsets.append(position)
            position += HEAD.size + len(entry[0])
        if data.count(0, position) < len(data) - position:
            self._cut_tail(data, position)
        else:
            self._reserved = len(data)
        os.fsync(self._file)
        self._end = self._written = self._synced = position
        if self._entries and self._entries[-1][2] > 0 and not self._vote_path.exists():
            raise DamagedError(
                f"{self._vote_path}: missing, although the journal has entries of elected leaders"
            )

    def _cut_tail(self, data: bytes, position: int) -> None:
        claimed = 0
        start = data.find(MARK, position + 1)
        while start >= 0:
            record = parse_record(data, start)
            claimed = max(claimed, record[1] if record else 0)
            start = data.find(MARK, start + 1)
        if claimed > position:
            raise DamagedError(
                f"{self._path}: damaged at offset {position}, in a part that was durable (up to {claimed})"
            )
        logger.warning("%s: cutting %d torn bytes after the last entry", self._path, len(data) - position)
        os.ftruncate(self._file, position)

    def align(self, previous: LogEntry | None, last: LogEntry | None) -> None:
        """Call once after opening, with the two entries at the snapshot's end (None: there is no snapshot).

        Drops what the snapshot covers, as the library would have done had the process lived; else the library
        would clear the whole journal, with acknowledged entries behind the snapshot. Raises DamagedError when
        the two do not meet or end before the stored commit index.
        """
        first_index = self._entries[0][1] if self._entries else 1
        last_index = self._entries[-1][1] if self._entries else 1
        covered = last[1] if last else 1
        if first_index > covered:
            raise DamagedError(f"{self._path}: begins at index {first_index}, the snapshot ends at {covered}")
        if self._commit_index > max(last_index, covered):
            raise DamagedError(
                f"{self._path}: ends at index {last_index}, but index {self._commit_index} was committed here"
            )
        if previous is None or last is None or first_index == previous[1]:
            return
        position = previous[1] - first_index
        if self._entries[position : position + 2] == [previous, last]:
            self.deleteEntriesTo(position)

    # ------------------------------------------------------------------ the library's interface
    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, position: int, /) -> LogEntry: ...
    @overload
    def __getitem__(self, position: slice, /) -> list[LogEntry]: ...
    def __getitem__(self, position: int | slice, /) -> LogEntry | list[LogEntry]:
        return self._entries[position]

    def add(self, command: bytes, index: int, term: int) -> None:
        """To memory and buffer only; sync() makes it durable."""
        self._entries.append((command, index, term))
        self._offsets.append(self._end)
        record = pack_record(command, index, term, self._synced)
        self._buffer += record
        self._end += len(record)
        if len(self._buffer) > WRITE_AT_BYTES and not self._rewrite_due:
            self._write()
        if self._observer is not None:
            self._observer.appended(command, index, term)

    def clear(self) -> None:
        """Everything is replaced by what is added next; the file changes at the next sync, in one step.

        Until then the old journal stays: a crash in between starts with it and the new snapshot (see align).
        """
        self._entries, self._offsets = [], []
        self._buffer.clear()
        self._end, self._rewrite_due = len(MAGIC), True
        if self._observer is not None:
            self._observer.cleared()

    def deleteEntriesFrom(self, position: int) -> None:
        """Cut a conflicting tail, durably: no old record may show up behind newer ones."""
        if position >= len(self._entries):
            return
        if self._entries[position][1] <= self._commit_index:
            self._fatal(
                EXIT_TRUNCATION,
                f"asked to remove entry {self._entries[position][1]}, committed up to {self._commit_index}",
            )
        self.sync()
        cut, first = self._offsets[position], self._entries[position][1]
        try:
            os.ftruncate(self._file, cut)
            self._flush()
        except OSError as error:
            self._failed(error)
        del self._entries[position:], self._offsets[position:]
        self._end = self._written = self._synced = self._reserved = cut
        if self._observer is not None:
            self._observer.cut(first)

    def deleteEntriesTo(self, position: int) -> None:
        """Compaction: a new file takes the old one's place."""
        del self._entries[:position]
        self._rewrite()

    def setRaftCommitIndex(self, index: int) -> None:
        if index != self._commit_index:
            self.sync()
            self._commit_index, self._vote_due = index, True

    def getRaftCommitIndex(self) -> int:
        return self._commit_index

    def setCurrentTerm(self, term: int, voted_for: str | None) -> None:
        """Durable before it returns: the vote leaves the machine next."""
        self.sync()
        self._term, self._voted_for = term, voted_for
        self._store_vote()

    def getCurrentTerm(self) -> int:
        return self._term

    def getVotedForNodeId(self) -> str | None:
        return self._voted_for

    def onOneSecondTimer(self) -> None:
        spare_files.refill()
        if self._vote_due:
            self._store_vote()

    def _destroy(self) -> None:
        if self._file >= 0:
            self.sync()
            self.onOneSecondTimer()
            if self._reserved > self._end:
                os.ftruncate(self._file, self._end)
            os.close(self._file)
            self._file = -1

    # ------------------------------------------------------------------ disk
    @property
    def file_bytes(self) -> int:
        return self._end

    def sync(self) -> None:
        """Everything added so far is durable when this returns; one fdatasync for all of it."""
        if self._rewrite_due:
            self._rewrite()
        elif self._end != self._synced:
            if self._end > self._reserved:
                self._reserve()
            self._write()
            try:
                self._flush()
            except OSError as error:
                self._failed(error)
            self._synced = self._end

    def _flush(self) -> None:
        started = time.perf_counter()
        if self._fdatasync:
            os.fdatasync(self._file)
        self.syncs += 1
        self.sync_seconds.observe(time.perf_counter() - started)

    def _reserve(self) -> None:
        """Durable zeros behind the log. A disk without room for them may still have some for the log."""
        size = min(max(self._end, RESERVE_BYTES_MIN), RESERVE_BYTES_MAX)
        try:
            write_all(self._file, bytes(size), self._end)
            if self._fdatasync:
                os.fsync(self._file)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                self._failed(error)
            os.ftruncate(self._file, max(self._written, self._reserved))
            return
        self._reserved = self._end + size

    def _write(self) -> None:
        try:
            write_all(self._file, self._buffer, self._written)
        except OSError as error:
            self._failed(error)
        self._written += len(self._buffer)
        self._buffer.clear()

    def _rewrite(self) -> None:
        data, offsets = bytearray(MAGIC), []
        # the file gets its name only when it is durable, so each record may claim the whole of it
        durable = len(MAGIC) + sum(HEAD.size + len(command) for command, _, _ in self._entries)
        for command, index, term in self._entries:
            offsets.append(len(data))
            data += pack_record(command, index, term, durable)
        try:
            file = replace_file(self._path, data, ".new", sync=self._fdatasync, keep_open=True)
            os.close(self._file)
        except OSError as error:
            self._failed(error)
        self._file, self._offsets, self._rewrite_due = file, offsets, False
        self._buffer.clear()
        self._end = self._written = self._synced = self._reserved = len(data)

    def _store_vote(self) -> None:
        body = msgspec.msgpack.encode(_Vote(self._term, self._voted_for, self._commit_index))
        try:
            replace_file(self._vote_path, seal(body), ".vote.new", sync=self._fdatasync)
        except OSError as error:
            self._failed(error, self._vote_path)
        self._vote_due = False

    def _read_vote(self) -> _Vote:
        if not self._vote_path.exists():
            return _Vote(0, None, 1)
        body = unseal(self._vote_path.read_bytes())
        if body is None:
            raise DamagedError(f"{self._vote_path}: damaged; this member does not know whom it voted for")
        try:
            return msgspec.msgpack.decode(body, type=_Vote)
        except msgspec.MsgspecError as error:
            raise DamagedError(f"{self._vote_path}: {error}") from None

    def _failed(self, error: OSError, path: Path | None = None) -> None:
        # after a failed write or sync nobody knows what the disk holds: only a new start finds out
        self._fatal(EXIT_JOURNAL, f"{path or self._path}: {os.strerror(error.errno or 0)}")


def pack_record(command: bytes, index: int, term: int, synced: int) -> bytes:
    tail = HEAD.pack(MARK, len(command), 0, index, term, synced)[CRC_FROM:] + command
    return MARK + struct.pack("<II", len(command), zlib.crc32(tail)) + tail


def parse_record(data: bytes, position: int) -> tuple[LogEntry, int] | None:
    """(entry, synced offset) of the record at `position`, None when there is no whole one."""
    if position + HEAD.size > len(data):
        return None
    mark, length, crc, index, term, synced = HEAD.unpack_from(data, position)
    end = position + HEAD.size + length
    if mark != MARK or length > COMMAND_BYTES_MAX or end > len(data):
        return None
    if zlib.crc32(memoryview(data)[position + CRC_FROM : end]) != crc:
        return None
    return (data[position + HEAD.size : end], index, term), synced
