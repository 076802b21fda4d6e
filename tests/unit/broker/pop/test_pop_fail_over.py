"""A master is lost in the middle of pops: what was acknowledged stays so, and the rest comes again, once."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Failed, Ok
from keelmq.remoting.operations.pop import ACK_MESSAGE, POP_MESSAGE, AckMessageRequest, PopMessageRequest
from keelmq.runtime.clock import wall_ms
from tests.support.laid_by_parts import Trio, trio
from tests.support.pop_parts import Message, read_messages

pytestmark = pytest.mark.timeout(90)

INVISIBLE_MS = 4_000
MESSAGES = 60


async def pop(group: Trio, invisible_ms: int = INVISIBLE_MS, poll_ms: int = 0) -> list[Message]:
    header = PopMessageRequest(
        consumer_group="g", topic="TopicA", queue_id=-1, max_msg_nums=8, invisible_time=invisible_ms,
        poll_time=poll_ms, born_time=wall_ms(),
    )  # fmt: skip
    outcome = await group.client.call(group.master.address, POP_MESSAGE, header)
    if isinstance(outcome, Failed):
        assert outcome.code == ResponseCode.POLLING_TIMEOUT, outcome
        return []
    assert isinstance(outcome, Ok), outcome
    fields = outcome.header.model_dump(by_alias=True, exclude_none=True)
    return read_messages({key: str(value) for key, value in fields.items()}, outcome.body, "group")


async def ack(group: Trio, message: Message) -> None:
    header = AckMessageRequest(
        consumer_group="g", topic=message.popped_from, queue_id=message.ck_queue_id,
        extra_info=message.handle, offset=message.offset,
    )  # fmt: skip
    outcome = await group.client.call(group.master.address, ACK_MESSAGE, header)
    assert isinstance(outcome, Ok), outcome


@pytest.mark.slow
async def test_a_fail_over_in_the_middle_of_pops(tmp_path: Path) -> None:
    async with trio(tmp_path) as group:
        for number in range(MESSAGES):
            await group.send("TopicA", b"%d" % number)
        seen: Counter[bytes] = Counter()
        acked: set[bytes] = set()
        while len(seen) < MESSAGES // 2:
            for message in await pop(group):
                seen[message.body] += 1
                if len(seen) % 3:
                    await ack(group, message)
                    acked.add(message.body)
        await group.lose_master()
        out = set(seen) - acked
        deadline_ms = wall_ms() + 30_000
        while len(acked) < MESSAGES and wall_ms() < deadline_ms:
            for message in await pop(group, poll_ms=1_000):
                assert message.body not in acked, "what was acknowledged comes never again"
                seen[message.body] += 1
                await ack(group, message)
                acked.add(message.body)
        assert len(acked) == MESSAGES, "nothing is lost"
        assert {body for body, count in seen.items() if count > 1} == out, "only what was out came twice"
        await group.lose_master()
        await asyncio.wait_for(group.deliveries.pop.pop.ready(5_000), 6)
        assert await pop(group) == []
        assert len(group.deliveries.pop.pop.state) == 0
