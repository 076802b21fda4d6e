"""The port for gRPC: plain and TLS on it, who is taken for whom, and its limits."""

import asyncio
import errno
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from broker.app.broker import Broker
from keelmq.remoting.peer_limits import PeerLimits
from keelmq.runtime.config import ConfigError
from keelmq.runtime.tls.contexts import ServerTls
from namesrv.plugins.controller.raft.api import TlsFiles
from proxy.server.front import FOLDER_PREFIX, SOCKET, Front, lock_folder, remove_left_folders
from proxy.wire import messaging_pb2 as pb
from tests.support.raft_certificates import Authority, mutual_tls
from tests.support.server_parts import until
from tests.unit.broker.metadata.test_secure_broker import KEYS
from tests.unit.proxy.server.parts import HOST, TOPIC, GrpcClient, serving

REFUSED = grpc.aio.AioRpcError
ROUTE = pb.QueryRouteRequest(topic=TOPIC)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """The path of a Unix socket has 107 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="keelmq-") as found:
        yield Path(found)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


def tls(authority: Authority, **more: Any) -> dict[str, Any]:
    return {**mutual_tls(authority, "member"), "tls.enable": "false", "tls.server.mode": "permissive", **more}


def port_of(broker: Broker) -> int:
    assert broker.listeners.proxy is not None
    return broker.listeners.proxy.port


@asynccontextmanager
async def over_tls(
    broker: Broker, authority: Authority, shown: TlsFiles | None = None
) -> AsyncIterator[GrpcClient]:
    files = (None, None) if shown is None else (shown.key.read_bytes(), shown.certificate.read_bytes())
    credentials = grpc.ssl_channel_credentials(authority.pem, *files)
    # Else channels to one address share a connection.
    options = [("grpc.ssl_target_name_override", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.secure_channel(f"{HOST}:{port_of(broker)}", credentials, options) as channel:
        yield GrpcClient(channel)


@asynccontextmanager
async def plain(address: str) -> AsyncIterator[GrpcClient]:
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(address, options) as channel:
        yield GrpcClient(channel)


async def test_plain_and_tls_on_one_port(tmp_path: Path, authority: Authority) -> None:
    async with serving(tmp_path, **tls(authority)) as (broker, client), over_tls(broker, authority) as other:
        assert (await other.send("one")).status.code == pb.OK
        status, [message] = await client.receive()
        assert (status.code, message.body) == (pb.OK, b"one")
        assert message.system_properties.born_host.startswith(HOST)  # and not that of the Unix socket


async def test_large_answers_pass_a_slow_reader(tmp_path: Path, authority: Authority) -> None:
    """More than all buffers in between."""
    async with serving(tmp_path, **tls(authority)) as (broker, _), over_tls(broker, authority) as client:
        client.timeout_s = 60
        large = pb.Message(
            topic=TOPIC, body=bytes(3_000_000), system_properties=pb.SystemProperties(message_id="01a")
        )
        for _ in range(8):
            found = await client.call("SendMessage", pb.SendMessageRequest(messages=[large]))
            assert found.status.code == pb.OK
        received = [len(each.body) for each in (await client.receive())[1]]
        while len(received) < 8:
            received += [len(each.body) for each in (await client.receive())[1]]
        assert received == 8 * [3_000_000]


async def test_enforced_tls(tmp_path: Path, authority: Authority) -> None:
    settings = tls(authority, **{"tls.server.mode": "enforcing"})
    async with serving(tmp_path, **settings) as (broker, client), over_tls(broker, authority) as other:
        assert (await other.send("one")).status.code == pb.OK
        with pytest.raises(REFUSED):
            await client.send("two")


async def test_disabled_tls(tmp_path: Path, authority: Authority) -> None:
    settings = tls(authority, **{"tls.server.mode": "disabled"})
    async with serving(tmp_path, **settings) as (broker, client), over_tls(broker, authority) as other:
        assert (await client.send("one")).status.code == pb.OK
        with pytest.raises(REFUSED):
            await other.send("two")


async def test_a_certificate_of_clients_is_verified_and_no_signature(
    tmp_path: Path, authority: Authority
) -> None:
    """One of a member, too: a member is a server, and no client."""
    settings = tls(authority, **{"tls.server.need.client.auth": "require"})
    settings |= {"memberCertificateNames": "member", **KEYS}
    stranger = Authority(tmp_path / "stranger").issue("member")
    async with serving(tmp_path, **settings) as (broker, _):
        for shown in (None, stranger):
            async with over_tls(broker, authority, shown) as client:
                with pytest.raises(REFUSED):
                    await client.call("QueryRoute", ROUTE)
        async with over_tls(broker, authority, authority.issue("member")) as client:
            assert (await client.call("QueryRoute", ROUTE)).status.code == pb.UNAUTHORIZED


async def test_a_renewed_certificate_is_taken(tmp_path: Path, authority: Authority) -> None:
    settings = tls(authority)
    async with serving(tmp_path, **settings) as (broker, _), over_tls(broker, authority) as client:
        assert (await client.send("one")).status.code == pb.OK
        renewed = Authority(tmp_path / "renewed")
        files = renewed.issue("localhost")
        for key, path in (("certPath", files.certificate), ("keyPath", files.key)):
            os.replace(path, settings[f"tls.server.{key}"])
        assert broker.process.tls.check()
        async with over_tls(broker, renewed) as other:
            assert (await other.send("two")).status.code == pb.OK
        assert (await client.send("three")).status.code == pb.OK  # its connection stays


async def test_who_comes_by_the_inner_socket_is_refused(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(short_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    async with serving(short_path / "store") as (_, client):
        (folder,) = short_path.glob("keelmq-grpc-*")
        assert folder.stat().st_mode & 0o777 == 0o700
        async with plain(f"unix:{folder}/socket") as stranger:
            assert (await stranger.send("one")).status.code == pb.UNAUTHORIZED
        assert (await client.send("one")).status.code == pb.OK
    assert not folder.exists()


async def test_connections_of_one_address(tmp_path: Path) -> None:
    async with serving(tmp_path, maxConnectionsPerAddress=2) as (broker, client):
        limits, address = broker.process.limits, f"{HOST}:{port_of(broker)}"
        assert (await client.send("one")).status.code == pb.OK
        async with plain(address) as second:
            assert (await second.send("two")).status.code == pb.OK
            assert limits.connection_count == 2
            async with plain(address) as third:
                with pytest.raises(REFUSED):
                    await third.send("three")
            assert limits.closed["per_address"] >= 1
        await until(lambda: limits.connection_count == 1, "the second connection is closed")
        async with plain(address) as fourth:
            assert (await fourth.send("four")).status.code == pb.OK


async def test_an_authenticated_connection_is_not_closed_for_a_new_one(tmp_path: Path) -> None:
    """At the limit of all connections the oldest one without a right signature goes."""
    async with serving(tmp_path, maxConnections=2, **KEYS) as (broker, _):
        reader, writer = await asyncio.open_connection(HOST, port_of(broker))
        await until(lambda: broker.process.limits.connection_count == 1, "the first connection")
        others = [await asyncio.open_connection(HOST, port_of(broker)) for _ in range(2)]
        assert await reader.read() == b""
        for _, each in [(reader, writer), *others]:
            each.close()


async def test_bytes_without_a_right_signature_are_limited(tmp_path: Path) -> None:
    settings = {"unauthenticatedFrameBytesPerAddress": 100_000, **KEYS}
    async with serving(tmp_path, **settings) as (broker, client):
        with pytest.raises(REFUSED):
            await client.send("x" * 200_000)
        assert (await client.call("QueryRoute", ROUTE)).status.code == pb.UNAUTHORIZED
    assert broker.process.limits.remembered == 0


async def test_calls_of_one_address(tmp_path: Path) -> None:
    async with serving(tmp_path, grpcMaxConcurrentCallsPerAddress=2) as (_, client):
        settings = pb.Settings(client_type=pb.PRODUCER, publishing=pb.Publishing(topics=[TOPIC]))
        streams = [client.telemetry() for _ in range(2)]
        for stream in streams:
            await stream.write(pb.TelemetryCommand(settings=settings))
            assert (await stream.read()).status.code == pb.OK
        assert (await client.send("one")).status.code == pb.TOO_MANY_REQUESTS
        await streams.pop().done_writing()
        found = pb.TOO_MANY_REQUESTS
        for _ in range(100):
            if found != pb.OK:
                found = (await client.send("one")).status.code
        assert found == pb.OK


async def test_calls_without_a_right_signature_are_limited(tmp_path: Path) -> None:
    async with serving(tmp_path, unauthenticatedRequestsPerSecond=5, **KEYS) as (_, client):
        found = [(await client.call("QueryRoute", ROUTE)).status.code for _ in range(30)]
        assert set(found) == {pb.UNAUTHORIZED, pb.TOO_MANY_REQUESTS}


async def test_a_directory_with_a_long_path_has_no_room_for_the_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path / ("d" * 100)))
        with pytest.raises(ConfigError, match="set TMPDIR to a shorter directory"):
            async with serving(tmp_path):
                pass


def test_the_folders_of_killed_proxies_are_removed(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those of proxies that listen, or are about to: grpcio binds its socket before it listens."""
    monkeypatch.setattr(tempfile, "tempdir", str(short_path))
    killed, alive, starting, bound = (
        short_path / f"{FOLDER_PREFIX}{name}" for name in ("killed", "alive", "starting", "bound")
    )
    for folder in (killed, alive, starting, bound):
        folder.mkdir()
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as not_yet:
        listening.bind(str(alive / SOCKET))  # of a version that has no lock
        listening.listen()
        not_yet.bind(str(bound / SOCKET))
        lock = lock_folder(bound)
        assert lock is not None and lock_folder(bound) is None
        with socket.socket(socket.AF_UNIX) as gone:
            gone.bind(str(killed / SOCKET))
        remove_left_folders()
        assert set(short_path.iterdir()) == {alive, starting, bound}
        os.close(lock)
        remove_left_folders()
    assert set(short_path.iterdir()) == {alive, starting}


def test_a_folder_that_cannot_be_locked(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(tempfile, "tempdir", str(short_path))
    (short_path / f"{FOLDER_PREFIX}left").mkdir()
    monkeypatch.setattr("fcntl.flock", no_locks)
    with pytest.raises(ConfigError, match=rf"cannot make and lock a folder in {short_path}: No locks"):
        Front(ServerTls("disabled").grpc, PeerLimits(), are_admitted=True)
    assert [each.name for each in short_path.iterdir()] == [f"{FOLDER_PREFIX}left"]


async def test_a_proxy_that_starts_meanwhile_removes_no_folder_of_another(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(short_path))
    tls, limits = ServerTls("disabled"), PeerLimits()
    first = Front(tls.grpc, limits, are_admitted=True)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(first.socket_path))
        second = Front(tls.grpc, limits, are_admitted=True)
        assert first.socket_path.exists()
    await first.close()
    await second.close()
    assert list(short_path.iterdir()) == []
