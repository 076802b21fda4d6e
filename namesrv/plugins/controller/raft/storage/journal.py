"""Journal: the raft log on disk, and the vote file next to it.

No record is rewritten in place, and no record counts as durable before fdatasync.

    journal = MAGIC record* zeros*        record, little endian:

      0        4        8        12                20                28                36
      +--------+--------+--------+-----------------+-----------------+-----------------+-----------+
      | "KRec" | length | crc32  | index           | term            | synced offset   | command   |
      +--------+--------+--------+-----------------+-----------------+-----------------+-----------+
                          crc32 of everything after it; `length` is the command's

`synced offset`: the length of the durable part of the file when the record was written. Recovery uses it to
distinguish a torn tail (never acknowledged: it is truncated) from a damaged record that was durable, as a
later record or the commit index in the vote file proves (the start is refused). Positions are list positions,
not log indexes.

After the log the file contains durable zeros. A record that replaces them changes neither the file size nor
the block map, so its fdatasync has half the work.
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

from keelmq.runtime.histogram import Histogram
from namesrv.plugins.controller.raft.api import EXIT_JOURNAL, EXIT_TRUNCATION, Fatal
from namesrv.plugins.controller.raft.codec import Number
from namesrv.plugins.controller.raft.storage.files import (
    DamagedError,
    open_file,
    replace_file,
    spare_files,
    sync_directory,
    with_checksum,
    without_checksum,
    write_all,
)

logger = logging.getLogger(__name__)

MAGIC = b"KeelRJ1\n"
MARK = b"KRec"
HEAD = struct.Struct("<4sIIQQQ")
CRC_FROM = 12  # crc32 covers the record from here
COMMAND_BYTES_MAX = 64 * 1024 * 1024
WRITE_AT_BYTES = 1024 * 1024  # more buffered records than this are written (not synced) at once
RESERVE_BYTES_MIN, RESERVE_BYTES_MAX = 16 * 1024, 1024 * 1024
"""Zeros are added in runs of the size of the log, within these bounds."""

LogEntry = tuple[bytes, int, int]  # (command, index, term): the library's shape


class LogObserver(Protocol):
    """Called for every appended or removed entry, before it counts for a majority."""

    def appended(self, command: bytes, index: int, term: int) -> None:
        """An entry was appended; `command` as the library encodes it."""
        ...

    def cut(self, first: int) -> None:
        """The entries from index `first` on were removed."""
        ...

    def cleared(self) -> None:
        """All entries were removed."""
        ...


class _Vote(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    term: Number
    voted_for: str | None
    commit_index: Number


class Journal:
    """Implements pysyncobj's journal interface. Raft thread only."""

    def __init__(
        self, path: Path, *, fatal: Fatal, sync: bool = True, observer: LogObserver | None = None
    ) -> None:
        self._path, self._vote_path = path, path.with_suffix(".vote")
        self._fatal, self._fdatasync, self._observer = fatal, sync, observer
        self._entries: list[LogEntry] = []
        self._offsets: list[int] = []
        self._buffer = bytearray()
        self._end = self._written = self._synced = (
            0  # ends: of the log; of its written part; of its durable part
        )
        self._reserved = 0  # end of the zeros after it
        self._rewrite_due = self._vote_due = False
        self._is_torn = False  # bytes behind the last entry are cut off before anything is written
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
        """Reads the records and cuts off a torn tail. Raises DamagedError: a durable record is damaged."""
        if data[: len(MAGIC)] != MAGIC:
            if len(data) > len(MAGIC) or not MAGIC.startswith(data.rstrip(b"\0")):
                raise DamagedError(f"{self._path}: not a raft journal of this version")
            self._create()  # a crash during its creation: only the size was durable
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
        self._is_torn = True  # not yet: align() may refuse the start, which must change nothing then

    def _drop_torn(self) -> None:
        if self._is_torn:
            os.ftruncate(self._file, self._synced)
            self._is_torn = False

    def align(self, previous: LogEntry | None, last: LogEntry | None) -> None:
        """Removes the entries that the snapshot covers. Call it once after opening.

        `previous` and `last` are the last two entries of the snapshot; None: there is no snapshot. Otherwise
        the library would clear the whole journal, including acknowledged entries after the snapshot. Raises
        DamagedError: there is a gap between the two, or both end before the stored commit index.
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
        self._drop_torn()
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
        """Appends an entry in memory; sync() makes it durable."""
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
        """Removes all entries. The next sync() replaces the file in one step. Until then the old file
        remains: after a crash, align() works with it and the new snapshot."""
        self._entries, self._offsets = [], []
        self._buffer.clear()
        self._end, self._rewrite_due = len(MAGIC), True
        if self._observer is not None:
            self._observer.cleared()

    def deleteEntriesFrom(self, position: int) -> None:
        """Removes conflicting entries, durably: no old record may remain behind newer ones."""
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
        """Compaction: removes the entries before `position` with a new file."""
        del self._entries[:position]
        self._rewrite()

    def setRaftCommitIndex(self, index: int) -> None:
        """Syncs the entries; the vote file stores the index within a second."""
        if index != self._commit_index:
            self.sync()
            self._commit_index, self._vote_due = index, True

    def getRaftCommitIndex(self) -> int:
        """Returns the commit index, at the start the stored one."""
        return self._commit_index

    def setCurrentTerm(self, term: int, voted_for: str | None) -> None:
        """Stores term and vote, durably, before the library sends the vote."""
        self.sync()
        self._term, self._voted_for = term, voted_for
        self._store_vote()

    def getCurrentTerm(self) -> int:
        """Returns the current term, at the start the stored one."""
        return self._term

    def getVotedForNodeId(self) -> str | None:
        """Returns the member that got this term's vote; None: no vote was given."""
        return self._voted_for

    def onOneSecondTimer(self) -> None:
        """Stores a new commit index. The library calls it once a second."""
        spare_files.refill()
        if self._vote_due:
            self._store_vote()

    def close(self) -> None:
        """Writes what is pending, gives the reserved zeros back and closes the file. May be called twice."""
        if self._file >= 0:
            self.sync()
            self.onOneSecondTimer()
            if self._reserved > self._end:
                os.ftruncate(self._file, self._end)
            os.close(self._file)
            self._file = -1

    def _destroy(self) -> None:
        """PySyncObj's name for it."""
        self.close()

    # ------------------------------------------------------------------ disk
    @property
    def file_bytes(self) -> int:
        """Length of the log in the file, without the zeros after it."""
        return self._end

    def sync(self) -> None:
        """Makes all appended entries durable with one fdatasync."""
        if self._rewrite_due:
            self._rewrite()
        elif self._end != self._synced:
            self._drop_torn()
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
        """Writes durable zeros after the log. If they do not fit on the disk, the next records may still fit.
        The fsync covers records as well that were written but not synced yet. The kernel reports a lost page
        only once: "no space" may be about those records, and a later fdatasync would succeed without them."""
        size, is_syncing = min(max(self._end, RESERVE_BYTES_MIN), RESERVE_BYTES_MAX), False
        try:
            write_all(self._file, bytes(size), self._end)
            is_syncing = True
            if self._fdatasync:
                os.fsync(self._file)
        except OSError as error:
            is_about_records = is_syncing and self._written > self._synced
            if is_about_records or error.errno not in (errno.ENOSPC, errno.EDQUOT):
                self._failed(error)
            os.ftruncate(self._file, max(self._written, self._reserved))
            return
        self._reserved = self._end + size

    def _write(self) -> None:
        try:
            self._drop_torn()
            write_all(self._file, self._buffer, self._written)
        except OSError as error:
            self._failed(error)
        self._written += len(self._buffer)
        self._buffer.clear()

    def _rewrite(self) -> None:
        data, offsets = bytearray(MAGIC), []
        # the file is renamed only when all of it is durable, so each record may state the whole length
        durable = len(MAGIC) + sum(HEAD.size + len(command) for command, _, _ in self._entries)
        for command, index, term in self._entries:
            offsets.append(len(data))
            data += pack_record(command, index, term, durable)
        try:
            file = replace_file(self._path, data, ".new", sync=self._fdatasync, keep_open=True)
            os.close(self._file)
        except OSError as error:
            self._failed(error)
        self._file, self._offsets, self._rewrite_due, self._is_torn = file, offsets, False, False
        self._buffer.clear()
        self._end = self._written = self._synced = self._reserved = len(data)

    def _store_vote(self) -> None:
        body = msgspec.msgpack.encode(_Vote(self._term, self._voted_for, self._commit_index))
        try:
            replace_file(self._vote_path, with_checksum(body), ".vote.new", sync=self._fdatasync)
        except OSError as error:
            self._failed(error, self._vote_path)
        self._vote_due = False

    def _read_vote(self) -> _Vote:
        if not self._vote_path.exists():
            return _Vote(0, None, 1)
        body = without_checksum(self._vote_path.read_bytes())
        if body is None:
            raise DamagedError(f"{self._vote_path}: damaged; this member's last vote is unknown")
        try:
            return msgspec.msgpack.decode(body, type=_Vote)
        except msgspec.MsgspecError as error:
            raise DamagedError(f"{self._vote_path}: {error}") from None

    def _failed(self, error: OSError, path: Path | None = None) -> None:
        # after a failed write or sync the content of the disk is unknown until the next start reads it
        self._fatal(EXIT_JOURNAL, f"{path or self._path}: {os.strerror(error.errno or 0)}")


def pack_record(command: bytes, index: int, term: int, synced: int) -> bytes:
    """Returns the bytes of one record. `synced`: length of the durable part of the file."""
    tail = HEAD.pack(MARK, len(command), 0, index, term, synced)[CRC_FROM:] + command
    return MARK + struct.pack("<II", len(command), zlib.crc32(tail)) + tail


def parse_record(data: bytes, position: int) -> tuple[LogEntry, int] | None:
    """Returns (entry, synced offset) of the record at `position`; None: no whole record is there."""
    if position + HEAD.size > len(data):
        return None
    mark, length, crc, index, term, synced = HEAD.unpack_from(data, position)
    end = position + HEAD.size + length
    if mark != MARK or length > COMMAND_BYTES_MAX or end > len(data):
        return None
    if zlib.crc32(memoryview(data)[position + CRC_FROM : end]) != crc:
        return None
    return (data[position + HEAD.size : end], index, term), synced
