"""The epochs of this broker's log: in memory, and on disk as epochFileCheckpoint.

Threads write the file, so the event loop does not wait for the disk. Epochs come into force when they are on
disk, and versions never overtake each other: of two that are asked for, the later one stays.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from pathlib import Path

from broker.ha.core.epochs import Epochs
from broker.ha.epoch_file import EpochFile, EpochFileError

logger = logging.getLogger(__name__)


class EpochSave:
    """One version of the epochs on its way to the disk: write() in a thread, then use() on the loop."""

    def __init__(self, write: Callable[[], None], use: Callable[[], None]) -> None:
        """write: replaces the file durably, unless a later version was asked for; raises OSError. use: puts
        the epochs in force, unless a later version was asked for."""
        self.write, self.use = write, use


class LogEpochs:
    """Owned by the event loop's thread. on_change gets the epochs when they come into force."""

    def __init__(self, path: Path, on_change: Callable[[Epochs], None]) -> None:
        self.path = path
        self.now = Epochs()
        self.fault: str | None = None
        """Why the file cannot be trusted. Without its epochs nobody can tell which history the log holds, so
        it is neither copied to nor served."""
        self._file, self._on_change = EpochFile(path), on_change
        self._turn = 0  # of the newest version that was asked for
        self._lock = threading.Lock()

    def load(self) -> None:
        """Reads the file. If it cannot be trusted, `fault` says why."""
        try:
            self.now = self._file.load()
        except EpochFileError as error:
            self.fault = str(error)
            logger.error("replication is stopped: %s", error)

    def begin_save(self, epochs: Epochs) -> EpochSave:
        """Returns the two steps of a change. From now on no version that was asked for earlier is written or
        used any more."""
        self._turn += 1
        turn = self._turn

        def write() -> None:
            with self._lock:
                if turn == self._turn:
                    self._file.save(epochs)

        def use() -> None:
            if turn == self._turn:
                self.now = epochs
                self._on_change(epochs)

        return EpochSave(write, use)

    async def save(self, epochs: Epochs) -> None:
        """Writes the epochs durably, then uses them. Raises OSError; the old ones stay in force then."""
        save = self.begin_save(epochs)
        await asyncio.to_thread(save.write)
        save.use()
