"""The message index: which records carry a key. IndexFiles in order of their creation, the last one growing.

`offset` is the CommitLog offset up to which records are taken. Dispatch adds those that it passes. They are
written many at once, when somebody looks for a key, or by the next round of the upkeep. What lies behind
dispatch (after a crash, or when the index is new) is caught up from the log in slices. So a full disk stops
the index alone, and it goes on where it stopped. Owned by the event loop thread; flush() alone may run in
another. Source of the format: RocketMQ 5.3.3 IndexService.
"""

import logging
import re
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

from broker.store.index_file import IndexFile
from broker.store.indexed_keys import Keyed, columns
from broker.store.mapped_file import StoreError, sync_directory
from broker.store.record import key_hash
from remoting.clock import wall_ms

log = logging.getLogger(__name__)

SLOTS_DEFAULT: Final = 5_000_000
ENTRIES_DEFAULT: Final = 20_000_000
PREPARE_ENTRIES_MIN: Final = 50_000  # smaller files are made on the spot
PREPARE_AT: Final = 0.9  # of a file: the next one is made, in a helper thread
_NAME = re.compile(r"\d{17}\Z")  # yyyyMMddHHmmssSSS, local time
_SNAPSHOT_TRIES: Final = 1_000
KEPT_RECORDS_MAX: Final = 256
"""The columns of so many are written in one go, in less than a millisecond."""


class MessageIndex:
    """fault: why nothing more can be indexed, until it can."""

    def __init__(self, directory: Path, slots: int = SLOTS_DEFAULT, entries: int = ENTRIES_DEFAULT) -> None:
        self.directory = directory
        self.offset = -1  # not loaded
        self.fault = ""
        self._kept: list[Keyed] = []  # in front of `offset`, not in a file yet
        self._settled_offset = 0  # the files have nothing at or behind it, between two settle()
        self._slots, self._entries = slots, entries
        self._files: list[IndexFile] = []
        self._unsaved: list[IndexFile] = []  # rolled since the last flush()
        self._room_count = 0  # up to which the last file has room
        self._known_offset = -1  # the last record that was indexed before the start
        self._next: Future[IndexFile] | None = None
        self._helper: ThreadPoolExecutor | None = None

    def load(self, log_min: int, log_end: int, *, abnormal: bool, trusted_ms: int | None) -> None:
        """Open what is there. trusted_ms: a file with later records is not believed (another program's
        crash); None: our own promise holds."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for path in self._paths():
            try:
                file = IndexFile(path, self._slots, self._entries)
            except StoreError as error:
                log.warning("%s: it is deleted, and made again from the CommitLog", error)
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
            self._settled_offset = self.offset + 1

    def _paths(self) -> list[Path]:
        return sorted(path for path in self.directory.iterdir() if _NAME.match(path.name))

    # -- writing -----------------------------------------------------------------------------------------

    def add(self, records: list[Keyed], end: int) -> None:
        """Records in log order, the last one of which ends at `end`. They are kept, and written many at once:
        by settle(), or by whoever asks for something."""
        if records and records[0][1] <= self._known_offset:
            records = [each for each in records if each[1] > self._known_offset]
        self._kept += records
        self.offset = end
        if len(self._kept) >= KEPT_RECORDS_MAX:
            self.settle()

    def settle(self) -> None:
        """Write what is kept. Without room on the disk `offset` goes back to the first record that is not
        indexed; of a record some keys may be there twice then: a search says them once."""
        kept, self._kept = self._kept, []
        if not kept:
            self._settled_offset = self.offset
            return
        hashes, offsets, timestamps = columns(kept)
        at, count = 0, len(hashes)
        try:
            while at < count:
                file = self._with_room()
                end = at + min(self._room_count - file.count, count - at)
                file.append(hashes[at:end], offsets[at:end], timestamps[at:end])
                at = end
        except OSError as error:
            self.offset = offsets[at]
            self._stuck(error)
            return
        self.fault = ""
        self._settled_offset = self.offset

    def _with_room(self) -> IndexFile:
        """Where the next entry goes."""
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
                self._helper = ThreadPoolExecutor(1, "index-ahead")
            self._next = self._helper.submit(self._create)

    def _stuck(self, error: OSError) -> None:
        if not self.fault:
            log.error("no room for the message index: %s; messages go on, without being found by key", error)
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
        """CommitLog offsets, ascending, of at most `limit` records with the key; the newest win. Another key
        may have the same hash: look at the record."""
        if not key:
            return []
        self.settle()
        wanted, found = key_hash(prefix_hash, key), set[int]()
        for file in reversed(self._files):
            if len(found) >= limit:
                break
            if file.overlaps(begin_ms, end_ms):
                found.update(file.find(wanted, limit - len(found), begin_ms, end_ms))
        return sorted(found)

    def last(self) -> tuple[int, int]:
        """(store timestamp, offset) of the newest record that is indexed; zeros: none."""
        self.settle()
        return (self._files[-1].end_timestamp, self._files[-1].end_offset) if self._files else (0, 0)

    # -- cutting -----------------------------------------------------------------------------------------

    def truncate(self, offset: int) -> None:
        """Forget records at or behind `offset`."""
        self._kept = [each for each in self._kept if each[1] < offset]
        while self._files and self._files[-1].begin_offset >= offset:
            self._drop(self._files.pop())
        if self._files and self._files[-1].end_offset >= offset:
            self._files[-1].truncate(offset)
        self._room_count = 0
        self._known_offset = min(self._known_offset, offset - 1)
        self.offset = min(self.offset, offset)
        self._settled_offset = min(self._settled_offset, offset)

    def _drop(self, file: IndexFile) -> None:
        if file in self._unsaved:
            self._unsaved.remove(file)
        file.delete()

    def reset_to(self, offset: int) -> None:
        self.truncate(0)
        self.offset = offset

    def expired(self, log_min: int) -> list[IndexFile]:
        """Files without a record of the log any more, taken out: delete() them, in any thread."""
        self.settle()
        gone = []
        while len(self._files) > 1 and self._files[0].end_offset < log_min:
            file = self._files.pop(0)
            if file in self._unsaved:
                self._unsaved.remove(file)
            gone.append(file)
        self.offset = max(self.offset, log_min)
        return gone

    # -- durability --------------------------------------------------------------------------------------

    def flush(self) -> int:
        """Make the index durable; any thread, not beside truncate(). The store timestamp (ms) up to
        which it is."""
        timestamp = 0
        for file in self._dirty():
            for _ in range(_SNAPSHOT_TRIES):
                indexed = self._settled_offset
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
        if self._helper is not None:
            self._helper.shutdown(wait=True)
        if self._next is not None and self._next.exception() is None:
            self._next.result().delete()
        while self._files:
            self._files.pop().close()
