"""The message index: finds records by key, in IndexFiles in order of their creation; the last one grows.

`offset` is the CommitLog offset up to which records were added. Dispatch adds each record that it passes, and
many are written at once: when a key is searched for, or by the next round of retention. Records that dispatch
passed without adding them (after a crash, or when the index is new) are caught up from the log in slices. So
a full disk stops the index alone, and it continues where it stopped. Owned by the event loop thread; only
flush() may run in another. Source of the format: RocketMQ 5.3.3 IndexService.
"""

import logging
import re
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Final

from broker.message.indexed_keys import Keyed, columns
from broker.message.record import key_hash
from broker.store.index.index_file import IndexFile, file_bytes_of
from broker.store.log.disk_jobs import Job, run
from broker.store.log.mapped_file import StoreError, sync_directory
from keelmq.runtime.clock import wall_ms
from keelmq.runtime.log_context import ContextThreadPool

log = logging.getLogger(__name__)

SLOTS_DEFAULT: Final = 5_000_000
ENTRIES_DEFAULT: Final = 20_000_000
PREPARE_ENTRIES_MIN: Final = 50_000  # smaller files are made on the spot
PREPARE_AT: Final = 0.9  # of a file: the next one is made, in a helper thread
_NAME = re.compile(r"\d{17}\Z")  # yyyyMMddHHmmssSSS, local time
_SNAPSHOT_TRIES: Final = 1_000
PENDING_RECORDS_MAX: Final = 256
"""Records that wait to be written together, in less than a millisecond."""


class MessageIndex:
    """`fault`: why no record can be indexed; empty while the disk has room."""

    def __init__(self, directory: Path, slots: int = SLOTS_DEFAULT, entries: int = ENTRIES_DEFAULT) -> None:
        self.directory = directory
        self.offset = -1  # not loaded
        self.fault = ""
        self._pending: list[Keyed] = []  # in front of `offset`, not in a file yet
        self._written_offset = 0  # no record in the files is at or behind it, between two write_pending()
        self._slots, self._entries = slots, entries
        self.file_bytes = file_bytes_of(slots, entries)
        self._files: list[IndexFile] = []
        self._unsaved: list[IndexFile] = []  # rolled since the last flush()
        self._room_count = 0  # up to which the last file has room
        self._known_offset = -1  # the last record that was indexed before the start
        self._next: Future[IndexFile] | None = None
        self._helper: ContextThreadPool | None = None

    def load(self, log_min: int, log_end: int, *, abnormal: bool, trusted_ms: int | None) -> None:
        """Opens the files. log_min, log_end: where the CommitLog begins and ends. abnormal: after a crash.
        trusted_ms: files with later records are deleted, since another program crashed; None: all files are
        trusted."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for path in self._paths():
            try:
                file = IndexFile(path, self._slots, self._entries)
            except StoreError as error:
                log.warning("%s: it is deleted and rebuilt from the CommitLog", error)
                path.unlink()
                continue
            doubtful = trusted_ms is not None and file.end_timestamp > trusted_ms
            if file.is_empty or doubtful or file.begin_offset >= log_end or file.end_offset < log_min:
                file.delete()
                continue
            if abnormal:
                file.mend_slots()
            self._files.append(file)
        self.offset = log_min
        self.truncate(log_end)
        if self._files:
            self._known_offset = self.offset = max(self._files[-1].end_offset, log_min)
            self._written_offset = self.offset + 1

    @property
    def file_count(self) -> int:
        """How many files there are, each of file_bytes."""
        return len(self._files)

    def _paths(self) -> list[Path]:
        return sorted(path for path in self.directory.iterdir() if _NAME.match(path.name))

    # -- writing -----------------------------------------------------------------------------------------

    def add(self, records: list[Keyed], end: int) -> None:
        """Adds records in log order, the last of which ends at the CommitLog offset `end`. They are kept and
        written many at once, at the latest when a method needs them in the files."""
        if records and records[0][1] <= self._known_offset:
            records = [each for each in records if each[1] > self._known_offset]
        self._pending += records
        self.offset = end
        if len(self._pending) >= PENDING_RECORDS_MAX:
            self.write_pending()

    def write_pending(self) -> None:
        """Writes the records that are kept. Without room on the disk, `offset` goes back to the first record
        that is not indexed. Some keys of that record may then be in the files twice; find() returns it
        once."""
        pending, self._pending = self._pending, []
        if not pending:
            self._written_offset = self.offset
            return
        hashes, offsets, timestamps = columns(pending)
        at, count = 0, len(hashes)
        try:
            while at < count:
                file = self._with_room()
                end = at + min(self._room_count - file.count, count - at)
                file.append(hashes[at:end], offsets[at:end], timestamps[at:end])
                at = end
        except OSError as error:
            self.offset = offsets[at]
            self._write_failed(error)
            return
        self.fault = ""
        self._written_offset = self.offset

    def _with_room(self) -> IndexFile:
        """Returns the file for the next entry, with room for it. OSError: the disk has none."""
        file = self._files[-1] if self._files else self._roll()
        if file.count >= self._room_count:
            if file.count >= file.entries_max:
                self._unsaved.append(file)
                file = self._roll()
            file.make_room(1)
            self._room_count = file.room_count
            self._prepare_next(file)
        return file

    def _prepare_next(self, file: IndexFile) -> None:
        if self._next is not None or file.entries_max < PREPARE_ENTRIES_MIN:
            return
        if file.room_count >= file.entries_max or file.count > file.entries_max * PREPARE_AT:
            if self._helper is None:
                self._helper = ContextThreadPool(1, "index-ahead")
            self._next = self._helper.submit(self._create)

    def _write_failed(self, error: OSError) -> None:
        if not self.fault:
            log.error("no disk space for the message index: %s; new messages cannot be found by key", error)
        self.fault = str(error)

    def _roll(self) -> IndexFile:
        prepared, self._next = self._next, None
        file = self._create() if prepared is None else prepared.result()
        self._files.append(file)
        self._room_count = 0
        return file

    def _create(self) -> IndexFile:
        now = wall_ms()
        last = max(self._paths(), default=None)
        while True:
            seconds, ms = divmod(now, 1000)
            path = self.directory / f"{time.strftime('%Y%m%d%H%M%S', time.localtime(seconds))}{ms:03d}"
            if last is None or path.name > last.name:
                return IndexFile(path, self._slots, self._entries)
            now += 1  # the clock was set back

    # -- reading -----------------------------------------------------------------------------------------

    def find(self, prefix_hash: int, key: bytes, limit: int, begin_ms: int, end_ms: int) -> list[int]:
        """Returns CommitLog offsets, ascending, of at most `limit` records with the key, the newest ones,
        stored from begin_ms to end_ms. Another key may have the same hash, so the caller must check the
        record."""
        if not key:
            return []
        self.write_pending()
        wanted, found = key_hash(prefix_hash, key), set[int]()
        for file in reversed(self._files):
            if len(found) >= limit:
                break
            if file.overlaps(begin_ms, end_ms):
                found.update(file.find(wanted, limit - len(found), begin_ms, end_ms))
        return sorted(found)

    def last(self) -> tuple[int, int]:
        """Returns (store timestamp in ms, offset) of the newest record that is indexed; zeros if none is."""
        self.write_pending()
        return (self._files[-1].end_timestamp, self._files[-1].end_offset) if self._files else (0, 0)

    # -- cutting -----------------------------------------------------------------------------------------

    def truncate(self, offset: int) -> None:
        """Removes the records at or behind `offset`, and deletes files that have no other."""
        run(self.cut(offset))

    def cut(self, offset: int) -> list[Job]:
        """As truncate(), but the returned jobs delete the files: a flush may be using them."""
        jobs: list[Job] = []
        self._pending = [each for each in self._pending if each[1] < offset]
        while self._files and self._files[-1].begin_offset >= offset:
            jobs.append(self._files[-1].delete)
            self._drop(self._files.pop())
        if self._files and self._files[-1].end_offset >= offset:
            self._files[-1].truncate(offset)
        self._room_count = 0
        self._known_offset = min(self._known_offset, offset - 1)
        self.offset = min(self.offset, offset)
        self._written_offset = min(self._written_offset, offset)
        return jobs

    def _drop(self, file: IndexFile) -> None:
        self._unsaved = [
            each for each in self._unsaved if each is not file
        ]  # a new list, since flush() may be reading the old one

    def reset_to(self, offset: int) -> None:
        """Removes all records; the next one is at or behind `offset`."""
        run(self.cut_all(offset))

    def cut_all(self, offset: int) -> list[Job]:
        """As reset_to(); the returned jobs delete the files."""
        jobs = self.cut(0)
        self.offset = offset
        return jobs

    def expired(self, log_min: int) -> list[IndexFile]:
        """Removes the files whose records are all in front of log_min, and returns them. The caller calls
        their delete(), in any thread."""
        self.write_pending()
        gone = []
        while len(self._files) > 1 and self._files[0].end_offset < log_min:
            file = self._files.pop(0)
            self._drop(file)
            gone.append(file)
        self.offset = max(self.offset, log_min)
        return gone

    # -- durability --------------------------------------------------------------------------------------

    def flush(self) -> int:
        """Makes the index durable; any thread, but not beside the jobs of a cut. Returns the store timestamp
        (ms) up to which it is durable."""
        timestamp = 0
        for file in self._dirty():
            for _ in range(_SNAPSHOT_TRIES):
                indexed = self._written_offset
                state = file.state()
                if state[3] < indexed:  # else: in the middle of a record
                    file.save(state)
                    timestamp = state[1]
                    break
        sync_directory(self.directory)
        return timestamp

    def _dirty(self) -> Iterator[IndexFile]:
        unsaved, self._unsaved = self._unsaved, []
        yield from unsaved
        yield from self._files[-1:]

    def close(self) -> None:
        """Closes the files without a flush, and deletes the prepared one."""
        if self._helper is not None:
            self._helper.shutdown(wait=True)
        if self._next is not None and self._next.exception() is None:
            self._next.result().delete()
        while self._files:
            self._files.pop().close()
