"""Fresh routes for a client that asks for nothing: an idle producer must stay known to the present masters.

Every poll_ms, as RocketMQ does (pollNameServerInterval), and at once when something says that a master is
gone: its connection closed, or it did not take a heartbeat. Then again, soon at first, until every broker
name has a master that knows us.
"""

import asyncio
from collections.abc import Callable, Collection

from client.route import ROUTE_POLL_MS, RouteCache
from remoting.tasks import wait_for_event

AGAIN_MIN_MS = 50
AGAIN_MAX_MS = 1_000


class RoutePoll:
    """`settled`: whether the masters of the routes know us. `also`: topics whose routes are wanted though
    nobody found them yet."""

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
        """A master may be gone."""
        self._wake.set()

    async def run(self) -> None:
        """For ever."""
        again_ms, settled = AGAIN_MIN_MS, self._routes.knows(self._also)
        while True:
            woken = await wait_for_event(
                self._wake, self._poll_ms if settled else min(again_ms, self._poll_ms)
            )
            again_ms = AGAIN_MIN_MS if settled or woken else min(2 * again_ms, AGAIN_MAX_MS)
            answered = await self._routes.refresh_all(self._also, rotate=not settled)
            settled = answered and self._routes.has_all_masters() and self._settled()
