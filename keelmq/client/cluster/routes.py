"""Routes of topics, requested from the name servers, cached, and refreshed on demand.

A topic has one refresh at a time, shared by all callers that wait for it. Name servers are tried in turn: the
one that answered stays in use until it fails, or until a caller reports that its route did not help
(`rotate`).
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from keelmq.client.core.queues import MessageQueue
from keelmq.remoting.address_text import parse_addresses
from keelmq.remoting.client import LOST, RemotingClient
from keelmq.remoting.codes import MASTER_ID, PERM_READ, PERM_WRITE, ResponseCode
from keelmq.remoting.operation import Failed, Ok, Unknown
from keelmq.remoting.operations.route import GET_ROUTEINFO_BY_TOPIC, RouteRequest, TopicRouteData
from keelmq.runtime.clock import now_ms
from keelmq.runtime.tasks import cancel_all

DEFAULT_TOPIC = "TBW102"
"""Its route lists the brokers that create topics automatically at the first send."""
DEFAULT_TOPIC_QUEUE_NUMS = 4
ROUTE_POLL_MS = 30_000
DEFAULT_ROUTE_POLL_MS = 1_000
"""A route borrowed from DEFAULT_TOPIC is refreshed soon: the topic exists after its first message."""
NAME_SERVER_TIMEOUT_MS = 1_000
AVOIDED_MS = 5_000
"""A name server that did not answer is asked last for this long: each attempt there costs a whole timeout."""
AT_ONCE_MAX = 64
"""Topics that are refreshed concurrently."""
TOPICS_KEPT = 64
"""This many topics stay cached even if no message is sent to them, so their masters still know an idle
producer."""
TOPICS_MAX = 10_000
IDLE_MS = 60 * 60_000
"""Above TOPICS_KEPT, a topic that was not used for this long is removed, and its brokers with it."""
GROUPS_SHOWN = 5
"""Groups that an error text lists."""
GONE_MS = 10 * 60_000
"""A topic that the name servers no longer know is removed after this time."""


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """The queues and brokers of a topic. `write_queues`: those whose broker has a master now.
    `ordered_queues`: these, and those whose master is missing for a moment, so that a key keeps its queue.
    `addresses`: brokerName -> brokerId -> address. `clusters`: brokerName -> cluster."""

    topic: str
    write_queues: tuple[MessageQueue, ...] = ()
    read_queues: tuple[MessageQueue, ...] = ()
    ordered_queues: tuple[MessageQueue, ...] = ()
    addresses: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    borrowed: bool = False  # made from the route of DEFAULT_TOPIC
    clusters: Mapping[str, str] = field(default_factory=dict)

    def master(self, broker_name: str) -> str | None:
        """Returns the address of the broker's master; None: it has none now."""
        return self.addresses.get(broker_name, {}).get(MASTER_ID)

    def why_not_writable(self, broker_name: str | None) -> str:
        """Returns why messages cannot be sent to a broker; None: to any broker."""
        if broker_name is not None and broker_name not in self.addresses:
            known = ", ".join(sorted(self.addresses)) or "no other"
            return f"topic {self.topic} is not at broker {broker_name}, but at {known}"
        if broker_name is not None:
            return f"group {broker_name} of topic {self.topic} has no master now{self._left(broker_name)}"
        if not self.ordered_queues:
            return (
                f"topic {self.topic} is read-only: neither it nor its brokers permit writing (perm without 2)"
            )
        left = "".join(f"; {name}{self._left(name)}" for name in sorted(self.addresses)[:GROUPS_SHOWN])
        return f"no group of topic {self.topic} has a master now{left}"

    def _left(self, broker_name: str) -> str:
        """Returns which replicas a group without a master has, as the end of a sentence about it."""
        replicas = self.addresses.get(broker_name, {})
        listed = ", ".join(f"{number} at {address}" for number, address in sorted(replicas.items()))
        return f" (slaves, which take no messages: {listed})" if listed else " (no replica is registered)"

    def replica(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """Returns the address of this replica, else of the one with the lowest id, which is the master if
        there is one; None: the broker has no address."""
        addresses = self.addresses.get(broker_name, {})
        return addresses.get(broker_id) or (addresses[min(addresses)] if addresses else None)


class RouteError(Exception):
    """No route: the topic is unknown (code 17), the name servers refuse this client (code 16), or none
    answered (code None)."""

    def __init__(self, remark: str, code: int | None = None) -> None:
        super().__init__(remark)
        self.remark, self.code = remark, code


def make_route(topic: str, data: TopicRouteData, *, borrowed: bool = False) -> TopicRoute:
    """Returns the route, with queues sorted by broker name and id. `borrowed`: at most
    DEFAULT_TOPIC_QUEUE_NUMS queues per broker."""
    addresses = {broker.broker_name: dict(broker.broker_addrs) for broker in data.broker_datas}
    limit = DEFAULT_TOPIC_QUEUE_NUMS if borrowed else 1 << 31
    write: list[MessageQueue] = []
    read: list[MessageQueue] = []
    ordered: list[MessageQueue] = []
    for queues in sorted(data.queue_datas, key=lambda queue: queue.broker_name):
        name = queues.broker_name
        if queues.perm & PERM_WRITE:
            writable = [
                MessageQueue(topic, name, index) for index in range(min(queues.write_queue_nums, limit))
            ]
            ordered += writable
            write += writable if MASTER_ID in addresses.get(name, {}) else []
        if queues.perm & PERM_READ and addresses.get(name):
            read += [MessageQueue(topic, name, index) for index in range(min(queues.read_queue_nums, limit))]
    clusters = {broker.broker_name: broker.cluster for broker in data.broker_datas}
    return TopicRoute(topic, tuple(write), tuple(read), tuple(ordered), addresses, borrowed, clusters)


@dataclass(slots=True)
class _Known:
    """A cached route. `used_ms`: when a caller last requested it; polls do not count. `gone_ms`: when the
    name servers first reported that the topic does not exist; None: they know it."""

    route: TopicRoute
    stale_at_ms: int
    used_ms: int
    gone_ms: int | None = None


class RouteCache:
    """The routes of one client. Owns no connection; close() only ends the refreshes. `on_change`: called with
    a route whose queues or addresses differ from the cached ones."""

    def __init__(
        self,
        client: RemotingClient,
        namesrv_addr: str,
        *,
        on_change: Callable[[TopicRoute], None] | None = None,
    ) -> None:
        self._client, self._on_change = client, on_change
        self._name_servers = parse_addresses(namesrv_addr)
        self._current = 0
        self._avoided_until_ms: dict[str, int] = {}  # by name server
        self._routes: dict[str, _Known] = {}
        self._room = TOPICS_KEPT  # above this number, unused topics are looked for
        self._closed = False
        self._refreshes: dict[str, asyncio.Task[TopicRoute]] = {}

    async def find(self, topic: str, *, borrow: bool = False) -> TopicRoute:
        """Returns the cached route (refreshed in the background if it is old), or a fresh one. RouteError."""
        known = self._routes.get(topic)
        if known is None:
            return await self.refresh(topic, borrow=borrow)
        known.used_ms = now_ms()
        if known.used_ms >= known.stale_at_ms:
            self._refreshing(topic, borrow)
        return known.route

    async def refresh(self, topic: str, *, borrow: bool = False, rotate: bool = False) -> TopicRoute:
        """Requests the route now and returns it (GET_ROUTEINFO_BY_TOPIC, 105). `borrow`: an unknown topic
        gets DEFAULT_TOPIC's brokers. `rotate`: starts with the next name server. RouteError."""
        self._rotate(topic, rotate)
        route = await self._fresh(topic, borrow)
        known = self._routes.get(topic)
        if known is not None:
            known.used_ms = now_ms()
        return route

    def _rotate(self, topic: str, rotate: bool) -> None:
        if rotate and topic not in self._refreshes:
            self._current = (self._current + 1) % len(self._name_servers)

    async def _fresh(self, topic: str, borrow: bool) -> TopicRoute:
        task = self._refreshing(topic, borrow)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and self._closed:
                raise RouteError("the client was closed") from None
            raise

    def addresses(self, *, masters_only: bool = False) -> set[str]:
        """Returns the addresses of all brokers in the cached routes."""
        tables = [table for known in self._routes.values() for table in known.route.addresses.values()]
        return {
            address
            for table in tables
            for broker_id, address in table.items()
            if broker_id == MASTER_ID or not masters_only
        }

    def knows(self, topics: Collection[str]) -> bool:
        """Returns whether the routes of all these topics are cached."""
        return self._routes.keys() >= set(topics)

    def has_all_masters(self) -> bool:
        """Returns whether every broker name in the cached routes has a master."""
        return all(
            MASTER_ID in table for known in self._routes.values() for table in known.route.addresses.values()
        )

    async def refresh_all(self, also: Collection[str] = (), *, rotate: bool = False) -> bool:
        """Refreshes every cached topic, and those in `also`. False: no name server answered for some
        topic."""
        self._forget_unused(also)
        gate = asyncio.Semaphore(AT_ONCE_MAX)

        async def one(topic: str, rotate: bool) -> bool:
            known = self._routes.get(topic)
            async with gate:
                self._rotate(topic, rotate)
                try:
                    await self._fresh(topic, known is not None and known.route.borrowed)
                except RouteError as error:
                    return error.code is not None
            return True

        topics = sorted({*self._routes, *also})
        return all(await asyncio.gather(*(one(topic, rotate and not at) for at, topic in enumerate(topics))))

    def master_of(self, queue: MessageQueue) -> str:
        """Returns the address of the queue's master from the cache, "" if it is unknown."""
        known = self._routes.get(queue.topic)
        return (known.route.master(queue.broker_name) if known is not None else None) or ""

    def replicas_of(self, queue: MessageQueue) -> list[str]:
        """Returns the addresses of the queue's replicas other than its master, from the cache."""
        known = self._routes.get(queue.topic)
        table = known.route.addresses.get(queue.broker_name, {}) if known is not None else {}
        return [address for broker_id, address in table.items() if broker_id != MASTER_ID]

    def cluster_of(self, queue: MessageQueue) -> str:
        """Returns the cluster of the queue's broker from the cache, "" if it is unknown."""
        known = self._routes.get(queue.topic)
        return known.route.clusters.get(queue.broker_name, "") if known is not None else ""

    def refresh_soon(self, topic: str) -> None:
        """Refreshes in the background: the route still works, but is old."""
        self._refreshing(topic, False)

    async def close(self) -> None:
        """Ends the refreshes. Callers that wait for one get a RouteError."""
        self._closed = True
        await cancel_all(self._refreshes.values())

    def _refreshing(self, topic: str, borrow: bool) -> asyncio.Task[TopicRoute]:
        task = self._refreshes.get(topic)
        if task is None:
            task = asyncio.create_task(self._fetch(topic, borrow), name=f"route of {topic}")
            self._refreshes[topic] = task
            task.add_done_callback(lambda done: self._finished(topic, done))
        return task

    def _finished(self, topic: str, task: "asyncio.Task[TopicRoute]") -> None:
        del self._refreshes[topic]
        if not task.cancelled():
            task.exception()  # marks it as retrieved: a background refresh has no caller

    async def _fetch(self, topic: str, borrow: bool) -> TopicRoute:
        data = await self._ask(topic)
        if data is not None:
            route, poll_ms = make_route(topic, data), ROUTE_POLL_MS
        else:
            data = await self._ask(DEFAULT_TOPIC) if borrow else None
            if data is None:
                self._gone(topic)
                raise RouteError(
                    f"no route of topic {topic} at the name server", ResponseCode.TOPIC_NOT_EXIST
                )
            route, poll_ms = make_route(topic, data, borrowed=True), DEFAULT_ROUTE_POLL_MS
        known, now = self._routes.get(topic), now_ms()
        if known is None:
            self._make_room()
        used_ms = now if known is None else known.used_ms
        self._routes[topic] = _Known(route, now + poll_ms, used_ms)
        if self._on_change is not None and (known is None or known.route != route):
            self._on_change(route)
        return route

    # -- removal -----------------------------------------------------------------------------------------

    def _gone(self, topic: str) -> None:
        known = self._routes.get(topic)
        if known is not None and known.gone_ms is None:
            known.gone_ms = now_ms()

    def _forget_unused(self, kept: Collection[str]) -> None:
        now = now_ms()
        for topic, known in list(self._routes.items()):
            gone = known.gone_ms is not None and now - max(known.gone_ms, known.used_ms) >= GONE_MS
            idle = len(self._routes) > TOPICS_KEPT and now - known.used_ms >= IDLE_MS
            if (gone or idle) and topic not in kept:
                del self._routes[topic]

    def _make_room(self) -> None:
        """Makes room for one more topic, by removing unused ones; clients that never poll do this only
        here."""
        if len(self._routes) >= self._room:
            self._forget_unused(())
            self._room = min(max(2 * len(self._routes), TOPICS_KEPT), TOPICS_MAX)
        if len(self._routes) >= TOPICS_MAX:
            unused = sorted(self._routes, key=lambda topic: self._routes[topic].used_ms)
            for topic in unused[: TOPICS_MAX // 10]:
                del self._routes[topic]

    def _in_turn(self) -> list[int]:
        """Returns the places of all name servers, from the current one on; those that did not answer lately
        are last."""
        count, now = len(self._name_servers), now_ms()
        places = [(self._current + each) % count for each in range(count)]
        return sorted(places, key=lambda at: now < self._avoided_until_ms.get(self._name_servers[at], now))

    async def _ask(self, topic: str) -> TopicRouteData | None:
        """Returns None if no name server knows the topic. Each is tried, since one that has just started
        knows no topic. RouteError: none answered."""
        remarks: list[str] = []
        unknown_topic, denials = False, 0
        for at in self._in_turn():
            address = self._name_servers[at]
            outcome = await self._client.call(
                address,
                GET_ROUTEINFO_BY_TOPIC,
                RouteRequest(topic=topic, accept_standard_json_only=True),
                timeout_ms=NAME_SERVER_TIMEOUT_MS,
            )
            match outcome:
                case Ok(body=TopicRouteData() as data):
                    self._current = at
                    self._avoided_until_ms.pop(address, None)
                    return data
                case Failed(code=ResponseCode.TOPIC_NOT_EXIST):
                    unknown_topic = True
                case Failed(code=code, remark=remark):
                    denials += code == ResponseCode.NO_PERMISSION
                    remarks.append(f"{address}: {code} {remark}")
                    if code == ResponseCode.RPC_SEND_TO_CHANNEL_FAILED:
                        self._avoided_until_ms[address] = now_ms() + AVOIDED_MS
                case Unknown(remark=remark):
                    self._avoided_until_ms[address] = now_ms() + AVOIDED_MS
                    remarks.append(f"{address}: {remark}")
                case _:
                    remarks.append(f"{address}: an answer without a route")
        if unknown_topic:
            return None
        told = "; ".join(remarks)
        if denials == len(self._name_servers):
            raise RouteError(f"no route for this client ({told})", ResponseCode.NO_PERMISSION)
        if self._client.tls is None and told.endswith(LOST):
            told += ": a server that takes TLS only closes plain connections"
        raise RouteError(f"no name server answered ({told})")
