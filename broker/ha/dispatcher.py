"""Builds the queues and the index from confirmed records, a few records per turn of the event loop.

A replica must send its acks in time even while it receives a lot, so no turn dispatches more than
DISPATCH_RECORDS_MAX records.
"""

import asyncio

from broker.ha.ports import ReplicatedStore

DISPATCH_RECORDS_MAX = 128
"""Records per turn of the loop."""


class Dispatcher:
    """Owned by the event loop's thread. Dispatches nothing before start() and nothing after stop()."""

    def __init__(self, store: ReplicatedStore) -> None:
        self._store = store
        self._is_scheduled = False
        self._is_running = False

    def start(self) -> None:
        """Begins to dispatch, first the records that already wait."""
        self._is_running = True
        self.wake()

    def stop(self) -> None:
        """Stops to dispatch. A scheduled turn does nothing."""
        self._is_running = False

    def wake(self) -> None:
        """Schedules a turn if the store has confirmed records that are not dispatched."""
        if not self._is_scheduled and self._store.dispatch_behind:
            self._schedule()

    def _schedule(self) -> None:
        self._is_scheduled = True
        asyncio.get_running_loop().call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._is_scheduled = False
        if self._is_running and self._store.dispatch(DISPATCH_RECORDS_MAX):
            self._schedule()
