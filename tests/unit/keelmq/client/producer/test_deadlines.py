"""One call has one deadline, fixed at its entry: what happens before an attempt counts, and no attempt begins
after it."""

import asyncio
import os
from collections.abc import Sequence
from time import monotonic_ns

import pytest

from keelmq.client import Message, MessageQueue, Producer, PullConsumer, PullError, SendError, SendErrorKind
from pytest_keelmq.cluster import TestBroker
from tests.support.fake_cluster import FakeBroker, FakeNameServer
from tests.support.reach_in import reader_of

TOPIC = "T"
BODY_BYTES = 4 << 20


def busy_until(end_ns: int) -> None:
    """Blocks the event loop, as a compression or another task does."""
    while monotonic_ns() < end_ns:
        pass


class SlowChoice:
    """Chooses the first queue, and blocks the loop meanwhile."""

    def __init__(self, busy_ms: int) -> None:
        self.busy_ms = busy_ms

    def __call__(self, queues: Sequence[MessageQueue]) -> MessageQueue:
        busy_until(monotonic_ns() + self.busy_ms * 1_000_000)
        return queues[0]


async def test_no_attempt_begins_after_the_deadline() -> None:
    async with FakeBroker() as broker, FakeNameServer() as server:
        server.routes[TOPIC] = {0: broker.address}
        async with Producer(server.address) as producer:
            await producer.send(Message(TOPIC, b"the route is known now"))
            for timeout_ms in (1, 20):
                with pytest.raises(SendError, match="not sent: the timeout passed before") as caught:
                    await producer.send(Message(TOPIC, b""), queue=SlowChoice(30), timeout_ms=timeout_ms)
                assert (caught.value.kind, caught.value.attempts) == (SendErrorKind.NO_ROUTE, 0)
            with pytest.raises(SendError, match="not sent"):
                await producer.request(Message(TOPIC, b""), queue=SlowChoice(30), timeout_ms=20)
            task = await producer.send_async(Message(TOPIC, b""), timeout_ms=20)
            busy_until(monotonic_ns() + 30_000_000)  # the task has not begun yet
            with pytest.raises(SendError, match="not sent"):
                await task
            await producer.send(Message(TOPIC, b"last"))
        assert [body for _, body in broker.sends] == [b"the route is known now", b"last"]


async def test_the_parts_of_a_batch_share_one_deadline() -> None:
    async with FakeBroker() as broker, FakeNameServer() as server:
        server.routes[TOPIC] = {0: broker.address}
        async with Producer(server.address) as producer:
            with pytest.raises(SendError, match="not sent") as caught:
                await producer.send_batch(
                    [Message(TOPIC, b"x" * 100)] * 3, bytes_max=150, queue=SlowChoice(300), timeout_ms=500
                )
        assert (len(caught.value.sent), len(broker.sends)) == (1, 1)


async def test_a_read_ends_at_its_deadline_also_while_a_route_is_looked_up() -> None:
    """A name server that hangs had the whole timeout, and the broker then had it once more."""
    held: list[asyncio.StreamWriter] = []

    async def hang(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.append(writer)

    async with await asyncio.start_server(hang, "127.0.0.1", 0) as hung:
        host, port = hung.sockets[0].getsockname()[:2]
        async with PullConsumer(f"{host}:{port}") as reader:
            began = monotonic_ns()
            with pytest.raises(PullError, match="the timeout passed before the first attempt"):
                await reader_of(reader).max_offset(MessageQueue(TOPIC, "b", 0), timeout_ms=100)
            assert monotonic_ns() - began < 900_000_000, "a name server is given 1 s at least"
        for writer in held:
            writer.close()


@pytest.mark.slow
@pytest.mark.parametrize("compress_over_bytes", [4_096, None])
async def test_a_large_body_is_stored_once_at_any_timeout(compress_over_bytes: int | None) -> None:
    """It was stored up to nine times: each attempt of 1 ms was another copy."""
    size = BODY_BYTES if compress_over_bytes is None else BODY_BYTES - 4_096
    body = os.urandom(size)
    with TestBroker() as broker:
        broker.create_topic("Large", queues=1)
        async with (
            Producer(broker.namesrv_addr, compress_over_bytes=compress_over_bytes) as producer,
            PullConsumer(broker.namesrv_addr) as reader,
        ):
            (queue,) = await reader.fetch_queues("Large")
            for timeout_ms in (20, 30, 50, 75, 100, 150, 200, 300, 500, 1_000, 3_000):
                before = await reader.max_offset(queue)
                kind = None
                try:
                    result = await producer.send(Message("Large", body), timeout_ms=timeout_ms)
                except SendError as error:
                    kind = error.kind
                else:
                    assert result.attempts == 1, timeout_ms
                # Over the same connection, so all copies are stored before it.
                marker = await producer.send(Message("Large", b"marker"))
                copies = marker.queue_offset - before
                match kind:
                    case None:
                        assert copies == 1, timeout_ms
                    case SendErrorKind.UNKNOWN:
                        assert 0 <= copies <= 2, timeout_ms
                    case _:
                        assert copies == 0, (timeout_ms, kind)
