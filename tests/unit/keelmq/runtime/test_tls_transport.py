"""TlsTransport between two fakes: what a protocol gets while it has paused reading, and after."""

import asyncio
import ssl
from pathlib import Path

from keelmq.runtime.tls.contexts import ClientTls, ServerTls
from keelmq.runtime.tls.transport import BufferedTls, TlsError, TlsTransport
from tests.support.raft_certificates import Authority
from tests.support.server_parts import until
from tests.support.tls_parts import server_files


class Below(asyncio.Transport):
    """Keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.paused = self.ended = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def take(self) -> bytes:
        found = bytes(self.written)
        self.written.clear()
        return found

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def is_closing(self) -> bool:
        return self.ended

    def close(self) -> None:
        self.ended = True

    def abort(self) -> None:
        self.ended = True


class Slow(asyncio.BufferedProtocol):
    """Pauses reading after each piece."""

    def __init__(self, size: int) -> None:
        self.buffer, self.pieces = bytearray(size), list[bytes]()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, TlsTransport)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.pieces.append(bytes(self.buffer[:nbytes]))
        assert self.transport is not None
        self.transport.pause_reading()


def pair(context: ssl.SSLContext, protocol: Slow) -> tuple[BufferedTls, Below, BufferedTls, Below]:
    """Client and server after their handshake."""
    errors: list[TlsError | None] = []

    def over(_: TlsTransport, error: TlsError | None) -> None:
        errors.append(error)

    client_tls = ClientTls()
    ends = []
    for one, server_side in ((client_tls.context, False), (context, True)):
        made = (lambda: protocol) if server_side else (lambda: Slow(10))
        layer = BufferedTls(
            memoryview(bytearray(65_536)),
            one,
            server_side=server_side,
            make_protocol=made,
            on_handshake=over,
        )
        below = Below()
        layer.connection_made(below)
        ends.append((layer, below))
    (client, client_below), (server, server_below) = ends
    for _ in range(4):
        server.received(client_below.take())
        client.received(server_below.take())
    assert errors == [None, None]
    return client, client_below, server, server_below


async def test_a_paused_protocol_gets_nothing_until_it_resumes(tmp_path: Path) -> None:
    protocol = Slow(1_000)
    tls = ServerTls("enforcing", server_files(Authority(tmp_path)))
    client, client_below, server, server_below = pair(tls.context, protocol)
    client.write(bytes(range(250)) * 16)  # one record, four pieces
    server.received(client_below.take())
    for count in range(1, 5):
        await asyncio.sleep(0)
        assert len(protocol.pieces) == count  # never more than it has asked for
        assert server_below.paused
        server.resume_reading()
        await until(lambda count=count: len(protocol.pieces) == min(count + 1, 4))  # type: ignore[misc]
    assert b"".join(protocol.pieces) == bytes(range(250)) * 16
    await until(lambda: not server_below.paused, "reading goes on when all was delivered")


async def test_a_close_sends_its_notification_and_delivers_nothing_more(tmp_path: Path) -> None:
    protocol = Slow(1_000)
    tls = ServerTls("enforcing", server_files(Authority(tmp_path)))
    client, client_below, server, server_below = pair(tls.context, protocol)
    server.close()
    assert server_below.ended
    assert len(server_below.written) > 0
    client.write(b"late")
    server.received(client_below.take())
    assert protocol.pieces == []
