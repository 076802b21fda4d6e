"""PeerConnections: to whom a broker is connected before it becomes a slave of one of them."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from broker.controller_mode.controller_client import ControllerClient
from broker.controller_mode.peer_connections import PeerConnections
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Call, Empty, OperationTable, Reply
from keelmq.remoting.operations.broker import GET_BROKER_CONFIG, BrokerConfigResponse
from keelmq.remoting.operations.controller import (
    GET_METADATA_INFO,
    GET_SYNC_STATE_DATA,
    BrokerReplicasInfo,
    ControllerMetadata,
    ReplicaIdentity,
    ReplicasInfo,
)
from keelmq.remoting.servers.tcp import TcpServer
from tests.support.raft_group import until

HOUR_MS = 3_600_000


class Peer:
    """A broker that answers 26, and counts how often."""

    def __init__(self, broker_id: int) -> None:
        self.broker_id, self.asked = broker_id, 0
        table = OperationTable()
        table.bind(GET_BROKER_CONFIG, self._get)
        self.server = TcpServer(table, host="127.0.0.1", port=0, name=f"broker {broker_id}")

    async def _get(self, header: Empty, call: Call) -> Reply:
        self.asked += 1
        return Reply(header=BrokerConfigResponse(version="{}"), body=b"brokerName=b")

    @property
    def address(self) -> str:
        return "{}:{}".format(*self.server.address)

    def identity(self, *, alive: bool = True) -> ReplicaIdentity:
        return ReplicaIdentity(
            broker_name="b", broker_id=self.broker_id, broker_address=self.address, alive=alive
        )


class Scene:
    """Broker 1, whose group has brokers 2 to 4, and a controller."""

    def __init__(self) -> None:
        self.peers = {broker_id: Peer(broker_id) for broker_id in (1, 2, 3, 4)}
        self.in_sync: list[ReplicaIdentity] = []
        self.not_in_sync: list[ReplicaIdentity] = []
        self.master_address: str | None = None
        self.asked = 0
        table = OperationTable()
        table.bind(GET_METADATA_INFO, self._metadata)
        table.bind(GET_SYNC_STATE_DATA, self._sync_state_data)
        self.controller = TcpServer(table, host="127.0.0.1", port=0, name="controller")
        self.client = RemotingClient()
        self.running: asyncio.Task[None] | None = None

    async def _metadata(self, request: Empty, call: Call) -> ControllerMetadata:
        address = "{}:{}".format(*self.controller.address)
        return ControllerMetadata(controller_leader_address=address, is_leader=True)

    async def _sync_state_data(self, request: Empty, call: Call) -> Reply:
        self.asked += 1
        group = ReplicasInfo(
            master_address=self.master_address,
            in_sync_replicas=self.in_sync,
            not_in_sync_replicas=self.not_in_sync,
        )
        assert call.body == ["b"]
        return Reply(None, BrokerReplicasInfo(replicas_info_table={"b": group}))

    def run(self, *, period_ms: int = HOUR_MS, settle_ms: int = 0) -> PeerConnections:
        addresses = ["{}:{}".format(*self.controller.address)]
        made = PeerConnections(
            self.client,
            ControllerClient(self.client, addresses, on_addresses=lambda _: None),
            broker_name="b",
            broker_id=lambda: 1,
            period_ms=period_ms,
            settle_ms=settle_ms,
        )
        self.running = asyncio.create_task(made.run())
        return made

    def counts(self) -> list[int]:
        return [peer.asked for peer in self.peers.values()]


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    made = Scene()
    servers = [made.controller, *(peer.server for peer in made.peers.values())]
    for server in servers:
        await server.start()
    yield made
    if made.running is not None:
        made.running.cancel()
    await made.client.close()
    for server in servers:
        await server.close()


async def test_the_others_of_the_sync_state_set_are_asked_over_connections_that_stay(scene: Scene) -> None:
    one, two, three, four = scene.peers.values()
    scene.in_sync = [one.identity(), two.identity(), three.identity(alive=False)]
    scene.not_in_sync = [four.identity()]
    scene.run().members(frozenset({1, 2, 3}))
    await until(lambda: two.asked == 1)
    assert scene.counts() == [0, 1, 0, 0], "not itself, not the dead one, not the one that is behind"
    opened = scene.client.connections
    await scene.client.call(two.address, GET_BROKER_CONFIG, Empty())
    assert scene.client.connections == opened, "the request of a slave needs no new connection"


async def test_an_unchanged_set_asks_nobody(scene: Scene) -> None:
    _, two, three, _ = scene.peers.values()
    scene.in_sync = [two.identity()]
    connections = scene.run()
    connections.members(frozenset({1, 2}))
    await until(lambda: two.asked == 1)
    connections.members(frozenset({1, 2}))
    scene.in_sync = [two.identity(), three.identity()]
    connections.members(frozenset({1, 2, 3}))
    await until(lambda: three.asked == 1)
    assert (scene.asked, scene.counts()) == (2, [0, 2, 1, 0])


async def test_a_broker_that_is_alone_asks_nobody(scene: Scene) -> None:
    scene.run(period_ms=1).members(frozenset({1}))
    assert not await comes_true(lambda: scene.asked > 0, 0.1)


async def test_a_connection_that_was_closed_is_opened_again_in_the_next_period(scene: Scene) -> None:
    two = scene.peers[2]
    scene.in_sync = [two.identity()]
    scene.run(period_ms=10).members(frozenset({1, 2}))
    await until(lambda: two.asked > 0)
    scene.client.drop(two.address)
    asked = two.asked
    await until(lambda: two.asked > asked)


async def test_a_fail_over_comes_first(scene: Scene) -> None:
    """The set changes twice when a master dies: neither costs a request until things are settled."""
    two = scene.peers[2]
    scene.in_sync = [two.identity()]
    connections = scene.run(settle_ms=150)
    connections.members(frozenset({1, 2, 3}))
    await until(lambda: two.asked == 1, "at once after the start")
    connections.members(frozenset({2}))
    connections.members(frozenset({1, 2}))
    assert not await comes_true(lambda: scene.asked > 1, 0.05)
    await until(lambda: two.asked == 2)
    assert scene.asked == 2


async def comes_true(condition: Callable[[], bool], within_s: float) -> bool:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    while loop.time() < deadline:
        if condition():
            return True
        await asyncio.sleep(0.002)
    return False


async def test_whom_a_damaged_log_is_healed_from(scene: Scene) -> None:
    """The master first, then the SyncStateSet, then the others; only those that are alive."""
    two, three, four = (scene.peers[each] for each in (2, 3, 4))
    scene.in_sync = [scene.peers[1].identity(), two.identity(), three.identity()]
    scene.not_in_sync = [four.identity()]
    scene.master_address = three.address
    found = scene.run()
    assert await found.replicas() == [three.address, two.address, four.address]
    scene.in_sync[1] = two.identity(alive=False)
    assert await found.replicas() == [three.address, four.address]
