"""Numbered pitfalls of RocketMQ's broker HA that belong to no other file: each test names its own."""

import ast
import asyncio
from pathlib import Path

import pytest

from broker.app.broker import Broker as App
from broker.config.broker_config import BrokerConfig
from broker.ha.core.epochs import Epochs
from broker.ha.core.frames import Ack, SlaveHandshake
from broker.store.message_store import MessageStore
from keelmq.remoting.operations.controller import SyncStateSet
from namesrv.core.liveness import BrokerKey
from namesrv.plugins.controller.core.elect import LiveInfo
from namesrv.plugins.controller.election.liveness_view import Heartbeat
from tests.support.reach_in import link_of
from tests.unit.broker.ha.test_ha_service import FAST, HOST, Broker, Controller, TopicT, group, same, until
from tests.unit.namesrv.plugins.controller.test_controller_plugin import members, server

ROOT = Path(__file__).parents[4]


async def test_connections_that_die_at_once_leave_nothing_5(tmp_path: Path) -> None:
    async with group(tmp_path, 1) as (master,):
        await master.lead(1)
        for index in range(50):
            _, writer = await asyncio.open_connection(*master.service.address)
            if index % 2:
                writer.write(SlaveHandshake(9).encode())
            writer.transport.abort()
        await until(lambda: master.service.server.connection_count == 0, "all are gone")
        assert not master.service.links
        assert master.in_sync() == [1]


async def test_unverified_peers_keep_no_slave_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.ha.master_server.LINKS_MAX", 3)
    async with group(tmp_path, 2) as (master, slave):
        await master.lead(1)
        quiet = [await asyncio.open_connection(*master.service.address) for _ in range(5)]
        await slave.follow(master, 1)
        await until(lambda: master.in_sync() == [1, 2], "join")
        quiet += [await asyncio.open_connection(*master.service.address) for _ in range(5)]
        async with asyncio.timeout(10):
            await asyncio.gather(*(reader.read() for reader, _ in quiet[:8]), return_exceptions=True)
        assert master.in_sync() == [1, 2] and master.service.server.connection_count == 3
        for _, writer in quiet:
            writer.close()


async def test_an_error_does_not_end_the_care_for_the_set_8(tmp_path: Path) -> None:
    async with group(tmp_path, 2) as (master, slave):
        failures = 2

        async def alter(new_set: frozenset[int], current_epoch: int) -> SyncStateSet | None:
            nonlocal failures
            failures -= 1
            if failures >= 0:
                raise RuntimeError("nobody expected that")
            return master.controller.alter(new_set, current_epoch)

        master.alter_sync_state_set = alter  # type: ignore[method-assign]
        await master.lead(1)
        await slave.follow(master, 1)
        await until(lambda: master.in_sync() == [1, 2], "join, after two errors")
        assert master.controller.history == [[1, 2]]


async def test_every_heartbeat_says_everything_16(tmp_path: Path) -> None:
    """What a controller that leads since this moment must know to elect: it has heard nothing before."""
    (controller,) = members(tmp_path, ["n0"]).values()
    config = BrokerConfig.model_validate(
        {
            "brokerName": "b",
            "enableControllerMode": True,
            "controllerAddr": ":".join(map(str, controller.request_addresses["n0"])),
            "brokerHeartbeatInterval": 50,
            "controllerHeartBeatTimeoutMills": 4_321,
            "brokerElectionPriority": 77,
            "storePathRootDir": tmp_path / "b",
            "bindAddress": "127.0.0.1",
            "brokerIP1": "127.0.0.1",
            "listenPort": 0,
            "httpPort": -1,
            "mappedFileSizeCommitLog": 1 << 16,
            "telemetryEnable": False,
        }
    )
    key = BrokerKey(config.broker_cluster_name, "b", 1)
    async with server(controller) as namesrv, App(config) as broker:
        await until(lambda: broker.gate.writable, "master")
        broker.store.put(TopicT(), 0, b"x", b"", 0, 0, 1, HOST, 0, 0)
        broker.store.set_confirm_offset(broker.store.commit_log.max_offset)
        end = broker.store.commit_log.max_offset
        assert end > 0

        def heard() -> Heartbeat:
            info = namesrv.liveness.info(key)
            assert isinstance(info, Heartbeat)
            return info

        await until(lambda: heard().live.max_offset == end, "a heartbeat after the message")
        connection_id = heard().live.connection_id
        assert connection_id and heard().live == LiveInfo(broker.address, 1, end, end, 77, connection_id)
        assert (heard().hands_over, heard().min_in_sync_replicas) == (True, 1)
        seen = namesrv.liveness.last_seen(key)
        assert seen is not None and namesrv.liveness.is_active(key, seen.last_heartbeat_ms + 4_321)
        assert not namesrv.liveness.is_active(key, seen.last_heartbeat_ms + 4_322)


async def test_ha_stops_before_the_store_23(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = BrokerConfig.model_validate(
        {
            "brokerName": "b",
            "enableControllerMode": True,
            "controllerAddr": "127.0.0.1:1",
            "storePathRootDir": tmp_path,
            "bindAddress": "127.0.0.1",
            "listenPort": 0,
            "httpPort": -1,
            "mappedFileSizeCommitLog": 1 << 16,
            "telemetryEnable": False,
        }
    )
    order: list[str] = []
    close = MessageStore.close

    def noted(store: MessageStore, clean: bool = True) -> None:
        order.append("store")
        close(store, clean)

    monkeypatch.setattr(MessageStore, "close", noted)
    async with App(config) as app:
        assert app.controlled is not None
        ha_stop = app.controlled.ha.stop

        async def stop() -> None:
            await ha_stop()
            order.append("ha")

        monkeypatch.setattr(app.controlled.ha, "stop", stop)
    assert order == ["ha", "store"]


@pytest.mark.parametrize("role", ["ASYNC_MASTER", "SYNC_MASTER", "SLAVE"])
def test_the_configured_role_and_id_are_ignored_24(role: str) -> None:
    config = BrokerConfig.model_validate(
        {
            "brokerRole": role,
            "brokerId": 3,
            "enableControllerMode": True,
            "controllerAddr": "127.0.0.1:9878",
        }
    )
    assert config.enable_controller_mode


async def test_the_epoch_of_a_slow_slave_was_deleted_34(tmp_path: Path) -> None:
    """The link is closed; never a body without its header."""
    async with group(tmp_path, 1) as (master,):
        await master.lead(1)
        end = master.put(count=200)
        reader, writer = await asyncio.open_connection(*master.service.address)
        await master.service.log_epochs.save(Epochs.of([(1, end)]))
        writer.write(SlaveHandshake(9).encode() + Ack(100).encode())
        received = await reader.read()
        assert len(received) == 20 + 12, "the handshake, and the end"
        writer.close()


async def test_half_a_message_above_confirm_does_not_hold_up_a_promotion_42(tmp_path: Path) -> None:
    """Dispatch has caught up, so RocketMQ does not look at the tail, and waits for ever."""
    async with group(tmp_path, 2) as (one, two):
        await one.lead(1)
        end = one.put(count=3)
        await two.follow(one, 1)
        await until(lambda: same(one, two), "copy")
        await two.service.leave_role("the master is gone")
        one.put()
        view = two.store.commit_log.receive_view()
        view[:60] = one.log_bytes()[end : end + 60]
        two.store.commit_log.received(60)
        assert two.store.dispatch_offset == two.store.confirm_offset == end
        async with asyncio.timeout(1):
            await two.lead(2)
        assert two.service.truncated_bytes == 60
        assert [(entry.epoch, entry.start_offset) for entry in two.service.epochs] == [(1, 0), (2, end)]
        two.put(b"next")
        assert two.store.max_queue_offset("T", 0) == 4


def test_replication_never_asks_for_the_time_of_day_57() -> None:
    """A step of the wall clock ends no link and no membership; 907's answer has times for people."""
    for path in sorted((ROOT / "broker" / "ha").rglob("*.py")):
        names = {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}
        assert path.name == "report.py" or not {"wall_ms", "time", "datetime"} & names, path


async def test_min_in_sync_replicas_counts_the_agreed_set_only_60(tmp_path: Path) -> None:
    """A member that is proposed does not let a write pass, whatever the acks are counted over."""
    async with group(tmp_path, 2) as (master, slave):
        await master.lead(1)
        asked, go = asyncio.Event(), asyncio.Event()

        async def alter(new_set: frozenset[int], current_epoch: int) -> SyncStateSet | None:
            asked.set()
            await go.wait()
            return master.controller.alter(new_set, current_epoch)

        master.alter_sync_state_set = alter  # type: ignore[method-assign]
        await slave.follow(master, 1)
        await asked.wait()
        mastership = master.service.mastership
        assert mastership is not None
        assert mastership.sync_state_set_manager.others == {2}, "its ack counts"
        assert (master.service.in_sync_count, master.counts) == (1, [1]), "it does not"
        go.set()
        await until(lambda: master.counts == [1, 2], "agreed")


async def test_a_slave_shows_what_is_confirmed_and_no_more(tmp_path: Path) -> None:
    """A member that hangs holds confirmOffset; the other one has the bytes, and does not show them."""
    async with group(tmp_path, 3) as (master, slave, hung):
        await master.lead(1)
        await slave.follow(master, 1)
        await hung.follow(master, 1)
        await until(lambda: master.in_sync() == [1, 2, 3], "both join")
        confirmed = master.put(count=4)
        await until(lambda: slave.store.confirm_offset == confirmed, "confirmed")
        link_of(hung.service).pause_reading()
        end = master.put(count=3)
        await until(lambda: slave.store.commit_log.max_offset == end, "bytes")
        assert slave.store.confirm_offset == confirmed
        shown = slave.store.get("T", 0, 0, 32, 1 << 20, None)
        assert (shown.message_count, shown.max_offset) == (4, 4)
        await until(lambda: master.in_sync() == [1, 2], "shrink")
        await until(lambda: slave.store.get("T", 0, 0, 32, 1 << 20, None).message_count == 7, "all of them")


async def test_a_restart_keeps_an_unconfirmed_tail_unseen_and_its_queue_offsets(tmp_path: Path) -> None:
    """S4, pitfall 9: the tail is confirmed when its writer is elected, and not before."""
    root = tmp_path / "1"
    broker = Broker(root, Controller({1}), 1, FAST)
    broker.store.become_master()
    for _ in range(5):
        broker.store.put(TopicT(), 0, b"x", b"", 0, 0, 1, HOST, 0, 0)
    broker.store.set_confirm_offset(broker.store.commit_log.max_offset // 5 * 2)
    broker.store.close(clean=False)
    again = Broker(root, Controller({1}), 1, FAST)
    await again.service.start()
    assert again.store.max_queue_offset("T", 0) == 2
    await again.lead(1)
    *_, queue_offset = again.store.put(TopicT(), 0, b"x", b"", 0, 0, 1, HOST, 0, 0)
    assert queue_offset == 5
    again.service.appended()
    await until(lambda: again.store.max_queue_offset("T", 0) == 6, "confirmed")
    await again.service.stop()
    again.store.close()
