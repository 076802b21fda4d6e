"""Requests and replies of our clients: against a real broker, and with scripted pushes."""

import asyncio
import zlib
from typing import Any

import pytest

from keelmq.blocking import BlockingProducer, BlockingPushConsumer
from keelmq.client import (
    ConsumeFromWhere,
    ConsumerSettings,
    LitePullConsumer,
    Message,
    MessageExt,
    NoReply,
    Producer,
    PushConsumer,
    SendError,
    SendErrorKind,
)
from keelmq.client.message import decode_properties
from keelmq.client.producer.request_reply import Requests
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Call, CommandError, Empty, OperationTable
from keelmq.remoting.operations.broker import SEND_MESSAGE_V2, SendMessageRequestV2, SendMessageResponse
from keelmq.remoting.operations.clients import HEART_BEAT, HeartbeatResponse
from keelmq.remoting.operations.replies import (
    PUSH_REPLY_MESSAGE_TO_CLIENT,
    SEND_REPLY_MESSAGE_V2,
    PushReplyRequest,
)
from keelmq.runtime.clock import wall_ms
from pytest_keelmq.cluster import TestBroker
from tests.support.client_parts import broker, until
from tests.support.fake_cluster import FakeNameServer, Server

__all__ = ["broker"]

FIRST = ConsumerSettings(from_where=ConsumeFromWhere.FIRST_OFFSET)


async def test_a_request_and_its_reply(broker: TestBroker) -> None:
    broker.create_topic("Prices")
    asked: list[MessageExt] = []

    async def handle(messages: tuple[MessageExt, ...]) -> None:
        for message in messages:
            asked.append(message)
            await consumer.reply(message, b"price of " + message.body, properties={"currency": "EUR"})

    async with (
        PushConsumer(broker.namesrv_addr, "prices", handle, settings=FIRST).subscribe("Prices") as consumer,
        Producer(broker.namesrv_addr, "shop") as producer,
    ):
        reply = await producer.request(Message("Prices", b"apple", tags="T", keys=("k",)), timeout_ms=10_000)
        others = await asyncio.gather(
            *(producer.request(Message("Prices", b"%d" % index), timeout_ms=10_000) for index in range(50))
        )
    assert reply.body == b"price of apple" and reply.properties["currency"] == "EUR"
    assert reply.store_host == broker.broker_addr and reply.born_timestamp <= wall_ms()
    assert [each.body for each in others] == [b"price of %d" % index for index in range(50)]
    assert len({each.correlation_id for each in others}) == 50
    first = asked[0]
    assert (first.body, first.tags, first.keys) == (b"apple", "T", "k")
    assert first.properties["TTL"] == "10000" and first.properties["REPLY_TO_CLIENT"] == producer.client_id
    assert first.properties["CORRELATION_ID"] == reply.correlation_id


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Requests]:
    """The Requests of every producer that is opened."""
    found: list[Requests] = []

    def make(table: OperationTable) -> Requests:
        found.append(Requests(table))
        return found[-1]

    monkeypatch.setattr("keelmq.client.producer.producer.Requests", make)
    return found


async def test_no_reply_in_time(broker: TestBroker, opened: list[Requests]) -> None:
    """It is told apart from a request that was not even sent; a reply that comes too late hurts nobody."""
    broker.create_topic("Slow")
    async with Producer(broker.namesrv_addr, "slow") as producer:
        with pytest.raises(NoReply, match="no reply in 50 ms") as caught:
            await producer.request(Message("Slow", b"1"), timeout_ms=50)
        assert caught.value.sent.topic == "Slow" and caught.value.sent.queue_offset == 0
        async with LitePullConsumer(broker.namesrv_addr, "slow", settings=FIRST).subscribe("Slow") as reader:
            (request,) = await reader.poll()
            await reader.reply(request, b"late")
            await producer.reply(request, b"later still")
        assert len(opened) == 1 and len(opened[0]) == 0


async def test_who_asked_is_gone(broker: TestBroker) -> None:
    broker.create_topic("Gone")
    async with Producer(broker.namesrv_addr, "gone") as producer:
        with pytest.raises(NoReply):
            await producer.request(Message("Gone", b"1"), timeout_ms=500)
    async with LitePullConsumer(broker.namesrv_addr, "gone", settings=FIRST).subscribe("Gone") as reader:
        (request,) = await reader.poll()
        with pytest.raises(SendError, match="not found") as caught:
            await reader.reply(request, b"1", timeout_ms=100)
        assert caught.value.kind is SendErrorKind.REFUSED


async def test_a_request_that_is_not_sent(broker: TestBroker) -> None:
    async with Producer("127.0.0.1:1") as producer:
        with pytest.raises(SendError, match="no name server"):
            await producer.request(Message("T", b""), timeout_ms=50)
        with pytest.raises(ValueError, match="delayed"):
            await producer.request(Message("T", b"", delay_level=1))
    with pytest.raises(SendError, match="closed"):
        await producer.request(Message("T", b""))
    shared = RemotingClient()
    async with Producer(broker.namesrv_addr, client=shared) as producer:
        with pytest.raises(ValueError, match="shared client"):
            await producer.request(Message("T", b""))
    await shared.close()


async def test_a_producer_that_closes_leaves_nobody_waiting(
    broker: TestBroker, opened: list[Requests]
) -> None:
    broker.create_topic("Closing")
    async with Producer(broker.namesrv_addr, "closing") as producer:
        asking = asyncio.create_task(producer.request(Message("Closing", b"1"), timeout_ms=60_000))
        async with LitePullConsumer(broker.namesrv_addr, "c", settings=FIRST).subscribe("Closing") as reader:
            assert len(await reader.poll()) == 1
        await until(lambda: len(opened[0]) == 1)
    with pytest.raises(NoReply, match="closed"):
        await asking


def test_without_asyncio(broker: TestBroker) -> None:
    broker.create_topic("Plain")

    def handle(messages: tuple[MessageExt, ...]) -> None:
        consumer.reply(messages[0], messages[0].body.upper())

    with (
        BlockingPushConsumer(broker.namesrv_addr, "plain", handle, settings=FIRST) as consumer,
        BlockingProducer(broker.namesrv_addr, "asker") as producer,
    ):
        consumer.subscribe("Plain")
        assert producer.request(Message("Plain", b"hello"), timeout_ms=10_000).body == b"HELLO"


# -- with scripted brokers ---------------------------------------------------------------------------------


def request_of(**changes: str) -> MessageExt:
    properties = {
        "CLUSTER": "C", "CORRELATION_ID": "c-1", "REPLY_TO_CLIENT": "me@1", "TTL": "3000", "UNIQ_KEY": "K",
    } | changes  # fmt: skip
    return MessageExt(
        topic="T", body=b"", properties={key: value for key, value in properties.items() if value},
        queue_id=0, queue_offset=0, physical_offset=0, flag=0, sys_flag=0, born_timestamp=wall_ms(),
        born_host="", store_timestamp=0, store_host="", reconsume_times=0, stored_bytes=0,
        broker_name="broker-a",
    )  # fmt: skip


@pytest.mark.parametrize("name", ["CLUSTER", "CORRELATION_ID", "REPLY_TO_CLIENT"])
async def test_a_message_that_is_no_request(name: str) -> None:
    async with Producer("127.0.0.1:1") as producer:
        with pytest.raises(ValueError, match=f"not a request: it has no {name}"):
            await producer.reply(request_of(**{name: ""}), b"")


async def test_a_request_of_long_ago_costs_no_time() -> None:
    """A consumer that was away for an hour: nobody waits, and the clocks cannot differ by that much."""
    async with Producer("127.0.0.1:1") as producer:
        old = request_of(TTL="3000")
        object.__setattr__(old, "born_timestamp", wall_ms() - 3_600_000)
        with pytest.raises(SendError, match="the request expired after 3000 ms") as caught:
            await producer.reply(old, b"")
    assert caught.value.kind is SendErrorKind.REFUSED


async def test_the_broker_knows_who_asks_before_it_has_the_request() -> None:
    """Else a quick reply finds nobody. A producer that only sends says who it is after its first message."""
    order: list[str] = []

    async def heartbeat(_: Empty, __: Call) -> HeartbeatResponse:
        order.append("heartbeat")
        return HeartbeatResponse()

    async def send(header: SendMessageRequestV2, _: Call) -> SendMessageResponse:
        order.append("request")
        assert decode_properties(header.properties or "")["REPLY_TO_CLIENT"] == producer.client_id
        return SendMessageResponse(msg_id="0", queue_id=0, queue_offset=0)

    async with Server() as broker, FakeNameServer() as server:
        broker.table.bind(HEART_BEAT, heartbeat)
        broker.table.bind(SEND_MESSAGE_V2, send)
        server.routes["T"] = {0: broker.address}
        async with Producer(server.address, "g") as producer:
            for _ in range(2):
                with pytest.raises(NoReply):
                    await producer.request(Message("T", b""), timeout_ms=500)
    assert order[:2] == ["heartbeat", "request"] and order.count("request") == 2


async def test_the_reply_goes_to_the_broker_that_has_the_request_until_it_is_taken() -> None:
    """A new master does not know who asked before his next heartbeat: that is tried again."""
    got: list[tuple[SendMessageRequestV2, bytes]] = []

    async def take(header: SendMessageRequestV2, call: Call) -> SendMessageResponse:
        got.append((header, bytes(call.body)))
        if len(got) < 3:
            raise CommandError(ResponseCode.SYSTEM_ERROR, "channel of <me@1> not found")
        return SendMessageResponse(msg_id="0", queue_id=0, queue_offset=0)

    async with Server() as broker, Server() as other, FakeNameServer() as server:
        broker.table.bind(SEND_REPLY_MESSAGE_V2, take)
        server.brokers = {"broker-a": {0: broker.address}, "broker-b": {0: other.address}}
        server.routes["T"] = {}
        async with Producer(server.address, "g") as producer:
            await producer.reply(request_of(), b"answer")
    assert len(got) == 3 and len({header.properties for header, _ in got}) == 1, "one reply, three attempts"
    header, body = got[-1]
    assert body == b"answer"
    assert (header.topic, header.producer_group, header.broker_name) == ("C_REPLY_TOPIC", "g", "broker-a")
    properties = decode_properties(header.properties or "")
    assert {key: properties[key] for key in ("MSG_TYPE", "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL")} == {
        "MSG_TYPE": "reply", "CORRELATION_ID": "c-1", "REPLY_TO_CLIENT": "me@1", "TTL": "3000",
    }  # fmt: skip


def pushed(correlation_id: str, *, sys_flag: int = 0) -> PushReplyRequest:
    return PushReplyRequest(
        topic="C_REPLY_TOPIC", properties=f"CORRELATION_ID\x01{correlation_id}\x02a\x01b\x02",
        sys_flag=sys_flag, flag=7, born_timestamp=1, born_host="1.2.3.4:5", store_host="6.7.8.9:10",
        store_timestamp=11,
    )  # fmt: skip


def call_with(body: bytes) -> Call:
    peer: Any = None
    return Call(peer, body)


async def test_pushed_replies() -> None:
    """Packed ones are unpacked, damaged ones refused, and what nobody waits for is taken and forgotten."""
    table = OperationTable()
    requests = Requests(table)
    _, received = table.handlers[PUSH_REPLY_MESSAGE_TO_CLIENT.code]
    with requests.waiting("c-1") as first, requests.waiting("c-2") as second:
        await received(pushed("c-1", sys_flag=1), call_with(zlib.compress(b"raw")))
        await received(pushed("c-1"), call_with(b"the second reply"))
        with pytest.raises(CommandError, match="cannot be inflated: not ZLIB"):
            await received(pushed("c-2", sys_flag=1), call_with(b"no zlib"))
        assert not second.done()
        await received(pushed("c-9"), call_with(b""))
        reply = await first
    assert reply is not None and len(requests) == 0
    assert (reply.body, reply.properties["a"], reply.flag) == (b"raw", "b", 7)
    assert (reply.born_host, reply.store_host, reply.store_timestamp) == ("1.2.3.4:5", "6.7.8.9:10", 11)
