"""What applications pass by mistake: each field is checked where it enters, and named in the error."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from keelmq.blocking import BlockingPushConsumer
from keelmq.client import (
    Consumer,
    ConsumerSettings,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    SendError,
    TransactionProducer,
)
from keelmq.client.core.window import Limits
from keelmq.client.message import encode_properties
from tests.support.fake_cluster import FakeBroker, FakeNameServer

NAMESRV = "127.0.0.1:9876"
Q = MessageQueue("t", "broker-a", 0)
M = Message("t", b"x")


async def coroutine_function(*_: object) -> None:
    pass


@pytest.fixture
async def producer() -> AsyncIterator[Producer]:
    async with (
        FakeBroker() as broker,
        FakeNameServer() as server,
    ):
        server.routes["t"] = {0: broker.address}
        async with Producer(server.address) as producer:
            yield producer
        assert broker.sends == [], "nothing wrong was sent"


MESSAGES: dict[str, dict[str, Any]] = {
    r"topic is b't' \(bytes\)": {"topic": b"t"},
    r"topic is None \(NoneType\)": {"topic": None},
    r"topic is .*half a character": {"topic": "\ud800"},
    "the body of a message is bytes, not NoneType": {"body": None},
    "the body of a message is bytes, not dict": {"body": {"a": 1}},
    "the body of a message is bytes, not str": {"body": "x"},
    r"tags is 3 \(int\)": {"tags": 3},
    r"tags is \['a', 'b'\] \(list\)": {"tags": ["a", "b"]},
    r"keys is 7 \(int\)": {"keys": 7},
    r"keys\[0\] is 7 \(int\)": {"keys": (7,)},
    r"keys is None \(NoneType\)": {"keys": None},
    r"keys is b'k' \(bytes\)": {"keys": b"k"},
    r"properties\['n'\] is 1 \(int\)": {"properties": {"n": 1}},
    r"properties\['n'\] is None \(NoneType\)": {"properties": {"n": None}},
    r"properties\['n'\] is b'v' \(bytes\)": {"properties": {"n": b"v"}},
    r"a name in properties is 1 \(int\)": {"properties": {1: "v"}},
    r"properties is None \(NoneType\)": {"properties": None},
    r"properties is \[\('a', 'b'\)\] \(list\)": {"properties": [("a", "b")]},
    r"flag is '1' \(str\)": {"flag": "1"},
    r"flag is True \(bool\)": {"flag": True},
    "flag is 2147483648: it must be 2147483647 at most": {"flag": 1 << 31},
    r"wait is 'yes' \(str\)": {"wait": "yes"},
    r"delay_level is '3' \(str\)": {"delay_level": "3"},
    r"delay_level is 1.5 \(float\)": {"delay_level": 1.5},
    "delay_level is -1: it must be 0 or more": {"delay_level": -1},
    r"priority is '3' \(str\)": {"priority": "3"},
    r"priority is True \(bool\)": {"priority": True},
    "priority is -1: it must be 0 or more": {"priority": -1},
    "priority is 2147483648: it must be 2147483647 at most": {"priority": 1 << 31},
}


@pytest.mark.parametrize(("error", "fields"), MESSAGES.items(), ids=list(MESSAGES))
async def test_fields_of_a_message(error: str, fields: dict[str, Any], producer: Producer) -> None:
    message = Message(**{"topic": "t", "body": b"x", **fields})
    told = list[Any]()
    await producer.send_async(message, callback=told.append)
    for send in (producer.send(message), producer.send_batch([message]), producer.send_oneway(message)):
        with pytest.raises((TypeError, ValueError), match=error):
            await send
    while not told:
        await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()}, timeout=1)  # type: ignore[arg-type]
    assert isinstance(told[0], SendError)


SENDS: dict[str, Callable[[Producer], Awaitable[object]]] = {
    r"message is 'hello' \(str\)": lambda p: p.send("hello"),  # type: ignore[arg-type]
    r"message is None": lambda p: p.send_oneway(None),  # type: ignore[arg-type]
    r"message is b'x'": lambda p: p.request(b"x"),  # type: ignore[arg-type]
    r"key is 7 \(int\)": lambda p: p.send(M, key=7),  # type: ignore[arg-type]
    r"queue is 0 \(int\)": lambda p: p.send(M, queue=0),  # type: ignore[arg-type]
    r"queue is <function .*plain function": lambda p: p.send(M, queue=coroutine_function),  # type: ignore[arg-type]
    r"what the function of `queue` returned is 0 \(int\)": lambda p: p.send(M, queue=lambda _: 0),  # type: ignore
    "timeout_ms is 0: it must be above 0": lambda p: p.send(M, timeout_ms=0),
    r"timeout_ms is None \(NoneType\)": lambda p: p.send_async(M, timeout_ms=None),  # type: ignore[arg-type]
    r"timeout_ms is '3' \(str\)": lambda p: p.request(M, timeout_ms="3"),  # type: ignore[arg-type]
    r"callback is 1 \(int\)": lambda p: p.send_async(M, callback=1),  # type: ignore[arg-type]
    r"callback is <function .*plain function": lambda p: p.send_async(M, callback=coroutine_function),  # type: ignore
    r"messages is <Message|messages is Message": lambda p: p.send_batch(M),  # type: ignore[arg-type]
    r"messages\[1\] is 'x' \(str\)": lambda p: p.send_batch([M, "x"]),  # type: ignore[list-item]
    "an empty batch": lambda p: p.send_batch([]),
    r"bytes_max is None": lambda p: p.send_batch([M], bytes_max=None),  # type: ignore[arg-type]
    r"request is 'r' \(str\)": lambda p: p.reply("r", b""),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(("error", "call"), SENDS.items(), ids=list(SENDS))
async def test_arguments_of_sends(
    error: str, call: Callable[[Producer], Awaitable[object]], producer: Producer
) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        await call(producer)


SETTINGS: dict[str, Callable[[], object]] = {
    "model is 'BROADCASTING'": lambda: ConsumerSettings(model="BROADCASTING"),  # type: ignore[arg-type]
    "from_where is 'CONSUME_FROM_FIRST_OFFSET'.*a ConsumeFromWhere": lambda: ConsumerSettings(
        from_where="CONSUME_FROM_FIRST_OFFSET"  # type: ignore[arg-type]
    ),
    "consume_timestamp_ms is 1.5": lambda: ConsumerSettings(consume_timestamp_ms=1.5),  # type: ignore[arg-type]
    "consume_concurrency is '1'": lambda: ConsumerSettings(consume_concurrency="1"),  # type: ignore[arg-type]
    "consume_batch_size is None": lambda: ConsumerSettings(consume_batch_size=None),  # type: ignore[arg-type]
    "max_reconsume_times is -2": lambda: ConsumerSettings(max_reconsume_times=-2),
    "orderly_suspend_ms is -1": lambda: ConsumerSettings(orderly_suspend_ms=-1),
    "pull_suspend_ms is 'a'": lambda: ConsumerSettings(pull_suspend_ms="a"),  # type: ignore[arg-type]
    "limits is 100": lambda: ConsumerSettings(limits=100),  # type: ignore[arg-type]
    "messages_max is 0": lambda: ConsumerSettings(limits=Limits(messages_max=0)),
    "on_damaged is 'STOP'.*a DamagedPolicy": lambda: ConsumerSettings(on_damaged="STOP"),  # type: ignore[arg-type]
    "body_bytes_max is True": lambda: ConsumerSettings(body_bytes_max=True),
    "damaged_listener is 'f'": lambda: ConsumerSettings(damaged_listener="f"),  # type: ignore[arg-type]
    "damaged_listener is .*plain function": lambda: ConsumerSettings(
        damaged_listener=coroutine_function  # type: ignore[arg-type]
    ),
    "close_timeout_ms is -1": lambda: ConsumerSettings(close_timeout_ms=-1),
    "persist_interval_ms is 1.0": lambda: ConsumerSettings(persist_interval_ms=1.0),  # type: ignore[arg-type]
    "instance_name is 1": lambda: ConsumerSettings(instance_name=1),  # type: ignore[arg-type]
    "offsets_dir is '/tmp'.*Path": lambda: ConsumerSettings(offsets_dir="/tmp"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(("error", "call"), SETTINGS.items(), ids=list(SETTINGS))
def test_settings(error: str, call: Callable[[], object]) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        call()


CLIENTS: dict[str, Callable[[], object]] = {
    "addresses are one text": lambda: Producer(["127.0.0.1:9876"]),  # type: ignore[arg-type]
    "group is None": lambda: Producer(NAMESRV, None),  # type: ignore[arg-type]
    "group is 5": lambda: Consumer(NAMESRV, 5),  # type: ignore[arg-type]
    "group is b'g'": lambda: PullConsumer(NAMESRV, b"g"),  # type: ignore[arg-type]
    "in_flight_max is 0": lambda: Producer(NAMESRV, in_flight_max=0),
    "compress_over_bytes is '4'": lambda: Producer(NAMESRV, compress_over_bytes="4"),  # type: ignore[arg-type]
    "telemetry_directory is 1": lambda: Producer(NAMESRV, telemetry_directory=1),  # type: ignore[arg-type]
    "settings is {'consume_batch_size': 1}": lambda: Consumer(
        NAMESRV,
        "g",
        settings={"consume_batch_size": 1},  # type: ignore[arg-type]
    ),
    "auto_commit is 'no'": lambda: Consumer(NAMESRV, "g", auto_commit="no"),  # type: ignore[arg-type]
    "listener is None": lambda: PushConsumer(NAMESRV, "g", None),  # type: ignore[arg-type]
    "orderly is 1": lambda: PushConsumer(NAMESRV, "g", coroutine_function, orderly=1),  # type: ignore[arg-type]
    "listener is 0": lambda: BlockingPushConsumer(NAMESRV, "g", 0),  # type: ignore
    "check is 'c'": lambda: TransactionProducer(NAMESRV, "g", "c"),  # type: ignore[arg-type]
    r"topics\[0\] is 1": lambda: TransactionProducer(NAMESRV, "g", coroutine_function, topics=[1]),  # type: ignore
}


@pytest.mark.parametrize(("error", "call"), CLIENTS.items(), ids=list(CLIENTS))
async def test_arguments_of_clients(error: str, call: Callable[[], object]) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        call()


CONSUMERS: dict[str, Callable[[Consumer, PullConsumer], object]] = {
    "topic is None": lambda c, _: c.subscribe(None),  # type: ignore[arg-type]
    r"tags is \['a', 'b'\]": lambda c, _: c.subscribe("t", ["a", "b"]),  # type: ignore[arg-type]
    "sql is 1": lambda c, _: c.subscribe("t", sql=1),  # type: ignore[arg-type]
    "a subscription is by tags or by sql, not both": lambda c, _: c.subscribe("t", "a", sql="a > 1"),
    "topic is 7": lambda c, _: c.unsubscribe(7),  # type: ignore[arg-type]
    "queue is 't'": lambda c, _: c.seek("t", 1),  # type: ignore[arg-type]
    "offset is -1": lambda c, _: c.seek(Q, -1),
    "queue is 0": lambda _, p: p.pull(0, 0),  # type: ignore[arg-type]
    "offset is '0'": lambda _, p: p.pull(Q, "0"),  # type: ignore[arg-type]
    "max_nums is 0": lambda _, p: p.pull(Q, 0, 0),
    "suspend_ms is None": lambda _, p: p.pull(Q, 0, suspend_ms=None),  # type: ignore[arg-type]
    "offset is None": lambda _, p: p.commit(Q, None),  # type: ignore[arg-type]
    "timestamp_ms is 'now'": lambda _, p: p.offset_at(Q, "now"),  # type: ignore[arg-type]
    "queue is None": lambda _, p: p.min_offset(None),  # type: ignore[arg-type]
    r"topic is \['t'\]": lambda _, p: p.fetch_queues(["t"]),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(("error", "call"), CONSUMERS.items(), ids=list(CONSUMERS))
async def test_arguments_of_consumers(
    error: str, call: Callable[[Consumer, PullConsumer], Any], tmp_path: Path
) -> None:
    async with PullConsumer(NAMESRV) as reader:
        consumer = Consumer(NAMESRV, "g")
        with pytest.raises((TypeError, ValueError), match=error):
            found = call(consumer, reader)
            if isinstance(found, Awaitable):
                await found
        await consumer.close()


def test_the_table_is_long_enough() -> None:
    assert sum(map(len, (MESSAGES, SENDS, SETTINGS, CLIENTS, CONSUMERS))) >= 60


@pytest.mark.parametrize("name", ["TIMER_DELAY_MS", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS"])
@pytest.mark.parametrize("text", ["-1", "soon", "1.5", "", " 5", "٥", str(2**63), "9" * 5_000])
def test_a_timer_that_no_broker_can_keep(name: str, text: str) -> None:
    with pytest.raises(ValueError, match=f"property {name} is ") as refused:
        encode_properties(Message("T", b"", properties={name: text}), "key")
    assert len(str(refused.value)) < 120
    assert str(2**63 - 1) in encode_properties(Message("T", b"", properties={name: str(2**63 - 1)}), "key")
