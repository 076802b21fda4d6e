"""NotifyBrokerRoleChanged (1008) is pushed for what was applied, whatever the proposal was answered."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from keelmq.remoting.operation import Call, OperationTable, Reply, Unknown, UnknownOutcome
from keelmq.remoting.operations.controller import NOTIFY_BROKER_ROLE_CHANGED, NotifyBrokerRoleChangedRequest
from keelmq.remoting.servers.tcp import TcpServer
from namesrv.plugins.controller.core.events import ElectMaster, encode_event
from namesrv.plugins.controller.core.tally import NEW_MASTER_ELECTED
from namesrv.plugins.controller.election import role_change_notifier
from namesrv.plugins.controller.election.role_change_notifier import RoleChangeNotifier
from tests.support.controller_fakes import GROUP, Bench, turns
from tests.support.ports import free_port


@pytest.fixture
async def bench(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path)
    await bench.group_of(1, 2)
    return bench


def pushed(bench: Bench, broker_id: int) -> list[tuple[str | None, str | None]]:
    """(masterBrokerId, masterEpoch) of each 1008 since the last look."""
    fields = [each.ext_fields for each in bench.peers[broker_id].pushed()]
    return [(each.get("masterBrokerId"), each.get("masterEpoch")) for each in fields]


async def test_an_election_of_1002_that_was_answered_unknown_is_pushed_once(bench: Bench) -> None:
    bench.replicator.lose_answers = True
    with pytest.raises(UnknownOutcome):
        await bench.elect(2, designate=True)
    assert bench.broker_set.master_broker_id == 2
    assert [pushed(bench, each) for each in (1, 2)] == [[("2", "2")]] * 2
    assert bench.plugin.tally.total(NEW_MASTER_ELECTED) == 2  # the first one made the group's first master


async def test_an_election_of_its_own_that_was_answered_unknown_is_pushed_once(bench: Bench) -> None:
    bench.replicator.lose_answers = True
    async with bench.reconciling():
        await turns()
        bench.lose(1)
        await turns()
        bench.plugin.elections.check_group(GROUP)
        await turns()
    assert bench.broker_set.master_broker_id == 2
    assert pushed(bench, 2) == [("2", "2")]


def election_of(broker_id: int, bench: Bench) -> bytes:
    return encode_event(
        ElectMaster(
            broker_name=GROUP,
            new_master_broker_id=broker_id,
            expected_master_epoch=bench.broker_set.master_epoch,
            expected_sync_state_set_epoch=bench.broker_set.sync_state_set_epoch,
            reason="designated",
        )
    )


async def test_an_election_that_is_applied_after_its_deadline_is_pushed_then(bench: Bench) -> None:
    bench.replicator.next_outcome = Unknown("no majority answered in time")
    with pytest.raises(UnknownOutcome):
        await bench.elect(2, designate=True)
    assert pushed(bench, 2) == []
    bench.replicator.machine.apply(election_of(2, bench))
    assert [pushed(bench, each) for each in (1, 2)] == [[("2", "2")]] * 2


async def test_a_cleared_master_that_was_answered_unknown_is_pushed_and_elected_for(bench: Bench) -> None:
    bench.replicator.lose_answers = True
    async with bench.reconciling():
        await turns()
        with pytest.raises(UnknownOutcome):
            await bench.clean("1", living=True)
        assert pushed(bench, 2) == [(None, "2")]
        bench.replicator.lose_answers = False
        await turns()
    assert pushed(bench, 2) == [("2", "3")]


async def test_a_follower_that_applies_pushes_nothing(bench: Bench) -> None:
    """It pushes what is true when it becomes active: once for each group."""
    bench.replicator.become(False)
    bench.replicator.machine.apply(election_of(2, bench))
    await turns()
    assert [pushed(bench, each) for each in (1, 2)] == [[], []]
    bench.replicator.become(True)
    await turns()
    assert [pushed(bench, each) for each in (1, 2)] == [[("2", "2")]] * 2


async def test_a_new_leader_serves_others_between_the_groups(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = {f"group-{number}": bench.broker_set for number in range(50)}
    state = msgspec.structs.replace(bench.plugin.machine.state, brokers=groups)
    plugin, told = bench.plugin, list[object]()
    notifier = RoleChangeNotifier(lambda: state, plugin.liveness_view, plugin.settings, lambda: None)
    monkeypatch.setattr(notifier, "notify", told.append)
    task = asyncio.create_task(notifier.notify_all())
    await asyncio.sleep(0)
    assert len(told) == 1
    await task
    assert len(told) == 50


async def test_a_leader_that_is_deposed_at_once_pushes_nothing(bench: Bench) -> None:
    bench.replicator.become(False)
    bench.replicator.become(True)
    bench.replicator.become(False)
    await turns()
    assert [pushed(bench, each) for each in (1, 2)] == [[], []]


class JavaBroker:
    """A broker whose client refuses 1008 on its own connection, and that takes it at its port, as
    RocketMQ's does."""

    def __init__(self, port: int = 0) -> None:
        self.got = asyncio.Queue[tuple[int | None, int, list[int]]]()
        table = OperationTable()
        table.bind(NOTIFY_BROKER_ROLE_CHANGED, self._notified)
        self.server = TcpServer(table, host="127.0.0.1", port=port, name="listenPort")

    @property
    def address(self) -> str:
        host, port = self.server.address
        return f"{host}:{port}"

    async def _notified(self, request: NotifyBrokerRoleChangedRequest, call: Call) -> Reply:
        self.got.put_nowait((request.master_broker_id, request.master_epoch, call.body.sync_state_set))
        return Reply()


async def with_java_broker(tmp_path: Path, address: str) -> Bench:
    """Broker 1 is KeelMQ's, broker 2 has this address and sends RocketMQ's heartbeats."""
    bench = Bench(tmp_path)
    await bench.group_of(1)
    await bench.apply(2, f"{address};1")
    await bench.register(2, address, register_check_code=f"{address};1")
    await bench.heartbeat(2, broker_addr=address, min_in_sync_replicas=None)
    await both_in_sync(bench, 1)
    await bench.plugin.notifier.stop()  # what it has sent by now
    bench.peers[1].frames.clear()
    bench.peers[2].frames.clear()
    return bench


async def both_in_sync(bench: Bench, master: int) -> None:
    found = bench.broker_set
    await bench.alter([1, 2], master=master, epoch=found.master_epoch, set_epoch=found.sync_state_set_epoch)


async def test_a_broker_of_rocketmq_is_notified_at_its_address(tmp_path: Path) -> None:
    java = JavaBroker()
    await java.server.start()
    bench = await with_java_broker(tmp_path, java.address)
    try:
        async with asyncio.timeout(10):
            await bench.elect(2, designate=True)
            assert await java.got.get() == (2, 2, [2])
            await both_in_sync(bench, 2)
            await bench.elect(1, designate=True)
            assert await java.got.get() == (1, 3, [1])
        assert bench.peers[2].frames == []  # its client would log an error
        assert pushed(bench, 1) == [("2", "2"), ("1", "3")]
    finally:
        await bench.plugin.notifier.stop()
        await java.server.close()


async def test_a_broker_that_is_not_there_yet_gets_the_newest_role_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(role_change_notifier, "PAUSES_S", (0.02,) * 400)
    port = free_port()
    bench = await with_java_broker(tmp_path, f"127.0.0.1:{port}")
    await bench.elect(2, designate=True)
    await turns()
    await both_in_sync(bench, 2)
    await bench.elect(1, designate=True)
    java = JavaBroker(port)
    await java.server.start()
    try:
        async with asyncio.timeout(10):
            assert await java.got.get() == (1, 3, [1])
        assert java.got.empty()
    finally:
        await bench.plugin.notifier.stop()
        await java.server.close()


async def test_a_broker_that_is_gone_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(role_change_notifier, "PAUSES_S", (0.001, 0.001))
    bench = await with_java_broker(tmp_path, f"127.0.0.1:{free_port()}")
    with caplog.at_level("INFO"):
        await bench.elect(2, designate=True)
        async with asyncio.timeout(10):
            while "could not be notified" not in caplog.text:
                await asyncio.wait({asyncio.create_task(turns())})
    await bench.plugin.notifier.stop()
