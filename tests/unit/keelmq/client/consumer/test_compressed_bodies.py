"""Messages of all codecs, and bombs and malformed bodies between them, through a real broker."""

import os
import threading
from collections.abc import Iterator

import pytest

from keelmq import (
    ConsumeFromWhere,
    Consumer,
    ConsumerSettings,
    DamagedRecord,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
)
from keelmq.client.admin import AdminClient
from keelmq.client.copies import copy_of
from keelmq.client.message import COMPRESSED_FLAG, decode_messages, decode_pull
from keelmq.client.producer.compression import OFF_LOOP_BYTES, compressed
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Ok
from keelmq.remoting.operations.broker import SEND_MESSAGE_V2, SendMessageRequestV2
from keelmq.remoting.queue_map import QueueKey
from keelmq.runtime.clock import wall_ms
from pytest_keelmq.cluster import TestBroker
from tests.support.bodies import PACKERS, ZLIB, malformed
from tests.unit.keelmq.client.consumer.test_pull_consumer import record

LIMIT = 100_000
MALFORMED = malformed(LIMIT)


@pytest.fixture(scope="module")
def broker() -> Iterator[TestBroker]:
    with TestBroker() as broker:
        broker.create_topic("Packed", queues=1)
        yield broker


async def put(client: RemotingClient, address: str, body: bytes, sys_flag: int) -> None:
    """Sends a body that is compressed already, as a Java producer does."""
    header = SendMessageRequestV2(a="java", b="Packed", e=0, f=sys_flag, g=wall_ms(), h=0, i="", j=0)
    outcome = await client.call(address, SEND_MESSAGE_V2, header, body)
    assert isinstance(outcome, Ok)


async def test_each_bad_body_is_that_messages_error_and_nothing_else(
    broker: TestBroker, caplog: pytest.LogCaptureFixture
) -> None:
    packers = list(PACKERS.items())
    good = [b"good %d" % number for number in range(len(MALFORMED) + 1)]
    client = RemotingClient()
    for number, body in enumerate(good):
        flag, pack = packers[number % len(packers)]
        await put(client, broker.broker_addr, pack(body), flag)
        if number < len(MALFORMED):
            _, flag, bad = MALFORMED[number]
            await put(client, broker.broker_addr, bad, flag)
    await client.close()
    told = list[tuple[MessageQueue, DamagedRecord]]()
    settings = ConsumerSettings(
        from_where=ConsumeFromWhere.FIRST_OFFSET,
        body_bytes_max=LIMIT,
        damaged_listener=lambda queue, each: told.append((queue, each)),
    )
    found = list[bytes]()
    async with Consumer(broker.namesrv_addr, "packed", settings=settings).subscribe("Packed") as consumer:
        while len(found) < len(good):
            messages = await consumer.poll(timeout_ms=10_000)
            assert messages, f"{len(found)} of {len(good)}"
            found += [message.body for message in messages]
    assert found == good
    assert [each.queue_offset for _, each in told] == list(range(1, 2 * len(MALFORMED), 2))
    assert all(each.reason.startswith("the body cannot be inflated: ") for _, each in told)

    async with PullConsumer(broker.namesrv_addr, body_bytes_max=LIMIT) as reader:
        result = await reader.pull(MessageQueue("Packed", "test-broker", 0), 1, 1)
        assert result.messages == () and [each.queue_offset for each in result.damaged] == [1]
    async with AdminClient() as admin:
        queue = QueueKey("Packed", "test-broker", 0)
        pulled = await admin.messages.pull_messages(broker.broker_addr, queue, 0, 4, inflated_max=LIMIT)
    assert [bool(each.body_error) for each in pulled.messages] == [False, True, False, True]
    with pytest.raises(ValueError, match="was not inflated"):
        copy_of(pulled.messages[1])


def at(offset: int, body: bytes, sys_flag: int) -> bytes:
    raw = bytearray(record(body, sys_flag=sys_flag, topic="T", v2=True))
    raw[20:28] = offset.to_bytes(8, "big")
    return bytes(raw)


def test_the_bodies_of_one_pull_have_a_limit_together() -> None:
    packed = PACKERS[ZLIB](bytes(40_000))
    body = b"".join(at(number, packed, ZLIB) for number in range(5)) + at(5, b"plain", 0)
    ends = list[int]()
    position = 0
    while position < 6:
        rest = body[position * (len(body) - len(at(5, b"plain", 0))) // 5 :]
        found = decode_pull(rest, begin=position, end=6, inflated_max=LIMIT)
        assert not found.damaged and sum(len(each.body) for each in found.messages) <= LIMIT
        ends.append(position := found.end)
    assert ends == [2, 4, 6]
    errors = [each.body_error for each in decode_messages(body, inflated_max=LIMIT)]
    assert [bool(each) for each in errors] == [False, False, True, True, True, False]
    assert errors[2] == f"the body was not inflated: all bodies of this answer have {LIMIT} bytes at most"


async def test_a_body_is_compressed_only_if_that_makes_it_shorter() -> None:
    for size in (5_000, OFF_LOOP_BYTES, 4 << 20):
        noise = os.urandom(size)
        assert await compressed(noise, 4_096) == (noise, 0)
        packed, flag = await compressed(bytes(size), 4_096)
        assert flag == COMPRESSED_FLAG and len(packed) < size // 50
    assert await compressed(bytes(5_000), None) == (bytes(5_000), 0)
    assert await compressed(bytes(4_095), 4_096) == (bytes(4_095), 0)


async def test_an_incompressible_body_at_the_brokers_limit_is_sent(broker: TestBroker) -> None:
    body = os.urandom(4 << 20)
    async with Producer(broker.namesrv_addr) as producer:
        result = await producer.send(Message("Large", body), timeout_ms=20_000)
    async with PullConsumer(broker.namesrv_addr) as reader:
        queue = MessageQueue("Large", result.broker_name, result.queue_id)
        (message,) = (await reader.pull(queue, result.queue_offset, 1)).messages
    assert message.body == body and not message.sys_flag & COMPRESSED_FLAG


async def test_large_bodies_are_compressed_off_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = set[int]()

    def deflate(body: bytes) -> bytes:
        threads.add(threading.get_ident())
        return b""

    monkeypatch.setattr("keelmq.client.producer.compression.deflated", deflate)
    await compressed(bytes(OFF_LOOP_BYTES), 0)
    assert threads and threading.get_ident() not in threads
