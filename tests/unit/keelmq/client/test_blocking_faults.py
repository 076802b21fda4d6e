"""The clients without asyncio: closed by another thread, and inherited by the child of a fork()."""

import asyncio
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from keelmq.blocking import BlockingProducer, BlockingPullConsumer, BlockingPushConsumer
from keelmq.client import (
    ClientHook,
    ConsumeFromWhere,
    ConsumerSettings,
    Message,
    MessageExt,
    Producer,
    PullResult,
    SendError,
    SendErrorKind,
)
from keelmq.client.cluster.queue_reader import QueueReader
from keelmq.client.core.queues import MessageQueue
from pytest_keelmq.cluster import TestBroker
from tests.support.client_parts import broker

__all__ = ["broker"]

NOBODY = "127.0.0.1:1"
DEADLINE_S = 20
FIRST = ConsumerSettings(from_where=ConsumeFromWhere.FIRST_OFFSET)


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    yield
    assert "keelmq clients" not in {thread.name for thread in threading.enumerate()}


class Begun(ClientHook):
    def __init__(self) -> None:
        self.event = threading.Event()

    def before_send(self, message: Message) -> Message:
        self.event.set()
        return message


def in_child(function: Callable[[], str]) -> str:
    """What it returns in a forked process, or the error's text."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:  # nothing of pytest may run here
        try:
            os.write(writes, function().encode())
        except (RuntimeError, SendError) as error:
            os.write(writes, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(writes)
    try:
        waits = select.poll()  # select() takes no descriptor above 1,023, and other tests may have many open
        waits.register(reads, select.POLLIN)
        ready = waits.poll(DEADLINE_S * 1000)
        assert ready, f"the child hangs: nothing in {DEADLINE_S} s"
        return os.read(reads, 65_536).decode()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reads)


def test_a_sender_hears_that_another_thread_closed_the_producer() -> None:
    """Its loop was stopped, and it waited for ever."""
    begun = Begun()
    with ThreadPoolExecutor(1) as other:
        producer = BlockingProducer(NOBODY, hooks=[begun], close_timeout_ms=50)
        producer.__enter__()
        sender = other.submit(producer.send, Message("T", b"x"), timeout_ms=600_000)
        assert begun.event.wait(DEADLINE_S)
        producer.close()
        error = sender.exception(DEADLINE_S)
        assert isinstance(error, SendError) and error.kind is SendErrorKind.CLOSED


def test_a_send_soon_ends_when_the_producer_is_closed() -> None:
    with BlockingProducer(NOBODY, close_timeout_ms=50) as producer:
        result = producer.send_soon(Message("T", b"x"), timeout_ms=600_000)
    error = result.exception(DEADLINE_S)
    assert isinstance(error, SendError) and error.kind is SendErrorKind.CLOSED


def test_every_other_call_ends_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()

    async def pull(self: QueueReader, *_: object, **__: object) -> PullResult:
        begun.set()
        return await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(QueueReader, "pull", pull)
    with ThreadPoolExecutor(1) as other:
        reader = BlockingPullConsumer(NOBODY)
        reader.__enter__()
        puller = other.submit(reader.pull, MessageQueue("T", "a", 0), 0)
        assert begun.wait(DEADLINE_S)
        reader.close()
        error = puller.exception(DEADLINE_S)
        assert type(error).__name__ == "ClientClosed" and "was closed before" in str(error)


def test_calls_of_many_threads_all_end(broker: TestBroker) -> None:
    """Each has a result or an error, whenever the producer is closed."""
    broker.create_topic("Raced")
    with ThreadPoolExecutor(8) as others:
        for _ in range(5):
            producer = BlockingProducer(broker.namesrv_addr)
            producer.__enter__()
            calls = [others.submit(producer.send, Message("Raced", b"x")) for _ in range(40)]
            calls[0].result(DEADLINE_S)
            producer.close()
            for call in calls:
                error = call.exception(DEADLINE_S)
                assert error is None or isinstance(error, (SendError, RuntimeError)), repr(error)


@pytest.mark.parametrize("problem", [SystemExit(3), KeyboardInterrupt(), StopIteration()], ids=repr)
def test_whatever_a_listener_raises_its_message_comes_again(
    broker: TestBroker, problem: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """sys.exit() ended the loop of all clients: their calls hung."""
    topic = f"Raises{type(problem).__name__}"
    broker.create_topic(topic, queues=1)
    seen: list[int] = []
    again = threading.Event()

    def listener(messages: tuple[MessageExt, ...]) -> None:
        seen.append(messages[0].reconsume_times)
        if len(seen) == 1:
            raise problem
        again.set()

    with (
        BlockingProducer(broker.namesrv_addr) as producer,
        BlockingPushConsumer(broker.namesrv_addr, topic, listener, settings=FIRST).subscribe(topic),
    ):
        producer.send(Message(topic, b"1"))
        assert again.wait(DEADLINE_S)
        assert producer.send(Message(topic, b"2"), timeout_ms=5_000).queue_offset == 1
    assert seen[:2] == [0, 1]
    assert f"listener of {topic} failed" in caplog.text and repr(problem) in caplog.text


async def coroutine(messages: Sequence[MessageExt]) -> None:
    raise AssertionError("not awaited")


def generator(messages: Sequence[MessageExt]) -> Iterator[None]:
    yield None


@pytest.mark.parametrize("function", [coroutine, generator])
def test_what_only_begins_when_it_is_called_is_no_listener(
    broker: TestBroker, function: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Its body does not run then, and the message counted as consumed."""
    name = function.__name__
    with BlockingProducer(broker.namesrv_addr) as producer:
        producer.send(Message(name, b"x"))
    with BlockingPushConsumer(broker.namesrv_addr, name, function, settings=FIRST).subscribe(name):
        assert broker.messages(f"%RETRY%{name}", 1), "the message comes again"
    assert f"a {name} function: BlockingPushConsumer calls plain functions" in caplog.text


def test_a_hook_that_exits_ends_its_own_call_only(broker: TestBroker) -> None:
    """Hooks run in the thread of the clients."""

    class Exits(ClientHook):
        def before_send(self, message: Message) -> Message:
            raise SystemExit(3)

    broker.create_topic("Exits", queues=1)
    with (
        BlockingProducer(broker.namesrv_addr) as other,
        BlockingProducer(broker.namesrv_addr, hooks=[Exits()]) as producer,
    ):
        with pytest.raises(SystemExit):
            producer.send(Message("Exits", b"1"))
        assert other.send_soon(Message("Exits", b"2")).result(DEADLINE_S).queue_offset == 0


def test_a_forked_process_sends_by_a_producer_of_its_own(broker: TestBroker) -> None:
    """gunicorn --preload, multiprocessing: it waited for a thread that it does not have."""
    broker.create_topic("Forked", queues=1)
    with BlockingProducer(broker.namesrv_addr) as producer:
        assert producer.send(Message("Forked", b"parent")).queue_offset == 0
        assert in_child(lambda: str(producer.send(Message("Forked", b"child")).queue_offset)) == "1"
        assert producer.send(Message("Forked", b"parent")).queue_offset == 2
        assert in_child(lambda: repr(producer.close())) == "None"
        assert producer.send(Message("Forked", b"parent")).queue_offset == 3
    bodies = [message.body for message in broker.messages("Forked", 4)]
    assert bodies == [b"parent", b"child", b"parent", b"parent"]


def test_a_forked_process_is_told_that_a_consumer_is_its_parents(broker: TestBroker) -> None:
    broker.create_topic("ForkedPull", queues=1)

    def again() -> str:
        with reader:
            return str(len(reader.fetch_queues("ForkedPull")))

    with BlockingPullConsumer(broker.namesrv_addr) as reader:
        told = in_child(lambda: str(reader.fetch_queues("ForkedPull")))
        assert told.startswith("RuntimeError") and "belongs to the parent" in told
        assert in_child(again) == "1"
        assert len(reader.fetch_queues("ForkedPull")) == 1


async def test_a_forked_process_is_told_that_an_asyncio_client_is_its_parents(broker: TestBroker) -> None:
    """Its bytes would have come in between those of the parent, on the parent's connection."""
    async with Producer(broker.namesrv_addr) as producer:
        await producer.send(Message("ForkedAsync", b"1"))
        told = in_child(lambda: str(asyncio.run(producer.send(Message("ForkedAsync", b"2")))))
        assert told.startswith("RuntimeError") and "open another one in the child" in told
        await producer.send(Message("ForkedAsync", b"3"))
