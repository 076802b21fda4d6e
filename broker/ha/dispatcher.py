"""Reads the log for the queues and the index, and at a replica for its next promotion, a slice per turn of
the event loop.

A replica must send its acks in time even while it receives a lot, and other brokers of the process have the
same loop, so no turn takes much longer than SLICE_US. A replica that cannot follow stops reading from its
master: its backlog stays below BACKLOG_BYTES_MAX, and its acks show the master that it lags.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from broker.store.message_store import MessageStore
from keelmq.runtime.clock import now_us

SLICE_US: Final = 2_000
"""Dispatch time in one turn of the loop; more than the time to receive the bytes of one turn."""
COPYING_SLICE_US: Final = 250
"""The same of a replica that is far behind: copying bytes has priority."""
SLICE_RECORDS: Final = 256
"""Records between two clock reads: a millisecond, interpreted."""
SLICES_MAX: Final = 32
"""Slices in one turn, at any speed."""
BACKLOG_BYTES_MAX: Final = 32 << 20
"""Confirmed bytes that a replica has not dispatched: 100,000 small messages, less than 0.2 s of work."""
COPYING_BACKLOG_BYTES_MAX: Final = 512 << 20
"""The same of a replica that is far behind, which cannot be elected: less than 2 s of work, which it does
before it copies the last FAR_BYTES."""
FAR_BYTES: Final = 64 << 20
"""A replica that lacks more of its master's log is far behind."""


class Dispatcher:
    """Owned by the event loop's thread. Dispatches nothing before start() and nothing after stop()."""

    def __init__(
        self, store: MessageStore, on_turn: Callable[[], None], *, is_far_behind: Callable[[], bool]
    ) -> None:
        """on_turn: called after each turn. is_far_behind: whether this is a replica that is far behind."""
        self._store, self._on_turn, self._is_far_behind = store, on_turn, is_far_behind
        self._is_scheduled = False
        self._is_running = False

    def start(self) -> None:
        """Begins dispatching, with the records that already wait."""
        self._is_running = True
        self.wake()

    def stop(self) -> None:
        """Stops dispatching. A scheduled turn does nothing."""
        self._is_running = False

    def wake(self) -> None:
        """Schedules a turn if there are records to read."""
        if not self._is_scheduled and (
            self._store.dispatcher.dispatch_behind or self._store.dispatcher.scan_behind
        ):
            self._schedule()

    def _schedule(self) -> None:
        self._is_scheduled = True
        asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._is_scheduled = False
        if not self._is_running:
            return
        slice_us = COPYING_SLICE_US if self._is_far_behind() else SLICE_US
        end_us, left, is_behind = now_us() + slice_us, SLICES_MAX, True
        while is_behind and left and now_us() < end_us:
            is_behind = self._store.dispatcher.scan(SLICE_RECORDS)
            is_behind |= self._store.dispatcher.dispatch(SLICE_RECORDS)
            left -= 1
        if is_behind:
            self._schedule()
        self._on_turn()
