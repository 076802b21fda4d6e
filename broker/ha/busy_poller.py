"""A master stays awake while one message waits for its replicas.

A process that sleeps has to be woken, and on a virtual machine that takes as long as all that the replica
does: a third of what a producer pays for the replica when it sends one message after the other. So the loop
goes round without sleeping for a while. Not for several messages: they share the wait. Where it is in vain
(a network between master and replica), it is tried less and less, so that it costs next to nothing.
Turns are counted, not time: virtual time stands still in them.
"""

import asyncio
from collections.abc import Callable

from broker.ha.ports import Clock

TURNS_MAX = 100
"""Of the event loop, each with a look at the sockets: some 250 us."""
PAUSE_FIRST_MS, PAUSE_MAX_MS = 2, 1_000
"""After a vigil in vain; each in a row doubles it."""


class Vigil:
    """Owned by the event loop's thread. is_needed: one message waits for replicas."""

    def __init__(self, is_needed: Callable[[], bool], clock: Clock) -> None:
        self._is_needed, self._clock = is_needed, clock
        self._turns = 0
        self._not_before_ms, self._pause_ms = 0, PAUSE_FIRST_MS

    def begin(self) -> None:
        """After the message was sent to the replicas."""
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
