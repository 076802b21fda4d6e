"""What an upgrade asks besides the status: which servers there are, and which of them are one process."""

from collections.abc import Callable, Sequence

import pytest

from cli.command_line import Refused
from cli.upgrade.core.view import Fault, Kind, View
from cli.upgrade.survey import NoAnswer, Survey
from keelmq.health.reach import HttpAnswer, Reach, Silent
from keelmq.health.snapshot import ClusterSnapshot, NameServer, RunningBroker
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operations.broker import HaConnectionRuntimeInfo, HaRuntimeInfo
from keelmq.remoting.operations.container import BrokerState, ContainerStatus, InnerBroker
from keelmq.remoting.operations.controller import ControllerMetadata, ReplicaIdentity, ReplicasInfo
from keelmq.remoting.operations.route import BrokerData, ClusterInfo

A, B, C = "10.0.0.1", "10.0.0.2", "10.0.0.3"
MASTER, SLAVE = f"{A}:10911", f"{B}:10911"
OURS = {"haCatchUpThreads": "4", "brokerName": "broker-a", "enableControllerMode": "true"}
PEERS = f"n0:{A}:9878;n1:{B}:9878;n2:{C}:9878"


def name_server(*, embedded: bool = True, **settings: str) -> NameServer:
    data = BrokerData(cluster="c", broker_name="broker-a", broker_addrs={0: MASTER, 2: SLAVE})
    cluster = ClusterInfo(broker_addr_table={"broker-a": data}, cluster_addr_table={"c": ["broker-a"]})
    own = {"httpPort": "-1", "enableControllerInNamesrv": str(embedded).lower(), **settings}
    return NameServer(cluster, own, frozenset(), keelmq_version="0.1.0")


def controller(number: int) -> ControllerMetadata:
    return ControllerMetadata(
        self_id=f"n{number}",
        is_leader=not number,
        controller_leader_id="n0",
        controller_leader_address=f"{A}:9878",
        peers=PEERS,
        keelmq_version="0.1.0",
    )


def broker(*, links: Sequence[int | None] | None = None, **settings: str) -> RunningBroker:
    ha = HaRuntimeInfo(
        master=links is not None,
        ha_connection_info=[HaConnectionRuntimeInfo(broker_id=each) for each in links or ()],
    )
    info = {"keelmqVersion": "0.1.0", "writable": "true", "brokerActive": str(links is not None).lower()}
    return RunningBroker(info, {**OURS, **settings}, ha=ha)


def whole() -> ClusterSnapshot:
    """Three name servers with controllers, and a group of two."""
    members = [
        ReplicaIdentity(broker_name="broker-a", broker_id=each, broker_address=at, alive=True)
        for each, at in ((1, MASTER), (2, SLAVE))
    ]
    return ClusterSnapshot(
        name_servers={f"{each}:9876": name_server() for each in (A, B, C)},
        controllers={f"{each}:9878": controller(number) for number, each in enumerate((A, B, C))},
        brokers={MASTER: broker(links=[2]), SLAVE: broker()},
        sets={
            "broker-a": ReplicasInfo(
                master_broker_id=1, master_address=MASTER, master_epoch=1, in_sync_replicas=members
            )
        },
    )


class World:
    """`change`: what is done to a whole snapshot before it is looked at."""

    def __init__(self) -> None:
        self.change: Callable[[ClusterSnapshot], object] = lambda _: None
        self.asked: list[tuple[str, ...]] = []

    async def take(
        self, _: Reach, name_servers: Sequence[str], *__: object, **___: object
    ) -> ClusterSnapshot:
        self.asked.append(tuple(name_servers))
        snapshot = whole()
        snapshot.name_servers = {
            each: server for each, server in snapshot.name_servers.items() if each in name_servers
        }
        self.change(snapshot)
        return snapshot


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.setattr("cli.upgrade.survey.take_snapshot", world.take)
    return world


async def looked(
    world: World, *changes: Callable[[ClusterSnapshot], object], given: Sequence[str] = (A, B, C)
) -> View:
    """The view of the last of several looks, which have these changes, or none."""
    async with Reach(1_000) as reach:
        survey = Survey(reach, tuple(f"{each}:9876" for each in given))
        for change in changes or (lambda _: None,):
            world.change = change
            view = await survey.look()
    return view


async def test_a_name_server_and_the_controller_of_its_host_are_one_process(world: World) -> None:
    view = await looked(world)
    assert view.faults == () and view.leader == "n0" and view.left_alone == ()
    assert [(each.kind, each.address, each.controller) for each in view.servers] == [
        (Kind.NAME_SERVER, f"{A}:9876", "n0"),
        (Kind.NAME_SERVER, f"{B}:9876", "n1"),
        (Kind.NAME_SERVER, f"{C}:9876", "n2"),
        (Kind.BROKER, MASTER, ""),
        (Kind.BROKER, SLAVE, ""),
    ]
    assert {version for each in view.servers for version in each.versions} == {"0.1.0"}


async def test_a_controller_of_its_own_is_another_process(world: World) -> None:
    def apart(snapshot: ClusterSnapshot) -> None:
        for address in snapshot.name_servers:
            snapshot.name_servers[address] = name_server(embedded=False)

    view = await looked(world, apart)
    assert view.faults == ()
    assert [each.kind for each in view.servers[:6]] == [Kind.NAME_SERVER] * 3 + [Kind.CONTROLLER] * 3


async def test_the_http_port_tells_which_controller_is_inside(world: World) -> None:
    """All on one host, as in a laboratory: without it, that is not known."""

    def one_host(snapshot: ClusterSnapshot) -> None:
        snapshot.controllers = {f"{A}:{9878 + number}": controller(number) for number in range(2)}
        snapshot.name_servers = {f"{A}:9876": name_server(httpPort="19876")}

    def with_http(snapshot: ClusterSnapshot) -> None:
        one_host(snapshot)
        body = f'{{"plugins": {{"controller": {{"address": "{A}:9879", "raft": {{"role": "learner"}}}}}}}}'
        snapshot.health = {f"{A}:19876": HttpAnswer(200, body.encode(), None)}

    view = await looked(world, one_host, given=(A,))
    text = f"which controller runs in this name server is not known: {A}:9878 and {A}:9879 have its host"
    assert view.faults[0] == Fault(f"{A}:9876", text)
    view = await looked(world, with_http, given=(A,))
    assert [each.controller for each in view.servers if not each.has_brokers] == ["n1", "n0"]
    assert Fault(f"{A}:9879", "controller: it has no vote yet") in view.faults


async def test_name_servers_of_the_brokers_are_included(world: World) -> None:
    def listed(snapshot: ClusterSnapshot) -> None:
        everywhere = f"localhost:9876;{B}:9876,{C}:9876"
        snapshot.brokers[MASTER] = broker(links=[2], namesrvAddr=everywhere)
        if "127.0.0.1:9876" in world.asked[-1]:
            snapshot.name_servers["127.0.0.1:9876"] = name_server(embedded=False)

    await looked(world, listed, given=("127.0.0.1", B))
    assert world.asked == [
        ("127.0.0.1:9876", f"{B}:9876"),
        ("127.0.0.1:9876", f"{B}:9876", f"{C}:9876"),  # localhost is one that was given
    ]


async def test_what_a_silent_server_reported_before_is_remembered(world: World) -> None:
    def restarting(snapshot: ClusterSnapshot) -> None:
        snapshot.name_servers[f"{B}:9876"] = Silent("connection refused")
        snapshot.controllers[f"{B}:9878"] = Silent("connection refused")

    first, then = await looked(world), await looked(world, lambda _: None, restarting)
    assert [each.address for each in then.servers] == [each.address for each in first.servers]
    assert then.servers[1].versions == frozenset() and then.servers[1].controller == "n1"


async def test_a_server_that_is_not_listed_any_more_is_missing(world: World) -> None:
    def gone(snapshot: ClusterSnapshot) -> None:
        snapshot.sets, snapshot.brokers = {}, {}
        for server in snapshot.answering.values():
            server.cluster.broker_addr_table.clear()

    view = await looked(world, lambda _: None, gone)
    assert [str(each) for each in view.faults if "listed" in each.text or "lists" in each.text] == [
        f"broker-a 1 at {MASTER}: no server lists it any more",
        f"broker-a 2 at {SLAVE}: no server lists it any more",
    ]


async def test_a_slave_without_a_link_is_not_connected(world: World) -> None:
    view = await looked(world, lambda it: it.brokers.update({MASTER: broker(links=[])}))
    assert view.faults == (Fault(f"broker-a 2 at {SLAVE}", "it is not connected to its master"),)
    view = await looked(world, lambda it: it.brokers.update({MASTER: broker(links=[None])}))
    assert view.faults == (), "the master does not know whose link it is"


async def test_containers_tell_what_is_in_them(world: World) -> None:
    def contained(snapshot: ClusterSnapshot) -> None:
        inner = InnerBroker(
            broker_cluster_name="c",
            broker_name="broker-a",
            broker_id=1,
            canonical_name="x",
            state=BrokerState.SERVING,
            address=MASTER,
        )
        snapshot.containers = {f"{A}:10811": ContainerStatus(address=f"{A}:10811", brokers=[inner])}

    def restarting(snapshot: ClusterSnapshot) -> None:
        snapshot.containers = {f"{A}:10811": Silent("connection refused")}

    view = await looked(world, contained, restarting)
    assert [(each.kind, each.address) for each in view.servers[3:]] == [
        (Kind.BROKER, SLAVE),
        (Kind.CONTAINER, f"{A}:10811"),
    ]


async def test_rocketmqs_servers_are_told_apart(world: World) -> None:
    def java(snapshot: ClusterSnapshot) -> None:
        snapshot.name_servers[f"{C}:9876"] = NameServer(
            name_server().cluster, {"kvConfigPath": "/x"}, frozenset()
        )
        snapshot.controllers[f"{C}:9878"] = ControllerMetadata(
            controller_leader_address=f"{A}:9878", peers=PEERS
        )
        snapshot.brokers[SLAVE] = RunningBroker({"writable": "true"}, {"brokerName": "broker-a"})

    view = await looked(world, java)
    assert view.left_alone == (SLAVE, f"{C}:9876", f"{C}:9878")
    assert [each.address for each in view.servers] == [f"{A}:9876", f"{B}:9876", MASTER]


async def test_a_refusal_and_no_answer_at_all(world: World) -> None:
    refusal = Silent("NO_PERMISSION, check signature failed", ResponseCode.NO_PERMISSION)
    with pytest.raises(Refused, match=f"{A}:9876: NO_PERMISSION, .*: an upgrade needs a user who may read"):
        await looked(world, lambda it: it.name_servers.update({f"{A}:9876": refusal}))

    def silent(snapshot: ClusterSnapshot) -> None:
        snapshot.name_servers = {f"{A}:9876": Silent("connection refused")}
        snapshot.controllers, snapshot.brokers = {}, {}

    with pytest.raises(NoAnswer, match=f"{A}:9876: connection refused") as refused:
        await looked(world, silent)
    assert refused.value.next_step == "check the addresses, and that the programs run there"

    def plain(snapshot: ClusterSnapshot) -> None:
        silent(snapshot)
        snapshot.name_servers = {f"{A}:9876": Silent("connection lost", was_plain=True)}

    with pytest.raises(NoAnswer, match=f"{A}:9876: connection lost") as lost:
        await looked(world, plain)
    assert lost.value.next_step.startswith("if they accept only TLS, give --credentials FILE with tls in it")
