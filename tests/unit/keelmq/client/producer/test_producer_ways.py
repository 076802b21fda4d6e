"""Ways to send, against a real broker: batches, keys, oneway, delays, callbacks, hooks; and slow brokers."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from keelmq.client import (
    ClientHook,
    ConsumeFromWhere,
    ConsumerSettings,
    ConsumeTrace,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    SendError,
    SendErrorKind,
    SendResult,
    SendTrace,
)
from keelmq.client.cluster.queue_reader import PullStatus
from keelmq.client.core.queue_choice import FaultTable
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Ok
from keelmq.remoting.operations.clients import GET_PRODUCER_CONNECTION_LIST, ProducerGroupRequest
from pytest_keelmq.cluster import TestBroker
from tests.support.client_parts import Seen, broker, numbers, until
from tests.support.fake_cluster import FakeBroker, FakeNameServer

__all__ = ["broker"]

FIRST = ConsumerSettings(from_where=ConsumeFromWhere.FIRST_OFFSET)


async def stored(broker: TestBroker, topic: str) -> dict[int, list[MessageExt]]:
    """Queue -> its messages."""
    found: dict[int, list[MessageExt]] = {}
    async with PullConsumer(broker.namesrv_addr) as reader:
        for queue in await reader.fetch_queues(topic):
            result = await reader.pull(queue, 0)
            if result.status is PullStatus.FOUND:
                found[queue.queue_id] = list(result.messages)
    return found


async def test_a_batch_is_split_and_every_message_has_its_result(broker: TestBroker) -> None:
    broker.create_topic("Batch", queues=1)
    messages = [
        Message("Batch", body * 50, tags="t", keys=(f"k{index}",), properties={"n": str(index)}, flag=index)
        for index, body in enumerate(numbers(9))
    ]
    async with Producer(broker.namesrv_addr) as producer:
        results = await producer.send_batch(messages, bytes_max=500)
    (there,) = (await stored(broker, "Batch")).values()
    assert [each.body for each in there] == [each.body for each in messages]
    assert [(each.tags, each.keys, each.properties["n"], each.flag) for each in there] == [
        ("t", f"k{index}", str(index), index) for index in range(9)
    ]
    assert [each.queue_offset for each in results] == list(range(9))
    assert [each.msg_id for each in results] == [each.msg_id for each in there]
    assert [each.offset_msg_id for each in results] == [each.offset_msg_id for each in there]


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([], "empty"),
        ([Message("A", b""), Message("B", b"")], "one topic"),
        ([Message("A", b""), Message("A", b"", wait=False)], "one `wait`"),
        ([Message("A", b"", delay_level=1)], "delayed"),
        ([Message("%RETRY%g", b"")], "retry topic"),
        ([Message("A", b"", priority=0)], "one queue"),
    ],
)
async def test_what_is_no_batch(messages: Sequence[Message], says: str) -> None:
    async with Producer("127.0.0.1:1") as producer:
        with pytest.raises(ValueError, match=says):
            await producer.send_batch(messages)


async def test_the_part_of_a_batch_that_was_stored_is_told() -> None:
    async with FakeBroker() as fake, FakeNameServer() as server:
        server.routes["T"] = {0: fake.address}
        fake.script = [0, 13]
        async with Producer(server.address) as producer:
            with pytest.raises(SendError) as caught:
                await producer.send_batch([Message("T", b"x" * 100)] * 2, bytes_max=150)
    assert caught.value.kind is SendErrorKind.REFUSED and len(caught.value.sent) == 1


async def test_keys(broker: TestBroker) -> None:
    broker.create_topic("Keys", queues=8)
    async with Producer(broker.namesrv_addr) as producer:
        for index in range(40):
            await producer.send(Message("Keys", b"%d" % index), key=f"k{index % 5}")
        with pytest.raises(ValueError, match="not both"):
            await producer.send(Message("Keys", b""), key="k", queue=MessageQueue("Keys", "b", 0))
    there = await stored(broker, "Keys")
    assert 1 < len(there) <= 5
    for messages in there.values():
        values = [int(each.body) for each in messages]
        assert values == sorted(values)
    owners = [{int(each.body) % 5 for each in messages} for messages in there.values()]
    assert sum(map(len, owners)) == 5, "each key has one queue"


async def test_a_function_picks_the_queue(broker: TestBroker) -> None:
    broker.create_topic("Picked", queues=3)
    async with Producer(broker.namesrv_addr) as producer:
        result = await producer.send(Message("Picked", b""), queue=lambda queues: queues[-1])
    assert result.queue_id == 2


async def test_a_key_waits_for_the_master_of_its_queue() -> None:
    """One of two brokers has no master for a while: its keys go nowhere else, or they lost their order."""
    async with FakeBroker() as a, FakeBroker() as b, FakeNameServer() as server:
        server.routes["T"] = {}
        server.brokers = {"broker-a": {0: a.address}, "broker-b": {0: b.address}}
        async with Producer(server.address) as producer:
            keys = [f"k{index}" for index in range(20)]
            before = {key: (await producer.send(Message("T", b""), key=key)).broker_name for key in keys}
            assert set(before.values()) == {"broker-a", "broker-b"}
        server.brokers = {"broker-a": {0: a.address}, "broker-b": {1: "127.0.0.1:1"}}
        async with Producer(server.address) as producer:
            tasks = {key: await producer.send_async(Message("T", b""), key=key) for key in keys}
            asked = len(server.asked)
            await until(lambda: len(server.asked) > asked + 2, "the route is asked for again and again")
            server.brokers = {"broker-a": {0: a.address}, "broker-b": {0: b.address}}
            assert {key: (await task).broker_name for key, task in tasks.items()} == before


async def test_oneway(broker: TestBroker) -> None:
    broker.create_topic("Oneway", queues=1)
    async with Producer(broker.namesrv_addr) as producer:
        for body in numbers(5):
            await producer.send_oneway(Message("Oneway", body))
        await producer.send(Message("Oneway", b"last"))
    (there,) = (await stored(broker, "Oneway")).values()
    assert [each.body for each in there] == [*numbers(5), b"last"]


async def test_oneway_without_a_broker_says_so() -> None:
    async with Producer("127.0.0.1:1") as producer:
        with pytest.raises(SendError) as caught:
            await producer.send_oneway(Message("T", b""))
    assert caught.value.kind is SendErrorKind.NO_ROUTE


async def test_callbacks(broker: TestBroker) -> None:
    broker.create_topic("Calls")
    called: list[SendResult | SendError] = []
    async with Producer(broker.namesrv_addr, compress_over_bytes=None) as producer:
        good = await producer.send_async(Message("Calls", b"1"), callback=called.append)
        bad = await producer.send_async(Message("Calls", b"1" * 5_000_000), callback=called.append)
        text: Any = Message("Calls", "text")  # type: ignore[arg-type]
        invalid = await producer.send_async(text, callback=called.append)
        results = await asyncio.gather(good, bad, invalid, return_exceptions=True)
        await until(lambda: len(called) == 3)
    assert isinstance(results[2], TypeError)
    kinds = sorted(each.kind.name for each in called if isinstance(each, SendError))
    assert kinds == ["REFUSED", "REFUSED"] and sum(isinstance(each, SendResult) for each in called) == 1


async def test_a_message_that_no_frame_can_carry(broker: TestBroker) -> None:
    broker.create_topic("Large")
    large = Message("Large", bytes(17 << 20))
    async with Producer(broker.namesrv_addr, compress_over_bytes=None) as producer:
        for send in (producer.send, producer.send_oneway):
            with pytest.raises(ValueError, match="the message cannot be sent: frame of 178"):
                await send(large)
        assert (await producer.send(Message("Large", b"small"))).queue_offset == 0


async def test_delayed(broker: TestBroker) -> None:
    broker.create_topic("Delayed")
    seen = Seen()
    async with (
        PushConsumer(broker.namesrv_addr, "delayed", seen, settings=FIRST).subscribe("Delayed"),
        Producer(broker.namesrv_addr) as producer,
    ):
        await producer.send(Message("Delayed", b"later", delay_level=1))
        await producer.send(Message("Delayed", b"now"))
        assert await seen.has(2) == [b"now", b"later"]
    waited_ms = seen.messages[1].store_timestamp - seen.messages[1].born_timestamp
    assert waited_ms >= 1_000


async def test_priorities(broker: TestBroker) -> None:
    """The answer names the queue that the broker has chosen; a consumer that pulls sees the priority."""
    broker.create_topic("Urgent", queues=4)
    async with Producer(broker.namesrv_addr) as producer:
        for priority, queue_id in ((0, 0), (2, 2), (9, 3), (2, 2)):
            result = await producer.send(Message("Urgent", b"%d" % priority, priority=priority), key="k")
            assert result.queue_id == queue_id
        await producer.send(Message("Urgent", b"none"), queue=lambda queues: queues[1])
        await producer.send(Message("Urgent", b"text", properties={"_SYS_MSG_PRIORITY_": "3"}))
    stored = await asyncio.to_thread(broker.messages, "Urgent", 6)
    assert sorted((each.body, each.queue_id, each.priority or -1) for each in stored) == [
        (b"0", 0, -1), (b"2", 2, 2), (b"2", 2, 2), (b"9", 3, 9), (b"none", 1, -1), (b"text", 3, 3),
    ]  # fmt: skip
    assert {each.body: each.priority for each in stored}[b"0"] == 0
    assert {each.body: each.priority for each in stored}[b"none"] is None


@pytest.mark.parametrize("text", ["", "high", "-1", "1.5", "9" * 5000, "٣"])
def test_what_is_no_priority(text: str) -> None:
    properties = {"_SYS_MSG_PRIORITY_": text}
    assert MessageExt("T", b"", properties, 0, 0, 0, 0, 0, 0, "", 0, "", 0, 9).priority is None


@pytest.mark.parametrize(
    "other",
    [
        {"delay_level": 1},
        *({"properties": {name: "1"}} for name in ("DELAY", "TIMER_DELAY_MS", "TRAN_MSG", "__SHARDINGKEY")),
    ],
    ids=str,
)
async def test_a_priority_goes_with_no_other_type_of_message(other: dict[str, Any]) -> None:
    """A broker would remove it without a word."""
    async with Producer("127.0.0.1:1") as producer:
        with pytest.raises(ValueError, match="not delayed, ordered or in a transaction"):
            await producer.send(Message("T", b"", priority=0, **other))


async def test_hooks_see_everything_and_may_not_break_anything(broker: TestBroker) -> None:
    broker.create_topic("Hooks", queues=1)
    sent: list[SendTrace] = []
    consumed: list[ConsumeTrace] = []

    class Tracing(ClientHook):
        def before_send(self, message: Message) -> Message:
            return Message(message.topic, message.body, properties={"traceparent": "00-1"})

        def after_send(self, trace: SendTrace) -> None:
            sent.append(trace)

        def after_consume(self, trace: ConsumeTrace) -> None:
            consumed.append(trace)

    class Broken(ClientHook):
        def before_send(self, message: Message) -> Message:
            raise ValueError("hook")

        def before_consume(self, group: str, messages: Sequence[MessageExt]) -> None:
            raise ValueError("hook")

    seen = Seen(lambda message: ValueError("no") if not message.reconsume_times else None)
    hooks = [Broken(), Tracing()]
    async with (
        PushConsumer(broker.namesrv_addr, "hooks", seen, settings=FIRST, hooks=hooks).subscribe("Hooks"),
        Producer(broker.namesrv_addr, "hooked", hooks=hooks) as producer,
    ):
        result = await producer.send(Message("Hooks", b"1"))
        with pytest.raises(SendError):
            await producer.send(
                Message("Hooks", b"1" * 4_200_000), queue=MessageQueue("Hooks", "none", 0), timeout_ms=50
            )
        await seen.has(2)
        await until(lambda: len(consumed) == 2)
    assert seen.messages[0].properties["traceparent"] == "00-1"
    good, bad = sent
    assert (good.msg_id, good.error, good.attempts, good.messages) == (result.msg_id, None, 1, 1)
    assert isinstance(bad.error, SendError)
    assert isinstance(consumed[0].error, ValueError) and consumed[1].error is None


async def until_async(ask: Callable[[], Awaitable[object]], wanted: object) -> None:
    async with asyncio.timeout(5):
        while True:
            if await ask() == wanted:
                return
            await asyncio.sleep(0.005)


async def test_a_producer_is_known_while_it_is_open(broker: TestBroker) -> None:
    broker.create_topic("Known")
    client = RemotingClient()

    async def known() -> list[str]:
        header = ProducerGroupRequest(producer_group="known")
        outcome = await client.call(broker.broker_addr, GET_PRODUCER_CONNECTION_LIST, header)
        return [each.client_id for each in outcome.body.connection_set] if isinstance(outcome, Ok) else []

    try:
        async with Producer(broker.namesrv_addr, "known") as producer:
            await producer.send(Message("Known", b""))
            await until_async(known, [producer.client_id])
        assert await known() == []
    finally:
        await client.close()


async def test_a_broker_that_fails_is_left_out_for_a_while() -> None:
    """clients.md pitfall 20, over the wire: A answers 2, the next attempt and the next messages go to B."""
    async with FakeBroker() as a, FakeBroker() as b, FakeNameServer() as server:
        server.brokers = {"broker-a": {0: a.address}, "broker-b": {0: b.address}}
        server.routes["T"] = {}
        a.script = [2]
        async with Producer(server.address, avoid_slow_brokers=True) as producer:
            results = [await producer.send(Message("T", b"%d" % index)) for index in range(6)]
        assert [each.broker_name for each in results] == ["broker-b"] * 6
        assert (len(a.sends), len(b.sends)) == (1, 6)
    assert FaultTable().is_available("broker-a", now_ms=0)
