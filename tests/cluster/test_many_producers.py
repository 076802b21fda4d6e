"""Many producers at once, so that their sends are stored together, while their master is killed."""

import asyncio
from pathlib import Path

import pytest

from keelmq.client import Message, Producer, PullConsumer
from tests.support.harness import SAFE, Harness

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

PRODUCERS = 24
SENDS = 150


async def test_nothing_is_lost_and_each_producer_keeps_its_order(tmp_path: Path) -> None:
    """Each has a connection of its own, and one send in flight. The replies wait for a replica."""
    async with Harness(tmp_path, broker_settings=SAFE) as running:
        await running.all_in_sync()
        address, acked = running.cluster.namesrv_addr, [list[int]() for _ in range(PRODUCERS)]

        async def produce(number: int) -> None:
            async with Producer(address) as producer:
                for index in range(SENDS):
                    body = b"%d:%d" % (number, index)
                    await producer.send(Message("Many", body), key=str(number), timeout_ms=20_000)
                    acked[number].append(index)

        async with asyncio.TaskGroup() as group:
            for number in range(PRODUCERS):
                group.create_task(produce(number))

            async def half() -> bool:
                return sum(map(len, acked)) >= PRODUCERS * SENDS // 2

            await running.cluster.until("half of the sends", half, timeout_s=30)
            master = await running.master()
            running.cluster.kill(master)
        await running.new_master(master)
        assert [len(each) for each in acked] == [SENDS] * PRODUCERS
        async with PullConsumer(address) as consumer:
            stored = await everything(consumer)
    for number in range(PRODUCERS):
        own = [int(body.split(b":")[1]) for body in stored if body.startswith(b"%d:" % number)]
        first = list(dict.fromkeys(own))  # a send whose answer was lost is there twice
        assert first == list(range(SENDS)), number


async def everything(consumer: PullConsumer) -> list[bytes]:
    """All bodies, queue by queue."""
    found: list[bytes] = []
    for queue in await consumer.fetch_queues("Many"):
        offset, end = 0, await consumer.max_offset(queue)
        while offset < end:
            result = await consumer.pull(queue, offset)
            found += [message.body for message in result.messages]
            offset = result.next_begin_offset
    return found
