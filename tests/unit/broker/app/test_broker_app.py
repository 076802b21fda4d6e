"""The broker program in this process, alone: serves, keeps its messages, refuses to start with one line."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from broker.app.broker import Broker
from broker.app.program import make_parser, read_config, run
from broker.config.broker_config import BrokerConfig
from broker.controller_mode.broker_meta_file import MetaFiles
from broker.controller_mode.slave_sync import Leader, master_server
from broker.ha.ports import MasterHaAddress
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Empty, Failed, Ok
from keelmq.remoting.operations.broker import (
    GET_BROKER_CONFIG,
    GET_MAX_OFFSET,
    PULL_MESSAGE,
    SEND_MESSAGE_V2,
    PullMessageRequest,
    QueueRequest,
    SendMessageRequestV2,
)
from keelmq.runtime.config import ConfigError
from tests.support.ports import free_port


def config(tmp_path: Path, **more: object) -> BrokerConfig:
    settings: dict[str, object] = {
        "broker_name": "b",
        "bind_address": "127.0.0.1",
        "listen_port": 0,
        "http_port": -1,
        "store_path_root_dir": tmp_path / "store",
        "mapped_file_size_commit_log": 65_536,
        "mapped_file_size_consume_queue": 2_000,
        **more,
    }
    return BrokerConfig.model_validate(settings)


@asynccontextmanager
async def broker_without_role(tmp_path: Path, **more: object) -> AsyncIterator[Broker]:
    """Its controllers and name servers do not answer."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        silence = {"enable_controller_mode": True, "controller_addr": address, "namesrv_addr": address}
        async with Broker(config(tmp_path, **silence, **more)) as broker:
            yield broker


async def send(client: RemotingClient, broker: Broker, body: bytes) -> Ok[object] | Failed:
    header = SendMessageRequestV2(a="g", b="T", e=0, g=1)
    outcome = await client.call(broker.address, SEND_MESSAGE_V2, header, body)
    assert isinstance(outcome, Ok | Failed), outcome
    return outcome


async def max_offset(client: RemotingClient, broker: Broker) -> int:
    outcome = await client.call(broker.address, GET_MAX_OFFSET, QueueRequest(topic="T", queue_id=0))
    assert isinstance(outcome, Ok)
    return outcome.header.offset


async def test_a_lone_master_keeps_its_messages_over_a_restart(
    tmp_path: Path, client: RemotingClient
) -> None:
    async with Broker(config(tmp_path)) as broker:
        assert isinstance(await send(client, broker, b"one"), Ok)
        assert await max_offset(client, broker) == 1
    assert not (tmp_path / "store" / "abort").exists()
    async with Broker(config(tmp_path)) as broker:
        assert isinstance(await send(client, broker, b"two"), Ok)
        assert await max_offset(client, broker) == 2
        request = PullMessageRequest(
            consumer_group="g", topic="T", queue_id=0, queue_offset=0, max_msg_nums=10
        )
        outcome = await client.call(broker.address, PULL_MESSAGE, request)
        assert isinstance(outcome, Ok) and b"one" in outcome.body and b"two" in outcome.body


async def test_the_configuration_tells_what_was_chosen(tmp_path: Path, client: RemotingClient) -> None:
    async with Broker(config(tmp_path)) as broker:
        outcome = await client.call(broker.address, GET_BROKER_CONFIG, Empty())
        assert isinstance(outcome, Ok)
        lines = outcome.body.decode().splitlines()
    assert f"listenPort={broker.address.rpartition(':')[2]}" in lines
    assert "brokerIP1=127.0.0.1" in lines and "brokerId=0" in lines
    assert lines == sorted(set(lines))


@pytest.mark.slow
async def test_without_a_controller_a_controlled_broker_takes_nothing(
    tmp_path: Path, client: RemotingClient
) -> None:
    """Fenced from the first byte; and it stops in time although nobody ever answered."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound, not listening: refused at once
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        controlled = config(
            tmp_path, enable_controller_mode=True, controller_addr=address, namesrv_addr=address
        )
        async with asyncio.timeout(20):
            async with Broker(controlled) as broker:
                refused = await send(client, broker, b"x")
                assert isinstance(refused, Failed)
                assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
                assert "not master yet" in refused.remark
                assert broker.status.detected_settings()["brokerRole"] == "SLAVE"  # not the configured one


async def test_a_taken_port_is_a_config_error_and_leaves_the_store_clean(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            async with Broker(config(tmp_path, listen_port=port)):
                pass
    assert not (tmp_path / "store" / "abort").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--set", "brokerNme=x"], "mqbroker: unknown key 'brokerNme'"),
        (["--set", "nonsense"], "is not KEY=VALUE"),
        (["--frobnicate"], "unrecognized arguments: --frobnicate (see"),
        (["autoCreateTopicEnable=true"], "write a setting as --set key=value: RocketMQ's programs ignore"),
        (["-c", "/nowhere/broker.conf"], "mqbroker: cannot read /nowhere/broker.conf"),
        (["--set", "enableControllerMode=true"], "needs controllerAddr"),
        (["--set", "storePathRootDir=/proc/nowhere"], "storePathRootDir: cannot use"),
    ],
)
def test_what_cannot_start_says_so_in_one_line(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert says in said and said.startswith("mqbroker: ")


def test_a_store_of_another_broker_is_refused_without_controllers_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    MetaFiles(tmp_path, cluster_name="DefaultCluster", broker_name="theirs").write_temp(1, "a:1;2")
    assert run(["--set", "brokerName=ours", "--set", f"storePathRootDir={tmp_path}"]) == 1
    assert "belongs to DefaultCluster/theirs" in capsys.readouterr().err.splitlines()[-1]


def test_print_config(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["-p", "--set", "brokerName=shown", "-n", "a:9876"]) == 0
    out = capsys.readouterr().out
    assert "brokerName=shown\n" in out and "namesrvAddr=a:9876\n" in out


def test_namesrv_addr_of_the_environment_is_the_last_resort() -> None:
    parser = make_parser()
    environ = {"NAMESRV_ADDR": "env:1"}
    assert read_config(parser.parse_args([]), environ)[0].namesrv_addr == "env:1"
    flagged = parser.parse_args(["-n", "flag:1"])
    assert read_config(flagged, environ)[0].namesrv_addr == "flag:1"


async def test_a_broker_tells_its_group_and_a_replica_of_another_one_does_not_dial_it(tmp_path: Path) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    settings = {"enable_controller_mode": True, "controller_addr": nobody, "namesrv_addr": nobody}
    async with (
        Broker(config(tmp_path / "master")) as master,
        Broker(config(tmp_path / "ours", **settings)) as ours,
        Broker(config(tmp_path / "theirs", broker_name="b-2", **settings)) as theirs,
    ):
        assert ours.controlled is not None and theirs.controlled is not None
        for replica in (ours.controlled, theirs.controlled):
            replica.slave_sync.follow(Leader(master.address, 1, 2))
        assert await ours.controlled.slave_sync.unverified_peer() is None
        refusal = await theirs.controlled.slave_sync.unverified_peer()
        assert refusal is not None and "is of DefaultCluster/b now, not of DefaultCluster/b-2" in refusal


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("haListenPort=1\nbrokerIP2=two\nbrokerIP1=one\n", ("two:1",)),
        ("brokerIP1 = one\r\nhaListenPort = 1\r\n", ("one:1",)),
        ("haListenPort=1\nbrokerIP2=\n", ("asked:1",)),
        ("haListenPort=1\nmappedFileSizeCommitLog=4096\n", ("asked:1", 4096)),
        ("haListenPort=1\nmappedFileSizeCommitLog=big\n", ("asked:1",)),
        ("haListenPort=0\n", None),
        ("haListenPort=many\n", None),
        ("", None),
    ],
)
def test_ha_address_from_a_masters_configuration(text: str, found: tuple[str, int] | None) -> None:
    assert master_server(text, "asked:10911") == (found and MasterHaAddress(*found))
