"""Finding the active controller and beating all of them, against scripted controllers on real sockets."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from broker.controller_mode.controller_client import LEARNED_MAX, ControllerClient, Heartbeats
from broker.controller_mode.role_change_notifications import RoleChangeNotifications, RoleHints
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Call, CommandError, Empty, Failed, Ok, OperationTable, Reply, Unknown
from keelmq.remoting.operations.controller import (
    GET_METADATA_INFO,
    GET_REPLICA_INFO,
    BrokerNameRequest,
    ControllerMetadata,
    MasterInfo,
    NotifyBrokerRoleChangedRequest,
)
from keelmq.remoting.operations.route import BROKER_HEARTBEAT, BrokerHeartbeatRequest
from keelmq.remoting.servers.tcp import TcpServer
from keelmq.runtime.clock import now_ms
from keelmq.runtime.tasks import TaskSet
from tests.support.admin_parts import DEAD, hanging
from tests.support.raft_group import until
from tests.support.store_parts import FakePeer

REQUEST = BrokerNameRequest(broker_name="b")
HEARTBEAT = BrokerHeartbeatRequest(cluster_name="C", broker_addr="me:1", broker_name="b", broker_id=1)


ELECTED = NotifyBrokerRoleChangedRequest(master_broker_id=1, master_address="x:1", master_epoch=9)


class FakeManager:
    """Counts what it is notified of."""

    def __init__(self) -> None:
        self.notified = 0

    def notify_broker_role_changed(self, *told: object) -> None:
        self.notified += 1


def ignore(*told: object) -> None:
    """A callback that nobody needs."""


class FakeController:
    """Answers 1005 with `leader`, 1004 if it is itself that leader (or never, when `silent`), counts 904."""

    def __init__(self, port: int = 0) -> None:
        self.leader = ""
        self.silent = self.asked = False
        self.held = asyncio.Event()
        self.held.set()
        self.added: str | None = None
        self.heartbeats = 0
        self.heartbeat = asyncio.Event()
        table = OperationTable()
        table.bind(GET_METADATA_INFO, self._metadata)
        table.bind(GET_REPLICA_INFO, self._replica_info)
        table.bind(BROKER_HEARTBEAT, self._heartbeat)
        self.server = TcpServer(table, host="127.0.0.1", port=port, name="controller")

    @property
    def address(self) -> str:
        return "{}:{}".format(*self.server.address)

    async def _metadata(self, request: Empty, call: Call) -> ControllerMetadata:
        return ControllerMetadata(
            controller_leader_address=self.leader or None, is_leader=self.leader == self.address
        )

    async def _replica_info(self, request: BrokerNameRequest, call: Call) -> Reply | None:
        self.asked = True
        await self.held.wait()
        if self.silent:
            return None
        if self.leader != self.address:
            raise CommandError(ResponseCode.CONTROLLER_NOT_LEADER, "The controller is not in leader state")
        return Reply(MasterInfo(master_epoch=7, controllers=self.added))

    async def _heartbeat(self, request: BrokerHeartbeatRequest, call: Call) -> None:
        self.heartbeats += 1
        self.heartbeat.set()


class Three:
    def __init__(self, controllers: list[FakeController], client: RemotingClient) -> None:
        self.controllers, self.client = controllers, client
        self.addresses = [controller.address for controller in controllers]

    def lead(self, index: int, known_by: Callable[[int], bool] = lambda _: True) -> None:
        for number, controller in enumerate(self.controllers):
            if known_by(number):
                controller.leader = self.addresses[index]


@pytest.fixture
async def three() -> AsyncIterator[Three]:
    controllers = [FakeController() for _ in range(3)]
    for controller in controllers:
        await controller.server.start()
    client = RemotingClient()
    yield Three(controllers, client)
    await client.close()
    for controller in controllers:
        await controller.server.close()


async def test_the_active_one_is_found_and_remembered(three: Three) -> None:
    three.lead(1)
    controller = ControllerClient(three.client, three.addresses, on_addresses=ignore)
    outcome = await controller.call(GET_REPLICA_INFO, REQUEST)
    assert isinstance(outcome, Ok) and outcome.header.master_epoch == 7
    assert controller.active_address == three.addresses[1]


async def test_the_leaders_own_answer_is_preferred(three: Three) -> None:
    """Two followers still name the dead one."""
    three.lead(0, known_by=lambda number: number != 2)
    await three.controllers[0].server.close()
    three.lead(2, known_by=lambda number: number == 2)
    outcome = await ControllerClient(three.client, three.addresses, on_addresses=ignore).call(
        GET_REPLICA_INFO, REQUEST
    )
    assert isinstance(outcome, Ok)


async def test_not_leader_means_looking_again_at_once(three: Three) -> None:
    three.lead(0)
    controller = ControllerClient(three.client, three.addresses, on_addresses=ignore)
    assert isinstance(await controller.call(GET_REPLICA_INFO, REQUEST), Ok)
    three.lead(2)
    started = asyncio.get_running_loop().time()
    assert isinstance(await controller.call(GET_REPLICA_INFO, REQUEST), Ok)
    assert asyncio.get_running_loop().time() - started < 1
    assert controller.active_address == three.addresses[2]


async def test_nobody_leads_is_failed_at_the_deadline(three: Three) -> None:
    outcome = await ControllerClient(three.client, three.addresses, on_addresses=ignore).call(
        GET_REPLICA_INFO, REQUEST, timeout_ms=300
    )
    assert isinstance(outcome, Failed) and outcome.code == ResponseCode.RPC_SEND_TO_CHANNEL_FAILED


async def test_a_silent_active_one_is_unknown_and_forgotten(three: Three) -> None:
    three.lead(0)
    three.controllers[0].silent = True
    controller = ControllerClient(three.client, three.addresses, on_addresses=ignore)
    outcome = await controller.call(GET_REPLICA_INFO, REQUEST, timeout_ms=200)
    assert isinstance(outcome, Unknown)
    assert controller.active_address is None


async def test_a_call_does_not_wait_for_a_silent_leader_that_is_replaced(three: Three) -> None:
    """The leader's machine is lost without a sign, with the master's: the new master's 1001 waited for it."""
    three.lead(0)
    old, new = three.controllers[0], three.addresses[1]
    old.silent = True
    controller = ControllerClient(three.client, three.addresses, on_addresses=ignore)
    waiting = asyncio.create_task(controller.call(GET_REPLICA_INFO, REQUEST, timeout_ms=60_000))
    await until(lambda: old.asked)
    three.lead(1)
    async with asyncio.timeout(5):
        controller.leads(new)
        assert isinstance(await waiting, Unknown)
        assert isinstance(await controller.call(GET_REPLICA_INFO, REQUEST), Ok)
    assert controller.active_address == new


async def test_a_call_to_the_new_leader_goes_on_when_it_is_announced(three: Three) -> None:
    three.lead(1)
    controller = ControllerClient(three.client, three.addresses, on_addresses=ignore)
    three.controllers[1].held.clear()
    waiting = asyncio.create_task(controller.call(GET_REPLICA_INFO, REQUEST, timeout_ms=60_000))
    await until(lambda: three.controllers[1].asked)
    controller.leads(three.addresses[1])
    three.controllers[1].held.set()
    assert isinstance(await waiting, Ok)


async def test_a_1008_names_the_leader_by_its_connection(three: Three) -> None:
    """The controllers are addressed by name, so the address of the socket is another one."""
    three.lead(0)
    port = three.controllers[1].server.address[1]
    named = f"localhost:{port}"
    controller = ControllerClient(three.client, [three.addresses[0], named], on_addresses=ignore)
    assert isinstance(await controller.call(GET_REPLICA_INFO, REQUEST), Ok)
    assert isinstance(await three.client.call(named, GET_METADATA_INFO, Empty()), Ok)
    manager, nobody = FakeManager(), FakePeer()
    notifications = RoleChangeNotifications(
        manager,  # type: ignore[arg-type]
        controller,
        RoleHints(ignore),
        broker_name="b",
        dialled=three.client.address_of,
    )
    await notifications.notify_broker_role_changed(ELECTED, Call(nobody))
    assert controller.active_address == three.addresses[0]
    peer = next(each for each in three.client.connections if each.peer_address.endswith(f":{port}"))
    await notifications.notify_broker_role_changed(ELECTED, Call(peer))
    assert controller.active_address == named
    other = three.controllers[2]  # a name server or a master, which this broker has dialled as well
    assert isinstance(await three.client.call(other.address, GET_METADATA_INFO, Empty()), Ok)
    port = other.server.address[1]
    peer = next(each for each in three.client.connections if each.peer_address.endswith(f":{port}"))
    await notifications.notify_broker_role_changed(ELECTED, Call(peer))
    assert controller.active_address == named
    assert manager.notified == 3


async def test_callers_share_one_look_up(three: Three) -> None:
    three.lead(1)
    controller = ControllerClient(three.client, three.addresses, on_addresses=ignore)
    outcomes = await asyncio.gather(*(controller.call(GET_REPLICA_INFO, REQUEST) for _ in range(20)))
    assert all(isinstance(outcome, Ok) for outcome in outcomes)


async def test_all_controllers_hear_us_and_a_restarted_one_soon_again(three: Three) -> None:
    tasks = TaskSet()
    client = RemotingClient(on_closed=lambda address: heartbeats.connection_lost(address))
    heartbeats = Heartbeats(
        client, three.addresses, interval_ms=60_000, heartbeat=lambda: HEARTBEAT, on_answer=ignore
    )
    heartbeats.start(tasks)
    async with asyncio.timeout(5):
        for controller in three.controllers:
            await controller.heartbeat.wait()
        first = three.controllers[0]
        port = first.server.address[1]
        await first.server.close()
        again = FakeController(port)
        await again.server.start()
        await again.heartbeat.wait()  # long before the interval is over
    await tasks.stop()
    await client.close()
    await again.server.close()


async def test_controllers_that_hang_or_are_gone_keep_no_heartbeat_from_the_others(three: Three) -> None:
    """broker-ha.md pitfall 15: one thread for all of them stood still while it dialled."""
    tasks, last = TaskSet(), three.controllers[2]
    with hanging() as stopped:
        heartbeats = Heartbeats(
            three.client,
            [DEAD, stopped, three.addresses[2]],
            interval_ms=50,
            heartbeat=lambda: HEARTBEAT,
            on_answer=ignore,
        )
        began_ms = now_ms()
        heartbeats.start(tasks)
        async with asyncio.timeout(5):
            while last.heartbeats < 10:
                last.heartbeat.clear()
                await last.heartbeat.wait()
        assert now_ms() - began_ms < 2_000, "ten heartbeats, not one after the other's time-out"
        await tasks.stop()


async def test_nothing_is_said_before_there_is_something_to_say(three: Three) -> None:
    tasks, said = TaskSet(), asyncio.Event()
    registered = False

    def heartbeat() -> BrokerHeartbeatRequest | None:
        said.set()
        return HEARTBEAT if registered else None

    heartbeats = Heartbeats(
        three.client, three.addresses, interval_ms=60_000, heartbeat=heartbeat, on_answer=ignore
    )
    heartbeats.start(tasks)
    async with asyncio.timeout(5):
        await said.wait()
        assert not any(controller.heartbeats for controller in three.controllers)
        registered = True
        heartbeats.send_now()
        await three.controllers[2].heartbeat.wait()
    await tasks.stop()


def heartbeat_tasks() -> set[str]:
    names = {task.get_name() for task in asyncio.all_tasks()}
    return {name for name in names if name.startswith("heartbeat to ")}


async def test_a_controller_that_came_later_gets_heartbeats_until_it_is_removed(three: Three) -> None:
    """It would take us for dead once it leads. Our configuration knows two of the three."""
    two, newcomer = three.addresses[:2], three.controllers[2]
    three.lead(0)
    heartbeats = Heartbeats(three.client, two, interval_ms=20, heartbeat=lambda: HEARTBEAT, on_answer=ignore)
    controller = ControllerClient(three.client, two, on_addresses=heartbeats.follow)
    tasks = TaskSet()
    heartbeats.start(tasks)
    async with asyncio.timeout(5):
        assert isinstance(await controller.call(GET_REPLICA_INFO, REQUEST), Ok)
        assert newcomer.heartbeats == 0
        three.controllers[0].added = f"{three.addresses[2]};{three.addresses[1]};nonsense;h:x"
        assert isinstance(await controller.call(GET_REPLICA_INFO, REQUEST), Ok)
        assert list(controller.addresses) == three.addresses
        await newcomer.heartbeat.wait()
        three.lead(2, known_by=lambda number: number == 2)
        for old in three.controllers[:2]:
            await old.server.close()
        newcomer.added = three.addresses[2]
        assert isinstance(await controller.call(GET_REPLICA_INFO, REQUEST), Ok), "found, unconfigured"
        newcomer.added = None
        assert isinstance(await controller.call(GET_REPLICA_INFO, REQUEST), Ok)
        assert list(controller.addresses) == two
        names = {f"heartbeat to controller {address}" for address in two}
        await until(lambda: heartbeat_tasks() == names, "nobody sends it heartbeats any more")
    assert not tasks.deaths
    await tasks.stop()


async def test_so_many_are_learned_and_no_more(three: Three) -> None:
    controller = ControllerClient(three.client, ["a:1"], on_addresses=ignore)
    controller.learn(";".join(f"h{number}:1" for number in range(1_000)))
    assert len(controller.addresses) == 1 + LEARNED_MAX
