"""The lite pull consumer against a real broker: polls, commits, shared queues."""

import asyncio

import pytest

from keelmq import ConsumeFromWhere, Consumer, ConsumerSettings, Message, MessageQueue
from keelmq.blocking import BlockingConsumer, BlockingProducer
from keelmq.client.consumer.lite_pull_consumer import LitePullConsumer
from keelmq.client.consumer.pull_consumer import PullConsumer
from pytest_keelmq.cluster import TestBroker
from tests.support.client_parts import broker, numbers, send, until

__all__ = ["broker"]

FIRST = ConsumerSettings(from_where=ConsumeFromWhere.FIRST_OFFSET)


async def polled(consumer: LitePullConsumer, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        messages = await consumer.poll(7)
        assert 0 < len(messages) <= 7, f"{len(found)} of {count} came"
        found += [message.body for message in messages]
    return found


async def committed(broker: TestBroker, topic: str, group: str) -> int:
    async with PullConsumer(broker.namesrv_addr, group) as reader:
        return sum([await reader.committed_offset(q) or 0 for q in await reader.fetch_queues(topic)])


async def test_poll(broker: TestBroker) -> None:
    broker.create_topic("Polled")
    await send(broker, "Polled", 30)
    async with LitePullConsumer(broker.namesrv_addr, "polled", settings=FIRST).subscribe("Polled") as one:
        assert sorted(await polled(one, 30)) == sorted(numbers(30))
        assert await one.poll(timeout_ms=20) == [], "and the last poll counts now"
    assert await committed(broker, "Polled", "polled") == 30


async def test_without_auto_commit_only_commit_counts(broker: TestBroker) -> None:
    broker.create_topic("Manual", queues=1)
    await send(broker, "Manual", 10)

    def consumer() -> LitePullConsumer:
        return LitePullConsumer(broker.namesrv_addr, "manual", auto_commit=False, settings=FIRST).subscribe(
            "Manual"
        )

    async with consumer() as one:
        assert len(await one.poll(4)) == 4
        await one.commit()
        assert await committed(broker, "Manual", "manual") == 4
        assert len(await one.poll(4)) == 4
        assert len(await one.poll(1)) == 1
    async with consumer() as one:
        assert [message.body for message in await one.poll(2)] == [b"4", b"5"]


@pytest.mark.slow
async def test_members_share_the_queues(broker: TestBroker) -> None:
    broker.create_topic("PollShared")
    address = broker.namesrv_addr
    async with LitePullConsumer(address, "ps", settings=FIRST).subscribe("PollShared") as one:
        async with LitePullConsumer(address, "ps", settings=FIRST).subscribe("PollShared") as two:
            await until(lambda: len(one.assigned) == len(two.assigned) == 2)
            await send(broker, "PollShared", 40)
            found = await polled(one, 20) + await polled(two, 20)
            assert sorted(found) == sorted(numbers(40))
        await until(lambda: len(one.assigned) == 4)


async def test_seek(broker: TestBroker) -> None:
    broker.create_topic("Seek", queues=1)
    await send(broker, "Seek", 5)
    async with LitePullConsumer(broker.namesrv_addr, "seek", settings=FIRST).subscribe("Seek") as one:
        await polled(one, 5)
        (queue,) = one.assigned
        one.seek(queue, 3)
        assert await polled(one, 2) == [b"3", b"4"]
        with pytest.raises(ValueError, match="not assigned"):
            one.seek(MessageQueue("Seek", "nobody", 0), 0)


async def test_async_for_counts_a_message_when_the_next_one_is_asked_for(broker: TestBroker) -> None:
    """The message at which the loop is left comes again, and so do those that were pulled ahead."""
    broker.create_topic("Iterated", queues=1)
    await send(broker, "Iterated", 6)

    def consumer() -> Consumer:
        return Consumer(broker.namesrv_addr, "iterated", settings=FIRST).subscribe("Iterated")

    async with consumer() as one:
        async for message in one:
            if message.body == b"3":
                break
    assert await committed(broker, "Iterated", "iterated") == 3

    with pytest.raises(ZeroDivisionError):
        async with consumer() as one:
            async for message in one:
                assert message.body == b"3", "it comes again"
                raise ZeroDivisionError
    assert await committed(broker, "Iterated", "iterated") == 3

    seen = []
    async with consumer() as one:
        async for message in one:
            seen.append(message.body)
            if len(seen) == 3:
                await one.commit()
                break
    assert seen == [b"3", b"4", b"5"]
    assert await committed(broker, "Iterated", "iterated") == 6


async def test_async_for_without_auto_commit_leaves_counting_to_commit(broker: TestBroker) -> None:
    broker.create_topic("IteratedManually", queues=1)
    await send(broker, "IteratedManually", 3)
    async with Consumer(broker.namesrv_addr, "im", auto_commit=False, settings=FIRST).subscribe(
        "IteratedManually"
    ) as one:
        async for message in one:
            if message.body == b"2":
                break
    assert await committed(broker, "IteratedManually", "im") == 0


async def test_close_ends_an_async_for_of_another_task(broker: TestBroker) -> None:
    broker.create_topic("IteratedUntilClosed")
    consumer = Consumer(broker.namesrv_addr, "iuc", settings=FIRST).subscribe("IteratedUntilClosed")

    async def count() -> int:
        return len([message async for message in consumer])

    async with consumer:
        counting = asyncio.create_task(count())
        await until(lambda: len(consumer.assigned) == 4)
    async with asyncio.timeout(10):
        assert await counting == 0


def test_a_blocking_consumer_is_iterated_as_well(broker: TestBroker) -> None:
    broker.create_topic("IteratedBlocking", queues=1)
    with BlockingProducer(broker.namesrv_addr) as producer:
        for number in range(3):
            producer.send(Message("IteratedBlocking", b"%d" % number))
    seen = []
    for _ in range(2):
        with BlockingConsumer(broker.namesrv_addr, "ib", settings=FIRST).subscribe("IteratedBlocking") as one:
            for message in one:
                seen.append(message.body)
                if message.body == b"1" or len(seen) == 4:
                    break
    assert seen == [b"0", b"1", b"1"]
