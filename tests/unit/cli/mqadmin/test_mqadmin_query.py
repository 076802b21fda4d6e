"""mqadmin: messages by id, key, unique key and offset, against the broker's own handlers and a real store."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from typer.testing import Result

from broker.handlers.query import QueryHandlers
from keelmq.client.message_id import decode_offset_message_id, encode_offset_message_id
from keelmq.remoting.operation import Call, Reply
from keelmq.remoting.operations.broker import QUERY_TOPIC_CONSUME_BY_WHO, GroupList, TopicRequest
from keelmq.remoting.servers.tcp import TcpServer
from tests.support.admin_parts import DEAD, InThread, mqadmin
from tests.support.fake_cluster import FakeNameServer, Server
from tests.support.handler_parts import Broker


class World(InThread):
    """A name server and a broker with five messages of TopicA."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.groups: list[str] = []

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        broker = Broker(self._path)
        self.name_server, self.server = FakeNameServer(), Server()
        self.server.server = TcpServer(broker.table, host="127.0.0.1", port=0, name="broker")
        broker.table.bind(QUERY_TOPIC_CONSUME_BY_WHO, self._consumers)
        async with self.name_server, self.server:
            host, _, port = self.server.address.partition(":")
            broker.store.store_host = bytes(map(int, host.split("."))) + int(port).to_bytes(4, "big")
            for number in range(5):
                keys = f"UNIQ_KEY\x01AC11{number:04X}\x02KEYS\x01all n{number}\x02TAGS\x01TagA\x02"
                broker.send(b"body %d" % number, i=keys)
            broker.tick()
            self.name_server.routes["TopicA"] = {0: self.server.address}
            yield
        broker.store.close()

    async def _consumers(self, _: TopicRequest, __: Call) -> Reply:
        return Reply(body=GroupList(group_list=self.groups))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World(tmp_path_factory.mktemp("broker")).running() as world:
        yield world


@pytest.fixture(autouse=True)
def bodies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("cli.mqadmin.commands.query.BODY_DIRECTORY", tmp_path / "bodies")
    return tmp_path / "bodies"


def asked(world: World, name: str, *args: str) -> Result:
    return mqadmin(name, "-n", world.name_server.address, "-t", "TopicA", *args)


def test_by_key(world: World) -> None:
    result = asked(world, "queryMsgByKey", "-k", "all")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == f"{'#Message ID':<50} {'#QID':>4} {'#Offset':>40}"
    assert [line.split() for line in lines[1:]] == [[f"AC11{n:04X}", "0", str(n)] for n in range(5)]
    few = asked(world, "queryMsgByKey", "-k", "all", "-m", "2", "--json")
    assert [each["queueOffset"] for each in json.loads(few.stdout)] == [3, 4]


def test_by_unique_key(world: World, bodies: Path) -> None:
    result = asked(world, "queryMsgByUniqueKey", "-i", "AC110003")
    assert result.exit_code == 0, result.stderr
    shown = dict(line.split(":", 1) for line in result.stdout.splitlines() if ":" in line)
    assert shown["Tags"].strip() == "[TagA]"
    assert shown["Keys"].strip() == "[all n3]"
    assert shown["Queue Offset"].strip() == "3"
    assert "WARN: No Consumer" in result.stdout
    assert Path(shown["Message Body Path"].strip()).read_bytes() == b"body 3"


def test_by_offset_message_id(world: World) -> None:
    found = json.loads(asked(world, "queryMsgByUniqueKey", "-i", "AC110002", "--json").stdout)
    msg_id = encode_offset_message_id(world.server.address, found[0]["commitLogOffset"])
    world.groups = ["g1"]
    result = asked(world, "queryMsgById", "-i", msg_id)
    world.groups = []
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[0] == f"{'OffsetID:':<20} {msg_id}"
    assert "consumerGroup=g1" in result.stdout


def test_by_offset(world: World) -> None:
    here = (
        "queryMsgByOffset",
        "-n",
        world.name_server.address,
        "-t",
        "TopicA",
        "-b",
        "broker-a",
        "-i",
        "0",
        "-o",
    )
    result = mqadmin(*here, "4", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)[0]["body"] == "body 4"
    beyond = asked(world, *here, "5")
    assert beyond.exit_code == 1
    assert "the queue has 0 to 4" in beyond.stderr


def test_nothing_found_and_nobody_there(world: World) -> None:
    nothing = asked(world, "queryMsgByKey", "-k", "no-such-key")
    assert nothing.exit_code == 1
    assert "can not find message" in nothing.stderr
    dead = mqadmin(
        "queryMsgById", "-n", DEAD, "-t", "t", "-i", encode_offset_message_id(DEAD, 5), "--timeout", "200"
    )
    assert dead.exit_code == 3
    wrong = mqadmin("queryMsgById", "-n", DEAD, "-t", "t", "-i", "AC11")
    assert wrong.exit_code == 2
    assert "queryMsgByUniqueKey" in wrong.stderr.replace("\n", "")


def test_offset_message_ids() -> None:
    assert decode_offset_message_id("7F0000010000497B0000000000000471") == ("127.0.0.1:18811", 0x471)
    for host in ("127.0.0.1:18811", "[fd00::1]:10911"):
        assert decode_offset_message_id(encode_offset_message_id(host, 99)) == (host, 99)
    for text in ("", "xyz", "7F00", "00" * 16, "7F000001000F0000" + "F" * 16):
        with pytest.raises(ValueError, match="not an offset message id"):
            decode_offset_message_id(text)


def test_one_handler_per_code(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    assert isinstance(broker.handlers.query, QueryHandlers)
    assert {12, 29, 32, 33} <= set(broker.table.handlers)
    broker.store.close()
