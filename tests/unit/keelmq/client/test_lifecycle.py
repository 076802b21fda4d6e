"""Opening and closing of the asyncio clients, also when the caller of close() is cancelled."""

import asyncio
import contextlib
from collections.abc import Callable

import pytest

from keelmq.client import (
    Consumer,
    ConsumerSettings,
    Message,
    MessageExt,
    Producer,
    PullConsumer,
    PushConsumer,
)
from pytest_keelmq.cluster import TestBroker
from tests.support.client_parts import DEADLINE_S, Seen, broker, send, until

__all__ = ["broker"]

Client = Producer | PullConsumer | Consumer | PushConsumer


@pytest.mark.parametrize(
    "make",
    [
        Producer,
        PullConsumer,
        lambda address: Consumer(address, "closing-polls").subscribe("Closing"),
        lambda address: PushConsumer(address, "closing", Seen()).subscribe("Closing"),
    ],
    ids=["Producer", "PullConsumer", "Consumer", "PushConsumer"],
)
async def test_a_cancelled_close_leaves_nothing_behind(
    broker: TestBroker, make: Callable[[str], Client]
) -> None:
    await send(broker, "Closing", 1)
    before = asyncio.all_tasks()
    client = make(broker.namesrv_addr)
    await client.__aenter__()
    if isinstance(client, Producer):
        await client.send(Message("Closing", b"1"))
    elif isinstance(client, PullConsumer):
        await client.fetch_queues("Closing")
    closing = asyncio.create_task(client.close())
    await asyncio.sleep(0)
    closing.cancel()
    assert isinstance((await asyncio.gather(closing, return_exceptions=True))[0], asyncio.CancelledError)
    await until(lambda: asyncio.all_tasks() <= before, "the end of all tasks")


async def test_a_second_close_waits_for_the_first(broker: TestBroker) -> None:
    seen = Seen()
    seen.gate.clear()
    broker.create_topic("Twice")
    async with PushConsumer(broker.namesrv_addr, "twice", seen).subscribe("Twice") as consumer:
        await send(broker, "Twice", 1)
        await until(lambda: seen.running == 1)
        first, second = (asyncio.create_task(consumer.close()) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait((first,))
        assert not second.done(), "a listener still runs"
        seen.gate.set()
        await second
    assert len(seen.bodies) == 1


@pytest.mark.parametrize("orderly", [False, True])
async def test_close_ends_when_a_listener_suppresses_its_cancellation(
    broker: TestBroker, orderly: bool
) -> None:
    called = asyncio.Event()

    async def suppresses(messages: tuple[MessageExt, ...]) -> None:
        called.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    topic, settings = f"Suppressed{orderly}", ConsumerSettings(close_timeout_ms=1)
    broker.create_topic(topic)
    consumer = PushConsumer(broker.namesrv_addr, topic, suppresses, orderly=orderly, settings=settings)
    await consumer.subscribe(topic).__aenter__()
    await send(broker, topic, 1)
    await called.wait()
    async with asyncio.timeout(DEADLINE_S):
        await consumer.close()


async def test_a_consumer_that_was_not_opened_is_an_error_and_not_an_empty_topic(broker: TestBroker) -> None:
    consumer = Consumer(broker.namesrv_addr, "unopened").subscribe("Unopened")
    for use in (lambda: consumer.poll(timeout_ms=1), consumer.commit, lambda: anext(consumer)):
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(RuntimeError, match="not open: use it in an `async with` statement"):
                await use()


async def test_a_closed_consumer_is_an_error_and_not_an_empty_topic(broker: TestBroker) -> None:
    async with Consumer(broker.namesrv_addr, "closed").subscribe("Closed") as consumer:
        pending = asyncio.create_task(consumer.poll(timeout_ms=60_000))
        await asyncio.sleep(0)
    async with asyncio.timeout(DEADLINE_S):
        assert await pending == [], "close() ends it"
    for use in (consumer.poll, consumer.commit):
        with pytest.raises(RuntimeError, match="this client is closed"):
            await use()


@pytest.mark.parametrize(
    "make",
    [
        lambda address: Consumer(address, "reopened-polls").subscribe("Closing"),
        lambda address: PushConsumer(address, "reopened", Seen()).subscribe("Closing"),
    ],
    ids=["Consumer", "PushConsumer"],
)
async def test_a_consumer_is_opened_once(
    broker: TestBroker, make: Callable[[str], Consumer | PushConsumer]
) -> None:
    consumer = make(broker.namesrv_addr)
    async with consumer:
        with pytest.raises(RuntimeError, match="was opened before: create another one"):
            await consumer.__aenter__()
        assert consumer.assigned, "and the open one goes on"
    with pytest.raises(RuntimeError, match="was opened before: create another one"):
        await consumer.__aenter__()
