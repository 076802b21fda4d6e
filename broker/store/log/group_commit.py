"""SYNC_FLUSH: one fdatasync, in a separate thread, for all messages that wait for the disk.

With ASYNC_FLUSH it is switched off: it does nothing, and can be switched on while the broker runs.

A round covers everything that was written before it began; messages that arrive meanwhile share the next
round. The first failed sync ends all rounds (see sync_fault.py): the broker acknowledges no message any more.
A failure before a sync, for example because no descriptor is free, is tried again. Source: RocketMQ 5.3.3
GroupCommitService.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from broker.store.log.sync_fault import SyncError
from keelmq.runtime.log_context import ContextThreadPool

logger = logging.getLogger(__name__)

RETRY_S: Final = 0.1


class GroupCommit:
    """Owned by the event loop's thread."""

    def __init__(
        self, sync: Callable[[], int], *, on_flushed: Callable[[], None], on_fault: Callable[[str], None]
    ) -> None:
        """sync: CommitLog.sync, called in the thread. on_flushed: called after each successful round; it must
        ask the log how far it is durable, because the synced bytes may have been cut off since. on_fault:
        called once, with the text of the failure."""
        self.is_on = True
        """Whether flushDiskType is SYNC_FLUSH."""
        self._sync, self._on_flushed, self._on_fault = sync, on_flushed, on_fault
        self._thread = ContextThreadPool(1, "group-commit")
        self._round: asyncio.Future[int] | None = None
        self._wanted = self._is_late = False
        self._closed = False
        self.rounds = 0
        self.fault = ""

    def want(self) -> None:
        """Requests that everything in the log now becomes durable soon. Does nothing while switched off."""
        if self._closed or self.fault or not self.is_on:
            return
        if self._round is not None:
            self._wanted = True
            return
        self._wanted = False
        self._round = asyncio.get_running_loop().run_in_executor(self._thread, self._sync)
        self._round.add_done_callback(self._ended)

    def _ended(self, round_: "asyncio.Future[int]") -> None:
        self._round = None
        if round_.cancelled():
            return
        error = round_.exception()
        if isinstance(error, OSError) and not isinstance(error, SyncError):
            if not self._is_late:
                logger.error(
                    "cannot sync the log, trying again; no message is acknowledged until that succeeds: %s",
                    error,
                )
            self._is_late = True
            asyncio.get_running_loop().call_later(RETRY_S, self.want)
            return
        self._is_late = False
        if error is not None:
            self.fault = f"the disk does not keep what is written: {error}"
            if not isinstance(error, SyncError):  # which is logged where it occurred
                logger.critical(
                    "%s; no message is acknowledged any more: restart the broker", self.fault, exc_info=error
                )
            self._on_fault(self.fault)
            return
        self.rounds += 1
        if self._closed:
            return
        self._on_flushed()
        if self._wanted:
            self.want()

    async def close(self) -> None:
        """Waits for the current round, and ends the thread."""
        self._closed = True
        try:
            if self._round is not None:
                await asyncio.wait([self._round])
        finally:
            await asyncio.to_thread(self._thread.shutdown)
