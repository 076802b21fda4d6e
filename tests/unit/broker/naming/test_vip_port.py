"""The fast port: what is served there, and what becomes of a broker that cannot have it."""

import contextlib
import logging
import socket
from pathlib import Path

import pytest

from broker.app.broker import Broker
from broker.config.broker_config import BrokerConfig
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Empty, Failed, Ok, OperationTable
from keelmq.remoting.operations.broker import GET_BROKER_CONFIG, SEND_MESSAGE_V2, SendMessageRequestV2
from keelmq.remoting.operations.pop import POLLING_INFO, PollingInfoRequest
from keelmq.runtime.clock import wall_ms
from keelmq.runtime.config import ConfigError
from tests.support.ports import free_port


def config(tmp_path: Path, **settings: object) -> BrokerConfig:
    common = {
        "brokerName": "b", "bindAddress": "127.0.0.1", "brokerIP1": "127.0.0.1", "httpPort": -1,
        "telemetryEnable": False, "storePathRootDir": tmp_path / "store", "mappedFileSizeCommitLog": 65_536,
        "maxHashSlotNum": 100, "maxIndexNum": 1_000,
    }  # fmt: skip
    return BrokerConfig.model_validate(common | settings)


def two_apart() -> tuple[socket.socket, int]:
    """A bound port, and the free one two above it."""
    while True:
        port = free_port()
        with contextlib.suppress(OSError):
            return socket.create_server(("127.0.0.1", port - 2)), port


async def test_messages_go_in_and_none_comes_out(tmp_path: Path) -> None:
    """broker-ops section 2: the same operations but pulls, pops and what goes with them."""
    low, port = two_apart()
    low.close()
    async with Broker(config(tmp_path, listenPort=port)) as broker:
        client, fast = RemotingClient(OperationTable()), f"127.0.0.1:{port - 2}"
        header = SendMessageRequestV2(a="P", b="TopicA", c="TBW102", d=4, e=0, g=wall_ms())
        try:
            sent = await client.call(fast, SEND_MESSAGE_V2, header, b"body")
            assert isinstance(sent, Ok)
            assert broker.listeners.connection_count == 1
            polled = await client.call(
                fast, POLLING_INFO, PollingInfoRequest(consumer_group="g", topic="TopicA", queue_id=0)
            )
            assert isinstance(polled, Failed) and polled.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            asked = await client.call(broker.address, GET_BROKER_CONFIG, Empty())
            assert isinstance(asked, Ok)
            broker.listeners.close_connections()
        finally:
            await client.close()


async def test_a_port_that_is_taken_is_no_reason_to_stop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    low, port = two_apart()
    with low, caplog.at_level(logging.WARNING):
        async with Broker(config(tmp_path, listenPort=port)) as broker:
            assert broker.address.endswith(f":{port}")
    assert "the broker starts without it" in caplog.text and f":{port - 2}" in caplog.text


async def test_a_port_that_was_asked_for_is(tmp_path: Path) -> None:
    low, port = two_apart()
    with low, pytest.raises(ConfigError, match=rf"fastListenPort: cannot listen on .*:{port - 2}"):
        async with Broker(config(tmp_path, listenPort=0, fastListenPort=port - 2)):
            pass


@pytest.mark.parametrize("settings", [{"listenPort": 0}, {"fastListenPort": -1}])
async def test_none(tmp_path: Path, settings: dict[str, object]) -> None:
    low, port = two_apart()
    low.close()
    async with Broker(config(tmp_path, **({"listenPort": port} | settings))) as broker:
        assert len(broker.listeners.servers) == 1
