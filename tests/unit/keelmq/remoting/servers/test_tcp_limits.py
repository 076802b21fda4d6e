"""Limits on real servers: connections of an address, requests before authentication, unfinished frames."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.app.broker import Broker
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.command import RemotingCommand, encode
from keelmq.remoting.connection import LARGE_FRAME_BYTES
from keelmq.remoting.frame import pack_prefix
from keelmq.remoting.operation import ANYBODY, Access, Caller, CommandError, OperationTable, Peer, Request
from keelmq.remoting.peer_limits import (
    EVICTED,
    FRAME_BYTES,
    PER_ADDRESS,
    SLOW_FRAME,
    TOTAL,
    Limits,
    PeerLimits,
)
from keelmq.remoting.servers import limits as limits_module
from keelmq.remoting.servers.limits import connections_max
from keelmq.remoting.servers.tcp import CONNECTIONS_MAX, TcpServer
from namesrv.app import Namesrv, PluginChoice
from namesrv.config import NamesrvConfig
from tests.fuzz.http import InMemory
from tests.support.controller_fakes import config as controller_config
from tests.support.raft_certificates import Authority
from tests.support.raft_group import free_ports
from tests.support.server_parts import FAST_PATH_CODE, RawPeer, raw_peer, server, table, until
from tests.support.tls_parts import client_hello, server_tls
from tests.unit.broker.naming.test_vip_port import config, two_apart
from tests.unit.keelmq.remoting.servers.test_tls_port import tls_peer

OTHER_HOST = "127.0.0.2"
KEY = {"AccessKey": "alice"}


class KeyOnly(Access):
    """Admits whoever names an access key."""

    def admit(self, request: Request, peer: Peer) -> Caller:
        if "AccessKey" not in request.ext_fields:
            raise CommandError(ResponseCode.NO_PERMISSION, "username cannot be null.")
        return ANYBODY


def guarded() -> OperationTable:
    made = table()
    made.access = KeyOnly()
    return made


def request(opaque: int, body: bytes = b"", **fields: str) -> RemotingCommand:
    return RemotingCommand(FAST_PATH_CODE, opaque, ext_fields={"e": "0", **fields}, body=body)


@asynccontextmanager
async def peer_from(of: TcpServer, host: str) -> AsyncIterator[RawPeer]:
    reader, writer = await asyncio.open_connection(*of.address, local_addr=(host, 0))
    try:
        yield RawPeer(reader, writer)
    finally:
        writer.transport.abort()


async def is_served(peer: RawPeer, **fields: str) -> bool:
    return (await peer.ask(request(7, **fields))).opaque == 7


# ---- connections ----


async def test_an_address_has_its_own_number_of_connections(caplog: pytest.LogCaptureFixture) -> None:
    limits = PeerLimits(Limits(connections_per_address=2))
    async with server(limits=limits) as of, raw_peer(of) as first:
        async with raw_peer(of) as second:
            assert await is_served(first)
            assert await is_served(second)
            for _ in range(3):
                async with raw_peer(of) as third:
                    assert await third.at_end()
            async with peer_from(of, OTHER_HOST) as other:
                assert await is_served(other)
        await until(lambda: limits.connection_count == 1)
        async with raw_peer(of) as again:
            assert await is_served(again)
    assert limits.closed == {PER_ADDRESS: 3}
    (line,) = [
        each.getMessage() for each in caplog.records if "maxConnectionsPerAddress" in each.getMessage()
    ]
    assert line.startswith("test: closed 127.0.0.1:")
    await until(lambda: limits.connection_count == 0)


@pytest.mark.parametrize("first_bytes", [b"", client_hello()[:40]], ids=["silent", "half a handshake"])
async def test_half_open_handshakes_count(first_bytes: bytes, tmp_path: Path) -> None:
    """Before the first byte, and within the handshake; their deadline frees what they hold."""
    limits = PeerLimits(Limits(connections_per_address=2))
    async with server(limits=limits, tls=server_tls(Authority(tmp_path / "ca"))) as of:
        assert of.tls_port is not None
        of.tls_port.first_byte_ms = of.tls_port.handshake_ms = 500
        async with raw_peer(of) as first, raw_peer(of) as second:
            for each in (first, second):
                each.writer.write(first_bytes)
            await until(lambda: limits.connection_count == 2)
            async with raw_peer(of) as third:
                assert await third.at_end()
            assert await first.at_end(), "its deadline"
            assert await second.at_end()
            async with tls_peer(of) as encrypted, raw_peer(of) as plain:
                assert await is_served(encrypted)
                assert await is_served(plain)
                assert limits.connection_count == 2
        await until(lambda: limits.connection_count == 0)


async def test_a_full_server_closes_who_has_not_authenticated() -> None:
    limits = PeerLimits(Limits(connections=3))
    async with server(guarded(), limits=limits) as of, raw_peer(of) as member, raw_peer(of) as silent:
        assert await is_served(member, **KEY)
        await until(lambda: limits.connection_count == 2)
        async with raw_peer(of) as refused, raw_peer(of) as new:
            answer = await refused.ask(request(1))
            assert answer.code == ResponseCode.NO_PERMISSION
            assert await silent.at_end(), "the oldest one"
            assert await is_served(new, **KEY)
            assert await is_served(member, **KEY)
            async with raw_peer(of) as newer:
                assert await is_served(newer, **KEY)
                assert await refused.at_end(), "a refused request is no admission"
                async with raw_peer(of) as late:
                    assert await late.at_end()
                assert await is_served(newer, **KEY)
    assert limits.closed == {EVICTED: 2, TOTAL: 1}


def test_the_number_of_connections_leaves_files_for_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for files in (4, 1_024, 1_048_576, limits_module.resource.RLIM_INFINITY):
        monkeypatch.setattr(limits_module.resource, "getrlimit", lambda _kind, files=files: (files, files))
        found.append(connections_max())
    assert found == [3, 768, CONNECTIONS_MAX, CONNECTIONS_MAX]
    limits = NamesrvConfig.model_validate({"maxConnections": 17, "maxConnectionsPerAddress": 5}).peer_limits()
    assert (limits.limits.connections, limits.limits.connections_per_address) == (17, 5)


# ---- requests ----


async def test_requests_before_authentication_have_a_rate(caplog: pytest.LogCaptureFixture) -> None:
    limits = PeerLimits(Limits(unauthenticated_requests_per_s=5))
    asked: list[str] = []

    class Counting(KeyOnly):
        def admit(self, request: Request, peer: Peer) -> Caller:
            asked.append(peer.address)
            return super().admit(request, peer)

    guarded_table = guarded()
    guarded_table.access = Counting()
    async with server(guarded_table, limits=limits) as of, raw_peer(of) as member, raw_peer(of) as anonymous:
        assert await is_served(member, **KEY)
        asked.clear()
        anonymous.write(*(request(each) for each in range(200)))
        answers = [await anonymous.read() for _ in range(200)]
        busy = [each for each in answers if each.code == ResponseCode.SYSTEM_BUSY]
        assert 150 < len(busy) == limits.refused_requests
        assert len(asked) == 200 - len(busy), "those are not even checked"
        assert busy[0].remark == "too many unauthenticated requests from 127.0.0.1; try again in 1 s"
        member.write(*(request(each, **KEY) for each in range(200)))
        assert {(await member.read()).code for _ in range(200)} == {0}, "the same address, and authenticated"
        async with peer_from(of, OTHER_HOST) as other:
            assert (await other.ask(request(1))).code == ResponseCode.NO_PERMISSION
    assert len([each for each in caplog.records if "too many unauthenticated" in each.getMessage()]) == 1


async def test_without_authentication_requests_have_no_rate() -> None:
    limits = PeerLimits(Limits(unauthenticated_requests_per_s=1))
    async with server(limits=limits) as of, raw_peer(of) as peer:
        peer.write(*(request(each) for each in range(100)))
        assert {(await peer.read()).code for _ in range(100)} == {0}


# ---- unfinished frames ----


def beginning(size: int, sent: int) -> bytes:
    return (pack_prefix(size - 4, 100) + b"{" * sent)[:sent]


async def holds(limits: PeerLimits, count: int) -> None:
    await until(lambda: limits.partial_bytes == count, f"{limits.partial_bytes} bytes, not {count}")


@pytest.mark.parametrize("sent", [50_000, 150_000])
async def test_anonymous_clients_share_the_bytes_of_their_address(sent: int) -> None:
    """Both with small frames, and with large ones, which have a buffer of their own."""
    limits = PeerLimits(Limits(unauthenticated_bytes_per_address=2 * sent + 1_000))
    frame = beginning(16_000_000 if sent > LARGE_FRAME_BYTES else 60_000, sent)
    async with (
        server(guarded(), limits=limits) as of,
        raw_peer(of) as first,
        raw_peer(of) as second,
        raw_peer(of) as third,
        raw_peer(of) as member,
        peer_from(of, OTHER_HOST) as other,
    ):
        for each, held in ((first, sent), (second, 2 * sent)):
            each.writer.write(frame)
            await holds(limits, held)
        third.writer.write(frame)
        assert await third.at_end()
        await holds(limits, 2 * sent)
        other.writer.write(frame)
        await holds(limits, 3 * sent)
        assert await is_served(member, **KEY)
        member.writer.write(encode(request(9, bytes(3 * sent), **KEY)))
        assert len((await member.read()).body) == 3 * sent
        second.writer.transport.abort()
        await holds(limits, 2 * sent)
        async with raw_peer(of) as again:
            again.writer.write(frame)
            await holds(limits, 3 * sent)
        assert limits.closed == {FRAME_BYTES: 1}
    await holds(limits, 0)
    assert limits.unauthenticated_bytes == 0


async def test_the_first_request_may_be_the_largest_by_default() -> None:
    """A broker with many topics begins with its registration."""
    limits = NamesrvConfig().peer_limits()
    frame = encode(request(9, bytes(16_770_000), **KEY))
    async with server(guarded(), limits=limits) as of, raw_peer(of) as broker:
        broker.writer.write(frame)
        assert len((await broker.read()).body) == 16_770_000
    assert not limits.closed


async def test_without_authentication_the_oldest_unfinished_frames_go() -> None:
    limits = PeerLimits(Limits(partial_bytes=100_000))
    async with server(limits=limits) as of, raw_peer(of) as first, raw_peer(of) as second:
        for each, held in ((first, 50_000), (second, 100_000)):
            each.writer.write(beginning(60_000, 50_000))
            await holds(limits, held)
        async with raw_peer(of) as honest:
            frame = encode(request(9, bytes(40_000)))
            honest.writer.write(frame[:30_000])
            assert await first.at_end()
            await holds(limits, 80_000)
            honest.writer.write(frame[30_000:])
            assert len((await honest.read()).body) == 40_000


async def test_pieces_of_frames_are_counted_once() -> None:
    """Frames in all sizes, cut anywhere: afterwards nothing is held, and in between what waits."""
    limits = PeerLimits()
    bodies = [bytes(size) for size in (0, 10, 70_000, 1, 200_000, 30_000, 66_000, 5)]
    stream = b"".join(encode(request(n, body)) for n, body in enumerate(bodies))
    async with server(limits=limits) as of, raw_peer(of) as peer:
        for at in range(0, len(stream), 7_919):
            peer.writer.write(stream[at : at + 7_919])
            await peer.writer.drain()
            await asyncio.sleep(0)
            (connection,) = of.connections or (None,)
            if connection is not None:
                assert limits.partial_bytes == connection.partial_bytes == connection.unfinished_bytes()
        assert [len((await peer.read()).body) for _ in bodies] == [len(body) for body in bodies]
        assert limits.partial_bytes == 0


@pytest.mark.parametrize("encrypted", [False, True])
async def test_a_frame_that_does_not_end_is_closed(
    encrypted: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One byte now and then is activity, but no progress."""
    limits = PeerLimits(Limits(frame_timeout_s=0.1))
    frame = encode(request(9, bytes(1_000)))
    tls = server_tls(Authority(tmp_path / "ca")) if encrypted else None
    async with (
        server(limits=limits, stalled_ms=120, tls=tls) as of,
        (tls_peer if encrypted else raw_peer)(of) as slow,
        raw_peer(of) as busy,
    ):
        ended = asyncio.create_task(slow.at_end())
        at = 0
        while not ended.done():
            slow.writer.write(frame[at : at + 1])
            at = min(at + 1, 900)
            assert await is_served(busy), "whole frames go on"
            await asyncio.wait([ended], timeout=0.01)
        assert ended.result()
        assert await is_served(busy)
    assert limits.closed == {SLOW_FRAME: 1}
    assert any("a frame has not ended in" in each.getMessage() for each in caplog.records)


async def test_a_large_frame_may_take_longer() -> None:
    """At 100 KB/s the frame is complete after six times the deadline."""
    limits = PeerLimits(Limits(frame_timeout_s=0.1, frame_bytes_per_s=1_000))
    frame = encode(request(9, bytes(60_000)))
    async with server(limits=limits, stalled_ms=60) as of, raw_peer(of) as peer:
        for at in range(0, len(frame), 1_000):
            peer.writer.write(frame[at : at + 1_000])
            await holds(limits, min(at + 1_000, len(frame)) % len(frame))
            (connection,) = of.connections
            looks = connection.partial_looks
            await until(lambda: connection.partial_looks != looks or not connection.partial_bytes)  # noqa: B023
        assert len((await peer.read()).body) == 60_000
    assert not limits.closed


async def test_who_says_nothing_is_idle(tmp_path: Path) -> None:
    """Without TLS the rule for idle connections; with it the deadline of the first byte."""
    async with server(limits=PeerLimits(), idle_ms=60) as of, raw_peer(of) as peer:
        assert await peer.at_end()
    async with server(limits=PeerLimits(), tls=server_tls(Authority(tmp_path / "ca"))) as of:
        assert of.tls_port is not None
        of.tls_port.first_byte_ms = 60
        async with raw_peer(of) as peer:
            assert await peer.at_end()
        # The beginning of a TLS record is no byte of a frame: after the handshake it is idle.
    async with (
        server(limits=PeerLimits(), idle_ms=100, tls=server_tls(Authority(tmp_path / "other"))) as of,
        tls_peer(of) as encrypted,
    ):
        assert await is_served(encrypted)
        raw = encrypted.writer.get_extra_info("socket")
        assert raw is not None
        ended = asyncio.create_task(encrypted.at_end())
        record = b"\x17\x03\x03" + struct.pack(">H", 16_000)
        at = 0
        while not ended.done():
            if at < len(record) + 1_000:
                await asyncio.get_running_loop().sock_sendall(raw._sock, (record + bytes(1_000))[at : at + 1])
            at += 1
            await asyncio.wait([ended], timeout=0.01)
        assert ended.result()


# ---- programs ----


def address_of_port(port: int) -> Any:
    class Of:
        address = ("127.0.0.1", port)

    return Of()


async def test_name_server_and_controller_share_their_limits(tmp_path: Path) -> None:
    controller = controller_config(
        controllerDLegerPeers=f"n0-127.0.0.1:{free_ports(1)[0]}",
        controllerStorePath=tmp_path,
        telemetryEnable=False,
    )
    settings = NamesrvConfig.model_validate(
        {
            "listenPort": 0,
            "bindAddress": "127.0.0.1",
            "httpPort": -1,
            "kvConfigPath": tmp_path / "kv.json",
            "maxConnectionsPerAddress": 2,
        }
    )
    async with Namesrv(settings, [PluginChoice(InMemory, (controller,))]) as program:
        (plugin,) = program.plugins
        assert isinstance(plugin, InMemory)
        ports = [address_of_port(each[1]) for each in (program.address, plugin.address)]
        async with raw_peer(ports[0]) as first, raw_peer(ports[1]) as second:
            assert (await first.ask(RemotingCommand(29_999, 1))).code == 3
            assert (await second.ask(RemotingCommand(29_999, 1))).code == 3
            for port in ports:
                async with raw_peer(port) as third:
                    assert await third.at_end()
        assert program.limits.closed == plugin.limits.closed == {PER_ADDRESS: 2}


async def test_the_ports_of_a_broker_share_their_limits(tmp_path: Path) -> None:
    low, port = two_apart()
    low.close()
    async with Broker(config(tmp_path, listenPort=port, maxConnectionsPerAddress=2)) as broker:
        ports = [address_of_port(each) for each in (port, port - 2)]
        async with raw_peer(ports[0]) as first, raw_peer(ports[1]) as second:
            assert (await first.ask(RemotingCommand(29_999, 1))).code == 3
            assert (await second.ask(RemotingCommand(29_999, 1))).code == 3
            for port in ports:
                async with raw_peer(port) as third:
                    assert await third.at_end()
        assert broker.process.limits.closed == {PER_ADDRESS: 2}
