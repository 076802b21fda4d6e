"""mqadmin as a command: flags, exit codes, JSON, one clear line instead of a traceback."""

import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress

import pytest

from cli.mqadmin.shell import with_interval
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Call, CommandError, Empty, Reply
from keelmq.remoting.operations.broker import (
    GET_BROKER_EPOCH_CACHE,
    GET_BROKER_RUNTIME_INFO,
    BrokerNameOptionalRequest,
    EpochEntryBody,
    EpochEntryCache,
)
from keelmq.remoting.operations.controller import (
    ELECT_MASTER,
    GET_METADATA_INFO,
    GET_SYNC_STATE_DATA,
    BrokerReplicasInfo,
    ControllerMetadata,
    ElectMasterRequest,
    ElectMasterResponseBody,
    MasterInfo,
    ReplicasInfo,
)
from keelmq.remoting.operations.route import GET_BROKER_CLUSTER_INFO, BrokerData, ClusterInfo
from tests.support.admin_parts import DEAD, InThread, mqadmin
from tests.support.fake_cluster import FakeBroker, FakeNameServer, Server


class FakeController(Server):
    """Knows broker-a; sends everybody to `leader`."""

    def __init__(self) -> None:
        super().__init__()
        self.leader = ""
        self.elections: list[ElectMasterRequest] = []
        self.table.bind(GET_METADATA_INFO, self._metadata)
        self.table.bind(GET_SYNC_STATE_DATA, self._sets)
        self.table.bind(ELECT_MASTER, self._elect)

    async def _metadata(self, _: Empty, __: Call) -> ControllerMetadata:
        return ControllerMetadata(
            group="g",
            controller_leader_id="n0",
            controller_leader_address=self.leader,
            peers=f"n0:{self.leader};",
        )

    async def _sets(self, _: Empty, call: Call) -> Reply:
        table = {"broker-a": ReplicasInfo(master_epoch=4)} if "broker-a" in call.body else {}
        return Reply(body=BrokerReplicasInfo(replicas_info_table=table))

    async def _elect(self, request: ElectMasterRequest, _: Call) -> Reply:
        self.elections.append(request)
        if request.broker_id == 9:
            raise CommandError(ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, "Failed to elect a new master")
        header = MasterInfo(master_broker_id=2, master_address="h:1", master_epoch=5, sync_state_set_epoch=6)
        return Reply(header, ElectMasterResponseBody(sync_state_set=[2]))


class World(InThread):
    """A name server, a broker and two controllers, all fakes."""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        self.name_server, self.broker, self.leader, self.follower = (
            FakeNameServer(),
            FakeBroker(),
            FakeController(),
            FakeController(),
        )
        self.name_server.table.bind(GET_BROKER_CLUSTER_INFO, self._cluster_info)
        self.broker.table.bind(GET_BROKER_EPOCH_CACHE, self._epochs)
        self.broker.table.bind(GET_BROKER_RUNTIME_INFO, self._runtime_info)
        async with self.name_server, self.broker, self.leader, self.follower:
            self.leader.leader = self.follower.leader = self.leader.address
            self.addresses = {0: self.broker.address}
            self.name_server.routes["TopicX"] = {0: self.broker.address}
            yield

    async def _cluster_info(self, _: Empty, __: Call) -> Reply:
        broker = BrokerData(cluster="c", broker_name="broker-a", broker_addrs=self.addresses)
        info = ClusterInfo(broker_addr_table={"broker-a": broker}, cluster_addr_table={"c": ["broker-a"]})
        return Reply(body=info)

    async def _epochs(self, _: BrokerNameOptionalRequest, __: Call) -> Reply:
        entry = EpochEntryBody(epoch=1, start_offset=0, end_offset=2**63 - 1)
        cache = EpochEntryCache(
            cluster_name="c", broker_name="broker-a", broker_id=1, epoch_list=[entry], max_offset=7
        )
        return Reply(body=cache)

    async def _runtime_info(self, _: Empty, __: Call) -> Reply:
        return Reply(body={"table": {"brokerVersionDesc": "V5_3_3", "brokerActive": "true"}})


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World().running() as world:
        yield world


def test_get_sync_state_set_goes_to_the_leader(world: World) -> None:
    result = mqadmin("getSyncStateSet", "-a", f"{DEAD};{world.follower.address}", "-b", "broker-a")
    assert result.exit_code == 0 and "#brokerName\tbroker-a\n" in result.stdout
    shown = json.loads(
        mqadmin("getsyncstateset", "-a", world.leader.address, "-b", "broker-a", "--json").stdout
    )
    assert shown["broker-a"]["masterEpoch"] == 4


def test_sync_state_sets_of_a_cluster(world: World) -> None:
    result = mqadmin(
        "getSyncStateSet", "-a", world.leader.address, "-c", "c", "-n", world.name_server.address
    )
    assert result.exit_code == 0 and "#MasterEpoch\t4\n" in result.stdout


def test_unknown_broker_name(world: World) -> None:
    result = mqadmin("getSyncStateSet", "-a", world.leader.address, "-b", "nosuch")
    assert result.exit_code == 1 and result.stdout == ""
    assert "nosuch" in result.stderr and len(result.stderr.splitlines()) == 1


def test_elect_master(world: World) -> None:
    flags = ("-a", world.follower.address, "-bn", "broker-a", "-c", "c")
    result = mqadmin("electMaster", "-b", "2", *flags)
    assert result.exit_code == 0 and "#BrokerMasterAddr\th:1\n#MasterEpoch\t5\n" in result.stdout
    request = world.leader.elections[-1]
    assert (request.broker_id, request.designate_elect, request.cluster_name) == (2, True, "c")
    refused = mqadmin("electMaster", "-b", "9", *flags)
    assert refused.exit_code == 1
    assert "CONTROLLER_ELECT_MASTER_FAILED" in refused.stderr and "SyncStateSet" in refused.stderr


def test_controller_metadata(world: World) -> None:
    result = mqadmin("getControllerMetaData", "-a", world.follower.address)
    assert f"#ControllerLeaderAddress\t{world.leader.address}\n" in result.stdout


def test_cluster_list_tells_who_does_not_answer(world: World) -> None:
    result = mqadmin("clusterList", "-n", world.name_server.address)
    assert result.exit_code == 0 and "V5_3_3" in result.stdout
    world.addresses = {0: world.broker.address, 2: DEAD}
    result = mqadmin("clusterList", "-n", world.name_server.address, "--json")
    world.addresses = {0: world.broker.address}
    assert result.exit_code == 4 and DEAD in result.stderr
    assert [row["brokerId"] for row in json.loads(result.stdout)] == [0, 2]


def test_broker_epoch(world: World) -> None:
    result = mqadmin("getBrokerEpoch", "-n", world.name_server.address, "-b", "broker-a")
    assert "#Epoch: EpochEntry{epoch=1, startOffset=0, endOffset=7}" in result.stdout
    unknown = mqadmin("getBrokerEpoch", "-n", world.name_server.address, "-b", "nosuch")
    assert unknown.exit_code == 1 and "known: broker-a" in unknown.stderr
    world.addresses = {0: DEAD}
    silent = mqadmin("getBrokerEpoch", "-n", world.name_server.address, "-b", "broker-a")
    world.addresses = {0: world.broker.address}
    assert silent.exit_code == 3 and DEAD in silent.stderr


def test_topic_route(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", world.name_server.address)
    shown = json.loads(mqadmin("topicRoute", "-t", "TopicX", "--json").stdout)
    assert shown["brokerDatas"][0]["brokerAddrs"] == {"0": world.broker.address}
    unknown = mqadmin("topicRoute", "-t", "NoSuchTopic")
    assert unknown.exit_code == 1 and "TOPIC_NOT_EXIST" in unknown.stderr


def test_send_message(world: World) -> None:
    name_server = world.name_server.address
    result = mqadmin("sendMessage", "-n", name_server, "-t", "TopicX", "-p", "hé", "-k", "k", "-c", "tag")
    assert result.exit_code == 0
    head, line = result.stdout.splitlines()
    assert head.split() == ["#Broker", "Name", "#QID", "#Send", "Result", "#MsgId"]
    assert line.split()[2] == "SEND_OK" and world.broker.sends[-1][1] == "hé".encode()
    chosen = mqadmin(
        "sendMessage", "-n", name_server, "-t", "TopicX", "-p", "x", "-b", "broker-a", "-i", "3", "--json"
    )
    assert json.loads(chosen.stdout)["queueId"] == 3


@pytest.mark.promise("S13")
def test_nobody_answers() -> None:
    for args in (
        ("clusterList", "-n", DEAD),
        ("getControllerMetaData", "-a", DEAD),
        ("sendMessage", "-n", DEAD, "-t", "t", "-p", "x", "--timeout", "50"),
    ):
        result = mqadmin(*args)
        assert result.exit_code == 3 and DEAD in result.stderr and "Traceback" not in result.stderr
        assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "args",
    [
        ("noSuchCommand",),
        ("clusterList", "-n", "localhost"),
        ("getSyncStateSet", "-a", DEAD),
        ("electMaster", "-a", DEAD, "-b", "x", "-bn", "b", "-c", "c"),
        ("sendMessage", "-n", DEAD, "-t", "t", "-p", "x", "-i", "1"),
        ("topicRoute", "-n", DEAD),
    ],
)
@pytest.mark.promise("S13")
def test_usage_errors(args: tuple[str, ...]) -> None:
    assert mqadmin(*args).exit_code == 2


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("sendMessage", "-t", "t", "-p", "\udcff"), r"'\udcff' is not UTF-8 text"),
        (("sendMessage", "-t", "t", "-p", "x", "-k", "\udcff"), r"'\udcff' is not UTF-8 text"),
        (("topicRoute", "-t", "a\udcff"), r"'a\udcff' is not UTF-8 text"),
        (("sendMessage", "-t", "t", "-p", "x", "-c", "a\x01b"), "property 'TAGS'"),
        (("sendMessage", "-t", "t", "-p", "x", "-k", "a\x02b"), "property 'KEYS'"),
    ],
)
def test_text_that_no_request_can_carry(args: tuple[str, ...], words: str) -> None:
    """$'\\xff' of a shell comes as a lone surrogate."""
    result = mqadmin(*args, "-n", DEAD, "--timeout", "50")
    assert result.exit_code == 2
    assert words in result.stderr


def test_a_server_of_another_kind_costs_one_line() -> None:
    """As a process: what unconfigured logging prints is part of it."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with suppress(OSError):  # the test is over
                while True:
                    with server.accept()[0] as connection:
                        connection.sendall(b"220 mail.example ESMTP\r\n" * 4)

        threading.Thread(target=answer, daemon=True).start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        command = [sys.executable, "-m", "cli.mqadmin.main", "clusterList", "-n", address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
        server.shutdown(socket.SHUT_RDWR)
    assert done.returncode == 3 and address in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


def test_an_interval_may_have_no_number() -> None:
    assert with_interval(["-b", "x", "-i"]) == ["-b", "x", "-i", "3"]
    assert with_interval(["--interval", "-b", "x"]) == ["--interval", "3", "-b", "x"]
    assert with_interval(["-i", "7", "-b", "i"]) == ["-i", "7", "-b", "i"]


@pytest.mark.slow
def test_again_and_again_until_interrupted(world: World) -> None:
    args = ["getSyncStateSet", "-a", world.leader.address, "-b", "broker-a", "-i", "1", "--json"]
    with subprocess.Popen(
        [sys.executable, "-m", "cli.mqadmin.main", *args], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        shown = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
    assert [each["broker-a"]["masterEpoch"] for each in shown] == [4, 4]


def test_help() -> None:
    assert "electMaster" in mqadmin("help").stdout
    result = mqadmin("help", "electmaster")
    assert result.exit_code == 0 and "-bn" in result.stdout and "--brokerId" in result.stdout
