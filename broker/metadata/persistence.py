"""Writes the tables of metadata to disk: staged offsets every 100 ms, whole files less often.

The event loop never waits for a whole file: threads write it (file_store.py, store.py). A change that cannot
be written stays applied and is tried again; until then `fault` is the reason.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from broker.metadata.file_store import FileStore
from broker.metadata.store import JournaledStore, MetadataStore
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import CommandError

logger = logging.getLogger(__name__)

COMMIT_PERIOD_MS = 100
"""Oneway offset commits of this period are one version: a fail-over repeats at most this much consumption."""
NOT_WRITTEN = "the change is in force, and is lost if the broker stops before it can be written"


class Persistence:
    """Owned by the event loop's thread. `files`: tables that may be written in the background."""

    def __init__(
        self,
        files: Sequence[FileStore[Any]],
        journaled: Sequence[JournaledStore[Any]],
        *,
        flush_period_ms: int,
        clock: Callable[[], int],
    ) -> None:
        self._files, self._journaled = files, journaled
        self._flush_period_ms, self._clock = flush_period_ms, clock
        self._commit_fault = ""

    @property
    def fault(self) -> str:
        """Why a table or staged offsets cannot be written; empty: they can."""
        return self._commit_fault or next((store.fault for store in self._files if store.fault), "")

    def write_in_background(self) -> None:
        """From now on threads write `files`; on_disk() waits for one of them."""
        for store in self._files:
            store.write_in_background()

    async def on_disk(self, store: MetadataStore[Any]) -> None:
        """Waits until all present changes of the table are on this disk. Raises CommandError if they cannot
        be written."""
        if not isinstance(store, FileStore):
            return
        try:
            await store.saved()
        except OSError as error:
            what = f"{error.filename or store.path}: {error.strerror or error}"
            raise CommandError(ResponseCode.SYSTEM_ERROR, f"cannot write {what}; {NOT_WRITTEN}") from error
        except ValueError as error:
            remark = f"cannot write {store.path}: {error}; {NOT_WRITTEN}"
            raise CommandError(ResponseCode.SYSTEM_ERROR, remark) from error

    async def all_on_disk(self) -> None:
        """As on_disk(), for all files."""
        for store in self._files:
            await self.on_disk(store)

    def commit_staged(self) -> None:
        """Commits all staged changes as one version per table. On a full disk they stay staged."""
        try:
            for store in self._journaled:
                if store.is_staged:
                    store.commit_staged()
            self._commit_fault = ""
        except OSError as error:
            if not self._commit_fault:
                logger.error("cannot write consumer offsets, they are not replicated: %s", error)
            self._commit_fault = str(error)

    async def run(self, on_committed: Callable[[], None]) -> None:
        """Commits every COMMIT_PERIOD_MS, calls on_committed() then, and writes the files every flush
        period."""
        next_flush_ms = self._clock() + self._flush_period_ms
        while True:
            await asyncio.sleep(COMMIT_PERIOD_MS / 1000)
            self.commit_staged()
            on_committed()
            if self._clock() >= next_flush_ms or any(store.is_long for store in self._journaled):
                next_flush_ms = self._clock() + self._flush_period_ms
                await self._write_files()

    async def _write_files(self) -> None:
        for each in self._files:
            each.try_again()
        for store in self._journaled:
            if store.is_behind:
                try:
                    written = await asyncio.to_thread(store.snapshot())
                    written()
                except OSError as error:
                    logger.error("cannot write %s: %s; its journal has the changes", store.path, error)

    async def wait_for_threads(self) -> None:
        """Waits until no thread writes. Errors are logged; close() tries again."""
        for store in self._files:
            try:
                await store.saved()
            except (OSError, ValueError):
                logger.info("cannot write %s; trying once more", store.path)

    def close(self) -> None:
        """Ends a clean stop without a running loop: writes all unwritten changes. Errors are logged."""
        for each in self._files:
            try:
                each.flush_at_end()
            except (OSError, ValueError) as error:
                logger.error("cannot write %s: %s", each.path, error)
        for store in self._journaled:
            try:
                store.flush()
            except OSError as error:
                logger.error("cannot write %s: %s", store.path, error)
            try:
                store.journal.end()
            except OSError as error:
                logger.error("cannot remove %s: %s", store.journal.path, error)
