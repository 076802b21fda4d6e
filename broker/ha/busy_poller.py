"""Busy polling: the event loop of a master does not sleep while one message waits for its replicas.

On a virtual machine, waking a sleeping process takes as long as all the work of the replica: a third of the
time that a producer waits when it sends one message after the other. So the loop polls its sockets for some
turns instead. It does not poll when several messages wait, because they share one wake-up. Polling that ends
without an ack is followed by a growing pause, so it costs little where it cannot help (a real network between
master and replica). The limit is a number of turns, because virtual time does not advance during them.
"""

import asyncio
from collections.abc import Callable

from broker.ha.ports import Clock

TURNS_MAX = 100
"""Turns of the event loop, each with a poll of the sockets: about 250 µs in total."""
PAUSE_FIRST_MS, PAUSE_MAX_MS = 2, 1_000
"""Pause after polling that ended without an ack; it doubles with each further one in a row."""


class BusyPoller:
    """Owned by the event loop's thread. is_needed(): exactly one message waits for replicas."""

    def __init__(self, is_needed: Callable[[], bool], clock: Clock) -> None:
        self._is_needed, self._clock = is_needed, clock
        self._turns = 0
        self._not_before_ms, self._pause_ms = 0, PAUSE_FIRST_MS

    def begin(self) -> None:
        """Starts or extends the polling. Called after the message was sent to the replicas."""
        if not self._is_needed() or self._clock() < self._not_before_ms:
            return
        if not self._turns:
            asyncio.get_running_loop().call_soon(self._turn)
        self._turns = TURNS_MAX

    def _turn(self) -> None:
        self._turns -= 1
        if not self._is_needed():
            self._turns, self._pause_ms = 0, PAUSE_FIRST_MS
        elif self._turns:
            asyncio.get_running_loop().call_soon(self._turn)
        else:
            self._not_before_ms = self._clock() + self._pause_ms
            self._pause_ms = min(2 * self._pause_ms, PAUSE_MAX_MS)
