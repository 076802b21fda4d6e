"""What a stream holds for its client: in order, and no more than a limit."""

import asyncio

from broker.clients.proxied_requests import NO_ADDRESS, Sender
from proxy.core.names import Client
from proxy.server.producers import OUTGOING_MAX, Stream
from proxy.wire import messaging_pb2 as pb


def command(number: int) -> pb.TelemetryCommand:
    return pb.TelemetryCommand(status=pb.Status(message=str(number)))


def make_stream() -> Stream:
    return Stream(Client("tester"), Sender(NO_ADDRESS))


async def test_commands_come_in_order_and_then_the_end() -> None:
    stream = make_stream()
    waiting = asyncio.ensure_future(stream.next())
    await asyncio.sleep(0)
    assert stream.send(command(1)) and stream.send(command(2))
    stream.end()
    assert await waiting == command(1)
    assert [await stream.next(), await stream.next()] == [command(2), None]


async def test_a_client_that_does_not_read_has_a_limit() -> None:
    stream = make_stream()
    assert all(stream.send(command(number)) for number in range(OUTGOING_MAX))
    assert not stream.send(command(0))
    await stream.next()
    assert stream.send(command(0))


async def test_all_written_waits_for_the_last_one() -> None:
    stream = make_stream()
    stream.send(command(1))
    waiting = asyncio.ensure_future(stream.all_written())
    await stream.next()
    await asyncio.sleep(0)
    assert not waiting.done()
    stream.written()
    await waiting
