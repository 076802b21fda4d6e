"""The HTTP port of a real name server, with and without controller: when it is ready, what it shows."""

import asyncio
import logging
import threading
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest

import namesrv.app
import namesrv.http.metrics
from keelmq.remoting.body import body_bytes
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Ok
from keelmq.remoting.operations.route import (
    REGISTER_BROKER,
    RegisterBrokerBody,
    RegisterBrokerRequest,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from keelmq.remoting.servers.health import HEALTH_TABLE, LIBRARY_TABLE
from keelmq.remoting.servers.metrics import documented
from keelmq.runtime.config import ConfigError
from keelmq.security.metrics import TABLE as SECURITY
from namesrv.app import Namesrv, PluginChoice
from namesrv.config import NamesrvConfig
from namesrv.plugins.controller.http import metrics
from namesrv.plugins.controller.plugin import MEASURED, ControllerPlugin
from tests.support.controller_fakes import config as controller_config
from tests.support.http_parts import LOADED_S, ask, samples, shapes, value
from tests.support.page_parts import write_example
from tests.unit.namesrv.plugins.controller.test_controller_plugin import (
    GROUP,
    address_of,
    brokers,
    members,
    until,
)

ALL_TABLES = (
    namesrv.http.metrics.TABLE,
    metrics.OURS,
    metrics.UPSTREAM,
    SECURITY,
    HEALTH_TABLE,
    LIBRARY_TABLE,
)


def config(**keys: object) -> NamesrvConfig:
    return NamesrvConfig.model_validate(
        {"listen_port": 0, "bind_address": "127.0.0.1", "http_port": 0, **keys}
    )


async def register(
    server: Namesrv, addr: str, broker_id: int, *, broker_name: str = GROUP, cluster: str = "C1"
) -> RemotingClient:
    """The connection that keeps the registration alive."""
    client = RemotingClient()
    topics = TopicConfigSerializeWrapper(topic_config_table={"T": TopicConfig(topic_name="T")})
    header = RegisterBrokerRequest(
        broker_name=broker_name,
        broker_addr=addr,
        cluster_name=cluster,
        ha_server_addr="",
        broker_id=broker_id,
    )
    body = body_bytes(RegisterBrokerBody(topic_config_serialize_wrapper=topics))
    outcome = await client.call("{}:{}".format(*server.address), REGISTER_BROKER, header, body)
    assert isinstance(outcome, Ok), outcome
    return client


async def test_a_name_server_alone() -> None:
    async with Namesrv(config()) as server:
        client = await register(server, "10.0.0.1:1", 0)
        ready = await ask(server.http_address, "/readyz")
        assert ready.status_code == 200 and ready.json()["reasons"] == []
        assert (await ask(server.http_address, "/livez")).status_code == 200
        text = (await ask(server.http_address, "/metrics")).text
        assert (await ask(server.http_address, "/v1/groups")).status_code == 404
        assert (await ask(server.http_address, "/dashboard")).headers["content-type"].startswith("text/html")
        paths = (await ask(server.http_address, "/openapi.json")).json()["paths"]
        await client.close()
    found = samples(text)
    assert value(found, "rocketmq_namesrv_brokers", node_type="nameserver") == 1
    assert value(found, "rocketmq_namesrv_groups") == 1
    assert value(found, "rocketmq_namesrv_topics") == 1
    assert value(found, "rocketmq_namesrv_connections") == 1
    assert "role" not in found
    requests = "rocketmq_namesrv_requests_total"
    assert value(found, requests, request_code="REGISTER_BROKER", response_code="SUCCESS") == 1
    latency = "rocketmq_namesrv_request_latency_seconds_count"
    assert value(found, latency, request_code="REGISTER_BROKER") == 1
    assert {"/livez", "/readyz", "/metrics", "/dashboard", "/v1/analytics/fleet"} <= set(paths)
    assert shapes(text).items() <= documented(ALL_TABLES).items()


async def test_a_name_server_that_waits_is_not_ready() -> None:
    now = 0
    async with Namesrv(config(need_wait_for_service=True), clock=lambda: now) as server:
        waiting = await ask(server.http_address, "/readyz")
        assert waiting.status_code == 503
        assert waiting.json()["reasons"] == [
            "routes are not served for another 45000 ms (needWaitForService)"
        ]
        assert (await ask(server.http_address, "/livez")).status_code == 200
        now = 45_000
        assert (await ask(server.http_address, "/readyz")).status_code == 200


async def test_a_name_server_with_a_controller(tmp_path: Path) -> None:
    (controller,) = members(tmp_path, ["n0"]).values()
    async with Namesrv(config(), [PluginChoice(ControllerPlugin, (controller,))]) as server:
        (plugin,) = server.plugins
        assert isinstance(plugin, ControllerPlugin)
        await until(lambda: plugin.replicator.is_active, "active")
        async with brokers([address_of(controller)]) as (one, two):
            await one.join(address_of(controller))
            await two.join(address_of(controller))
            client = await register(server, "10.0.0.2:1", 0)
            view = (await ask(server.http_address, f"/v1/groups/{GROUP}")).json()
            text = (await ask(server.http_address, "/metrics")).text
            ready = await ask(server.http_address, "/readyz")
            told = await ask(server.http_address, "/v1/health")
            paths = (await ask(server.http_address, "/openapi.json")).json()["paths"]
            await client.close()
    assert view["masterBrokerId"] == 1 and view["active"] is True and view["leader"] == "n0"
    assert view["routes"] == {"0": "10.0.0.2:1"}
    assert view["disagreements"][0].startswith(
        "two masters: the routes say 10.0.0.2:1, the controllers broker 1"
    )
    assert (ready.status_code, ready.json()) == (200, {"ready": True, "reasons": []})
    plugin = told.json()["plugins"]["controller"]
    assert plugin["active"] is True and plugin["raft"]["running"] is True
    assert not MEASURED & plugin["raft"].keys()
    assert {"/v1/groups", "/v1/groups/{brokerName}", "/v1/electMaster"} <= set(paths)
    found = samples(text)
    assert value(found, "role", peer_id="n0") == 3
    assert value(found, "rocketmq_controller_raft_term") >= 1
    assert value(found, "rocketmq_controller_raft_applied_index") >= 3
    assert value(found, "dledger_op_total", dLedger_operation_status="success") >= 3
    assert value(found, "dledger_disk_usage_bytes") > 0
    assert value(found, "rocketmq_controller_raft_commit_seconds_count") >= 3
    assert value(found, "dledger_op_latency_microseconds_count") >= 3
    assert value(found, "rocketmq_controller_raft_sync_seconds_count") >= 3
    assert value(found, "rocketmq_controller_raft_members") == 1
    assert value(found, "rocketmq_telemetry_dropped_records_total") == 0
    assert shapes(text).items() <= documented(ALL_TABLES).items()


async def test_a_controller_without_majority_is_alive_and_not_ready(tmp_path: Path) -> None:
    """One of three, alone: it knows no leader, and says so."""
    controller = members(tmp_path, ["n0", "n1", "n2"])["n0"]
    choice = PluginChoice(ControllerPlugin, (controller,))
    async with Namesrv(config(), [choice], route_service=False) as server:
        ready = await ask(server.http_address, "/readyz")
        assert ready.status_code == 503
        assert ready.json()["reasons"] == ["controller: no controller leads"]
        assert (await ask(server.http_address, "/livez")).status_code == 200
        found = samples((await ask(server.http_address, "/metrics")).text)
        assert (await ask(server.http_address, "/v1/groups")).json()["groups"] == []
    assert value(found, "role", peer_id="n0") == 1
    assert value(found, "rocketmq_controller_active") == 0
    assert "rocketmq_namesrv_brokers" not in found


async def test_a_taken_http_port_is_found_before_the_controller_starts(tmp_path: Path) -> None:
    (controller,) = members(tmp_path, ["n0"]).values()
    taken = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = taken.sockets[0].getsockname()[1]
    choice = PluginChoice(ControllerPlugin, (controller,))
    with pytest.raises(ConfigError, match=f"^http: cannot listen on 127.0.0.1:{port}: "):
        await Namesrv(config(http_port=port), [choice]).start()
    assert not (controller.directory / "raft.journal").exists()
    taken.close()
    await taken.wait_closed()


async def test_the_dashboard_directory_is_a_setting(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert config(analytics_output_dir="").analytics_output_dir is None
    write_example(tmp_path)
    with caplog.at_level(logging.WARNING):
        async with Namesrv(config(analytics_output_dir=str(tmp_path))) as server:
            answer = await ask(server.http_address, "/v1/analytics/fleet")
    assert answer.status_code == 200 and answer.json()["groups_total"] == 1
    assert caplog.records == []


@pytest.mark.parametrize(
    ("route_service", "keys", "wanted"),
    [
        (False, {"listen_port": 9876}, 19_878),  # beside the request port, as mqcontroller has no other
        (False, {"listen_port": 9876, "http_port": 8_080}, 8_080),
        (False, {"listen_port": 9876, "http_port": -1}, None),
        (False, {"listen_port": 0}, 0),
    ],
)
async def test_the_http_port_of_a_standalone_controller(
    tmp_path: Path,
    route_service: bool,
    keys: dict[str, int],
    wanted: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bound: list[int] = []

    class NoHttp:
        def __init__(self, _make_app: object, *, port: int, **_: object) -> None:
            bound.append(port)

        def bind(self) -> None: ...

    monkeypatch.setattr(namesrv.app, "LateHttp", NoHttp)
    controller = controller_config(controllerStorePath=tmp_path)  # n0-127.0.0.1:9878
    choice = PluginChoice(ControllerPlugin, (controller,))
    Namesrv(config(**keys), [choice], route_service=route_service)._bind_http()
    assert bound == ([] if wanted is None else [wanted])


async def test_a_name_server_is_ready_before_its_http_server_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Requests wait in the backlog meanwhile."""
    is_ready, make_app = threading.Event(), Namesrv.http_app

    def late(server: Namesrv) -> object:
        assert is_ready.wait(LOADED_S)
        return make_app(server)

    monkeypatch.setattr(Namesrv, "http_app", late)
    async with Namesrv(config()) as server:
        asked = asyncio.create_task(ask(server.http_address, "/readyz"))
        is_ready.set()
        assert (await asked).status_code == 200


async def test_a_name_server_stops_while_its_http_server_is_loaded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stopped, loading = threading.Event(), threading.Event()

    def late(_: Namesrv) -> object:
        loading.set()
        assert stopped.wait(LOADED_S)
        return object()

    monkeypatch.setattr(Namesrv, "http_app", late)
    async with Namesrv(config()):
        assert await asyncio.to_thread(loading.wait, LOADED_S)
    stopped.set()
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


async def test_a_follower_knows_the_leaders_http_address(tmp_path: Path) -> None:
    """Three controllers on one host, each with an HTTP port that the system chose."""
    configs = members(tmp_path, ["n0", "n1", "n2"])
    async with AsyncExitStack() as stack:
        servers = {}
        for name, controller in configs.items():
            server = Namesrv(config(), [PluginChoice(ControllerPlugin, (controller,))], route_service=False)
            servers[name] = await stack.enter_async_context(server)
        plugins = [plugin for server in servers.values() for plugin in server.plugins]
        await until(lambda: any(each.health()["active"] for each in plugins), "active")
        await until(lambda: all(each.health()["leader"] for each in plugins), "all know it")
        views = {
            name: (await ask(server.http_address, "/v1/controller")).json()
            for name, server in servers.items()
        }
        (leader,) = {view["leader"] for view in views.values()}
        address = servers[leader].http_address
        assert address is not None
        assert {view["leaderHttpAddress"] for view in views.values()} == {f"127.0.0.1:{address[1]}"}
        assert [view["active"] for view in views.values()].count(True) == 1
        follower = next(name for name in servers if name != leader)
        base = servers[follower].http_address
        assert base is not None
        async with httpx.AsyncClient(base_url=f"http://{base[0]}:{base[1]}") as http:
            refused = await http.post(f"/v1/groups/{GROUP}/elect", json={"dryRun": True})
        assert refused.status_code == 409
        assert refused.json()["leaderHttpAddress"] == f"127.0.0.1:{address[1]}"
        assert refused.json()["leader"] == leader
    assert all(len(view["members"]) == 3 and view["term"] >= 1 for view in views.values())
