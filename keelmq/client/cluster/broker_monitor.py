"""BrokerMonitor: finds brokers that hang or cannot be reached. Each client has one monitor.

A broker that hangs keeps its connections open, so its clients see no lost connection. The monitor watches two
kinds of requests:

- A send is overdue after SILENT_MS. If the broker has not answered any later send either, it counts as silent
  (broker_recovery.py): messages that may go to any queue go to other brokers.
- A long poll may wait for many seconds on an idle queue. If the broker has sent nothing at all for
  `probe_interval_ms`, the monitor probes it with a small request (30).

While a send or a probe is overdue, the monitor refreshes the route. If the route names another master, it
closes the connection to the silent one, so the requests that wait there are repeated at once. A broker that
is only slow stays master, and keeps its connection. A silent or unreachable broker is probed in the
background until it answers, so no message has to try it. Owns neither the client nor the routes.
"""

import asyncio
import contextlib
import math
import random
from functools import partial

from keelmq.client.cluster.broker_recovery import Key, Recoveries, Recovery
from keelmq.client.cluster.routes import RouteCache, RouteError, TopicRoute
from keelmq.client.core.queues import MessageQueue
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Failed, Unknown
from keelmq.remoting.operations.broker import GET_MAX_OFFSET, QueueRequest
from keelmq.runtime.backoff import Backoff
from keelmq.runtime.clock import now_ms
from keelmq.runtime.tasks import TaskSet

PROBE_INTERVAL_MS = 2_000
"""SILENT_MS later the client looks for another master: before a controller can have elected one (3 s)."""
LOOKS = 8
"""Checks of the long polls per probe interval: a probe is late by at most an eighth of it."""
SILENT_MS = 500
"""A send or a probe without a response for this long is overdue: the broker may hang."""
WATCH_MS = 100
"""How often overdue sends are looked for."""
LOOK_AGAIN_MS = 200
"""How often the route is refreshed while a probe has no response."""
PROBE_TIMEOUT_MS = 3_000
PING = Backoff(first_ms=200, max_ms=2_000)
PING_TIMEOUT_MS = 1_000


class BrokerMonitor:
    """Watches the brokers of one client. `recoveries`: the brokers and topics at which sends fail; senders
    use it. The task starts with the first watched request. ValueError: `probe_interval_ms` is 0 or less."""

    def __init__(
        self, client: RemotingClient, routes: RouteCache, *, probe_interval_ms: int = PROBE_INTERVAL_MS
    ) -> None:
        if probe_interval_ms <= 0:
            raise ValueError(f"the probe interval is {probe_interval_ms} ms: it must be above 0")
        self.recoveries = Recoveries()
        self._client, self._routes, self._probe_interval_ms = client, routes, probe_interval_ms
        self._sends: dict[int, tuple[int, str, MessageQueue]] = {}  # token -> since when, address, queue
        self._polls: dict[int, tuple[int, str, MessageQueue]] = {}
        self._heard_ms: dict[str, int] = {}  # address -> when it last sent any response
        self._answered: dict[str, int] = {}  # address -> when the latest answered send was sent
        self._masters: dict[str, str] = {}  # broker name -> address
        self._token = 0
        self._probed: set[str] = set()
        self._tasks = TaskSet()
        self._watch_ms = math.inf
        self._watches_sends = False
        self._closed = False

    async def close(self) -> None:
        """Stops its tasks; no request is watched any more. May be called twice."""
        self._closed = True
        await self._tasks.stop()

    # -- inputs ------------------------------------------------------------------------------------------

    def expect_answer(self, address: str, queue: MessageQueue, sent_ms: int) -> int:
        """Watches a send. Returns the token for settled()."""
        if not self._watches_sends:
            self._watches_sends = True
            self._watch_every(WATCH_MS)
        self._token = token = self._token + 1
        self._sends[token] = (sent_ms, address, queue)
        return token

    def expect_poll(self, address: str, queue: MessageQueue, sent_ms: int) -> int:
        """Watches a long poll. Returns the token for settled_poll()."""
        self._watch_every(self._probe_interval_ms / LOOKS)
        self._token = token = self._token + 1
        self._polls[token] = (sent_ms, address, queue)
        return token

    def settled(self, token: int) -> None:
        """Ends the watch of a send, with or without a response."""
        del self._sends[token]

    def settled_poll(self, token: int) -> None:
        """Ends the watch of a long poll, with or without a response."""
        del self._polls[token]

    def answered(self, address: str, sent_ms: int) -> None:
        """Records a response to a send. sent_ms: when that send was sent."""
        self._answered[address] = sent_ms

    def heard(self, address: str) -> None:
        """Records a response to any other request."""
        self._heard_ms[address] = now_ms()

    def unreachable(self, queue: MessageQueue) -> None:
        """Records that a send to the queue's master lost its connection, or got none."""
        self._ask_until_there(*self.recoveries.unreachable(queue.broker_name, now_ms=now_ms()), queue)

    def route_changed(self, route: TopicRoute) -> None:
        """Closes the connections to masters that the route no longer names: one that hangs keeps them open,
        and pulls that wait there would not continue."""
        for name in route.addresses:
            master = route.master(name)
            if master is not None and self._masters.setdefault(name, master) != master:
                self._client.drop(self._masters[name])
                self._masters[name] = master

    # -- overdue requests --------------------------------------------------------------------------------

    def _watch_every(self, interval_ms: float) -> None:
        """Looks at least this often from now on."""
        if self._watch_ms <= interval_ms or self._closed:
            return
        is_first, self._watch_ms = self._watch_ms == math.inf, interval_ms
        if is_first:
            self._tasks.start("watch for hung brokers", self._watch)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._watch_ms / 1_000)
            now = now_ms()
            self.recoveries.sweep(now_ms=now)
            self._probe_silent_pollers(now)
            await self._look_after_sends(now)

    async def _look_after_sends(self, now: int) -> None:
        oldest: dict[str, tuple[int, MessageQueue]] = {}  # address -> since when, queue
        for since, address, queue in self._sends.values():
            oldest.setdefault(address, (since, queue))
        self._answered = {address: sent for address, sent in self._answered.items() if address in oldest}
        overdue = {address: rest for address, rest in oldest.items() if now - rest[0] >= SILENT_MS}
        for address, (since, queue) in overdue.items():
            if self._answered.get(address, since) <= since:
                self._ask_until_there(*self.recoveries.silent(queue.broker_name, now_ms=now), queue)
        await asyncio.gather(
            *(self._look_for_another(address, queue, of_send=True) for address, (_, queue) in overdue.items())
        )

    def _probe_silent_pollers(self, now: int) -> None:
        long_ago_ms = now - self._probe_interval_ms
        self._heard_ms = {address: ms for address, ms in self._heard_ms.items() if ms > long_ago_ms}
        by_sends = {address for address, sent_ms in self._answered.items() if sent_ms > long_ago_ms}
        quiet = {address: queue for since, address, queue in self._polls.values() if since <= long_ago_ms}
        for address in quiet.keys() - self._heard_ms.keys() - by_sends - self._probed:
            self._tasks.start(f"is {address} there?", partial(self._probe, address, quiet[address]))

    async def _look_for_another(self, address: str, queue: MessageQueue, *, of_send: bool) -> None:
        """Closes the connection if the route names another master. `of_send`: the topic may be one that
        the first message creates; otherwise the next name server is asked, since this one may have an old
        route."""
        with contextlib.suppress(RouteError):
            route = await self._routes.refresh(queue.topic, borrow=of_send, rotate=not of_send)
            if route.master(queue.broker_name) not in (None, address):
                self._client.drop(address)

    # -- probes ------------------------------------------------------------------------------------------

    async def _probe(self, address: str, queue: MessageQueue) -> None:
        """Sends probes until the broker answers, or no long poll waits there any more."""
        self._probed.add(address)
        try:
            while any(address == where for _, where, _ in self._polls.values()):
                if await self._answers(address, queue, timeout_ms=PROBE_TIMEOUT_MS, of_send=False):
                    self.heard(address)
                    return
                await asyncio.sleep(LOOK_AGAIN_MS / 1_000)
        finally:
            self._probed.discard(address)

    def _ask_until_there(self, key: Key, recovery: Recovery, queue: MessageQueue) -> None:
        if recovery.unreachable and not recovery.pinged and not self._closed:
            recovery.pinged = True
            self._tasks.start(f"is {key[0]} there?", partial(self._ping, key, recovery, queue))

    async def _ping(self, key: Key, recovery: Recovery, queue: MessageQueue) -> None:
        """Probes the master until it answers, a message is acknowledged, or no message needs the broker any
        more. Pauses while a message tries the broker, which is the better test."""
        failures = 0
        try:
            while self.recoveries.holds(key, recovery) and recovery.unreachable:
                failures += 1
                await asyncio.sleep(PING.pause_ms(failures, random.random()) / 1_000)
                if not recovery.probing and await self._master_answers(queue):
                    recovery.unreachable = False
        finally:
            recovery.pinged = False

    async def _master_answers(self, queue: MessageQueue) -> bool:
        try:
            route = await self._routes.refresh(queue.topic, borrow=True)
        except RouteError:
            return False
        address = route.master(queue.broker_name)
        return address is not None and await self._answers(
            address, queue, timeout_ms=PING_TIMEOUT_MS, of_send=True
        )

    async def _answers(self, address: str, queue: MessageQueue, *, timeout_ms: int, of_send: bool) -> bool:
        """Returns whether the broker answers a small request at all. Looks for another master meanwhile."""
        question = QueueRequest(topic=queue.topic, queue_id=queue.queue_id)
        asked = asyncio.create_task(
            self._client.call(address, GET_MAX_OFFSET, question, timeout_ms=timeout_ms)
        )
        try:
            await asyncio.wait((asked,), timeout=SILENT_MS / 1_000)
            while not asked.done():
                await self._look_for_another(address, queue, of_send=of_send)
                await asyncio.wait((asked,), timeout=LOOK_AGAIN_MS / 1_000)
        finally:
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
        outcome = asked.result()
        unsent = isinstance(outcome, Failed) and outcome.code == ResponseCode.RPC_SEND_TO_CHANNEL_FAILED
        return not unsent and not isinstance(outcome, Unknown)
