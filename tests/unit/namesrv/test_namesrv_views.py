"""What a name server shows over HTTP: routes, clusters, brokers, settings; and PATCH of those."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import Request

from keelmq.remoting.body import body_bytes
from keelmq.remoting.operations.route import (
    REGISTER_BROKER,
    WIPE_WRITE_PERM_OF_BROKER,
    RegisterBrokerBody,
    RegisterBrokerRequest,
    RouteBrokerNameRequest,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicRouteData,
)
from keelmq.remoting.servers.http import ask
from keelmq.runtime.config import Config, load_config
from keelmq.runtime.program import installed_version
from namesrv.app import Namesrv, PluginChoice
from namesrv.config import NamesrvConfig
from namesrv.plugins import PluginContext
from namesrv.plugins.controller.plugin import ControllerPlugin
from tests.support.controller_fakes import FakeReplicator
from tests.support.controller_fakes import config as controller_config
from tests.support.http_parts import app_client
from tests.support.slices import first

REQUEST = Request({"type": "http"})


class Served:
    """A name server on virtual time, its HTTP app without a port."""

    def __init__(self, server: Namesrv, http: httpx.AsyncClient) -> None:
        self.server, self.http = server, http

    async def register(
        self, name: str, broker_id: int, *topics: str, cluster: str = "C1", port: int = 10911
    ) -> None:
        table = {topic: TopicConfig(topic_name=topic) for topic in topics}
        body = RegisterBrokerBody(
            topic_config_serialize_wrapper=TopicConfigSerializeWrapper(topic_config_table=table)
        )
        header = RegisterBrokerRequest(
            broker_name=name,
            broker_addr=f"{name}:{port + broker_id}",
            cluster_name=cluster,
            ha_server_addr=f"{name}:{port + 100}",
            broker_id=broker_id,
        )
        await ask(REQUEST, self.server.table, REGISTER_BROKER, header, body_bytes(body))

    async def get(self, path: str, status: int = 200) -> Any:
        answer = await self.http.get(path)
        assert answer.status_code == status, answer.text
        return answer.json()


class Clock:
    now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


@asynccontextmanager
async def served(clock: Clock | None = None, **keys: object) -> AsyncIterator[Served]:
    config = NamesrvConfig.model_validate(
        {"listen_port": 0, "http_port": -1, "kv_config_path": "/nowhere/kv.json", **keys}
    )
    server = Namesrv(config, clock=clock or Clock())
    async with app_client(server.http_app()) as http:
        yield Served(server, http)


async def test_topics_by_page() -> None:
    async with served() as made:
        await made.register("a", 0, "T1", "T2", "%RETRY%g")
        await made.register("b", 0, "T2")
        await made.register("c", 2, "T3")
        first = await made.get("/v1/routes?limit=2")
        second = await made.get("/v1/routes?limit=2&after=" + first["nextAfter"])
    names = [each["topic"] for each in first["routes"] + second["routes"]]
    assert names == ["%RETRY%g", "T1", "T2"] and second["nextAfter"] is None  # a slave brings no topics
    assert second["routes"][0] == {
        "topic": "T2",
        "brokerNames": ["a", "b"],
        "readQueueNums": 32,
        "writeQueueNums": 32,
        "writable": True,
    }


async def test_one_route_as_clients_get_it_and_what_is_wrong() -> None:
    clock = Clock()
    async with served(clock) as made:
        await made.register("a", 0, "%RETRY%g")
        await ask(
            REQUEST, made.server.table, WIPE_WRITE_PERM_OF_BROKER, RouteBrokerNameRequest(broker_name="a")
        )
        clock.now_ms += 61_000
        found = await made.get("/v1/routes/%25RETRY%25g")
        same = (await made.http.post("/v1/getRouteInfoByTopic", json={"topic": "%RETRY%g"})).json()["body"]
    assert found["topic"] == "%RETRY%g" and found["writable"] is False
    assert TopicRouteData.model_validate(found["route"]) == TopicRouteData.model_validate(same)
    (group,) = found["groups"]
    assert (group["brokerName"], group["masterAddress"], group["topics"]) == ("a", "a:10911", 1)
    assert (group["brokers"][0]["ageMs"], group["brokers"][0]["haServerAddress"]) == (61_000, "a:11011")
    assert found["problems"] == [
        "a: no permission to write this topic (perm 4)",
        "a: a:10911 has sent no heartbeat for 61 s",
    ]


async def test_what_is_not_here_is_404_with_what_is() -> None:
    async with served() as made:
        empty = await made.get("/v1/routes/T9", 404)
        await made.register("a", 0, "T1")
        some = await made.get("/v1/routes/T9", 404)
        slash = await made.get("/v1/routes/a/b", 404)
        broker = await made.get("/v1/brokers/x", 404)
    assert empty["detail"] == "no broker has registered topic 'T9' here (known: none)"
    assert some["detail"] == "no broker has registered topic 'T9' here (known: T1)"
    assert slash["detail"].startswith("no broker has registered topic 'a/b'")
    assert broker["detail"] == "no broker of 'x' is registered here (known: a)"


async def test_views_refuse_what_the_requests_refuse() -> None:
    clock = Clock()
    keys = {"enable_all_topic_list": False, "need_wait_for_service": True}
    async with served(clock, **keys) as made:
        made.server.queries.serve_from_ms = clock.now_ms + 1
        assert (await made.get("/v1/routes", 409))["detail"] == "disable"
        assert (await made.get("/v1/routes/T", 409))["detail"] == "name server not ready"


async def test_clusters_and_brokers() -> None:
    clock = Clock()
    async with served(clock) as made:
        await made.register("a", 0, "T1", "T2")
        await made.register("a", 2)
        await made.register("b", 3, cluster="C2")
        clock.now_ms += 500
        clusters = await made.get("/v1/clusters")
        brokers = await made.get("/v1/brokers")
        of_c2 = await made.get("/v1/brokers?cluster=C2")
        one = await made.get("/v1/brokers/a")
        page = await made.get("/v1/clusters?limit=1")
    counts = {"groups": 1, "groupsWithoutMaster": 0, "withoutMaster": []}
    assert clusters["clusters"] == [
        {"cluster": "C1", "brokers": 2, **counts},
        {"cluster": "C2", "brokers": 1, **counts, "groupsWithoutMaster": 1, "withoutMaster": ["b"]},
    ]
    assert page["nextAfter"] == "C1" and len(page["clusters"]) == 1
    assert [group["brokerName"] for group in brokers["groups"]] == ["a", "b"]
    assert of_c2["groups"] == [brokers["groups"][1]] and one == brokers["groups"][0]
    assert [(each["brokerId"], each["isMaster"], each["ageMs"]) for each in one["brokers"]] == [
        (0, True, 500),
        (2, False, 500),
    ]
    assert one["topics"] == 2 and one["problems"] == []
    assert of_c2["groups"][0]["problems"] == ["b: no master is registered, so it accepts no messages"]


@pytest.mark.parametrize("query", ["limit=0", "limit=501", "limit=x"])
@pytest.mark.parametrize("path", ["routes", "clusters", "brokers"])
async def test_pages_are_bounded(path: str, query: str) -> None:
    async with served() as made:
        assert "detail" in await made.get(f"/v1/{path}?{query}", 422)


# -- settings --------------------------------------------------------------------------------------------


class InMemory(ControllerPlugin):
    """A controller alone, whose log is a list."""

    def __init__(self, context: PluginContext, *configs: Config) -> None:
        super().__init__(context, *configs, make_replicator=FakeReplicator)


def with_controller(tmp_path: Path) -> tuple[Namesrv, Path]:
    """Settings of every source there is."""
    path = tmp_path / "namesrv.conf"
    path.write_text(
        "# ours\nbindAddress=127.0.0.1\nsupportActingMaster=true\nscanInactiveMasterInterval=4000\n"
    )
    environ = {"KEELMQ_enableTopicList": "false"}
    overrides = {"listenPort": "0", "httpPort": "-1"}
    text = {"scanInactiveMasterInterval": 4000, "controllerStorePath": tmp_path, "telemetryEnable": False}
    controller = controller_config(controllerRaftSecret="0123456789abcdef", **text)
    known = {"bindAddress": "127.0.0.1", "supportActingMaster": "true"}
    (config,) = load_config(NamesrvConfig, path=None, environ=environ, overrides={**known, **overrides})
    assert isinstance(config, NamesrvConfig)
    choice = PluginChoice(InMemory, (controller,))
    server = Namesrv(config, [choice], config_path=path, environ=environ, overrides=overrides)
    return server, path


async def settings(http: httpx.AsyncClient, query: str = "") -> dict[str, dict[str, Any]]:
    found = (await http.get(f"/v1/config{query}")).json()["settings"]
    return {each["key"]: each for each in found}


async def test_every_setting_with_its_source(tmp_path: Path) -> None:
    server, path = with_controller(tmp_path)
    async with app_client(server.http_app()) as http:
        found = await settings(http)
        changed = await settings(http, "?changed=true")
    assert found["supportActingMaster"] == {
        "program": "mqnamesrv",
        "key": "supportActingMaster",
        "value": True,
        "default": False,
        "description": "show the slave with the lowest id as master while there is no master",
        "source": f"{path} line 3",
        "atRunTime": True,
    }
    assert found["enableTopicList"]["source"] == "environment KEELMQ_enableTopicList"
    assert found["listenPort"]["source"] == "--set listenPort"
    assert found["kvConfigPath"]["source"] == "default" and found["kvConfigPath"]["value"] is None
    interval = found["scanInactiveMasterInterval"]
    assert (interval["program"], interval["value"], interval["default"]) == ("controller", 4000, 5000)
    assert interval["source"] == f"{path} line 4"
    assert found["controllerRaftSecret"]["value"] == "**********"
    assert found["controllerDLegerGroup"]["default"] is None
    assert found["controllerDLegerGroup"]["source"] == "the program"
    assert "enableTopicList" in changed and "enableAllTopicList" not in changed


async def test_a_change_of_the_name_server_is_kept(tmp_path: Path) -> None:
    server, path = with_controller(tmp_path)
    async with app_client(server.http_app()) as http:
        answer = await http.patch("/v1/config", json={"supportActingMaster": False})
        found = await settings(http)
    assert answer.status_code == 200
    assert answer.json() == {
        "program": "mqnamesrv",
        "changed": {"supportActingMaster": "false"},
        "remark": None,
    }
    assert server.config.support_acting_master is False
    assert "supportActingMaster=false\n" in path.read_text()
    assert found["supportActingMaster"]["value"] is False
    assert found["supportActingMaster"]["source"] == f"changed at run time, kept in {path}"


async def test_a_change_of_the_controllers_is_replicated(tmp_path: Path) -> None:
    server, _path = with_controller(tmp_path)
    async with app_client(server.http_app()) as http:
        answer = await http.patch("/v1/config", json={"enableElectUncleanMaster": True})
        found = await settings(http)
        back = await http.patch("/v1/config", json={"enableElectUncleanMaster": None})
        after = await settings(http)
    assert answer.json()["program"] == "controller" and back.status_code == 200
    unclean = found["enableElectUncleanMaster"]
    assert unclean["value"] is True and unclean["source"] == "changed at run time, on all controllers"
    assert after["enableElectUncleanMaster"]["value"] is False
    assert after["enableElectUncleanMaster"]["source"] == "default"


REFUSED: list[tuple[Any, int, str]] = [
    ({"suportActingMaster": True}, 409, "did you mean 'supportActingMaster'?"),
    ({"listenPort": 1}, 409, "is read at start only"),
    ({"kvConfigPath": "/etc/passwd"}, 409, "Can not update config in black list."),
    ({"scanNotActiveBrokerInterval": 0}, 409, "greater than 0"),
    ({"enableTopicList": True}, 409, "is set by --set or by the environment"),
    ({"supportActingMaster": True, "enableElectUncleanMaster": True}, 422, "two programs"),
    ({}, 422, "1 to 100 settings"),
    ([], 422, "dictionary"),
    ({"supportActingMaster": [1]}, 422, "valid"),
    ({"supportActingMaster": "true\nkvConfigPath=/etc/passwd"}, 422, "single lines"),
    ({"supportActingMaster=true\nx": "y"}, 422, "single lines"),
    ({"# supportActingMaster": "y"}, 422, "single lines"),
    ({"supportActingMaster": "true\u2028x=1"}, 422, "single lines"),
    ({"supportActingMaster": "\ud800"}, 422, "no settings"),
    ({"": "x"}, 422, "no settings"),
]


@pytest.mark.parametrize(
    ("change", "status", "text"), first(4, REFUSED), ids=[repr(each[0]) for each in REFUSED]
)
async def test_a_change_that_does_not_fit_changes_nothing(
    tmp_path: Path, change: Any, status: int, text: str
) -> None:
    server, path = with_controller(tmp_path)
    before, kept = server.config, path.read_text()
    async with app_client(server.http_app()) as http:
        as_json = {"content-type": "application/json"}
        answer = await http.patch("/v1/config", content=json.dumps(change), headers=as_json)
    assert answer.status_code == status, answer.text
    assert text in answer.text
    assert server.config == before and path.read_text() == kept


async def test_settings_as_plain_text() -> None:
    """318 and 319 without base64; as JSON they stay as they were."""
    async with served() as made:
        put = await made.http.post(
            "/v1/updateNamesrvConfig",
            content="supportActingMaster=true\n",
            headers={"content-type": "text/plain"},
        )
        text = await made.http.post("/v1/getNamesrvConfig", headers={"accept": "text/plain"})
        as_json = await made.http.post("/v1/getNamesrvConfig")
    assert put.status_code == 200
    assert as_json.json()["keelmqVersion"] == installed_version() != ""
    assert text.headers["content-type"] == "text/plain; charset=utf-8"
    assert "supportActingMaster=true\n" in text.text


def test_kept_settings_name_their_file(tmp_path: Path) -> None:
    """configStorePath is read over the -c file, and under environment and flags."""
    path, stored = tmp_path / "a.conf", tmp_path / "b.conf"
    path.write_text(f"configStorePath={stored}\nenableTopicList=true\nclusterTest=false\n")
    stored.write_text("enableTopicList=false\nclusterTest=true\n")
    (config,) = load_config(NamesrvConfig, path=path, environ={}, overrides={})
    assert isinstance(config, NamesrvConfig)
    server = Namesrv(config, config_path=path, overrides={"clusterTest": "false"})
    assert server.settings.sources == {
        "configStorePath": f"{path} line 1",
        "enableTopicList": f"{stored} line 1",
        "clusterTest": "--set clusterTest",
    }
