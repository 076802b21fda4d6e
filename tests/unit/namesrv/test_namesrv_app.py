"""A real Namesrv in this process, on a port of the system's choice, spoken to over TCP and HTTP."""

import asyncio
import json
import struct
import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from keelmq.remoting.body import body_bytes
from keelmq.remoting.command import RemotingCommand, decode, encode
from keelmq.remoting.operations.route import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from keelmq.runtime.config import Config, ConfigError
from namesrv.app import Namesrv, PluginChoice
from namesrv.config import NamesrvConfig
from namesrv.plugins import BrokerKey, PluginContext, load_plugin
from tests.support.ports import free_port

FRAMES = Path(__file__).parents[2] / "fixtures" / "frames"
DEADLINE_S = 5.0


@dataclass
class Wire:
    """One TCP connection; frames by hand, so that the peer's captured bytes can be sent as they are."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def frame(self, raw: bytes) -> RemotingCommand:
        self.writer.write(raw)
        length = struct.unpack(">i", await asyncio.wait_for(self.reader.readexactly(4), DEADLINE_S))[0]
        return decode(await self.reader.readexactly(length))

    async def ask(
        self,
        code: int,
        ext: Mapping[str, object],
        body: bytes = b"",
        version: int = 479,
        language: str = "PYTHON",
    ) -> RemotingCommand:
        fields = {key: str(value) for key, value in ext.items()}
        return await self.frame(
            encode(
                RemotingCommand(
                    code, opaque=7, ext_fields=fields, body=body, version=version, language=language
                )
            )
        )

    async def register(
        self, addr: str = "h1:1", broker_id: int = 0, *, epoch: int = 0, name: str = "b-a", **ext: object
    ) -> RemotingCommand:
        body = register_body(epoch)
        header = {"clusterName": "C1", "brokerName": name, "brokerId": broker_id, "brokerAddr": addr}
        return await self.ask(103, {**header, "haServerAddr": f"ha-{addr}", **ext}, body)

    async def route(self, topic: str = "T1", **ext: object) -> dict[str, Any] | None:
        answer = await self.ask(105, {"topic": topic, **ext})
        return json.loads(answer.body) if answer.code == 0 else None

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


def register_body(epoch: int = 0) -> bytes:
    topics = {
        name: TopicConfig(topic_name=name, read_queue_nums=8, write_queue_nums=8) for name in ("T1", "T2")
    }
    wrapper = TopicConfigSerializeWrapper(
        topic_config_table=topics, data_version=DataVersion(counter=1, state_version=epoch, timestamp=1)
    )
    return body_bytes(RegisterBrokerBody(topic_config_serialize_wrapper=wrapper))


def config(**keys: Any) -> NamesrvConfig:
    ours = {"http_port": -1, "kv_config_path": Path("/nowhere/kvConfig.json"), **keys}
    return NamesrvConfig(listen_port=0, bind_address="127.0.0.1", **ours)


async def connect(server: Namesrv) -> Wire:
    return Wire(*await asyncio.open_connection(*server.address))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - the conditions are states of a server, not events
            await asyncio.sleep(0.001)


@pytest.fixture
async def server() -> AsyncIterator[Namesrv]:
    async with Namesrv(config()) as running:
        yield running
        running.routes.check_invariants()
        running.liveness.check_invariants()


@pytest.fixture
async def wire(server: Namesrv) -> AsyncIterator[Wire]:
    connection = await connect(server)
    yield connection
    await connection.close()


async def test_register_and_route(wire: Wire) -> None:
    assert (await wire.register("h1:1", 0)).ext_fields == {}
    answer = await wire.register("h2:1", 2)
    assert answer.ext_fields == {"masterAddr": "h1:1", "haServerAddr": "ha-h1:1"}
    assert answer.body == b""
    assert await wire.route() == {
        "brokerDatas": [
            {
                "brokerAddrs": {"0": "h1:1", "2": "h2:1"},
                "brokerName": "b-a",
                "cluster": "C1",
                "enableActingMaster": False,
            }
        ],
        "filterServerTable": {},
        "queueDatas": [
            {"brokerName": "b-a", "perm": 6, "readQueueNums": 8, "topicSysFlag": 0, "writeQueueNums": 8}
        ],
    }


async def test_no_route_says_where_to_look(wire: Wire) -> None:
    answer = await wire.ask(105, {"topic": "nowhere"})
    assert answer.code == 17
    assert answer.remark == (
        "No topic route info in name server for the topic: nowhere\n"
        "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
    )


@pytest.mark.parametrize(
    ("version", "ext", "bare"),
    [(401, {}, False), (400, {}, True), (0, {}, True), (0, {"acceptStandardJsonOnly": "true"}, False)],
)
async def test_old_clients_get_bare_number_keys(
    wire: Wire, version: int, ext: dict[str, str], bare: bool
) -> None:
    """Pitfall 15."""
    await wire.register()
    answer = await wire.ask(105, {"topic": "T1", **ext}, version=version)
    assert (b'"brokerAddrs":{0:"h1:1"}' in answer.body) == bare
    assert (b'"brokerAddrs":{"0":"h1:1"}' in answer.body) != bare


async def test_the_peers_own_frames(wire: Wire) -> None:
    """RocketMQ 5.1.4's broker registers, its tools ask; we answer what its name server answered."""
    registered = await wire.frame((FRAMES / "103-register-broker-broker-1.req.bin").read_bytes())
    assert (registered.code, registered.ext_fields) == (0, {})
    ours = await wire.frame((FRAMES / "106-cluster-info-mqadmin.req.bin").read_bytes())
    assert ours.body == decode((FRAMES / "106-cluster-info-mqadmin.resp.bin").read_bytes()[4:]).body
    heartbeat = decode((FRAMES / "904-broker-heartbeat-broker-1.req.bin").read_bytes()[4:])
    heartbeat.flag = 0
    assert (await wire.frame(encode(heartbeat))).code == 0
    route = await wire.route("BenchmarkTest")
    assert route is not None and route["queueDatas"][0]["readQueueNums"] == 1024
    gone = await wire.frame((FRAMES / "104-unregister-broker-broker.req.bin").read_bytes())
    assert gone.code == 0 and await wire.route("BenchmarkTest") is None


async def test_a_lost_connection_unregisters_all_its_brokers_at_once(server: Namesrv, wire: Wire) -> None:
    """Pitfall 4: a container's connection carries several brokers."""
    container = await connect(server)
    await container.register("h1:1", name="b-a")
    await container.register("h1:2", name="b-b")
    await wire.register("h2:1", 1, name="b-a")
    await container.close()
    await until(lambda: server.routes.counts()["brokers"] == 1)
    route = await wire.route()
    assert route is not None and route["brokerDatas"][0]["brokerAddrs"] == {"1": "h2:1"}


@pytest.mark.promise("S7")
async def test_a_late_close_of_the_older_connection_evicts_nobody(server: Namesrv, wire: Wire) -> None:
    """Pitfall 2."""
    older = await connect(server)
    await older.register("h1:1")
    await wire.register("h1:1")
    await older.close()
    await until(lambda: server.connection_count == 1)
    server.scan()
    assert await wire.route() is not None


async def test_a_stale_master_is_answered_with_success_and_not_registered(wire: Wire) -> None:
    """Pitfalls 12 and 13."""
    await wire.register("h2:1", 0, epoch=4)
    answer = await wire.register("h1:1", 0, epoch=3)
    assert (answer.code, answer.ext_fields) == (0, {})
    route = await wire.route()
    assert route is not None and route["brokerDatas"][0]["brokerAddrs"] == {"0": "h2:1"}


async def test_bodies_of_all_kinds(wire: Wire) -> None:
    header = {
        "clusterName": "C1",
        "brokerName": "b-a",
        "brokerId": 0,
        "brokerAddr": "h1:1",
        "haServerAddr": "",
    }
    body = register_body()
    bad = await wire.ask(103, {**header, "bodyCrc32": 1}, body)
    assert (bad.code, bad.remark) == (1, "crc32 not match")
    good = await wire.ask(103, {**header, "bodyCrc32": zlib.crc32(body) & 0x7FFFFFFF}, body)
    assert good.code == 0
    garbage = await wire.ask(103, header, b"{nonsense")
    assert garbage.code == 1 and (garbage.remark or "").startswith("register body: ")
    assert (await wire.ask(103, header)).code == 0, "no body is an empty topic table"
    wrapper = json.dumps(json.loads(body)["topicConfigSerializeWrapper"]).replace("T1", "T9").encode()
    assert (await wire.ask(103, {**header, "brokerAddr": "h9:1"}, wrapper, version=0)).code == 0
    assert await wire.route("T9") is not None, "senders before 3.0.11 send the bare wrapper"


async def test_a_missing_header_field_is_an_answer(wire: Wire) -> None:
    """Pitfall 26."""
    answer = await wire.ask(103, {})
    assert answer.code == 1 and "brokerName" in (answer.remark or "")
    assert (await wire.ask(9_999, {})).code == 3


async def test_a_silent_broker_expires_and_904_keeps_one_alive() -> None:
    now = 0
    async with Namesrv(config(), clock=lambda: now) as server:
        wire = await connect(server)
        await wire.register("h1:1", name="b-a", heartbeatTimeoutMillis=1_000)
        await wire.register("h2:1", name="b-b")
        now = 900
        heartbeat = {"clusterName": "C1", "brokerName": "b-a", "brokerAddr": "h1:1"}
        assert (await wire.ask(904, heartbeat)).code == 0
        assert (await wire.ask(904, {**heartbeat, "brokerAddr": "unknown:1"})).code == 0
        now = 1_900
        server.scan()
        assert server.routes.counts()["brokers"] == 2
        now = 1_901
        server.scan()
        assert server.routes.live("C1", "h1:1") is None
        now = 120_000
        server.scan()
        assert server.routes.live("C1", "h2:1") is not None
        now = 120_001
        server.scan()
        assert server.routes.counts()["brokers"] == 0 and list(server.liveness.keys()) == []
        await wire.close()


async def test_routes_wait_for_service_when_told_so() -> None:
    now = 0
    async with Namesrv(config(need_wait_for_service=True), clock=lambda: now) as server:
        wire = await connect(server)
        await wire.register()
        answer = await wire.ask(105, {"topic": "T1"})
        assert (answer.code, answer.remark) == (1, "name server not ready")
        now = 45_000
        assert await wire.route() is not None
        await wire.close()


async def test_zones(wire: Wire) -> None:
    await wire.register("h1:1", name="b-a", __ZONE_NAME="east")
    await wire.register("h2:1", name="b-b", __ZONE_NAME="west")
    await wire.register("h3:1", 1, name="b-c", __ZONE_NAME="west", enableActingMaster="true")
    route = await wire.route(__ZONE_NAME="EAST", __ZONE_MODE="true")
    assert route is not None
    assert [data["brokerName"] for data in route["brokerDatas"]] == ["b-a", "b-c"]
    assert [queue["brokerName"] for queue in route["queueDatas"]] == ["b-a", "b-c"]


async def test_garbage_closes_only_its_own_connection(server: Namesrv, wire: Wire) -> None:
    vandal = await connect(server)
    vandal.writer.write(b"\x7f\xff\xff\xff" + bytes(100))
    assert await asyncio.wait_for(vandal.reader.read(), DEADLINE_S) == b""
    await vandal.close()
    assert (await wire.register()).code == 0


async def test_a_port_in_use_is_a_config_error(server: Namesrv) -> None:
    other = Namesrv(NamesrvConfig(listen_port=server.address[1], bind_address="127.0.0.1", http_port=-1))
    with pytest.raises(ConfigError, match=str(server.address[1])):
        await other.start()


class PluginConfig(Config):
    color: str = "green"


@dataclass
class ProbePlugin:
    """What a plugin may do, and a record of what happened to it."""

    context: PluginContext
    config: PluginConfig
    name: str = "probe"
    inactive: list[BrokerKey] = field(default_factory=list)
    life: list[str] = field(default_factory=list)

    @classmethod
    def config_models(cls) -> tuple[type[Config], ...]:
        return (PluginConfig,)

    async def start(self) -> None:
        self.context.on_inactive(self.inactive.append)
        self.life.append("start")

    async def stop(self) -> None:
        self.life.append("stop")

    def health(self) -> dict[str, object]:
        return {"ready": self.config.color == "green"}


async def test_a_plugin_learns_of_a_lost_broker_after_the_grace() -> None:
    choice = PluginChoice(ProbePlugin, (PluginConfig(),))  # type: ignore[arg-type]
    async with Namesrv(config(), [choice]) as server:
        (plugin,) = server.plugins
        assert isinstance(plugin, ProbePlugin)
        context, key = plugin.context, BrokerKey("C1", "b-a", 1)
        context.liveness.record_heartbeat(
            key, connection_id=77, incarnation="r1", timeout_ms=60_000, now_ms=context.clock(), info=None
        )
        assert context.liveness.connection_closed(77, context.clock()) == [key]
        context.wake_scan()
        await until(lambda: plugin.inactive == [key])
        assert server.health().ready
    assert plugin.life == ["start", "stop"]


async def test_http_server_and_health() -> None:
    choice = PluginChoice(ProbePlugin, (PluginConfig(color="red"),))  # type: ignore[arg-type]
    port = free_port()
    async with Namesrv(config(http_port=port), [choice]) as server:
        assert server.http_address == ("127.0.0.1", port)
        assert await _http_status(port, "GET /livez") == 200
        assert await _http_status(port, "GET /readyz") == 503
        wire = await connect(server)
        await wire.register()
        assert await _http_status(port, "POST /v1/getRouteInfoByTopic", b'{"topic":"T1"}') == 200
        assert await _http_status(port, "POST /v1/getRouteInfoByTopic", b'{"topic":"T0"}') == 409
        await wire.close()


async def _http_status(port: int, request: str, body: bytes = b"") -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"{request} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    answer = await asyncio.wait_for(reader.read(), DEADLINE_S)
    writer.close()
    await writer.wait_closed()
    return int(answer.split()[1])


def test_an_unknown_plugin_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="no name-server plugin 'nonsense' is installed"):
        load_plugin("nonsense")
