"""Frames above LARGE_FRAME_BYTES: they cost what arrived of them, they have a bound, and they come whole."""

import asyncio
import logging
import mmap
import re
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random

import pytest
import uvloop

from keelmq.remoting.client import RemotingClient
from keelmq.remoting.command import RemotingCommand, encode
from keelmq.remoting.connection import LARGE_FRAME_BYTES, SCRATCH_BYTES, Connection
from keelmq.remoting.dispatch import Dispatcher
from keelmq.remoting.frame import FRAME_BYTES_MAX
from keelmq.remoting.large_frames import LargeFrames
from keelmq.remoting.operation import Ok, Operation, OperationTable, Reply, Wire
from keelmq.remoting.servers.tcp import LARGE_BYTES_MAX, TcpServer
from tests.support.read_parts import FakeTransport
from tests.support.server_parts import FAST_PATH_CODE, RawPeer, address_of, raw_peer, server, table, until

STATUS = Path("/proc/self/status")
LARGEST_PREFIX = struct.pack(">II", FRAME_BYTES_MAX - 4 - 4, 2)
PEERS = 24
SOME_BYTES = 100_000
"""Enough for a buffer of its own, and one read."""


def fast_path(opaque: int, body: bytes) -> bytes:
    return encode(RemotingCommand(FAST_PATH_CODE, opaque, ext_fields={"e": "0", "b": "x"}, body=body))


def anonymous_bytes() -> int:
    """Resident memory of our own."""
    found = re.search(r"RssAnon:\s*(\d+) kB", STATUS.read_text())
    assert found is not None
    return int(found[1]) << 10


@asynccontextmanager
async def peers(of: TcpServer, count: int, first: bytes) -> AsyncIterator[list[RawPeer]]:
    """Each has sent `first`, and the door has read it."""
    async with AsyncExitStack() as stack:
        made = [await stack.enter_async_context(raw_peer(of)) for _ in range(count)]
        for peer in made:
            peer.writer.write(first)
        await until(lambda: kept_bytes(of) == count * len(first), "everything is read")
        yield made


def kept_bytes(of: TcpServer) -> int:
    return sum(each.unfinished_bytes() for each in of.connections)


def held_bytes(of: TcpServer) -> int:
    return of.large_frames.held_bytes


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.skipif(not STATUS.exists(), reason="memory is told by /proc")
@pytest.mark.parametrize("sent", [8, SOME_BYTES])
async def test_a_frame_costs_what_arrived_of_it(sent: int) -> None:
    """A zero-filled buffer of the announced size: 24 times 16 MiB."""
    async with server() as open_server:
        before = anonymous_bytes()
        async with peers(open_server, PEERS, LARGEST_PREFIX.ljust(sent, b"{")):
            assert anonymous_bytes() - before < PEERS * sent + (16 << 20)
            assert held_bytes(open_server) == (0 if sent < LARGE_FRAME_BYTES else PEERS * sent)


async def test_a_prefix_alone_has_no_buffer() -> None:
    """Neither memory nor a mapping, of which a process may have 65,530."""
    async with server() as open_server, peers(open_server, 2, LARGEST_PREFIX):
        assert held_bytes(open_server) == 0


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("body_bytes", [LARGE_FRAME_BYTES, SCRATCH_BYTES, FRAME_BYTES_MAX - 200])
def test_a_large_frame_in_many_small_reads(
    new_loop: Callable[[], asyncio.AbstractEventLoop], body_bytes: int
) -> None:
    async def story() -> None:
        random = Random(5)
        body = random.randbytes(body_bytes)
        frame = memoryview(fast_path(1, body) + fast_path(2, b"next"))
        async with server() as open_server, raw_peer(open_server) as peer:
            at, size = 0, 0
            while at < len(frame):
                peer.writer.write(frame[at : at + size])
                await peer.writer.drain()
                await asyncio.sleep(0)
                at, size = at + size, random.choice((1, 7, 1_000, 16_000, 60_000))
            answers = [await peer.read(), await peer.read()]
            assert [(answer.opaque, answer.body == body) for answer in answers] == [(1, True), (2, False)]
            assert held_bytes(open_server) == 0

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(story())


def connected(frames: LargeFrames) -> tuple[Connection, FakeTransport]:
    made = Connection(
        Dispatcher(table(), name="test"),
        memoryview(bytearray(SCRATCH_BYTES)),
        on_made=lambda _: None,
        on_lost=lambda _: None,
        large_frames=frames,
    )
    transport = FakeTransport({})
    made.connection_made(transport)
    return made, transport


def receive(connection: Connection, data: bytes) -> None:
    buffer = connection.get_buffer(-1)
    buffer[: len(data)] = data
    connection.buffer_updated(len(data))


@pytest.mark.parametrize("end", ["whole", "lost", "close", "abort"])
async def test_the_count_goes_down(end: str) -> None:
    frames = LargeFrames(1_000_000)
    connection, transport = connected(frames)
    frame = fast_path(1, bytes(250_000))
    receive(connection, frame[:SOME_BYTES])
    assert frames.held_bytes == SOME_BYTES
    receive(connection, frame[SOME_BYTES:200_000])
    assert frames.held_bytes == 200_000
    match end:
        case "whole":
            receive(connection, frame[200_000:])
            assert sum(map(len, transport.writes)) > 250_000
        case "lost":
            connection.connection_lost(None)
        case "close":
            connection.close()
        case "abort":
            connection.abort()
    assert frames.held_bytes == 0
    connection.close()
    connection.connection_lost(None)  # as the transport tells it afterwards
    assert frames.held_bytes == 0


async def test_a_read_after_the_end_is_nothing() -> None:
    frames = LargeFrames(1_000_000)
    connection, _ = connected(frames)
    receive(connection, fast_path(1, bytes(250_000))[:SOME_BYTES])
    buffer = connection.get_buffer(-1)
    connection.close()
    buffer[:5] = b"later"
    connection.buffer_updated(5)
    assert frames.held_bytes == 0


async def test_the_bound_closes_who_exceeds_it(caplog: pytest.LogCaptureFixture) -> None:
    body = bytes(1_000_000)
    frame = fast_path(1, body)
    async with server(large_bytes_max=1_200_000) as open_server:
        async with (
            peers(open_server, 1, frame[:900_000]) as (honest,),
            one_more(open_server, frame[:SOME_BYTES], 900_000 + SOME_BYTES) as growing,
        ):
            growing.writer.write(frame[SOME_BYTES:500_000])
            assert await growing.at_end()
            await until(lambda: held_bytes(open_server) == 900_000)
            async with raw_peer(open_server) as late:
                late.writer.write(frame[:400_000])
                assert await late.at_end()
            assert held_bytes(open_server) == 900_000
            honest.writer.write(frame[900_000:])
            assert (await honest.read()).body == body
        async with raw_peer(open_server) as again:
            again.writer.write(frame)
            assert (await again.read()).body == body
        assert held_bytes(open_server) == 0
    (line,) = warnings(caplog)  # the second within a second is only counted
    assert re.fullmatch(
        r"test: closed 127\.0\.0\.1:\d+: unfinished large frames hold \d+ of 1200000 bytes", line
    )


@asynccontextmanager
async def one_more(of: TcpServer, first: bytes, held: int) -> AsyncIterator[RawPeer]:
    async with raw_peer(of) as peer:
        peer.writer.write(first)
        await until(lambda: held_bytes(of) == held)
        yield peer


async def test_what_came_before_the_frame_without_room_is_answered() -> None:
    async with server(large_bytes_max=1) as open_server, raw_peer(open_server) as peer:
        peer.writer.write(fast_path(1, b"small") + fast_path(2, bytes(250_000))[:SOME_BYTES])
        answer = await peer.read()
        assert (answer.opaque, answer.body) == (1, b"small")
        assert await peer.at_end()


async def test_no_memory_for_a_mapping_is_one_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fileno: int, size: int, **flags: int) -> mmap.mmap:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", full)
    async with server() as open_server, raw_peer(open_server) as peer:
        peer.writer.write(LARGEST_PREFIX.ljust(SOME_BYTES, b"{"))
        assert await peer.at_end()
        assert held_bytes(open_server) == 0
    (line,) = warnings(caplog)
    assert line.endswith(f"no memory for a frame of {FRAME_BYTES_MAX - 4} bytes: Cannot allocate memory")


@pytest.mark.parametrize("sent", [8, SOME_BYTES])
async def test_half_a_frame_is_closed_when_idle(sent: int) -> None:
    async with server(idle_ms=40) as open_server, raw_peer(open_server) as peer:
        peer.writer.write(LARGEST_PREFIX.ljust(sent, b"{"))
        assert await peer.at_end()
        await until(lambda: open_server.connection_count == 0)
        assert held_bytes(open_server) == 0


class LargeAnswer(Wire):
    """No fields."""


async def test_a_client_gets_the_largest_answer() -> None:
    body = Random(6).randbytes(FRAME_BYTES_MAX - 200)
    operation = Operation(20_001, "LARGE", LargeAnswer, LargeAnswer, response_body=bytes)
    served = OperationTable()

    async def answer(_: LargeAnswer, __: object) -> Reply:
        return Reply(body=body)

    served.bind(operation, answer)
    async with server(served) as open_server:
        client = RemotingClient()
        try:
            outcome = await client.call(address_of(open_server), operation, LargeAnswer())
            assert isinstance(outcome, Ok) and outcome.body == body
        finally:
            await client.close()


def test_the_bound_is_above_the_largest_frame() -> None:
    assert LARGE_BYTES_MAX >= 8 * FRAME_BYTES_MAX
