"""open_tls: when a failed handshake makes us read our files again."""

import asyncio
from pathlib import Path

import pytest

from keelmq.runtime.tls import dial
from keelmq.runtime.tls.contexts import ClientTls
from keelmq.runtime.tls.transport import TlsError
from tests.support.raft_certificates import Authority
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
