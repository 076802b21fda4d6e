"""BrokerMonitor: decides what a client does about brokers that die, hang or are replaced.

Each client has one. Sends (producer/sender.py), reads (queue_reader.py) and heartbeats (heartbeats.py) report
their outcome to it; closed connections and changed routes are reported as well. It alone decides:

- A send got no connection, or lost it: sends to the broker take turns (`recoveries`), and the broker is asked
  in the background until it answers, so no message has to try it. One of its replicas will be master soon:
  connections to them are opened meanwhile, because a TLS handshake takes as long as a step of the election.
- A send is overdue: the same, and the route is requested.
- A read failed: it is repeated after a pause, by a fresh route, or at once if the route names a new address.
- A broker no longer knows this client: a heartbeat is due, and the routes are doubted.
- The route names another master: the connection to the old one is cut if the client permits it.

A broker that hangs keeps its connections open, so its clients see no lost connection. The monitor watches two
kinds of requests:

- A send is overdue after SILENT_MS. If the broker has not answered any later send either, it counts as silent
  (broker_recovery.py): messages that may go to any queue go to other brokers.
- A long poll may wait for many seconds on an idle queue. If the broker has sent nothing at all for
  `probe_interval_ms`, the monitor probes it with a small request (30).

While a send is overdue, or a probe is unanswered, the monitor asks for the route. When the route names
another master, it cuts the connection to the silent one, so everything that waits there goes on at once. A
broker that is only slow stays master, and keeps its connection. Owns neither the client nor the routes.
"""

import asyncio
import contextlib
import math
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass
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
READ_AGAIN = Backoff(first_ms=20, max_ms=500, factor=1.5)
READ_AGAIN_BUSY = Backoff(first_ms=100, max_ms=2_000)
"""After SYSTEM_BUSY: the broker asks for less load."""


Choose = Callable[[TopicRoute], str | None]


@dataclass(frozen=True, slots=True)
class PausedRead:
    """A read of a topic that waits for its next attempt. `choose`: which broker of a route it asks. `tried`:
    the addresses that failed."""

    topic: str
    choose: Choose
    tried: Collection[str]


class BrokerMonitor:
    """`recoveries`: the brokers and topics at which sends fail; senders take their turns there.
    `cuts_replaced`: cut the connection to a master when the route names another one. Not for a producer: a
    send that is cut may be stored already, and is sent again. The task starts with the first request that is
    reported to it. `probe_interval_ms` of 0 or less is a ValueError."""

    def __init__(
        self,
        client: RemotingClient,
        routes: RouteCache,
        *,
        cuts_replaced: bool,
        probe_interval_ms: int = PROBE_INTERVAL_MS,
    ) -> None:
        if probe_interval_ms <= 0:
            raise ValueError(f"the probe interval is {probe_interval_ms} ms: it must be above 0")
        self.recoveries = Recoveries()
        self.heartbeat_due, self.routes_doubted = asyncio.Event(), asyncio.Event()
        """Membership waits for the first, and RoutePoll for the second."""
        self._cuts_replaced = cuts_replaced
        self._registered: set[str] = set()  # addresses of brokers that know this client
        self.paused_reads: dict[asyncio.Future[None], PausedRead] = {}
        """Reads that wait to be repeated, by the future that wakes them."""
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

    # -- sends -------------------------------------------------------------------------------------------

    def expect_answer(self, address: str, queue: MessageQueue, sent_ms: int) -> int:
        """Watches a send. Returns the token for settled()."""
        if not self._watches_sends:
            self._watches_sends = True
            self._watch_every(WATCH_MS)
        self._token = token = self._token + 1
        self._sends[token] = (sent_ms, address, queue)
        return token

    def settled(self, token: int) -> None:
        """The send ended, by an answer or without one."""
        del self._sends[token]

    def accepted(self, address: str, broker_name: str, topic: str, sent_ms: int, *, forwarded: bool) -> None:
        """The broker acknowledged a send. sent_ms: when that was sent. `forwarded`: another broker stored it,
        so this one is no longer master; the route is requested."""
        self._answered[address] = sent_ms
        if self.recoveries:
            self.recoveries.succeeded(broker_name, topic)
        if forwarded:
            self._routes.refresh_soon(topic)

    def refused(
        self, address: str, broker_name: str, topic: str, sent_ms: int, code: int, *, sends_again: bool
    ) -> None:
        """The broker refused a send. `sends_again`: another attempt may succeed, so sends to the broker, or
        of this topic to it, take turns. False: the refusal is final, and says nothing about other messages.
        """
        self._answered[address] = sent_ms
        if sends_again:
            self.recoveries.refused(broker_name, topic, code, now_ms=now_ms())

    def unreachable(self, queue: MessageQueue, *, sends_again: bool) -> None:
        """A send to the queue's master lost its connection, or got none. `sends_again`: its next attempt asks
        for the route; else that is done in the background."""
        self._ask_until_there(*self.recoveries.unreachable(queue.broker_name, now_ms=now_ms()), queue)
        if not sends_again:
            self._routes.refresh_soon(queue.topic)

    def no_master(self, broker_name: str, topic: str) -> tuple[Key, Recovery]:
        """A send found no master of this broker name; "": its topic has no route. Returns the entry at which
        it takes its turn."""
        return self.recoveries.no_route(broker_name, topic, now_ms=now_ms())

    # -- reads -------------------------------------------------------------------------------------------

    def expect_poll(self, address: str, queue: MessageQueue, sent_ms: int) -> int:
        """Watches a long poll. Returns the token for settled_poll()."""
        self._watch_every(self._probe_interval_ms / LOOKS)
        self._token = token = self._token + 1
        self._polls[token] = (sent_ms, address, queue)
        return token

    def settled_poll(self, token: int) -> None:
        """Ends the watch of a long poll, with or without a response."""
        del self._polls[token]

    def heard(self, address: str) -> None:
        """The broker answered a read."""
        self._heard_ms[address] = now_ms()

    async def read_failed(self, read: PausedRead, *, failures: int, code: int | None) -> bool:
        """Returns when the read may be repeated. True: after a pause, and with a fresh route. False: before
        that, because the cached route now names an address that the read has not tried. `failures`: of this
        read, in a row. `code`: of the refusal; None: no answer.

        Not every change of the route ends the pause: while name servers disagree, each failure brings one.
        """
        policy = READ_AGAIN_BUSY if code == ResponseCode.SYSTEM_BUSY else READ_AGAIN
        pause_ms = policy.pause_ms(failures, random.random())
        woken = asyncio.get_running_loop().create_future()
        self.paused_reads[woken] = read
        try:
            await asyncio.wait((woken,), timeout=pause_ms / 1_000)
        finally:
            del self.paused_reads[woken]
        return not woken.done()

    # -- connections, heartbeats, routes -----------------------------------------------------------------

    async def route(self, topic: str, *, fresh: bool, of_send: bool) -> TopicRoute:
        """Returns the route for a send or a read. `fresh`: an attempt failed, so the next name server is
        asked: the last one may know old things only. RouteError."""
        if fresh:
            return await self._routes.refresh(topic, borrow=of_send, rotate=True)
        return await self._routes.find(topic, borrow=of_send)

    def registered(self, address: str) -> None:
        """The broker accepted a heartbeat over the present connection."""
        self._registered.add(address)

    @property
    def registered_at(self) -> Collection[str]:
        """Addresses of the brokers that know this client."""
        return self._registered

    def registers_at(self, addresses: Collection[str]) -> None:
        """Brokers other than these need not know this client any longer."""
        self._registered.intersection_update(addresses)

    def heartbeat_failed(self, address: str) -> None:
        """The broker did not accept a heartbeat. If it knew this client, it may no longer be master."""
        if address in self._registered:
            self._registered.discard(address)
            self.routes_doubted.set()

    def connection_lost(self, address: str) -> None:
        """A connection closed. Its broker has forgotten this client, so a heartbeat is due; and it may be
        dead, so the routes are doubted."""
        if address in self._registered:
            self._registered.discard(address)
            self.heartbeat_due.set()
            self.routes_doubted.set()

    def route_changed(self, route: TopicRoute) -> None:
        """Reads that pause go on if there is a new broker to ask. A master that was replaced may hang, and
        keep its connections: they are cut if the client permits it, so that pulls which wait there go on."""
        for woken, read in self.paused_reads.items():
            if read.topic == route.topic and not woken.done():
                found = read.choose(route)
                if found is not None and found not in read.tried:
                    woken.set_result(None)
        for name in route.addresses:
            master = route.master(name)
            if master is None:
                continue
            replaced, self._masters[name] = self._masters.get(name, master), master
            if self._cuts_replaced and replaced != master:
                self._client.drop(replaced)

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
            for address in self._routes.replicas_of(queue):
                self._client.connect_soon(address)
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
        request = asyncio.create_task(
            self._client.call(address, GET_MAX_OFFSET, question, timeout_ms=timeout_ms)
        )
        try:
            await asyncio.wait((request,), timeout=SILENT_MS / 1_000)
            while not request.done():
                await self._look_for_another(address, queue, of_send=of_send)
                await asyncio.wait((request,), timeout=LOOK_AGAIN_MS / 1_000)
        finally:
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)
        outcome = request.result()
        unsent = isinstance(outcome, Failed) and outcome.code == ResponseCode.RPC_SEND_TO_CHANNEL_FAILED
        return not unsent and not isinstance(outcome, Unknown)
