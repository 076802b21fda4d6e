"""Messages with a priority through a kill of the master: none is lost, and none passes another one of its
priority.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from itertools import pairwise
from pathlib import Path

import pytest

from broker.pop.core.handles import parse_handle
from keelmq.client import Message, MessageExt, Producer, PullConsumer
from keelmq.client.admin import AdminClient
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Failed, Ok
from keelmq.remoting.operations.pop import ACK_MESSAGE, POP_MESSAGE, AckMessageRequest, PopMessageRequest
from keelmq.remoting.operations.route import TopicConfig
from keelmq.runtime.clock import wall_ms
from tests.support import pop_parts
from tests.support.harness import Harness

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

TOPIC, GROUP, QUEUES = "Urgent", "g", 4
PRIORITIES = range(6)
EACH = 150
POPPED_BEFORE = 100
INVISIBLE_MS = 5_000


async def send_all(producer: Producer, priority: int, goes_on: asyncio.Event, acked: list[bytes]) -> None:
    """Each message is sent when the one before is acknowledged; half of them as by a Java producer. Waits
    halfway."""
    for number in range(EACH):
        if number == EACH // 2:
            await goes_on.wait()
        body = b"%d %d" % (priority, number)
        message = Message(TOPIC, body, priority=priority)
        if number % 2:
            message = Message(TOPIC, body, properties={"_SYS_MSG_PRIORITY_": str(priority)})
        result = await producer.send(message, timeout_ms=60_000)
        assert result.queue_id == min(priority, QUEUES - 1)
        acked.append(body)


def are_more_than(acked: list[bytes], count: int) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return len(acked) > count

    return look


async def pop(client: RemotingClient, address: str) -> list[pop_parts.Message] | None:
    """Pops, and acknowledges two of three messages. None: the broker serves no pops now."""
    header = PopMessageRequest(
        consumer_group=GROUP, topic=TOPIC, queue_id=-1, max_msg_nums=8, invisible_time=INVISIBLE_MS,
        poll_time=0, born_time=wall_ms(),
    )  # fmt: skip
    outcome = await client.call(address, POP_MESSAGE, header)
    if isinstance(outcome, Failed) and outcome.code == ResponseCode.POLLING_TIMEOUT:
        return []
    if not isinstance(outcome, Ok):
        return None
    fields = outcome.header.model_dump(by_alias=True, exclude_none=True)
    found = pop_parts.read_messages(
        {key: str(value) for key, value in fields.items()}, outcome.body, "broker-a"
    )
    for message in found:
        if message.tries or int(message.body.split()[1]) % 3:
            flag = parse_handle(message.handle).retry
            request = AckMessageRequest(
                consumer_group=GROUP, topic=TOPIC if flag == "0" else f"%RETRY%{GROUP}_{TOPIC}",
                queue_id=message.ck_queue_id, extra_info=message.handle, offset=message.offset,
            )  # fmt: skip
            await client.call(address, ACK_MESSAGE, request)
    return found


def first_copies(bodies: Iterable[bytes]) -> dict[int, list[int]]:
    """The numbers of each priority, in order; a message that was sent again has a second copy."""
    found: dict[int, list[int]] = {}
    for priority, number in (map(int, body.split()) for body in dict.fromkeys(bodies)):
        found.setdefault(priority, []).append(number)
    return found


async def stored(running: Harness) -> dict[int, list[MessageExt]]:
    """All messages of the topic, by queue, in their order there."""
    found: dict[int, list[MessageExt]] = {}
    async with PullConsumer(running.cluster.namesrv_addr) as consumer:
        for queue in await consumer.fetch_queues(TOPIC):
            messages = found.setdefault(queue.queue_id, [])
            at, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
            while at < end:
                result = await consumer.pull(queue, at)
                messages += result.messages
                at = result.next_begin_offset
    return found


async def test_a_kill_of_the_master_loses_and_reorders_nothing(tmp_path: Path) -> None:
    async with Harness(tmp_path) as running, AdminClient() as admin:
        cluster, client = running.cluster, RemotingClient()
        master = await running.master()
        config = TopicConfig(topic_name=TOPIC, read_queue_nums=QUEUES, write_queue_nums=QUEUES)
        await admin.brokers.update_topic(master.address, config, "+message.type=PRIORITY")
        popped: list[pop_parts.Message] = []
        acked, goes_on = list[bytes](), asyncio.Event()

        async def pop_more(count: int) -> None:
            async def look() -> bool:
                popped.extend(await pop(client, master.address) or [])
                return len({message.body for message in popped}) >= count

            await cluster.until(f"{count} messages are popped", look, timeout_s=60)

        try:
            async with Producer(cluster.namesrv_addr) as producer:
                sends = asyncio.gather(
                    *(send_all(producer, priority, goes_on, acked) for priority in PRIORITIES)
                )
                await pop_more(POPPED_BEFORE)
                count = len(acked)
                goes_on.set()
                await cluster.until("messages are under way", are_more_than(acked, count), timeout_s=20)
                cluster.kill(master)
                assert not sends.done()
                master = await running.new_master(master)
                await sends
            begin = len(popped)
            await pop_more(len(PRIORITIES) * EACH)
        finally:
            await client.close()
        queues = await stored(running)

    everything = {b"%d %d" % (priority, number) for priority in PRIORITIES for number in range(EACH)}
    assert {message.body for message in popped} == everything, "nothing is lost"
    assert first_copies(each.body for queue_id in sorted(queues) for each in queues[queue_id]) == {
        priority: list(range(EACH)) for priority in PRIORITIES
    }
    assert {(each.queue_id, each.priority) for messages in queues.values() for each in messages} == {
        (min(priority, QUEUES - 1), priority) for priority in PRIORITIES
    }
    firsts = [message for message in popped if message.topic == TOPIC and not message.tries]
    for queue_id in range(QUEUES):
        offsets = [message.offset for message in firsts if message.queue_id == queue_id]
        assert offsets == sorted(set(offsets)), f"queue {queue_id} is popped in order, each message once"
    backlog = [message.queue_id for message in popped[begin:] if not message.tries]
    assert all(before >= after for before, after in pairwise(backlog)), "the highest priority comes first"
    assert len(set(backlog)) > 1
