"""GET /v1/console/...: one group, the elections, the controllers, a server's settings, the containers.

Imported only where HTTP is served: it needs FastAPI.
"""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response
from pydantic import Field

from keelmq.console.console import Console
from keelmq.console.core.differences import SettingDifference
from keelmq.console.details import ContainerDetail, ControllerDetail, Details, GroupDetail, ReplicaDetail
from keelmq.console.examples import STATUS
from keelmq.console.poller import ClusterPoller
from keelmq.remoting.operation import Wire
from keelmq.remoting.operations.broker import EpochEntryBody
from keelmq.remoting.operations.container import BrokerState, ContainerStatus, InnerBroker, Worker
from keelmq.remoting.operations.controller import PastElection
from keelmq.remoting.servers.http_answers import NOT_HERE, as_json, refused_as_statuses, shown

ELECTIONS_MAX = 1_000


class ElectionsView(Wire):
    """Newest first."""

    elections: list[PastElection]


class ControllersView(Wire):
    """Every controller that is known."""

    age_ms: int
    controllers: list[ControllerDetail]


class SettingsView(Wire):
    """kind: nameServer, controller or broker. settings: as the server tells them, secrets masked by it."""

    server: str
    kind: str
    settings: dict[str, str]


class ContainersView(Wire):
    """Containers of KeelMQ that were found."""

    containers: list[ContainerDetail] = Field(default_factory=list)


_ELECTION = PastElection(
    event_id=12,
    ts=1_767_220_000_000,
    cluster_name="DefaultCluster",
    broker_name="broker-a",
    old_master_broker_id=2,
    new_master_broker_id=1,
    master_epoch=4,
    sync_state_set_epoch=9,
    reason="master inactive",
    last_heartbeat_ts=1_767_219_999_400,
    detected_ts=1_767_219_999_990,
)
_GROUP = GroupDetail(
    age_ms=800,
    group=STATUS.groups[0],
    replicas=[
        ReplicaDetail(
            broker_id=1,
            address="10.0.0.1:10911",
            epochs=[EpochEntryBody(epoch=4, start_offset=524_288, end_offset=1_048_576)],
            max_offset=1_048_576,
        ),
        ReplicaDetail(broker_id=3, address="10.0.0.3:10911", problem="connection refused"),
    ],
    differences=[
        SettingDifference(
            key="flushDiskType",
            values={"10.0.0.1:10911": "SYNC_FLUSH", "10.0.0.2:10911": "ASYNC_FLUSH"},
            is_own=False,
        )
    ],
    elections=[_ELECTION],
)
_CONTAINER = ContainerDetail(
    address="10.0.0.1:10811",
    status=ContainerStatus(
        address="10.0.0.1:10811",
        brokers=[
            InnerBroker(
                broker_cluster_name="DefaultCluster",
                broker_name="broker-a",
                broker_id=1,
                canonical_name="DefaultCluster_broker-a_1",
                state=BrokerState.SERVING,
                role="master",
                is_ready=True,
            )
        ],
        workers=[Worker(number=0, pid=4_211, is_running=True)],
    ),
)

Cluster = Annotated[str, Path(min_length=1, description="brokerClusterName", examples=["DefaultCluster"])]
BrokerName = Annotated[str, Path(min_length=1, description="name of the group", examples=["broker-a"])]
Count = Annotated[int, Query(ge=1, le=ELECTIONS_MAX, description="the largest number of elections")]
Server = Annotated[
    str, Query(min_length=3, description="host:port of a server of the status", examples=["10.0.0.1:10911"])
]
Address = Annotated[
    list[str] | None,
    Query(description="host:port of a container, if its port is not 10811; may be given several times"),
]


def details_router(console: Console, poller: ClusterPoller) -> APIRouter:
    """Returns the router."""
    router = APIRouter(prefix="/v1/console", tags=["console"])
    details = Details(poller)

    @router.get(
        "/groups/{cluster}/{brokerName}",
        summary="a group: epochs of all replicas, elections, differing settings, the next election",
        **shown(_GROUP, NOT_HERE),
    )
    @refused_as_statuses
    async def group(cluster: Cluster, brokerName: BrokerName) -> Response:
        status = await console.current()
        return as_json(await details.group(status, cluster, brokerName, age_ms=console.age_ms))

    @router.get(
        "/elections",
        summary="the newest elections of all groups, with their reasons",
        **shown(ElectionsView(elections=[_ELECTION]), NOT_HERE),
    )
    @refused_as_statuses
    async def elections(count: Count = 200) -> Response:
        return as_json(ElectionsView(elections=await details.elections(await console.current(), count)))

    @router.get(
        "/controllers",
        summary="every controller: raft, metadata, settings",
        **shown(
            ControllersView(age_ms=800, controllers=[ControllerDetail(status=STATUS.controllers[0])]),
        ),
    )
    @refused_as_statuses
    async def controllers() -> Response:
        found = await details.controllers(await console.current())
        return as_json(ControllersView(age_ms=console.age_ms, controllers=found))

    @router.get(
        "/settings",
        summary="the effective settings of a server",
        **shown(
            SettingsView(server="10.0.0.1:10911", kind="broker", settings={"brokerName": "broker-a"}),
            NOT_HERE,
        ),
    )
    @refused_as_statuses
    async def settings(server: Server) -> Response:
        kind, found = await details.settings(await console.current(), server)
        return as_json(SettingsView(server=server, kind=kind, settings=found))

    @router.get(
        "/containers",
        summary="broker containers on the machines of the cluster, with their brokers and processes",
        **shown(ContainersView(containers=[_CONTAINER]), NOT_HERE),
    )
    @refused_as_statuses
    async def containers(address: Address = None) -> Response:
        found = await details.containers(await console.current(), address or [])
        return as_json(ContainersView(containers=found))

    return router
