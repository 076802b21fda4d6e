"""GET /v1/routes, /v1/clusters, /v1/brokers: the route table of this name server, for people and scripts.

A view has the content of the replies to 105, 106 and 206, and adds heartbeat ages, counts and detected
problems. Name servers are independent of each other: another one may have other registrations. Imported only
when HTTP is enabled: it needs FastAPI.
"""

from collections.abc import Callable, Iterator
from typing import Annotated

import msgspec
from fastapi import APIRouter, Path, Query, Response
from pydantic import Field

from keelmq.remoting.codes import MASTER_ID, PERM_READ, PERM_WRITE
from keelmq.remoting.operation import Wire
from keelmq.remoting.operations.route import BrokerData, DataVersion, QueueData, TopicRouteData
from keelmq.remoting.servers.http_answers import (
    NAMES_SHOWN,
    NOT_HERE,
    After,
    Limit,
    NotFound,
    as_json,
    page_of,
    refused_as_statuses,
    shown,
    some_of,
)
from namesrv.core.liveness import HeartbeatTable, route_key
from namesrv.core.routes import RouteTable
from namesrv.handlers.queries import Queries

PAGE = 100
LATE_MS = 60_000
"""Brokers register every 30 s; one that was silent for twice as long may be down."""


class RouteSources(msgspec.Struct, frozen=True):
    """What the views read. `clock`: monotonic ms, also of the heartbeat table."""

    routes: RouteTable
    liveness: HeartbeatTable
    queries: Queries
    clock: Callable[[], int]


class RegisteredBroker(Wire):
    """One broker as it registered here. Id 0 is the master."""

    broker_id: int
    address: str
    is_master: bool
    age_ms: int | None = Field(description="since its last registration or heartbeat; null: there was none")
    ha_server_address: str | None = None
    data_version: DataVersion | None = Field(default=None, description="of its topic table")


class RegisteredGroup(Wire):
    """All registered brokers of one brokerName."""

    cluster: str
    broker_name: str
    master_address: str | None = Field(default=None, description="null: no master is registered")
    enable_acting_master: bool = False
    zone_name: str | None = None
    topics: int = Field(description="topics that it has")
    brokers: list[RegisteredBroker]
    problems: list[str] = Field(description="detected problems; empty: none")


class BrokersView(Wire):
    """A page of groups, by name."""

    groups: list[RegisteredGroup]
    next_after: str | None = Field(
        default=None, description="the `after` of the next page; null: this is the last"
    )


class ClusterView(Wire):
    """One cluster: how many of its groups and brokers are registered here."""

    cluster: str
    groups: int
    brokers: int
    groups_without_master: int
    without_master: list[str] = Field(description="the first of them")


class ClustersView(Wire):
    """A page of clusters, by name."""

    clusters: list[ClusterView]
    next_after: str | None = Field(
        default=None, description="the `after` of the next page; null: this is the last"
    )


class TopicSummary(Wire):
    """A topic and where it is. Queue numbers are sums over its groups."""

    topic: str
    broker_names: list[str]
    read_queue_nums: int
    write_queue_nums: int
    writable: bool = Field(description="some group has a master, and permission to write")


class RoutesView(Wire):
    """A page of topics, by name."""

    routes: list[TopicSummary]
    next_after: str | None = Field(
        default=None, description="the `after` of the next page; null: this is the last"
    )


class RouteView(Wire):
    """One topic: the route that clients get (105), its broker groups, and detected problems."""

    topic: str
    writable: bool
    route: TopicRouteData
    groups: list[RegisteredGroup]
    problems: list[str]


_GROUP = RegisteredGroup(
    cluster="DefaultCluster",
    broker_name="broker-a",
    master_address="10.0.0.1:10911",
    topics=7,
    brokers=[
        RegisteredBroker(
            broker_id=0,
            address="10.0.0.1:10911",
            is_master=True,
            age_ms=840,
            ha_server_address="10.0.0.1:10912",
            data_version=DataVersion(counter=7, state_version=3, timestamp=1767225600000),
        )
    ],
    problems=[],
)
_ROUTE = RouteView(
    topic="TopicTest",
    writable=True,
    route=TopicRouteData(
        broker_datas=[
            BrokerData(cluster="DefaultCluster", broker_name="broker-a", broker_addrs={0: "10.0.0.1:10911"})
        ],
        queue_datas=[QueueData(broker_name="broker-a", read_queue_nums=8, write_queue_nums=8, perm=6)],
    ),
    groups=[_GROUP],
    problems=[],
)
_SUMMARY = TopicSummary(
    topic="TopicTest", broker_names=["broker-a"], read_queue_nums=8, write_queue_nums=8, writable=True
)
_CLUSTER = ClusterView(
    cluster="DefaultCluster", groups=1, brokers=1, groups_without_master=0, without_master=[]
)

Cluster = Annotated[
    str, Query(description="only of this cluster; empty: of all", examples=["DefaultCluster"])
]
Topic = Annotated[str, Path(description="a topic", examples=["TopicTest"])]
BrokerName = Annotated[str, Path(description="a broker group", examples=["broker-a"])]


def views_router(sources: RouteSources) -> APIRouter:
    """Returns the router of /v1/routes, /v1/clusters and /v1/brokers."""
    router = APIRouter(prefix="/v1", tags=["routes"])

    @router.get(
        "/routes",
        summary="topics and their brokers",
        **shown(RoutesView(routes=[_SUMMARY])),
    )
    @refused_as_statuses
    async def routes(after: After = "", limit: Limit = PAGE) -> Response:
        sources.queries.check_topic_list()
        names, next_after = page_of(sources.routes.topic_names(), after, limit)
        found = [_summary(sources, name) for name in names]
        return as_json(RoutesView(routes=[each for each in found if each], next_after=next_after))

    @router.get(
        "/routes/{topic:path}",
        summary="one topic's route",
        **shown(_ROUTE, NOT_HERE),
    )
    @refused_as_statuses
    async def route(topic: Topic) -> Response:
        sources.queries.check_ready()
        found = sources.queries.route(topic)
        if found is None:
            known = some_of(sources.routes.topic_names())
            raise NotFound(f"no broker has registered topic {topic!r} here {known}")
        return as_json(_route(sources, topic, found))

    @router.get(
        "/clusters",
        summary="clusters, and how many groups and brokers they have",
        **shown(ClustersView(clusters=[_CLUSTER])),
    )
    @refused_as_statuses
    async def clusters(after: After = "", limit: Limit = PAGE) -> Response:
        table = sources.routes.cluster_info()
        names, next_after = page_of(table.cluster_addr_table, after, limit)
        found = [
            _cluster(name, [table.broker_addr_table[each] for each in table.cluster_addr_table[name]])
            for name in names
        ]
        return as_json(ClustersView(clusters=found, next_after=next_after))

    @router.get(
        "/brokers",
        summary="registered brokers, by group",
        **shown(BrokersView(groups=[_GROUP])),
    )
    @refused_as_statuses
    async def brokers(after: After = "", limit: Limit = PAGE, cluster: Cluster = "") -> Response:
        names, next_after = page_of(sources.routes.broker_names(cluster), after, limit)
        groups = [_group(sources, data) for name in names if (data := sources.routes.broker_data(name))]
        return as_json(BrokersView(groups=groups, next_after=next_after))

    @router.get(
        "/brokers/{brokerName:path}",
        summary="one group's registered brokers",
        **shown(_GROUP, NOT_HERE),
    )
    @refused_as_statuses
    async def group(brokerName: BrokerName) -> Response:
        data = sources.routes.broker_data(brokerName)
        if data is None:
            known = some_of(sources.routes.broker_names())
            raise NotFound(f"no broker of {brokerName!r} is registered here {known}")
        return as_json(_group(sources, data))

    return router


def _summary(sources: RouteSources, topic: str) -> TopicSummary | None:
    route = sources.routes.pick_up_route(topic)
    if route is None:
        return None
    return TopicSummary(
        topic=topic,
        broker_names=[queue.broker_name for queue in route.queue_datas],
        read_queue_nums=sum(queue.read_queue_nums for queue in route.queue_datas),
        write_queue_nums=sum(queue.write_queue_nums for queue in route.queue_datas),
        writable=_is_writable(route),
    )


def _is_writable(route: TopicRouteData) -> bool:
    masters = {data.broker_name for data in route.broker_datas if MASTER_ID in data.broker_addrs}
    return any(queue.perm & PERM_WRITE and queue.broker_name in masters for queue in route.queue_datas)


def _route(sources: RouteSources, topic: str, route: TopicRouteData) -> RouteView:
    datas = [sources.routes.broker_data(queue.broker_name) for queue in route.queue_datas]
    groups = [_group(sources, data) for data in datas if data is not None]
    return RouteView(
        topic=topic,
        writable=_is_writable(route),
        route=route,
        groups=groups,
        problems=[*_queue_problems(route), *(problem for group in groups for problem in group.problems)],
    )


def _queue_problems(route: TopicRouteData) -> Iterator[str]:
    for queue in route.queue_datas:
        if not queue.perm & PERM_WRITE:
            yield f"{queue.broker_name}: no permission to write this topic (perm {queue.perm})"
        if not queue.perm & PERM_READ:
            yield f"{queue.broker_name}: no permission to read this topic (perm {queue.perm})"


def _cluster(name: str, groups: list[BrokerData]) -> ClusterView:
    without = [group.broker_name for group in groups if MASTER_ID not in group.broker_addrs]
    return ClusterView(
        cluster=name,
        groups=len(groups),
        brokers=sum(len(group.broker_addrs) for group in groups),
        groups_without_master=len(without),
        without_master=without[:NAMES_SHOWN],
    )


def _group(sources: RouteSources, data: BrokerData) -> RegisteredGroup:
    brokers = [
        _broker(sources, data.cluster, broker_id, address) for broker_id, address in data.broker_addrs.items()
    ]
    return RegisteredGroup(
        cluster=data.cluster,
        broker_name=data.broker_name,
        master_address=data.broker_addrs.get(MASTER_ID),
        enable_acting_master=data.enable_acting_master,
        zone_name=data.zone_name,
        topics=sources.routes.topic_count(data.broker_name),
        brokers=brokers,
        problems=list(_problems(data, brokers)),
    )


def _broker(sources: RouteSources, cluster: str, broker_id: int, address: str) -> RegisteredBroker:
    live = sources.routes.live(cluster, address)
    seen = sources.liveness.last_seen(route_key(cluster, address))
    return RegisteredBroker(
        broker_id=broker_id,
        address=address,
        is_master=broker_id == MASTER_ID,
        age_ms=None if seen is None else sources.clock() - seen.last_heartbeat_ms,
        ha_server_address=None if live is None else live.ha_server_addr or None,
        data_version=None if live is None else live.data_version,
    )


def _problems(data: BrokerData, brokers: list[RegisteredBroker]) -> Iterator[str]:
    if MASTER_ID not in data.broker_addrs:
        yield f"{data.broker_name}: no master is registered, so it accepts no messages"
    for broker in brokers:
        if broker.age_ms is not None and broker.age_ms > LATE_MS:
            yield f"{data.broker_name}: {broker.address} has sent no heartbeat for {broker.age_ms // 1_000} s"
