"""The lite pull consumer against a real broker: polls, commits, shared queues."""

import pytest

from client import ConsumeFromWhere, ConsumerSettings, MessageQueue
from client.consumer import PullConsumer
from client.lite_consumer import LitePullConsumer
from keelmq.testing import TestBroker
from tests.unit.client_parts import broker, numbers, send, until

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
