"""Which queues a topic has and where they are: asked from the name servers, cached, refreshed on demand.

One refresh per topic at a time, shared by everybody who waits for it. Name servers are tried in turn: the one
that answered stays in use until it fails, or until a caller says that its answer did not help (`rotate`).
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from client.core.queues import MessageQueue
from remoting.client import RemotingClient
from remoting.clock import now_ms
from remoting.codes import MASTER_ID, PERM_READ, PERM_WRITE, ResponseCode
from remoting.operation import Failed, Ok, Unknown
from remoting.operations.route import GET_ROUTEINFO_BY_TOPIC, RouteRequest, TopicRouteData

DEFAULT_TOPIC = "TBW102"
"""Its route lists the brokers that create topics by themselves at the first send."""
DEFAULT_TOPIC_QUEUE_NUMS = 4
ROUTE_POLL_MS = 30_000
DEFAULT_ROUTE_POLL_MS = 1_000
"""A route borrowed from DEFAULT_TOPIC is asked again soon: the topic exists after its first message."""
NAME_SERVER_TIMEOUT_MS = 1_000
AT_ONCE_MAX = 64
"""Topics that are asked for at a time."""


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """`write_queues`: those whose broker has a master now. `ordered_queues`: these, and those whose master is
    away for a moment, so that a key keeps its queue. `addresses`: brokerName -> brokerId -> address."""

    topic: str
    write_queues: tuple[MessageQueue, ...] = ()
    read_queues: tuple[MessageQueue, ...] = ()
    ordered_queues: tuple[MessageQueue, ...] = ()
    addresses: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    borrowed: bool = False  # made from the route of DEFAULT_TOPIC

    def master(self, broker_name: str) -> str | None:
        return self.addresses.get(broker_name, {}).get(MASTER_ID)

    def replica(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """This one, or the replica with the lowest id while it is away: the master if there is one."""
        addresses = self.addresses.get(broker_name, {})
        return addresses.get(broker_id) or (addresses[min(addresses)] if addresses else None)


class RouteError(Exception):
    """No route: the topic is unknown (code 17), or no name server answered (code None)."""

    def __init__(self, remark: str, code: int | None = None) -> None:
        super().__init__(remark)
        self.remark, self.code = remark, code


def parse_addresses(text: str) -> list[str]:
    """ "a:1;b:2" -> ["a:1", "b:2"]; ValueError for an entry without a port, or for no entry at all."""
    addresses = [part.strip() for part in text.replace(",", ";").split(";") if part.strip()]
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise ValueError(f"{address!r} is not host:port")
    if not addresses:
        raise ValueError("no address given")
    return addresses


def make_route(topic: str, data: TopicRouteData, *, borrowed: bool = False) -> TopicRoute:
    """Queues sorted by broker name and id. Borrowed: at most DEFAULT_TOPIC_QUEUE_NUMS queues per broker."""
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
    return TopicRoute(topic, tuple(write), tuple(read), tuple(ordered), addresses, borrowed)


class RouteCache:
    """Owns no connection: closing the client closes everything but the refreshes, see close(). `on_change`:
    called with a route that has other queues or addresses than the one that was known."""

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
        self._routes: dict[str, tuple[TopicRoute, int]] = {}
        self._refreshes: dict[str, asyncio.Task[TopicRoute]] = {}

    async def find(self, topic: str, *, borrow: bool = False) -> TopicRoute:
        """The cached route (asked again in the background when it is old), else a fresh one; RouteError."""
        cached = self._routes.get(topic)
        if cached is None:
            return await self.refresh(topic, borrow=borrow)
        route, stale_at_ms = cached
        if now_ms() >= stale_at_ms:
            self._refreshing(topic, borrow)
        return route

    async def refresh(self, topic: str, *, borrow: bool = False, rotate: bool = False) -> TopicRoute:
        """Ask now. `borrow`: an unknown topic gets DEFAULT_TOPIC's brokers. `rotate`: next server first."""
        if rotate and topic not in self._refreshes:
            self._current = (self._current + 1) % len(self._name_servers)
        return await asyncio.shield(self._refreshing(topic, borrow))

    def addresses(self, *, masters_only: bool = False) -> set[str]:
        """Of all brokers in the routes that are known here."""
        tables = [table for route, _ in self._routes.values() for table in route.addresses.values()]
        return {
            address
            for table in tables
            for broker_id, address in table.items()
            if broker_id == MASTER_ID or not masters_only
        }

    def knows(self, topics: Collection[str]) -> bool:
        return self._routes.keys() >= set(topics)

    def has_all_masters(self) -> bool:
        """Of every broker name in the routes that are known here."""
        return all(
            MASTER_ID in table for route, _ in self._routes.values() for table in route.addresses.values()
        )

    async def refresh_all(self, also: Collection[str] = (), *, rotate: bool = False) -> bool:
        """Ask for every topic that is known here, and for these. False: no name server answered for some."""
        gate = asyncio.Semaphore(AT_ONCE_MAX)

        async def one(topic: str, rotate: bool) -> bool:
            cached = self._routes.get(topic)
            async with gate:
                try:
                    await self.refresh(topic, borrow=cached is not None and cached[0].borrowed, rotate=rotate)
                except RouteError as error:
                    return error.code is not None
            return True

        topics = sorted({*self._routes, *also})
        return all(await asyncio.gather(*(one(topic, rotate and not at) for at, topic in enumerate(topics))))

    def master_of(self, queue: MessageQueue) -> str:
        """Its address as it is known here, or ""."""
        cached = self._routes.get(queue.topic)
        return (cached[0].master(queue.broker_name) if cached is not None else None) or ""

    def refresh_soon(self, topic: str) -> None:
        """In the background: the route works, but it is old."""
        self._refreshing(topic, False)

    async def close(self) -> None:
        tasks = list(self._refreshes.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

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
            task.exception()  # a background refresh has no waiter: its failure is not news

    async def _fetch(self, topic: str, borrow: bool) -> TopicRoute:
        data = await self._ask(topic)
        if data is not None:
            route, poll_ms = make_route(topic, data), ROUTE_POLL_MS
        else:
            data = await self._ask(DEFAULT_TOPIC) if borrow else None
            if data is None:
                raise RouteError(
                    f"no route of topic {topic} at the name server", ResponseCode.TOPIC_NOT_EXIST
                )
            route, poll_ms = make_route(topic, data, borrowed=True), DEFAULT_ROUTE_POLL_MS
        before, _ = self._routes.get(topic, (None, 0))
        self._routes[topic] = (route, now_ms() + poll_ms)
        if self._on_change is not None and before != route:
            self._on_change(route)
        return route

    async def _ask(self, topic: str) -> TopicRouteData | None:
        """None: no name server knows the topic (each is asked: one that just started knows none).
        RouteError: none answered."""
        remarks: list[str] = []
        unknown_topic = False
        for _ in self._name_servers:
            address = self._name_servers[self._current]
            outcome = await self._client.call(
                address,
                GET_ROUTEINFO_BY_TOPIC,
                RouteRequest(topic=topic, accept_standard_json_only=True),
                timeout_ms=NAME_SERVER_TIMEOUT_MS,
            )
            match outcome:
                case Ok(body=TopicRouteData() as data):
                    return data
                case Failed(code=ResponseCode.TOPIC_NOT_EXIST):
                    unknown_topic = True
                case Failed(code=code, remark=remark):
                    remarks.append(f"{address}: {code} {remark}")
                case Unknown(remark=remark):
                    remarks.append(f"{address}: {remark}")
                case _:
                    remarks.append(f"{address}: an answer without a route")
            self._current = (self._current + 1) % len(self._name_servers)
        if unknown_topic:
            return None
        raise RouteError("no name server answered (" + "; ".join(remarks) + ")")
