"""Refreshes the routes of an idle client, so that the current masters know an idle producer.

Every poll_ms, as in RocketMQ (pollNameServerInterval), and at once when a master may be gone: its connection
closed, or it did not accept a heartbeat. Then again with a back-off, until every broker name has a master
that knows this client.
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
    """Polls the routes of one client. `settled`: returns whether the masters of the routes know this client.
    `also`: topics whose routes are needed before the first message to them."""

    def __init__(
        self,
        routes: RouteCache,
        *,
        settled: Callable[[], bool],
        poll_ms: int = ROUTE_POLL_MS,
        also: Collection[str] = (),
    ) -> None:
        if poll_ms <= 0:
            raise ValueError(f"the route poll interval is {poll_ms} ms: it must be above 0")
        self._routes, self._settled, self._poll_ms, self._also = routes, settled, poll_ms, also
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Refreshes now: a master may be gone."""
        self._wake.set()

    async def run(self) -> None:
        """Polls until cancelled."""
        failures, settled = 0, self._routes.knows(self._also)
        while True:
            failures = 0 if settled else failures + 1
            pause_ms = math.ceil(AGAIN.pause_ms(failures, random.random()))
            if await wait_for_event(self._wake, self._poll_ms if settled else min(pause_ms, self._poll_ms)):
                failures = 0
            answered = await self._routes.refresh_all(self._also, rotate=not settled)
            settled = answered and self._routes.has_all_masters() and self._settled()
