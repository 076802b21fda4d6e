"""mqadmin against real name servers: what is written goes to all of them, and who did not take it is said."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Empty, Ok, Reply
from keelmq.remoting.operations.broker import DELETE_TOPIC_IN_BROKER, QUERY_TOPIC_CONSUME_BY_WHO, TopicRequest
from keelmq.remoting.operations.route import (
    REGISTER_BROKER,
    RegisterBrokerBody,
    RegisterBrokerRequest,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from namesrv.app import Namesrv
from namesrv.config import NamesrvConfig
from tests.support.admin_parts import DEAD, InThread, captured, mqadmin
from tests.support.fake_cluster import Server

TOPICS = ("FxNormal", "FxTimer", "%RETRY%FxGroup")


class World(InThread):
    """Two name servers and a broker that is registered with both."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.deleted = directory, list[str]()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        self.servers = [self._server(index) for index in range(2)]
        self.broker, client = Server(), RemotingClient()
        self.broker.table.bind(DELETE_TOPIC_IN_BROKER, self._delete)
        self.broker.table.bind(QUERY_TOPIC_CONSUME_BY_WHO, self._consumers)
        async with self.servers[0], self.servers[1], self.broker:
            for address in self.addresses:
                await self._register(client, address)
            yield
            await client.close()

    def _server(self, index: int) -> Namesrv:
        path = self.directory / f"namesrv-{index}.conf"
        path.write_text("# kept\n")
        config = NamesrvConfig(
            listen_port=0,
            bind_address="127.0.0.1",
            http_port=-1,
            kv_config_path=self.directory / f"kv-{index}.json",
        )
        return Namesrv(config, config_path=path)

    async def _register(self, client: RemotingClient, address: str) -> None:
        topics = {name: TopicConfig(topic_name=name) for name in TOPICS}
        header = RegisterBrokerRequest(
            broker_name="broker-a", broker_addr=self.broker.address, cluster_name="FxCluster", broker_id=0
        )
        body = RegisterBrokerBody(
            topic_config_serialize_wrapper=TopicConfigSerializeWrapper(topic_config_table=topics)
        )
        assert isinstance(await client.call(address, REGISTER_BROKER, header, body), Ok)

    async def _delete(self, request: TopicRequest, _: object) -> Empty:
        self.deleted.append(request.topic)
        return Empty()

    async def _consumers(self, request: TopicRequest, _: object) -> Reply:
        groups = ["FxGroup"] if request.topic == "FxNormal" else []
        return Reply(body={"groupList": groups})

    @property
    def addresses(self) -> list[str]:
        return [f"{server.address[0]}:{server.address[1]}" for server in self.servers]

    @property
    def both(self) -> str:
        return ";".join(self.addresses)

    @property
    def one_dead(self) -> str:
        return f"{self.addresses[0]};{DEAD}"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path).running() as world:
        yield world


def test_kv_config_goes_to_every_name_server(world: World) -> None:
    entry = ("-s", "ORDER_TOPIC_CONFIG", "-k", "orders")
    result = mqadmin("updateKvConfig", "-n", world.both, *entry, "-v", "broker-a:4")
    assert (result.exit_code, result.stdout.rstrip("\n")) == (0, captured("updateKvConfig"))
    tables = [server.kv.tables for server in world.servers]
    assert tables == [{"ORDER_TOPIC_CONFIG": {"orders": "broker-a:4"}}] * 2
    result = mqadmin("deleteKvConfig", "-n", world.both, *entry)
    assert (result.exit_code, result.stdout) == (0, "delete kv config from namespace success.\n")
    assert [server.kv.get("ORDER_TOPIC_CONFIG", "orders") for server in world.servers] == [None, None]


def test_one_of_two_name_servers_is_down(world: World) -> None:
    """Upstream stops at the first failure, with a stack trace and exit code 0."""
    result = mqadmin("updateKvConfig", "-n", world.one_dead, "-s", "ns", "-k", "k", "-v", "v")
    assert result.exit_code == 4 and "success" in result.stdout
    failed, partly = result.stderr.splitlines()
    assert DEAD in failed and f"changed at {world.addresses[0]} only" in partly
    shown = json.loads(
        mqadmin("updateKvConfig", "-n", world.one_dead, "-s", "n", "-k", "k", "-v", "v", "--json").stdout
    )
    assert [(row["address"], row["ok"]) for row in shown] == [(world.addresses[0], True), (DEAD, False)]
    nobody = mqadmin("updateKvConfig", "-n", f"{DEAD};127.0.0.1:2", "-s", "ns", "-k", "k", "-v", "v")
    assert nobody.exit_code == 3 and nobody.stdout == "" and len(nobody.stderr.splitlines()) == 2


@pytest.mark.parametrize("verb", ["wipe", "add"])
def test_write_permission(verb: str, world: World) -> None:
    command = f"{verb}WritePerm"
    result = mqadmin(command, "-n", world.both, "-b", "broker-a")
    pattern = captured(command).replace("OK, 17", f"OK, {len(TOPICS)}")
    lines = [pattern.replace("127.0.0.1:18776", address) for address in world.addresses]
    assert (result.exit_code, result.stdout.splitlines()) == (0, lines)
    route = world.servers[1].routes.pick_up_route("FxNormal")
    assert route is not None
    assert route.queue_datas[0].perm == (4 if verb == "wipe" else 6)
    result = mqadmin(command, "-n", world.one_dead, "-b", "broker-a", "--json")
    first, second = json.loads(result.stdout)
    assert result.exit_code == 4 and first[f"{verb}TopicCount"] == len(TOPICS) and not second["ok"]


def test_write_permission_of_an_unknown_broker(world: World) -> None:
    """Name servers answer 0 topics, with success; an operator's typo is no success."""
    result = mqadmin("wipeWritePerm", "-n", world.both, "-b", "brokr-a")
    assert result.exit_code == 1 and "brokr-a" in result.stderr and "clusterList" in result.stderr


def test_name_server_settings(world: World, tmp_path: Path) -> None:
    result = mqadmin("getNamesrvConfig", "-n", world.both)
    lines = result.stdout.splitlines()
    assert [line for line in lines if line.startswith("=")] == [
        f"============{address}============" for address in world.addresses
    ]
    assert "enableTopicList                                   =  true" in lines
    change = ("-k", "enableTopicList", "-v", "false")
    result = mqadmin("updateNamesrvConfig", "-n", world.both, *change)
    places = ", ".join(world.addresses)
    assert result.exit_code == 0
    assert result.stdout == f"update name server config success![{places}]\nenableTopicList : false\n"
    assert [server.config.enable_topic_list for server in world.servers] == [False, False]
    assert "enableTopicList=false" in (tmp_path / "namesrv-1.conf").read_text()
    shown = json.loads(mqadmin("getNamesrvConfig", "-n", world.both, "--json").stdout)
    assert {row["config"]["enableTopicList"] for row in shown} == {"false"}


@pytest.mark.parametrize(
    ("key", "words"), [("kvConfigPath", "black list"), ("listenPort", "restart"), ("nosuch", "nosuch")]
)
def test_a_setting_that_cannot_change(key: str, words: str, world: World) -> None:
    """namesrv pitfall 17."""
    result = mqadmin("updateNamesrvConfig", "-n", world.addresses[0], "-k", key, "-v", "1")
    assert result.exit_code == 1 and result.stdout == "" and words in result.stderr


def test_topic_list(world: World) -> None:
    result = mqadmin("topicList", "-n", f"{DEAD};{world.both}")  # reads: the first that answers
    assert result.exit_code == 0 and set(TOPICS) <= set(result.stdout.split())
    assert {"topic": "FxTimer"} in json.loads(mqadmin("topicList", "-n", world.both, "--json").stdout)


def test_topic_list_with_clusters(world: World) -> None:
    lines = mqadmin("topicList", "-n", world.both, "-c").stdout.splitlines()
    of_java = captured("topicList-c").splitlines()
    assert lines[0] == of_java[0]
    rows = [line for line in of_java if line.split()[1] in TOPICS]
    assert set(rows) <= set(lines) and not any("%RETRY%" in line for line in lines)
    shown = json.loads(mqadmin("topicList", "-n", world.both, "-c", "--json").stdout)
    assert {
        "clusterName": "FxCluster",
        "topic": "FxNormal",
        "consumerGroups": ["FxGroup"],
        "error": None,
    } in (shown)


def test_delete_topic(world: World) -> None:
    result = mqadmin("deleteTopic", "-n", world.both, "-t", "FxNormal", "-c", "FxCluster")
    assert result.exit_code == 0 and result.stdout.splitlines() == [
        "delete topic [FxNormal] from cluster [FxCluster] success.",
        "delete topic [FxNormal] from NameServer success.",
    ]
    assert world.deleted == ["FxNormal"]
    assert [server.routes.pick_up_route("FxNormal") for server in world.servers] == [None, None]
    unknown = mqadmin("deleteTopic", "-n", world.both, "-t", "FxNormal", "-c", "nosuch")
    assert unknown.exit_code == 1 and "known: FxCluster" in unknown.stderr


def test_delete_topic_that_a_broker_keeps(world: World) -> None:
    """namesrv pitfall 16: it would come back with the broker's next registration."""
    del world.broker.table.handlers[DELETE_TOPIC_IN_BROKER.code]
    result = mqadmin("deleteTopic", "-n", world.both, "-t", "FxTimer", "-c", "FxCluster")
    assert (
        result.exit_code == 4
        and "from cluster" not in result.stdout
        and "registers it again" in result.stderr
    )
