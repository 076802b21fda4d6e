"""Pulls that wait at a broker which hangs: it keeps its connections, and an idle queue's pull may wait long.

So a broker at which pulls wait, and of which nothing was heard for a while, is asked a small question (30).
As long as that is unanswered the routes are asked for, and when they name another master the connection to
the silent one is cut: what waits there goes on at once. One that is only slow stays master: nothing is cut.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Iterator
from functools import partial

from client.core.queues import MessageQueue
from client.route import RouteCache, RouteError
from remoting.client import RemotingClient
from remoting.clock import now_ms
from remoting.operation import Unknown
from remoting.operations.broker import GET_MAX_OFFSET, QueueRequest
from remoting.tasks import TaskSet

PROBE_INTERVAL_MS = 2_000
"""Half a second more, and we look for another master: before a controller can have elected one (3 s)."""
LOOKS = 8
"""In each interval, at who waits: so a question is late by an eighth of it at most."""
SILENT_MS = 500
LOOK_AGAIN_MS = 200
ANSWER_TIMEOUT_MS = 3_000


class SilenceWatch:
    """Of one client. Its task starts with the first pull that waits. Owns neither client nor routes."""

    def __init__(
        self, client: RemotingClient, routes: RouteCache, *, probe_interval_ms: int = PROBE_INTERVAL_MS
    ) -> None:
        if probe_interval_ms <= 0:
            raise ValueError(f"the probe interval is {probe_interval_ms} ms: it must be above 0")
        self._client, self._routes, self._every_ms = client, routes, probe_interval_ms
        self._waiting: dict[int, tuple[int, str, MessageQueue]] = {}  # since when, address
        self._heard_ms: dict[str, int] = {}
        self._tokens = itertools.count()
        self._probed: set[str] = set()
        self._tasks = TaskSet()
        self._watches = False

    @contextlib.contextmanager
    def waiting(self, address: str, queue: MessageQueue) -> Iterator[None]:
        """While a pull of this queue is out at this broker."""
        if not self._watches:
            self._watches = True
            self._tasks.start("watch for hung brokers", self._watch)
        token = next(self._tokens)
        self._waiting[token] = (now_ms(), address, queue)
        try:
            yield
        finally:
            del self._waiting[token]

    def heard(self, address: str) -> None:
        """It answered something."""
        self._heard_ms[address] = now_ms()

    async def close(self) -> None:
        await self._tasks.stop()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._every_ms / LOOKS / 1_000)
            long_ago_ms = now_ms() - self._every_ms
            self._heard_ms = {address: ms for address, ms in self._heard_ms.items() if ms > long_ago_ms}
            quiet = {
                address: queue for since, address, queue in self._waiting.values() if since <= long_ago_ms
            }
            for address in quiet.keys() - self._heard_ms.keys() - self._probed:
                self._tasks.start(f"is {address} there?", partial(self._probe, address, quiet[address]))

    async def _probe(self, address: str, queue: MessageQueue) -> None:
        """Until it answers, or nothing waits there any more."""
        self._probed.add(address)
        try:
            while any(address == where for _, where, _ in self._waiting.values()):
                if await self._answers(address, queue):
                    self.heard(address)
                    return
                await asyncio.sleep(LOOK_AGAIN_MS / 1_000)
        finally:
            self._probed.discard(address)

    async def _answers(self, address: str, queue: MessageQueue) -> bool:
        question = QueueRequest(topic=queue.topic, queue_id=queue.queue_id)
        asked = asyncio.create_task(
            self._client.call(address, GET_MAX_OFFSET, question, timeout_ms=ANSWER_TIMEOUT_MS)
        )
        try:
            await asyncio.wait((asked,), timeout=SILENT_MS / 1_000)
            while not asked.done():
                await self._look_for_another(address, queue)
                await asyncio.wait((asked,), timeout=LOOK_AGAIN_MS / 1_000)
        finally:
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
        return not isinstance(asked.result(), Unknown)

    async def _look_for_another(self, address: str, queue: MessageQueue) -> None:
        with contextlib.suppress(RouteError):
            route = await self._routes.refresh(queue.topic, rotate=True)
            if route.master(queue.broker_name) not in (None, address):
                self._client.drop(address)
