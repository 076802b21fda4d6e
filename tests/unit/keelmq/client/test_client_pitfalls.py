"""What went wrong between RocketMQ's clients and brokers (clients.md), by number; ours in both roles."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keelmq.client import Message, MessageQueue, Producer, PullConsumer, SendError, SendErrorKind
from keelmq.client.message import decode_properties
from keelmq.client.message_id import decode_offset_message_id, encode_offset_message_id
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import RequestCode, ResponseCode
from keelmq.remoting.command import RemotingCommand
from keelmq.remoting.operation import Failed, Ok
from keelmq.remoting.operations.broker import SEND_MESSAGE_V2, SendMessageRequestV2
from keelmq.remoting.operations.clients import CONSUMER_SEND_MSG_BACK, SendBackRequest
from keelmq.remoting.servers.tcp import IDLE_MS
from namesrv.app import Namesrv
from pytest_keelmq.cluster import TestBroker
from tests.support.fake_cluster import FakeBroker, FakeNameServer
from tests.support.server_parts import RawPeer
from tests.unit.namesrv.test_namesrv_app import config


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBroker]:
    with TestBroker(tmp_path_factory.mktemp("broker"), {"autoCreateTopicEnable": "false"}) as running:
        yield running


async def connect(broker: TestBroker) -> RawPeer:
    host, port = broker.broker_addr.split(":")
    return RawPeer(*await asyncio.open_connection(host, int(port)))


@pytest.mark.parametrize(
    ("host", "offset", "text"),
    [
        ("127.0.0.1:10911", 0, "7F00000100002A9F0000000000000000"),
        ("10.1.2.255:65535", 1 << 40, "0A0102FF0000FFFF0000010000000000"),
        ("[2001:db8::1]:1", 5, "20010DB8000000000000000000000001000000010000000000000005"),
    ],
)
def test_offset_message_ids_both_ways_8(host: str, offset: int, text: str) -> None:
    assert encode_offset_message_id(host, offset) == text
    assert decode_offset_message_id(text) == decode_offset_message_id(text.lower()) == (host, offset)


@pytest.mark.parametrize(
    "text", ["", "0", "7F" * 15, "7F" * 17, "zz" * 16, "7F000001000000000000000000000000"]
)
def test_what_is_no_offset_message_id_8(text: str) -> None:
    """The UNIQ_KEY of a C++ client has 32 digits as well, but no port that can be one."""
    with pytest.raises(ValueError, match="not an offset message id"):
        decode_offset_message_id(text)


async def test_one_opaque_twice_in_flight_9(broker: TestBroker) -> None:
    """Both are done, both are answered."""
    broker.create_topic("Opaque", queues=1)
    peer = await connect(broker)
    fields = {"a": "p", "b": "Opaque", "e": "0", "g": "1"}
    peer.write(*(RemotingCommand(310, 7, 0, None, dict(fields), body=body) for body in (b"1", b"2")))
    answers = [await peer.read(), await peer.read()]
    peer.writer.close()
    assert [(answer.opaque, answer.code) for answer in answers] == [(7, 0), (7, 0)]
    assert sorted(answer.ext_fields["queueOffset"] for answer in answers) == ["0", "1"]


async def test_an_offset_may_go_back_a_little_10(broker: TestBroker) -> None:
    """The former owner of a queue commits after the next one: some messages come twice, none is lost."""
    broker.create_topic("Backward", queues=1)
    async with Producer(broker.namesrv_addr) as producer, PullConsumer(broker.namesrv_addr, "back") as reader:
        await producer.send_batch([Message("Backward", b"%d" % index) for index in range(5)])
        queue = MessageQueue("Backward", "test-broker", 0)
        for offset in (4, 2):
            await reader.commit(queue, offset)
            assert await reader.committed_offset(queue) == offset


def test_an_idle_client_has_two_minutes_12() -> None:
    """Its heartbeats come every 30 s, and its loop may hang for a while."""
    assert IDLE_MS == 120_000


async def test_no_attempt_after_the_time_is_over_14() -> None:
    """Neither of send() nor of send_async(): a late one would be a duplicate that nobody expects."""
    async with FakeBroker() as broker, FakeNameServer() as server:
        server.routes["T"] = {0: broker.address}
        broker.script = [int(ResponseCode.SYSTEM_BUSY)] * 10_000
        async with Producer(server.address) as producer:
            with pytest.raises(SendError):
                await producer.send(Message("T", b"late"), timeout_ms=60)
            task = await producer.send_async(Message("T", b"late"), timeout_ms=60)
            with pytest.raises(SendError):
                await task
            broker.script.clear()
            for _ in range(50):
                await producer.send(Message("T", b"next"))
    bodies = [body for _, body in broker.sends]
    first = bodies.index(b"next")  # the last late one may have been under way when its time was over
    assert set(bodies[:first]) == {b"late"} and first >= 2
    assert bodies[first:] == [b"next"] * 50


async def test_a_broker_that_says_go_away_twice_15() -> None:
    """Once is mended by another connection, and the second time by another attempt: no send fails."""
    async with FakeBroker() as broker, FakeNameServer() as server:
        server.routes["T"] = {0: broker.address}
        broker.script = [int(ResponseCode.GO_AWAY)] * 2
        async with Producer(server.address) as producer:
            result = await producer.send(Message("T", b"1"))
    assert (result.attempts, result.uncertain_attempts, len(broker.sends)) == (2, 0, 3)


async def test_a_name_server_takes_nothing_back_16(tmp_path: Path) -> None:
    """36 without a broker's address went there: refused in words, over a connection that stays."""
    async with Namesrv(config(kv_config_path=tmp_path / "kv.json")) as server:
        address = "{}:{}".format(*server.address)
        client = RemotingClient()
        header = SendBackRequest(offset=178, group="g", delay_level=0)
        for _ in range(2):
            outcome = await client.call(address, CONSUMER_SEND_MSG_BACK, header)
            assert isinstance(outcome, Failed) and outcome.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            assert f"request type {int(RequestCode.CONSUMER_SEND_MSG_BACK)} not supported" in outcome.remark
        assert len(client.connections) == 1
        await client.close()


@pytest.mark.parametrize("code", [10, 310])
async def test_what_a_send_does_not_say_is_false_or_zero_18(broker: TestBroker, code: int) -> None:
    """batch, unitMode, reconsumeTimes, flag, sysFlag, maxReconsumeTimes, properties."""
    topic = f"Absent{code}"
    broker.create_topic(topic, queues=1)
    short = {"a": "p", "b": topic, "e": "0", "g": "1"}
    long = {"producerGroup": "p", "topic": topic, "queueId": "0", "bornTimestamp": "1"}
    peer = await connect(broker)
    answer = await peer.ask(RemotingCommand(code, 1, 0, None, long if code == 10 else short, body=b"x"))
    peer.writer.close()
    assert answer.code == 0, answer.remark
    async with PullConsumer(broker.namesrv_addr) as reader:
        (message,) = (await reader.pull(MessageQueue(topic, "test-broker", 0), 0)).messages
    assert (message.body, message.flag, message.sys_flag, message.reconsume_times) == (b"x", 0, 0, 0)


async def test_every_attempt_is_the_same_message_25() -> None:
    """Topic (with a namespace, if it has one), properties and body: nothing is computed anew for a retry."""
    async with FakeBroker() as broker, FakeNameServer() as server:
        server.routes["ns%T"] = {0: broker.address}
        broker.script = [int(ResponseCode.SYSTEM_ERROR), None, int(ResponseCode.FLUSH_DISK_TIMEOUT)]
        message = Message("ns%T", b"z" * 5_000, tags="A", properties={"INSTANCE_ID": "ns"})
        async with Producer(server.address) as producer:
            result = await producer.send(message)
    assert result.attempts == len(broker.sends) == 4
    assert (
        len({(header.topic, header.properties, header.sys_flag, body) for header, body in broker.sends}) == 1
    )
    header = broker.sends[0][0]
    assert header.topic == "ns%T" and decode_properties(header.properties or "")["INSTANCE_ID"] == "ns"


async def test_a_bare_topic_is_not_created_when_that_is_forbidden_25(broker: TestBroker) -> None:
    broker.create_topic("ns%Forbidden", queues=1)
    client = RemotingClient()
    header: Any = SendMessageRequestV2(a="p", b="Forbidden", e=0, g=1)
    outcome = await client.call(broker.broker_addr, SEND_MESSAGE_V2, header, b"x")
    assert isinstance(outcome, Failed) and outcome.code == ResponseCode.TOPIC_NOT_EXIST
    header = SendMessageRequestV2(a="p", b="ns%Forbidden", e=0, g=1)
    assert isinstance(await client.call(broker.broker_addr, SEND_MESSAGE_V2, header, b"x"), Ok)
    await client.close()
    async with Producer(broker.namesrv_addr) as producer:
        with pytest.raises(SendError) as caught:
            await producer.send(Message("Forbidden", b"x"), timeout_ms=200)
    assert caught.value.kind is SendErrorKind.NO_ROUTE
