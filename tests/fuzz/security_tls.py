"""TLS records, and what is no TLS, to a port that takes both: before, within and after a handshake."""

import asyncio
import ssl
from pathlib import Path
from random import Random
from typing import Any, cast

from keelmq.remoting.command import RemotingCommand, encode
from keelmq.remoting.peer_limits import Limits, PeerLimits
from keelmq.remoting.servers.tcp import TcpServer
from tests.fuzz.frames import FakeTransport, Finding
from tests.fuzz.security import damage
from tests.support.raft_certificates import Authority
from tests.support.server_parts import FAST_PATH_CODE, table
from tests.support.tls_parts import client_hello, server_tls

SESSION = b"session"
"""An input that begins with it is damage of a whole session: a handshake of its own, and records behind."""


class Wire(FakeTransport):
    """A transport whose protocol changes, as transport.set_protocol() does."""

    protocol: Any = None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("10.9.9.9", 4660) if name == "peername" else default

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def deliver(self, data: bytes) -> None:
        while data and not self.closing:
            buffer = self.protocol.get_buffer(-1)
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            self.protocol.buffer_updated(size)
            data = data[size:]

    def taken(self) -> bytes:
        written, self.written = b"".join(self.written), []
        return written


class TlsRecords:
    """Afterwards nothing waits, no connection is open, and nothing is held of it."""

    name = "tls"
    allowed: tuple[type[Exception], ...] = ()

    def __init__(self, random: Random, path: Path) -> None:
        self.random = random
        self.runner = asyncio.Runner()
        self.runner.get_loop().set_exception_handler(self._loop_error)
        self.errors: list[str] = []
        self.limits = PeerLimits(Limits(connections=10, connections_per_address=10))
        self.server = TcpServer(
            table(), host="127.0.0.1", port=0, name="fuzz", limits=self.limits,
            tls=server_tls(Authority(path / "ca")),
        )  # fmt: skip
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.context.check_hostname, self.context.verify_mode = False, ssl.CERT_NONE

    def _loop_error(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.errors.append(f"{context.get('message')} {context.get('exception')!r}")

    def make(self) -> bytes:
        random = self.random
        if random.random() < 0.3:
            return SESSION + random.randbytes(8)
        frame = encode(
            RemotingCommand(FAST_PATH_CODE, 1, ext_fields={"e": "0"}, body=bytes(random.choice((0, 100))))
        )
        hello = client_hello()
        return damage(random, random.choice((hello, hello, frame, hello + frame, b"GET / HTTP/1.1\r\n\r\n")))

    def size(self, value: bytes) -> int:
        return len(value) + (20_000 if value.startswith(SESSION) else 0)

    def run(self, value: bytes) -> str:
        return self.runner.run(self._run(value))

    async def _run(self, value: bytes) -> str:
        port = self.server.tls_port
        assert port is not None
        wire = Wire()
        wire.set_protocol(port.accepted())
        wire.protocol.connection_made(cast(asyncio.BaseTransport, wire))
        if value.startswith(SESSION):
            outcome = await self._session(wire, Random(value))
        else:
            cut = len(value) // 2
            wire.deliver(value[:cut])
            wire.deliver(value[cut:])
            outcome = "closed" if wire.closing else "open"
        wire.closing = True
        wire.protocol.connection_lost(None)
        for _ in range(3):
            await asyncio.sleep(0)
        if (
            port.waiting
            or self.server.connection_count
            or self.limits.remembered
            or self.limits.partial_bytes
        ):
            raise Finding("something is left of a connection that is gone")
        if self.errors:
            raise Finding(self.errors.pop())
        return outcome

    async def _session(self, wire: Wire, random: Random) -> str:
        """A handshake, whole or damaged at one flight, and records with frames, damaged at some."""
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        layer = self.context.wrap_bio(incoming, outgoing)
        damaged_flight = random.randrange(6)
        for flight in range(4):
            try:
                layer.do_handshake()
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError:
                return "client gave up"
            else:
                wire.deliver(outgoing.read())
                break
            sent = outgoing.read()
            wire.deliver(damage(random, sent) if flight == damaged_flight else sent)
            if wire.closing:
                return "handshake refused"
            incoming.write(wire.taken())
        else:
            return "no handshake"
        answers = 0
        for opaque in range(random.randrange(1, 6)):
            body = bytes(random.choice((0, 10, 40_000)))
            layer.write(encode(RemotingCommand(FAST_PATH_CODE, opaque, ext_fields={"e": "0"}, body=body)))
            records = outgoing.read()
            wire.deliver(damage(random, records) if random.random() < 0.3 else records)
            answers += bool(wire.taken())
        return "served" if answers else "nothing served"

    def check(self) -> None:
        assert self.limits.connection_count == 0

    def close(self) -> None:
        self.runner.run(self.server.close())
        self.runner.close()
