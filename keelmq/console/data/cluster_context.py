"""ClusterContext: the cluster to query, with the visitor's credentials; and the answers of several brokers.

A broker that does not answer is a ServerProblem, and the rest is shown.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, Generic, TypeVar

import msgspec
from pydantic import Field

from keelmq.client.admin import AdminClient, AdminError, gather_some
from keelmq.remoting.codes import MASTER_ID, ResponseCode
from keelmq.remoting.operation import Wire
from keelmq.remoting.operations.route import BrokerData, ClusterInfo, TopicRouteData
from keelmq.remoting.servers.http_answers import some_of

T = TypeVar("T")
Row = TypeVar("Row")

BROKERS_MAX: Final = 128
"""Brokers that one page asks; more are counted."""
TIMEOUT_MS: Final = 3_000
"""Time limit of one request."""


class Missing(Exception):
    """The requested object does not exist; the text lists those that do."""


class ServerProblem(Wire):
    """A server without a usable answer, and why. code None: it was not reached."""

    server: str
    code: int | None = None
    problem: str


class BrokerReplica(msgspec.Struct, frozen=True):
    """A broker name and the replica that is server_problems: its master, or else another one."""

    cluster: str
    name: str
    address: str
    is_master: bool


class BrokerRow(Wire):
    """A BrokerReplica in a view."""

    cluster: str
    broker_name: str
    address: str
    is_master: bool


def row_of(broker: BrokerReplica) -> dict[str, Any]:
    """Returns the fields of a BrokerRow."""
    where = {"cluster": broker.cluster, "broker_name": broker.name}
    return {**where, "address": broker.address, "is_master": broker.is_master}


class Page(Wire):
    """A page of a list. total: of all rows; found: that match the filter. notAsked: brokers."""

    taken_ms: int
    total: int
    found: int
    problems: list[ServerProblem] = Field(default_factory=list)
    not_asked: int = 0


class Every(Wire, Generic[Row]):
    """Every row of a list, before paging and filters."""

    taken_ms: int
    rows: list[Row]
    problems: list[ServerProblem]
    not_asked: int

    def found(self, words: str, text: Callable[[Row], str]) -> list[Row]:
        """Returns the rows whose text has every word."""
        wanted = words.lower().split()
        return [row for row in self.rows if all(word in text(row).lower() for word in wanted)]

    def page(self, found: int) -> dict[str, Any]:
        """Returns the fields of a Page."""
        head = {"taken_ms": self.taken_ms, "total": len(self.rows), "found": found}
        return {**head, "problems": self.problems, "not_asked": self.not_asked}


class ClusterContext(msgspec.Struct, frozen=True):
    """`admin`: signs as the visitor."""

    admin: AdminClient
    name_servers: str


class ServerProblems(msgspec.Struct):
    """Collects the problems of servers, each server once."""

    by_server: dict[str, ServerProblem] = msgspec.field(default_factory=dict)
    not_asked: int = 0

    def add(self, error: AdminError, *, unless: Iterable[int] = ()) -> None:
        """Notes an error, unless its code is one of these."""
        if error.code is None or error.code not in unless:
            self.by_server.setdefault(error.address, problem_of(error))

    @property
    def listed(self) -> list[ServerProblem]:
        """The problems in the order of their servers."""
        return [self.by_server[each] for each in sorted(self.by_server)]


def problem_of(error: AdminError) -> ServerProblem:
    """Returns what a page shows of an error."""
    code = f"{error.code_name}: " if error.code_name else ""
    return ServerProblem(server=error.address, code=error.code, problem=f"{code}{error.remark}")


def brokers_in(info: ClusterInfo) -> list[BrokerReplica]:
    """Returns every broker name with the replica that is asked."""
    return [_replica_of(each) for _, each in sorted(info.broker_addr_table.items()) if each.broker_addrs]


def _replica_of(broker: BrokerData) -> BrokerReplica:
    addresses = broker.broker_addrs
    return BrokerReplica(
        broker.cluster, broker.broker_name, addresses[min(addresses)], MASTER_ID in addresses
    )


def masters_in(info: ClusterInfo, cluster: str) -> tuple[list[str], list[str]]:
    """Returns the masters' addresses in a cluster, and the names of its brokers without one. Raises
    Missing."""
    if cluster not in info.cluster_addr_table:
        raise Missing(f"there is no cluster {cluster} {some_of(info.cluster_addr_table)}")
    names = sorted(info.cluster_addr_table[cluster])
    brokers = {name: info.broker_addr_table.get(name) for name in names}
    masters = [
        each.broker_addrs[MASTER_ID] for each in brokers.values() if each and MASTER_ID in each.broker_addrs
    ]
    without = [name for name, each in brokers.items() if each is None or MASTER_ID not in each.broker_addrs]
    return masters, without


def addresses_in(info: ClusterInfo) -> dict[str, str]:
    """Returns address -> broker name of every replica: visitors cannot make the console ask others."""
    return {
        address: name
        for name, each in info.broker_addr_table.items()
        for address in each.broker_addrs.values()
    }


async def ask_each(
    server_problems: ServerProblems,
    brokers: Iterable[BrokerReplica],
    ask: Callable[[str], Awaitable[T]],
    *,
    unless: Iterable[int] = (),
    at_once: int = 16,
) -> list[tuple[BrokerReplica, T]]:
    """Returns the answers of the first BROKERS_MAX brokers that answer; notes the others."""
    every = list(brokers)
    server_problems.not_asked += max(0, len(every) - BROKERS_MAX)
    ignored = tuple(unless)

    async def one(broker: BrokerReplica) -> tuple[BrokerReplica, T] | None:
        try:
            return broker, await ask(broker.address)
        except AdminError as error:
            server_problems.add(error, unless=ignored)
            return None

    answers = await gather_some((one(each) for each in every[:BROKERS_MAX]), at_once)
    return [each for each in answers if each is not None]


def brokers_of(route: TopicRouteData) -> list[BrokerReplica]:
    """Returns the brokers of a topic."""
    return [
        _replica_of(each)
        for each in sorted(route.broker_datas, key=lambda each: each.broker_name)
        if each.broker_addrs
    ]


async def route_of(context: ClusterContext, topic: str) -> TopicRouteData:
    """Returns a topic's route. Raises Missing: no name server knows it."""
    try:
        return await context.admin.name_servers.topic_route(context.name_servers, topic)
    except AdminError as error:
        if error.code == ResponseCode.TOPIC_NOT_EXIST:
            raise Missing(f"no name server knows topic {topic}") from None
        raise
