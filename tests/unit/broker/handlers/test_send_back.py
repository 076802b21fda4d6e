"""What a listener could not handle is never lost on its way back."""

import asyncio
from typing import Any

import pytest

from keelmq.client import ConsumeFromWhere, ConsumerSettings, PushConsumer
from keelmq.client.cluster.queue_reader import PullError, PullErrorKind
from keelmq.client.consumer.pull_consumer import PullConsumer
from keelmq.client.consumer.send_back import SendBack
from keelmq.client.core.send_result import SendError, SendErrorKind
from keelmq.client.message import MessageExt, decode_properties
from keelmq.client.producer.send_attempt import PendingSend
from keelmq.remoting.operations.clients import SendBackRequest
from pytest_keelmq.cluster import TestBroker
from tests.support.client_parts import Seen, broker, send, until

__all__ = ["broker"]

MESSAGE = MessageExt(
    topic="T", body=b"inflated", properties={"TAGS": "a", "UNIQ_KEY": "U", "DELAY": "9"}, queue_id=3,
    queue_offset=7, physical_offset=900, flag=5, sys_flag=1, born_timestamp=1, born_host="10.0.0.9:1",
    store_timestamp=2, store_host="10.0.0.1:10911", reconsume_times=2, stored_bytes=100, broker_name="b",
)  # fmt: skip


class Desk:
    """A broker that refuses, and a producer that may."""

    def __init__(self, *, refuses: bool = True, copies: bool = True) -> None:
        self.refuses, self.copies = refuses, copies
        self.asked: list[SendBackRequest] = []
        self.letters: list[PendingSend] = []

    async def ask(self, queue: Any, operation: Any, header: SendBackRequest, **_: Any) -> None:
        self.asked.append(header)
        if self.refuses:
            raise PullError(PullErrorKind.REFUSED, "no", 14)

    async def deliver(self, letter: PendingSend, choice: Any) -> None:
        self.letters.append(letter)
        if not self.copies:
            raise SendError(SendErrorKind.NO_ROUTE, "no", 1)


def send_back(desk: Desk, maximum: int = -1) -> SendBack:
    return SendBack(desk, desk, "g", max_reconsume_times=maximum)  # type: ignore[arg-type]


async def test_the_broker_takes_it() -> None:
    """clients.md pitfall 2: each field where it belongs."""
    desk = Desk(refuses=False)
    assert await send_back(desk, maximum=4).back(MESSAGE, 0)
    (header,) = desk.asked
    assert (header.offset, header.group, header.delay_level, header.max_reconsume_times) == (900, "g", 0, 4)
    assert (header.origin_msg_id, header.origin_topic) == ("0A00000100002A9F0000000000000384", "T")
    assert not desk.letters


async def test_a_copy_goes_where_another_broker_has_the_retry_topic() -> None:
    desk = Desk()
    assert await send_back(desk).back(MESSAGE, 0)
    (letter,) = desk.letters
    assert (letter.topic, letter.body, letter.flag, letter.sys_flag) == ("%RETRY%g", b"inflated", 5, 0)
    assert (letter.reconsume_times, letter.max_reconsume_times, letter.unique_key) == (3, 16, "U")
    assert decode_properties(letter.properties) == {
        "TAGS": "a", "UNIQ_KEY": "U", "RETRY_TOPIC": "T", "DELAY": "5", "RECONSUME_TIME": "3",
        "ORIGIN_MESSAGE_ID": "0A00000100002A9F0000000000000384", "MAX_RECONSUME_TIMES": "16",
    }  # fmt: skip


async def test_nobody_takes_it() -> None:
    assert not await send_back(Desk(copies=False)).back(MESSAGE, 0)


async def test_a_message_that_nobody_took_back_is_not_counted_and_comes_again(
    broker: TestBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """clients.md pitfall 1: the offset advanced although 36 was refused, and the message was gone."""
    refused = asyncio.Event()

    async def refuse(self: SendBack, message: MessageExt, delay_level: int) -> bool:
        refused.set()
        return False

    monkeypatch.setattr(SendBack, "back", refuse)
    monkeypatch.setattr("keelmq.client.consumer.consume_message_service.KEEP_MS", 300)
    broker.create_topic("Kept", queues=1)
    failures = [ValueError("once"), None, None]

    def fail(message: MessageExt) -> BaseException | None:
        if message.body == b"1":
            seen.gate.clear()  # the first one comes again when we have looked
        return failures.pop(0)

    seen = Seen(fail)
    settings = ConsumerSettings(from_where=ConsumeFromWhere.FIRST_OFFSET, consume_concurrency=1)
    async with PushConsumer(broker.namesrv_addr, "kept", seen, settings=settings).subscribe("Kept") as one:
        await send(broker, "Kept", 2)
        await refused.wait()
        await until(lambda: len(seen.messages) >= 2)
        await one.commit()
        async with PullConsumer(broker.namesrv_addr, "kept") as reader:
            (queue,) = await reader.fetch_queues("Kept")
            assert await reader.committed_offset(queue) in (None, 0), "the first one is not done"
            seen.gate.set()
            assert await seen.has(3) == [b"0", b"1", b"0"]
            await one.commit()
            await until(lambda: not failures)
    async with PullConsumer(broker.namesrv_addr, "kept") as reader:
        assert await reader.committed_offset(queue) == 2
