"""Refreshes the routes of an idle client, so that the current masters know an idle producer.

Every poll_ms, as RocketMQ does (pollNameServerInterval), and at once when the broker monitor doubts them: a
master may be gone. Then again with a back-off, until every broker name has a master that knows this client.
"""

import asyncio
import math
import random
from collections.abc import Callable, Collection

from keelmq.client.cluster.routes import ROUTE_POLL_MS, RouteCache
from keelmq.runtime.backoff import Backoff
from keelmq.runtime.tasks import wait_for_event

AGAIN = Backoff(first_ms=50, max_ms=2_000)


class RoutePoll:
    """`doubted`: of the broker monitor. `settled`: whether the masters of the routes know this client.
    `also`: topics whose routes are wanted although no message was sent to them yet."""

    def __init__(
        self,
        routes: RouteCache,
        *,
        doubted: asyncio.Event,
        settled: Callable[[], bool],
        poll_ms: int = ROUTE_POLL_MS,
        also: Collection[str] = (),
    ) -> None:
        if poll_ms <= 0:
            raise ValueError(f"the route poll interval is {poll_ms} ms: it must be above 0")
        self._routes, self._settled, self._poll_ms, self._also = routes, settled, poll_ms, also
        self._doubted = doubted

    async def run(self) -> None:
        """Polls until cancelled."""
        failures, settled = 0, self._routes.knows(self._also)
        while True:
            failures = 0 if settled else failures + 1
            pause_ms = math.ceil(AGAIN.pause_ms(failures, random.random()))
            timeout_ms = self._poll_ms if settled else min(pause_ms, self._poll_ms)
            if await wait_for_event(self._doubted, timeout_ms):
                failures = 0
            answered = await self._routes.refresh_all(self._also, rotate=not settled)
            settled = answered and self._routes.has_all_masters() and self._settled()
