"""The epochs of this broker's log: in memory, and on disk as epochFileCheckpoint.

Threads write the file, so the event loop does not wait for the disk. Epochs take effect when they are on
disk, and versions never overtake each other: of two requested ones, the later one stays. A new version is in
the write-ahead file first, and up to FINISH_PERIOD_MS later in epochFileCheckpoint.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from pathlib import Path

from broker.ha.core.epochs import Epochs
from broker.ha.epoch_file import EpochFile, EpochFileError
from broker.ha.epoch_wal import wal_of
from keelmq.runtime.tasks import finished_in_thread

logger = logging.getLogger(__name__)

FINISH_PERIOD_MS = 1_000
"""A role change is over by then, so the slow replacement of the file is not in its way."""


class EpochSave:
    """One version of the epochs on its way to the disk: write() in a thread, then use() on the loop."""

    def __init__(self, write: Callable[[], None], use: Callable[[], None]) -> None:
        """write: makes the epochs durable, unless a later version was requested; raises OSError. use:
        activates the epochs, unless a later version was requested."""
        self.write, self.use = write, use


class LogEpochs:
    """Owned by the event loop's thread. on_change gets the epochs when they take effect."""

    def __init__(self, path: Path, on_change: Callable[[Epochs], None]) -> None:
        self.path = path
        self.now = Epochs()
        self.fault: str | None = None
        """Why the file cannot be trusted. Without its epochs the history of the log is unknown, so the log is
        neither copied to nor served."""
        self._file, self._on_change = EpochFile(path), on_change
        self._turn = 0  # of the newest requested version
        self._ended = 0  # of the newest version that is active, or could not be written
        self._lock = threading.Lock()
        self._cannot_finish = False
        self._file_fault = self._not_found = ""

    def load(self) -> None:
        """Reads the file and prepares its write-ahead file. Waits for the disk: call it in a thread, and the
        other methods after it has ended. If the file cannot be trusted, `fault` is the reason. Raises OSError
        if it cannot be read."""
        try:
            self.now = self._file.load()
            self._prepare()
        except EpochFileError as error:
            self.fault = self._file_fault = str(error)
            logger.error("replication is stopped: %s", error)

    def _prepare(self) -> None:
        try:
            self._file.prepare()
        except OSError as error:
            if self._file.is_pending:
                raise EpochFileError(
                    f"{wal_of(self.path)}: {error}, so the newest epochs may not be durable. Check the disk,"
                    " then start the broker again"
                ) from error
            logger.warning("%s: %s. Role changes take longer without this file", wal_of(self.path), error)
        else:
            self._finish()

    def not_found(self, why: str) -> None:
        """Adds to `fault` why the epochs could not be found again."""
        if why != self._not_found:
            self._not_found = why
            self.fault = f"{self._file_fault} Not found by the master: {why}"
            logger.error("replication is stopped: %s", self.fault)

    async def replace_lost(self, epochs: Epochs) -> None:
        """Writes the epochs durably instead of a file that cannot be trusted, and uses them. Raises
        OSError."""
        assert self.fault is not None
        await finished_in_thread(lambda: self._replace_lost(epochs))
        self.now, self.fault = epochs, None
        self._on_change(epochs)
        logger.warning("%s was written again from the master's epochs: %s", self.path, epochs.pairs)

    def _replace_lost(self, epochs: Epochs) -> None:
        with self._lock:
            self._file.save(epochs)
        self._prepare()

    def begin_save(self, epochs: Epochs) -> EpochSave:
        """Returns the two steps of a change. From now on no version that was requested earlier is written or
        used."""
        self._turn += 1
        turn = self._turn

        def write() -> None:
            with self._lock:
                if turn == self._turn:
                    try:
                        self._file.save_ahead(epochs)
                    except OSError:
                        self._ended = turn
                        raise

        def use() -> None:
            if turn == self._turn:
                self._ended = turn
                self.now = epochs
                self._on_change(epochs)

        return EpochSave(write, use)

    async def save(self, epochs: Epochs) -> None:
        """Writes the epochs durably, then uses them, unless a later version was requested meanwhile. Raises
        OSError; the old ones then stay active."""
        save = self.begin_save(epochs)
        await asyncio.to_thread(save.write)
        save.use()

    async def drop_below(self, offset: int) -> None:
        """Forgets the epochs that end below the offset, unless a version is on its way to the disk: a version
        derived from `now` lacks its epochs, and must not replace it. Raises OSError."""
        kept = self.now.drop_below(offset)
        if self._ended == self._turn and len(kept.entries) < len(self.now.entries):
            await self.save(kept)

    # -- the slow part, for which no caller waits --------------------------------------------------------

    async def finish_forever(self) -> None:
        """Puts each version that was saved into epochFileCheckpoint."""
        while True:
            await asyncio.sleep(FINISH_PERIOD_MS / 1000)
            await self.finish()

    async def finish(self) -> None:
        """Puts the version that was saved last into epochFileCheckpoint, unless it is there. A failure is
        logged, and the next finish() or save() tries again: the version stays durable."""
        if self._file.is_pending:
            await finished_in_thread(self._finish)

    async def close(self) -> None:
        """Puts the version that was saved last into epochFileCheckpoint, after which the write-ahead file is
        not needed. A failure is logged, and the next start finds the version. Later versions are not saved.
        """
        await self.finish()
        if self.fault is None:
            await finished_in_thread(self._close)

    def _close(self) -> None:
        with self._lock:
            try:
                self._file.close()
            except OSError as error:
                logger.warning("%s: %s", wal_of(self.path), error)

    def _finish(self) -> None:
        with self._lock:
            try:
                self._file.finish()
                self._cannot_finish = False
            except OSError as error:
                if not self._cannot_finish:
                    logger.error(
                        "%s has the epochs, %s cannot be written: %s", wal_of(self.path), self.path, error
                    )
                self._cannot_finish = True
