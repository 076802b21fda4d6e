"""open_tls: when a failed handshake makes us read our files again."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from keelmq.remoting import client as client_module
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Empty, Failed, Unknown
from keelmq.remoting.operations.controller import GET_METADATA_INFO
from keelmq.runtime.backoff import Backoff
from keelmq.runtime.tls import dial
from keelmq.runtime.tls.contexts import ClientTls
from keelmq.runtime.tls.transport import TlsError, TlsTransport
from tests.support.raft_certificates import Authority
from tests.support.server_parts import until
from tests.support.tls_parts import server_tls, trusting


class Unused(asyncio.BufferedProtocol):
    """No handshake ends well here."""


class Counting:
    """Counts the reads of our files."""

    def __init__(self, tls: ClientTls, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reads = 0
        monkeypatch.setattr(tls, "check", self._check)

    def _check(self) -> bool:
        self.reads += 1
        return False


async def failed(tls: ClientTls, port: int) -> TlsError:
    with pytest.raises(TlsError) as raised:
        await dial.open_tls(tls, Unused, "127.0.0.1", port, memoryview(bytearray(65_536)))
    return raised.value


async def test_a_connection_that_is_lost_reads_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A master that is killed ends many handshakes so, while the fail-over needs the CPU."""
    tls = trusting(Authority(tmp_path / "ours"))
    counting = Counting(tls, monkeypatch)

    def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    error = await failed(tls, server.sockets[0].getsockname()[1])
    assert "connection" in str(error) and counting.reads == 0
    server.close()
    await server.wait_closed()


async def test_a_certificate_that_is_refused_reads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = trusting(Authority(tmp_path / "ours"))
    counting = Counting(tls, monkeypatch)
    theirs = server_tls(Authority(tmp_path / "theirs"))

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=theirs.context)
    error = await failed(tls, server.sockets[0].getsockname()[1])
    assert "certificate verify failed" in str(error) and counting.reads == 1
    server.close()
    await server.wait_closed()


async def test_a_refused_certificate_costs_few_handshakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers and clients ask several times a second, and a handshake costs CPU time at both ends."""
    authority = Authority(tmp_path / "theirs")
    theirs, handshakes = server_tls(authority), []

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=theirs.context)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    attempt = client_module.open_tls

    async def counted(*args: Any) -> TlsTransport:
        handshakes.append(asyncio.get_running_loop().time())
        return await attempt(*args)

    monkeypatch.setattr(client_module, "open_tls", counted)
    client = RemotingClient(tls=trusting(Authority(tmp_path / "ours")))
    for _ in range(50):
        outcome = await client.call(address, GET_METADATA_INFO, Empty())
        assert isinstance(outcome, Failed) and "certificate verify failed" in outcome.remark
    assert len(handshakes) <= 2, "the later calls end at once"
    monkeypatch.setattr(client_module, "TLS_BACKOFF", Backoff(1, 1))
    other = RemotingClient(tls=trusting(Authority(tmp_path / "other")))
    await other.call(address, GET_METADATA_INFO, Empty())
    other.tls = trusting(authority)
    failed_at_s = asyncio.get_running_loop().time()
    await until(lambda: asyncio.get_running_loop().time() > failed_at_s + 0.002)
    assert await connected(other, address), "after the pause"
    for each in (client, other):
        await each.close()
    server.close()
    await server.wait_closed()


async def connected(client: RemotingClient, address: str) -> bool:
    """Whether a handshake ends well: the server closes the connection after it, and answers nothing."""
    outcome = await client.call(address, GET_METADATA_INFO, Empty(), timeout_ms=500)
    return isinstance(outcome, Unknown) or "certificate" not in outcome.remark
