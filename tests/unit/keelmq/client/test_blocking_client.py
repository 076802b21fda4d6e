"""The clients without asyncio against a real broker; no event loop in this thread, none is left behind."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from keelmq.blocking import (
    BlockingLitePullConsumer,
    BlockingProducer,
    BlockingPullConsumer,
    BlockingPushConsumer,
    BlockingTransactionProducer,
)
from keelmq.client import (
    ClientHook,
    ConsumeFromWhere,
    ConsumerSettings,
    Message,
    MessageExt,
    SendError,
    SendTrace,
)
from keelmq.client.producer.transaction import TransactionState
from pytest_keelmq.cluster import TestBroker
from tests.support.client_parts import broker
from tests.support.reach_in import member_of

__all__ = ["broker"]

FIRST = ConsumerSettings(from_where=ConsumeFromWhere.FIRST_OFFSET)


def until(condition: Callable[[], bool], what: str) -> None:
    deadline, pause = time.monotonic() + 10, threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not in 10 s"
        pause.wait(0.005)


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    yield
    assert "keelmq clients" not in {thread.name for thread in threading.enumerate()}


def test_send_and_pull(broker: TestBroker) -> None:
    broker.create_topic("Blocking", queues=1)
    with (
        BlockingProducer(broker.namesrv_addr) as producer,
        BlockingPullConsumer(broker.namesrv_addr, "blocking") as reader,
    ):
        assert [each.topic for each in producer.fetch_queues("Blocking")] == ["Blocking"]
        assert producer.send(Message("Blocking", b"0")).queue_offset == 0
        assert producer.send_soon(Message("Blocking", b"1")).result(5).queue_offset == 1
        producer.send_oneway(Message("Blocking", b"2"))
        assert [r.queue_offset for r in producer.send_batch([Message("Blocking", b"3")] * 2)] == [3, 4]
        (queue,) = reader.fetch_queues("Blocking")
        found = reader.pull(queue, 0, suspend_ms=1_000)
        assert [message.body for message in found.messages] == [b"0", b"1", b"2", b"3", b"3"]
        assert (reader.min_offset(queue), reader.max_offset(queue)) == (0, 5)
        assert reader.offset_at(queue, 0) == 0
        reader.commit(queue, 4)
        assert reader.committed_offset(queue) == 4


def test_a_listener_in_threads(broker: TestBroker) -> None:
    broker.create_topic("Threads")
    seen: list[tuple[bytes, str]] = []
    done = threading.Semaphore(0)

    def listener(messages: tuple[MessageExt, ...]) -> None:
        if not messages[0].reconsume_times:
            raise ValueError("again")
        seen.append((messages[0].body, threading.current_thread().name))
        done.release()

    with (
        BlockingPushConsumer(broker.namesrv_addr, "threads", listener, settings=FIRST).subscribe(
            "Threads"
        ) as consumer,
        BlockingProducer(broker.namesrv_addr) as producer,
    ):
        assert len(consumer.assigned) >= 4
        producer.send(Message("Threads", b"1"))
        producer.send(Message("Threads", b"2"))
        assert done.acquire(timeout=10) and done.acquire(timeout=10)
    assert sorted(body for body, _ in seen) == [b"1", b"2"]
    assert all(name.startswith("listener threads") for _, name in seen)


def test_a_listener_answers_while_its_consumer_closes(broker: TestBroker) -> None:
    """close() waits for listeners that run: so what they may call must still be there."""
    broker.create_topic("Closes", queues=1)
    runs = threading.Event()

    def listener(messages: tuple[MessageExt, ...]) -> None:
        runs.set()
        until(lambda: not member._started, "the consumer begins to close")
        consumer.reply(messages[0], b"in time")

    consumer = BlockingPushConsumer(broker.namesrv_addr, "closes", listener, settings=FIRST)
    with (
        ThreadPoolExecutor(1) as other,
        BlockingProducer(broker.namesrv_addr) as producer,
        consumer.subscribe("Closes"),
    ):
        member = member_of(consumer)
        asked = other.submit(producer.request, Message("Closes", b"?"), timeout_ms=8_000)
        assert runs.wait(10)
        consumer.close()
        with pytest.raises(RuntimeError, match="is not open"):
            consumer.unsubscribe("Closes")
        assert asked.result().body == b"in time"


def test_a_listener_closes_its_own_consumer(broker: TestBroker) -> None:
    """close() waited there for the listener that called it, and the message did not count as consumed."""
    broker.create_topic("ClosesItself", queues=1)

    def listener(messages: tuple[MessageExt, ...]) -> None:
        consumer.close()

    with BlockingProducer(broker.namesrv_addr) as producer:
        producer.send(Message("ClosesItself", b"1"))
    settings = replace(FIRST, close_timeout_ms=60_000)
    consumer = BlockingPushConsumer(broker.namesrv_addr, "itself", listener, settings=settings)
    consumer.subscribe("ClosesItself").__enter__()
    until(lambda: "keelmq clients" not in {thread.name for thread in threading.enumerate()}, "it is closed")
    with BlockingPullConsumer(broker.namesrv_addr, "itself") as reader:
        assert [reader.committed_offset(queue) for queue in reader.fetch_queues("ClosesItself")] == [1]


def test_a_client_is_opened_again(broker: TestBroker) -> None:
    """Its threads were shut with it: every call failed, and the messages went towards the dead letters."""
    broker.create_topic("Reopened", queues=1)
    seen: list[tuple[bytes, int]] = []

    def listener(messages: tuple[MessageExt, ...]) -> None:
        seen.append((messages[0].body, messages[0].reconsume_times))

    consumer = BlockingPushConsumer(broker.namesrv_addr, "reopened", listener, settings=FIRST)
    consumer.subscribe("Reopened")
    with BlockingProducer(broker.namesrv_addr) as producer:
        for body in (b"1", b"2"):
            with consumer:
                with pytest.raises(RuntimeError, match="is open already"):
                    consumer.__enter__()
                producer.send(Message("Reopened", body))
                until(lambda body=body: (body, 0) in seen, f"{body!r} is seen")
    assert seen == [(b"1", 0), (b"2", 0)]


def test_a_producer_that_is_opened_again_can_still_be_asked(broker: TestBroker) -> None:
    asked: list[str] = []

    def check(message: MessageExt) -> TransactionState:
        asked.append(threading.current_thread().name)
        return TransactionState.COMMIT

    half = MessageExt("T", b"", {}, 0, 0, 0, 0, 0, 0, "", 0, "", 0, 9)
    producer = BlockingTransactionProducer(broker.namesrv_addr, "asked", check)
    for _ in range(2):
        with producer:
            assert producer._run(producer._open_client._check(half)) is TransactionState.COMMIT
    assert [name.startswith("check asked") for name in asked] == [True, True]


def test_poll(broker: TestBroker) -> None:
    broker.create_topic("BlockingPoll", queues=1)
    with (
        BlockingLitePullConsumer(broker.namesrv_addr, "bp", settings=FIRST).subscribe("BlockingPoll") as one,
        BlockingProducer(broker.namesrv_addr) as producer,
    ):
        producer.send_batch([Message("BlockingPoll", b"%d" % index) for index in range(3)])
        assert [message.body for message in one.poll()] == [b"0", b"1", b"2"]
        one.commit()


def test_errors_are_those_of_the_asyncio_client(broker: TestBroker) -> None:
    with BlockingProducer("127.0.0.1:1") as producer, pytest.raises(SendError, match="no name server"):
        producer.send(Message("T", b""), timeout_ms=50)
    with pytest.raises(RuntimeError, match="use it in a `with`"):
        producer.send(Message("T", b""))


def test_a_call_from_the_clients_own_thread_is_refused(broker: TestBroker) -> None:
    """A hook that sends would wait for the loop that waits for the hook."""
    broker.create_topic("Inside")
    problems: list[RuntimeError] = []

    class Sends(ClientHook):
        def after_send(self, trace: SendTrace) -> None:
            try:
                producer.send(Message("Inside", b"2"))
            except RuntimeError as error:
                problems.append(error)

    with BlockingProducer(broker.namesrv_addr, hooks=[Sends()]) as producer:
        producer.send(Message("Inside", b"1"))
    (problem,) = problems
    assert "would wait for itself" in str(problem)


def test_transactions(broker: TestBroker) -> None:
    broker.create_topic("BlockingTx")

    def never(message: MessageExt) -> TransactionState:
        raise AssertionError(f"asked about {message.body!r}")

    with (
        BlockingTransactionProducer(broker.namesrv_addr, "btx", never, topics=["BlockingTx"]) as producer,
        BlockingLitePullConsumer(broker.namesrv_addr, "btx", settings=FIRST).subscribe("BlockingTx") as one,
    ):
        with pytest.raises(ZeroDivisionError), producer.transaction(Message("BlockingTx", b"bad")):
            1 / 0  # noqa: B018
        with producer.transaction(Message("BlockingTx", b"good")) as transaction:
            assert len(transaction.msg_id) == 32
        assert [message.body for message in one.poll()] == [b"good"]
        assert producer.send(Message("BlockingTx", b"plain")).msg_id != transaction.msg_id
