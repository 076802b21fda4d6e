"""Busy polling: the event loop of a master does not sleep while one message waits for its replicas.

On a virtual machine, waking a sleeping process costs as much as all the work of the replica: a third of the
time that a producer waits when it sends one message after the other. So the loop polls its sockets for some
turns instead. It does not poll when several messages wait, because they share one wake-up. Polling that ends
without an ack is followed by a growing pause, so it costs little where it cannot help (a real network between
master and replica). The limit is a number of turns, because virtual time does not advance during them.
"""

import asyncio
from collections.abc import Callable

from broker.ha.ports import Clock
from keelmq.runtime.backoff import Backoff

TURNS_MAX = 100
"""Turns of the event loop, each with a poll of the sockets: about 250 µs in total."""
PAUSE = Backoff(first_ms=2, max_ms=1_000)
"""Between polls that ended without an ack. No jitter: the pause only concerns this process."""


class BusyPoller:
    """Owned by the event loop's thread. is_needed(): exactly one message waits for replicas."""

    def __init__(self, is_needed: Callable[[], bool], clock: Clock) -> None:
        self._is_needed, self._clock = is_needed, clock
        self._turns = 0
        self._not_before_ms = self._failures = 0

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
            self._turns = self._failures = 0
        elif self._turns:
            asyncio.get_running_loop().call_soon(self._turn)
        else:
            self._failures += 1
            self._not_before_ms = self._clock() + int(PAUSE.limit_ms(self._failures))
