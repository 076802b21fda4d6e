"""SYNC_FLUSH: one fdatasync for all messages that wait for the disk, in a thread of its own.

A round covers everything that was written when it begins; what comes meanwhile shares the next one. After a
failed fdatasync nobody knows what of it is on disk, and the next call may say "well" about lost pages: so the
first failure is the last round, and this broker acknowledges nothing any more.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

logger = logging.getLogger(__name__)


class GroupCommit:
    """Owned by the event loop's thread. How far the log is durable is asked of the log itself: what a round
    found may have been cut off since."""

    def __init__(self, sync: Callable[[], int], *, on_fault: Callable[[str], None] = lambda _: None) -> None:
        """sync: CommitLog.sync, called in the thread."""
        self._sync, self._on_fault = sync, on_fault
        self.listeners: list[Callable[[], None]] = []
        """Called after each round."""
        self._thread = ThreadPoolExecutor(1, "group-commit")
        self._round: asyncio.Future[int] | None = None
        self._wanted = False
        self._closed = False
        self.rounds = 0
        self.fault = ""

    def want(self) -> None:
        """What is in the log now is to become durable soon."""
        if self._closed or self.fault:
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
        if (error := round_.exception()) is not None:
            self.fault = f"the disk does not keep what is written: {error}"
            logger.critical("%s; nothing is acknowledged any more", self.fault, exc_info=error)
            self._on_fault(self.fault)
            return
        self.rounds += 1
        if self._closed:
            return
        for listener in list(self.listeners):
            listener()
        if self._wanted:
            self.want()

    async def close(self) -> None:
        """Waits for the round that is under way."""
        self._closed = True
        if self._round is not None:
            await asyncio.wait([self._round])
        await asyncio.to_thread(self._thread.shutdown)
