"""The whole plugin on the real log: one member over TCP and HTTP, and three that lose their leader."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest

from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Call, Empty, Failed, Ok, OperationTable
from keelmq.remoting.operations import controller as wire
from keelmq.remoting.operations.route import BROKER_HEARTBEAT, BrokerHeartbeatRequest
from keelmq.remoting.records import ControllerEvent, decode_record
from keelmq.runtime.config import ConfigError
from namesrv.app import Namesrv, PluginChoice
from namesrv.config import NamesrvConfig
from namesrv.plugins.controller.config import ControllerConfig
from namesrv.plugins.controller.plugin import ControllerPlugin
from tests.support.ports import free_ports

GROUP = "broker-a"
DEADLINE_S = 15.0


def members(tmp_path: Path, ids: list[str]) -> dict[str, ControllerConfig]:
    ports = free_ports(2 * len(ids))
    peers = ";".join(f"{each}-127.0.0.1:{port}" for each, port in zip(ids, ports[: len(ids)], strict=True))
    raft = ";".join(f"{each}-127.0.0.1:{port}" for each, port in zip(ids, ports[len(ids) :], strict=True))
    return {
        each: ControllerConfig.model_validate(
            {
                "controllerDLegerGroup": "group1",
                "controllerDLegerPeers": peers,
                "controllerRaftPeers": raft,
                "controllerDLegerSelfId": each,
                "controllerStorePath": tmp_path / each,
                "controllerRaftSecret": "0123456789abcdef0123456789abcdef",
            }
        )
        for each in ids
    }


def server(config: ControllerConfig, http_port: int = -1) -> Namesrv:
    choice = PluginChoice(ControllerPlugin, (config,))
    namesrv_config = NamesrvConfig.model_validate({"httpPort": http_port, "bindAddress": "127.0.0.1"})
    return Namesrv(namesrv_config, [choice], route_service=False)


def plugin_of(namesrv: Namesrv) -> ControllerPlugin:
    (plugin,) = namesrv.plugins
    assert isinstance(plugin, ControllerPlugin)
    return plugin


async def until(condition: Callable[[], bool], what: str) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DEADLINE_S
    while not condition():
        assert loop.time() < deadline, f"not within {DEADLINE_S} s: {what}"
        await asyncio.sleep(0.005)


class Broker:
    """One broker process as a controller sees it: an id, heartbeats to all, and 1008s that arrive."""

    def __init__(self, broker_id: int, controllers: list[str]) -> None:
        self.broker_id, self.controllers = broker_id, controllers
        self.pushed: list[tuple[int | None, int]] = []
        table = OperationTable()
        table.bind(wire.NOTIFY_BROKER_ROLE_CHANGED, self._pushed)
        self.client = RemotingClient(table)

    async def _pushed(self, header: wire.NotifyBrokerRoleChangedRequest, call: Call) -> None:
        self.pushed.append((header.master_broker_id, header.master_epoch))

    async def heartbeat(self) -> None:
        header = BrokerHeartbeatRequest(
            cluster_name="C1",
            broker_name=GROUP,
            broker_id=self.broker_id,
            broker_addr=f"10.0.0.{self.broker_id}:1",
            heartbeat_timeout_mills=60_000,
            min_in_sync_replicas=1,
        )
        for address in self.controllers:
            await self.client.oneway(address, BROKER_HEARTBEAT, header)

    async def join(self, leader: str) -> None:
        address = f"10.0.0.{self.broker_id}:1"
        await self.heartbeat()
        for operation, header in (
            (
                wire.APPLY_BROKER_ID,
                wire.ApplyBrokerIdRequest(
                    cluster_name="C1",
                    broker_name=GROUP,
                    applied_broker_id=self.broker_id,
                    register_check_code=f"{address};1",
                ),
            ),
            (
                wire.REGISTER_BROKER_TO_CONTROLLER,
                wire.RegisterBrokerToControllerRequest(
                    cluster_name="C1", broker_name=GROUP, broker_id=self.broker_id, broker_address=address
                ),
            ),
            (wire.ELECT_MASTER, wire.ElectMasterRequest(broker_name=GROUP, broker_id=self.broker_id)),
        ):
            outcome = await self.client.call(leader, operation, header, good=(0, 2011))
            assert isinstance(outcome, Ok), outcome


@asynccontextmanager
async def brokers(controllers: list[str]) -> AsyncIterator[tuple[Broker, Broker]]:
    both = Broker(1, controllers), Broker(2, controllers)
    try:
        yield both
    finally:
        for each in both:
            await each.client.close()


def address_of(config: ControllerConfig) -> str:
    host, port = config.request_addresses[config.controller_d_leger_self_id]
    return f"{host}:{port}"


async def in_sync(broker: Broker, leader: str) -> None:
    request = wire.AlterSyncStateSetRequest(broker_name=GROUP, master_broker_id=1, master_epoch=1)
    body = wire.SyncStateSet(sync_state_set=[1, 2], sync_state_set_epoch=1)
    assert isinstance(await broker.client.call(leader, wire.ALTER_SYNC_STATE_SET, request, body), Ok)


@asynccontextmanager
async def group_in_sync(config: ControllerConfig) -> AsyncIterator[tuple[Namesrv, Broker, Broker]]:
    """One controller, and two brokers that are in sync; the first is the master."""
    address = address_of(config)
    async with server(config) as namesrv:
        await until(lambda: plugin_of(namesrv).replicator.is_active, "active")
        async with brokers([address]) as (one, two):
            await one.join(address)
            await two.join(address)
            await in_sync(one, address)
            yield namesrv, one, two


async def test_one_controller_over_tcp_and_a_restart(tmp_path: Path) -> None:
    (config,) = members(tmp_path, ["n0"]).values()
    async with group_in_sync(config) as (namesrv, one, two):
        started = asyncio.get_running_loop().time()
        await one.client.close()  # its connections break, as after kill -9
        await until(lambda: (2, 2) in two.pushed, "broker 2 is told that it is master")
        assert asyncio.get_running_loop().time() - started < 1.0
        state = plugin_of(namesrv).machine.state
    async with server(config) as namesrv:
        await until(lambda: plugin_of(namesrv).replicator.is_active, "active again")
        assert plugin_of(namesrv).machine.state == state
        assert namesrv.health().ready


async def test_what_a_controller_writes_down_survives_its_restarts(tmp_path: Path) -> None:
    """Every event once, although the whole log is replayed at each start."""
    (config,) = members(tmp_path, ["n0"]).values()
    async with group_in_sync(config) as (namesrv, one, two):
        await one.client.close()
        await until(lambda: (2, 2) in two.pushed, "broker 2 is told that it is master")
        count = plugin_of(namesrv).machine.state.event_count
        await until(lambda: written_by(namesrv) > count, "written while it runs")
    async with server(config) as namesrv:
        await until(lambda: plugin_of(namesrv).replicator.is_active, "active again")
        assert plugin_of(namesrv).machine.state.event_count == count
    first, second = sorted(config.telemetry_directory.rglob("controller-n0-*.jsonl"))
    records = [
        record
        for path in (first, second)
        for record in map(decode_record, path.read_bytes().splitlines())
        if isinstance(record, ControllerEvent)
    ]
    events = [record for record in records if record.type != "snapshot"]
    assert [record.event_id for record in events] == list(range(1, count + 1))
    elected = events[-1]
    assert elected.reason == "master 1 is not active (connection_closed)"
    assert elected.last_heartbeat_ts is not None and elected.detected_ts is not None
    assert elected.last_heartbeat_ts <= elected.detected_ts <= elected.ts
    assert [(record.type, record.after) for record in records[-2:]] == [("snapshot", elected.after)] * 2


def written_by(namesrv: Namesrv) -> int:
    health = plugin_of(namesrv).health()["telemetry"]
    assert isinstance(health, dict)
    return int(health["written"])


async def test_missing_field_is_2005(tmp_path: Path) -> None:
    (config,) = members(tmp_path, ["n0"]).values()
    async with server(config):
        client = RemotingClient()
        try:
            outcome = await client.call(address_of(config), wire.ALTER_SYNC_STATE_SET, Empty())
            assert isinstance(outcome, Failed)
            assert outcome.code == 2005
            assert "brokerName" in outcome.remark
        finally:
            await client.close()


async def test_the_http_server_gives_the_same_answers(tmp_path: Path) -> None:
    (config,) = members(tmp_path, ["n0"]).values()
    async with server(config, http_port=free_ports(1)[0]) as namesrv:
        await until(lambda: plugin_of(namesrv).replicator.is_active, "active")
        assert namesrv.http_address is not None
        base = f"http://127.0.0.1:{namesrv.http_address[1]}/v1"
        async with httpx.AsyncClient() as http:
            metadata = await http.post(f"{base}/getControllerMetaData", json={})
            assert metadata.json()["isLeader"] is True
            refused = await http.post(f"{base}/getReplicaInfo", json={"brokerName": "none"})
            assert (refused.status_code, refused.json()["code"]) == (409, 2008)


async def test_three_controllers_lose_their_leader_and_then_the_group_its_master(tmp_path: Path) -> None:
    configs = members(tmp_path, ["n0", "n1", "n2"])
    controllers = [address_of(config) for config in configs.values()]
    async with AsyncExitStack() as stack:
        servers = {each: server(config) for each, config in configs.items()}
        for each in servers.values():
            await each.start()
            stack.push_async_callback(each.stop)
        plugins = {each: plugin_of(namesrv) for each, namesrv in servers.items()}

        def leader(among: set[str]) -> str | None:
            return next((each for each in sorted(among) if plugins[each].replicator.is_active), None)

        await until(lambda: leader(set(servers)) is not None, "a leader")
        first = leader(set(servers))
        assert first is not None
        one, two = await stack.enter_async_context(brokers(controllers))
        await one.join(address_of(configs[first]))
        await two.join(address_of(configs[first]))
        await in_sync(one, address_of(configs[first]))

        await servers[first].stop()
        rest = set(servers) - {first}
        await until(lambda: leader(rest) is not None, "another leader")
        second = leader(rest)
        assert second is not None
        group = plugins[second].machine.state.brokers[GROUP]
        assert (group.master_broker_id, group.master_epoch) == (1, 1), "nobody is deposed for that"

        await one.client.close()
        await until(lambda: (2, 2) in two.pushed, "broker 2 is told that it is master")
        await until(
            lambda: all(plugins[each].machine.state.brokers[GROUP].master_epoch == 2 for each in rest),
            "both controllers know it",
        )


async def test_a_taken_port_is_one_clear_line(tmp_path: Path) -> None:
    (config,) = members(tmp_path, ["n0"]).values()
    with socket.socket() as taken:
        taken.bind(config.request_addresses["n0"])
        taken.listen()
        with pytest.raises(ConfigError, match="cannot listen") as caught:
            await server(config).start()
    assert "\n" not in str(caught.value)
