"""Delayed messages over a fail-over with real processes: those that wait when the master is killed arrive."""

from pathlib import Path

import pytest

from keelmq.client import Message, Producer, PullConsumer, PullError
from tests.support.harness import SAFE, Harness

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

COUNT = 40
LEVELS = " ".join(["1s", "3s", *["1s"] * 16])


async def test_messages_that_wait_survive_their_master(tmp_path: Path) -> None:
    """Half of them are due before the kill, half after it: all arrive, none before its time."""
    settings = {**SAFE, "messageDelayLevel": LEVELS}
    async with Harness(tmp_path, broker_settings=settings) as running:
        address = running.cluster.namesrv_addr
        async with Producer(address) as producer, PullConsumer(address) as consumer:
            for index in range(COUNT):
                level = {"DELAY": "1" if index % 2 else "2"}
                await producer.send(Message("Later", b"%d" % index, properties=level))
            bodies = await arrived(consumer, running, COUNT // 2)
            assert {int(body) % 2 for body in bodies} == {1}
            master = await running.master()
            running.cluster.kill(master)
            await running.new_master(master)
            await arrived(consumer, running, COUNT)


async def arrived(consumer: PullConsumer, running: Harness, count: int) -> set[bytes]:
    """Bodies in the topic, once there are so many different ones: a copy may come twice."""
    found: set[bytes] = set()

    async def look() -> bool:
        try:
            for queue in await consumer.fetch_queues("Later"):
                offset, end = 0, await consumer.max_offset(queue)
                while offset < end:
                    result = await consumer.pull(queue, offset)
                    found.update(message.body for message in result.messages)
                    offset = result.next_begin_offset
        except PullError:
            return False
        return len(found) >= count

    await running.cluster.until(f"{count} delayed messages", look, timeout_s=30)
    return found
