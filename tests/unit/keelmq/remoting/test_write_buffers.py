"""Peers that do not read: how long and how much a server keeps for them, alone and together."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

import pytest
import uvloop

from keelmq.remoting import connection as connection_module
from keelmq.remoting.command import RemotingCommand, encode
from keelmq.remoting.connection import Connection
from keelmq.remoting.servers.tcp import TcpServer
from keelmq.remoting.write_buffers import OVER_LIMIT, SLOW_CLOSE, STALLED, STALLED_LOOKS, WriteBuffers
from tests.support.server_parts import FAST_PATH_CODE, RawPeer, raw_peer, server, until

FRAME = encode(RemotingCommand(FAST_PATH_CODE, 1, ext_fields={"e": "0"}, body=bytes(1_000_000)))
UNREAD_FRAMES = 16
"""More than the system takes for a socket of this machine (tcp_wmem, tcp_rmem: 4 and 6 MiB)."""

loops = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])


def run(new_loop: Callable[[], asyncio.AbstractEventLoop], story: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(story)


async def connection_of(of: TcpServer, peer: RawPeer) -> Connection:
    """The server's end."""
    host, port = peer.writer.get_extra_info("sockname")

    def found() -> list[Connection]:
        return [each for each in of.connections if each.address == f"{host}:{port}"]

    await until(lambda: bool(found()), "the server has the connection")
    return found()[0]


async def unread(of: TcpServer, peer: RawPeer, frames: int = UNREAD_FRAMES) -> Connection:
    """Stops reading, and is sent so much."""
    peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
    served = await connection_of(of, peer)
    for _ in range(frames):
        served.send(FRAME)
    await until(lambda: served.unsent_bytes() > 0)
    return served


@loops
def test_a_peer_that_takes_nothing_is_aborted(new_loop: Any, caplog: pytest.LogCaptureFixture) -> None:
    closed: list[int] = []

    async def story() -> None:
        async with (
            server(stalled_ms=120, on_closed=closed.append) as open_server,
            raw_peer(open_server) as peer,
        ):
            served = await unread(open_server, peer)
            assert open_server.write_buffers.held_bytes > 0
            await until(lambda: closed == [served.connection_id], "the connection is gone")
            assert open_server.write_buffers.held_bytes == 0
            assert open_server.write_buffers.given_up == {STALLED: 1}

    run(new_loop, story())
    (line,) = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert "does not read" in line and "none of them read for 0.12 s" in line


@loops
def test_frames_in_pieces_pause_a_connection_as_well(new_loop: Any) -> None:
    """asyncio's writelines() does not do it before Python 3.12.9 and 3.13.2."""

    async def story() -> None:
        async with server() as open_server, raw_peer(open_server) as peer:
            peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
            served = await connection_of(open_server, peer)
            for _ in range(UNREAD_FRAMES):
                assert served.write_parts([FRAME[:100], memoryview(FRAME)[100:]])
            await until(served.is_paused, "the peer counts as not reading")

    run(new_loop, story())


@loops
def test_a_peer_below_the_pause_mark_is_aborted_as_well(
    new_loop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "WRITE_HIGH_BYTES", 1_000_000_000)

    async def story() -> None:
        async with server(stalled_ms=120) as open_server, raw_peer(open_server) as peer:
            served = await unread(open_server, peer)
            assert not served.is_paused()
            await until(lambda: open_server.connection_count == 0, "the connection is gone")
            assert open_server.write_buffers.given_up == {STALLED: 1}

    run(new_loop, story())


@loops
def test_a_close_ends_though_the_peer_does_not_read(new_loop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The idle sweep closes; the unsent bytes would have kept the connection for ever."""
    monkeypatch.setattr(connection_module, "CLOSE_MS", 50, raising=False)
    closed: list[int] = []

    async def story() -> None:
        async with server(idle_ms=40, on_closed=closed.append) as open_server, raw_peer(open_server) as peer:
            served = await unread(open_server, peer)
            await until(lambda: closed == [served.connection_id], "the connection is gone")
            assert open_server.write_buffers.given_up == {SLOW_CLOSE: 1}

    run(new_loop, story())


@loops
def test_a_close_waits_for_a_peer_that_reads(new_loop: Any) -> None:
    async def story() -> None:
        async with server() as open_server, raw_peer(open_server) as peer:
            served = await unread(open_server, peer)
            served.close()
            peer.writer.transport.resume_reading()  # type: ignore[attr-defined]
            async with asyncio.timeout(5):
                assert len(await peer.reader.read()) == UNREAD_FRAMES * len(FRAME)
            await until(lambda: open_server.connection_count == 0)
            assert not open_server.write_buffers.given_up

    run(new_loop, story())


@loops
def test_all_connections_together_have_a_bound(new_loop: Any) -> None:
    """Four that do not read, the last one most of all: it goes, and who reads is not touched."""
    buffers = WriteBuffers(60_000_000)

    async def story() -> None:
        async with server(write_buffers=buffers) as open_server, AsyncExitStack() as stack:
            reader = await stack.enter_async_context(raw_peer(open_server))
            peers = [await stack.enter_async_context(raw_peer(open_server)) for _ in range(4)]
            served = [await unread(open_server, peer, 12) for peer in peers]
            while served[3].send(FRAME):
                assert buffers.held_bytes <= buffers.bytes_max
                await asyncio.sleep(0)
            await until(lambda: open_server.connection_count == 4)
            assert [each.is_closing() for each in served] == [False, False, False, True]
            assert buffers.given_up == {OVER_LIMIT: 1}
            assert buffers.held_bytes <= buffers.bytes_max * 3 // 4
            command = RemotingCommand(FAST_PATH_CODE, 9, ext_fields={"e": "0", "b": "x"})
            assert (await reader.ask(command)).opaque == 9

    run(new_loop, story())


class Peer:
    """Of a connection: what it has not read."""

    def __init__(self, unsent: int = 0, *, paused: bool = False) -> None:
        self.unsent, self.paused, self.activity = unsent, paused, 0
        self.problem = ""

    def unsent_bytes(self) -> int:
        return self.unsent

    def is_paused(self) -> bool:
        return self.paused

    def is_closing(self) -> bool:
        return self.problem != ""

    def give_up(self, kind: str, problem: str) -> None:
        self.problem = f"{kind}: {problem}"
        self.unsent = 0


def looks(buffers: WriteBuffers, peer: Peer, each: Callable[[], None], count: int) -> None:
    for _ in range(count):
        each()
        buffers.look([peer], 5)


def test_who_takes_a_little_between_looks_stays() -> None:
    buffers, peer = WriteBuffers(), Peer(10_000_000, paused=True)
    buffers.paused(peer)

    def read_a_little_and_get_more() -> None:
        peer.unsent -= 100
        assert buffers.has_room(peer, 5_000)
        peer.unsent += 5_000

    looks(buffers, peer, read_a_little_and_get_more, 5 * STALLED_LOOKS)
    assert not peer.problem and buffers.held_bytes == peer.unsent


def test_pushes_to_a_peer_that_takes_nothing_are_no_progress() -> None:
    buffers, peer = WriteBuffers(), Peer(2_000_000, paused=True)
    buffers.paused(peer)

    def push() -> None:
        assert buffers.has_room(peer, 5_000)
        peer.unsent += 5_000
        peer.activity += 1

    looks(buffers, peer, push, STALLED_LOOKS)
    assert not peer.problem
    looks(buffers, peer, push, 1)
    assert peer.problem.startswith("stalled: ") and "none of them read for 30 s" in peer.problem
    assert buffers.held_bytes == 0


def test_a_busy_peer_below_the_pause_mark_stays() -> None:
    """Its replies wait for the end of the loop's turn each time somebody looks."""
    buffers, peer = WriteBuffers(), Peer(5_000)

    def busy() -> None:
        peer.activity += 10

    looks(buffers, peer, busy, 5 * STALLED_LOOKS)
    assert not peer.problem


def test_the_sum_follows_what_was_read_before_anybody_is_given_up() -> None:
    """The marks are upper bounds: they are read again first."""
    buffers = WriteBuffers(100)
    first, second = Peer(60, paused=True), Peer(60, paused=True)
    buffers.paused(first)
    first.unsent = 10
    buffers.paused(second)
    assert (first.problem, second.problem, buffers.held_bytes) == ("", "", 70)
    assert not buffers.has_room(second, 31)
    assert second.problem.startswith("over_limit: 91 bytes unsent") and not first.problem
    assert buffers.held_bytes == 10
