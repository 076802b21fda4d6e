"""A table that is written as a whole, durable file with every change: topics, groups, request modes.

Without an event loop (tools, start, stop) a change is on disk when change() returns. After
write_in_background() it is applied at once and written by a thread, so the loop never waits for the disk:
changes that are made while one write runs share the next one, and a caller that promises durability awaits
saved(). Replicas may then have a version before this disk has it. That is safe: a restarted master begins its
term with a new version (docs/adr/0007).
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from broker.metadata.core.table import Update, Version
from broker.metadata.files import RowTexts, row_text, sorted_keys
from broker.metadata.store import MetadataStore
from keelmq.runtime.clock import wall_ms

logger = logging.getLogger(__name__)

Row = TypeVar("Row")
Saved = Callable[[Exception | None], None]
"""Called on the loop's thread when a change is on disk, or with the reason why it is not."""


class FileStore(MetadataStore[Row]):
    """Owned by the event loop's thread; code called by _content() also runs in the writing thread."""

    def __init__(self, path: Path, *, clock: Callable[[], int] = wall_ms) -> None:
        super().__init__(path, clock=clock)
        self.fault = ""
        """Why applied changes are not written; empty: all are."""
        self._is_in_background = False
        self._changes = self._saved = 0  # how many there were, and how many of them are on disk
        self._task: asyncio.Task[Exception | None] | None = None
        self._waiting: list[tuple[int, Saved]] = []
        self._texts: dict[str, tuple[Row, str]] = {}
        self._texts_lock = threading.Lock()

    # -- content -----------------------------------------------------------------------------------------

    def _beside(self, update: Update[Row] | None) -> Any:
        """Returns a copy of the file's content besides the table: after the update; None: now."""
        return None

    def _content(
        self, rows: Mapping[str, Row], gone: Mapping[str, int], version: Version, beside: Any
    ) -> Mapping[str, Any]:
        return self.file_of(rows, gone, version)

    def texts(self, rows: Mapping[str, Row], plain: Callable[[Row], Any]) -> RowTexts:
        """Returns the rows as text, in the order of their keys, for file_of(). Texts are kept from file to
        file, so one changed row of ten thousand costs one conversion."""
        found: dict[str, tuple[Row, str]] = {}
        with self._texts_lock:
            for key in sorted_keys(rows):
                row, known = rows[key], self._texts.get(key)
                same = known is not None and known[0] is row
                found[key] = known if known is not None and same else (row, row_text(plain(row)))
            self._texts = found
        return RowTexts({key: text for key, (_, text) in found.items()})

    def _save(self, update: Update[Row]) -> None:
        rows, gone = self.table.after(update)
        content = self._content(rows, gone, update.version, self._beside(update))
        self.file.save(content, self.file.next_turn())

    def _persist(self, update: Update[Row]) -> None:
        """In the background the change is only counted; the write begins after the caller has applied it."""
        if not self._is_in_background:
            self._save(update)
            return
        self._changes += 1
        self._writing()

    # -- in the background -------------------------------------------------------------------------------

    def write_in_background(self) -> None:
        """Lets threads write from now on, until flush_at_end(). Needs the running loop of the thread that
        owns this table."""
        self._is_in_background = True

    @property
    def is_saved(self) -> bool:
        """Whether all changes are on disk."""
        return self._saved >= self._changes

    async def saved(self) -> None:
        """Waits until all present changes are on disk. Raises OSError or ValueError if they cannot be
        written; they stay applied, and are tried again."""
        wanted = self._changes
        while self._saved < wanted:
            error = await asyncio.shield(self._writing())
            if error is not None:
                raise error

    def when_saved(self, callback: Saved) -> None:
        """Like saved(), for callers that cannot await."""
        if self.is_saved:
            callback(None)
        else:
            self._waiting.append((self._changes, callback))

    def try_again(self) -> None:
        """Starts to write if an earlier attempt failed."""
        if not self.is_saved:
            self._writing()

    def _writing(self) -> asyncio.Task[Exception | None]:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._write())
        return self._task

    async def _write(self) -> Exception | None:
        try:
            while not self.is_saved:
                count, write = self._changes, self._snapshot()
                await asyncio.to_thread(write)
                self._settle(count)
        except (OSError, ValueError) as error:
            self._failed(error)
            return error
        finally:
            self._task = None
        return None

    def _snapshot(self) -> Callable[[], bool]:
        """Copies the mappings; rows are replaced, never changed. Returns a function that makes the JSON and
        writes it, in any thread."""
        rows, gone, version = dict(self.table.rows), dict(self.table.gone), self.table.version
        beside, turn = self._beside(None), self.file.next_turn()
        return lambda: self.file.save(self._content(rows, gone, version, beside), turn)

    def _settle(self, count: int) -> None:
        self._saved, self.fault = max(self._saved, count), ""
        waiting, self._waiting = self._waiting, []
        for wanted, callback in waiting:
            if wanted <= self._saved:
                callback(None)
            else:
                self._waiting.append((wanted, callback))

    def _failed(self, error: Exception) -> None:
        if not self.fault:
            logger.error("cannot write %s: %s; the change is in force, and written later", self.path, error)
        self.fault = str(error)
        waiting, self._waiting = self._waiting, []
        for _, callback in waiting:
            callback(error)

    def flush(self) -> None:
        """Writes the changes that no thread has written yet, in this call. Raises OSError."""
        if not self.is_saved:
            count, write = self._changes, self._snapshot()
            write()
            self._settle(count)

    def flush_at_end(self) -> None:
        """Called when the loop is about to end: from now on each change writes the file. Raises OSError."""
        self._is_in_background = False
        self.flush()
