"""TlsPort: one listening port for plain connections and for TLS. The first byte decides.

A TLS handshake begins with 0x16; a frame of RocketMQ and a request of HTTP never do. Until that byte is here,
and until the handshake is over, a connection is waiting: `waiting_max` of them at most, the oldest one is
aborted for a new one, and each only until its deadline. Afterwards a plain connection has the transport of
the event loop, and nothing of this module is called for it again.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, cast

from keelmq.runtime.clock import now_ms
from keelmq.runtime.rate_limited_log import RateLimitedLogger
from keelmq.runtime.tls.contexts import PortTls
from keelmq.runtime.tls.transport import AnyProtocol, BufferedTls, StreamTls, TlsError, TlsTransport

logger = logging.getLogger(__name__)

TLS_HANDSHAKE: Final = 0x16
FIRST_BYTE_MS: Final = 30_000
"""Time limit from accept to the first byte."""
HANDSHAKE_MS: Final = 10_000
"""Time limit from the first byte to the end of the handshake, however slowly its bytes come."""
WAITING_MAX: Final = 1_024
"""Connections without a first byte or within a handshake."""

HANDSHAKES: Final = "handshakes"
FAILED: Final = "failed"
TIMED_OUT: Final = "timed_out"
EVICTED: Final = "evicted"
PLAIN_REFUSED: Final = "plain_refused"
TLS_REFUSED: Final = "tls_refused"
REFUSED: Final = "refused"


class TlsPort:
    """`make_protocol` makes what plain and decrypted bytes go to, when a connection is accepted: the order of
    connections is that in which they came. `scratch`: the buffer for reads, where
    that protocol is a BufferedProtocol; None: it is a Protocol. `name` is for log lines. `enter` is asked
    about each connection and its host, and returns why it is refused, or None; `leave` is called when it does
    not wait any more. `hello` is asked about the host of each handshake, as `enter` is."""

    def __init__(
        self,
        tls: PortTls,
        make_protocol: Callable[[], AnyProtocol],
        *,
        name: str,
        scratch: memoryview | None = None,
        first_byte_ms: int = FIRST_BYTE_MS,
        handshake_ms: int = HANDSHAKE_MS,
        waiting_max: int = WAITING_MAX,
        enter: "Callable[[WaitingConnection, str], str | None]" = lambda _connection, _host: None,
        leave: "Callable[[WaitingConnection], None]" = lambda _connection: None,
        hello: Callable[[str], str | None] = lambda _host: None,
    ) -> None:
        self.tls, self.make_protocol, self.name, self.scratch = tls, make_protocol, name, scratch
        self.first_byte_ms, self.handshake_ms, self.waiting_max = first_byte_ms, handshake_ms, waiting_max
        self.waiting: dict[WaitingConnection, None] = {}
        """In the order of their arrival."""
        self._enter, self.leave, self.hello = enter, leave, hello
        self.counts = tls.counts.setdefault(name, Counter())
        self.told = RateLimitedLogger(logger)
        self.is_closed = False

    def accepted(self) -> AnyProtocol:
        """Returns the protocol of a new connection: the factory of loop.create_server()."""
        return StreamWaiting(self) if self.scratch is None else BufferedWaiting(self, self.scratch)

    def enter(self, connection: "WaitingConnection", host: str) -> None:
        problem = self._enter(connection, host)
        if problem is not None:
            self.refuse(connection, REFUSED, problem)
            return
        if len(self.waiting) >= self.waiting_max:
            oldest = next(iter(self.waiting))
            self.refuse(oldest, EVICTED, f"{self.waiting_max} connections wait for a handshake")
        self.waiting[connection] = None

    def refuse(self, connection: "WaitingConnection", kind: str, why: str) -> None:
        """Aborts a waiting connection. `kind` is counted."""
        self.counts[kind] += 1
        self.told.tell(now_ms(), "%s: closed %s: %s", self.name, connection.address, why)
        connection.abort()

    def close(self) -> None:
        """Aborts all that wait, and all that come."""
        self.is_closed = True
        for connection in list(self.waiting):
            connection.abort()


class WaitingConnection:
    """A connection until it is known what it speaks and, with TLS, until the end of its handshake."""

    is_admitted = False
    """The peer has not authenticated yet."""

    def __init__(self, port: TlsPort) -> None:
        self._port = port
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._first: bytes = b""
        self._protocol = port.make_protocol()
        self.address, self._host = "?", ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if peer := transport.get_extra_info("peername"):
            self.address, self._host = f"{peer[0]}:{peer[1]}", str(peer[0])
        if self._port.is_closed:
            self._transport.abort()
            return
        self._port.enter(self, self._host)
        if not self._transport.is_closing():
            self._deadline(self._port.first_byte_ms, "no byte came")

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        """Nothing is written here."""

    def resume_writing(self) -> None:
        """Nothing is written here."""

    def evict(self, problem: str) -> None:
        """Logs the problem and closes at once."""
        self._port.refuse(self, EVICTED, problem)

    def abort(self) -> None:
        self._leave()
        if self._transport is not None:
            self._transport.abort()

    def _deadline(self, delay_ms: int, problem: str) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(
            delay_ms / 1000, lambda: self._port.refuse(self, TIMED_OUT, f"{problem} in {delay_ms} ms")
        )

    def _leave(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._port.waiting.pop(self, None)
        self._port.leave(self)

    def first(self, data: bytes) -> None:
        """The first bytes are here."""
        port, transport = self._port, self._transport
        if transport is None or transport.is_closing():
            return
        if data[0] != TLS_HANDSHAKE:
            if port.tls.mode == "enforcing":
                port.refuse(self, PLAIN_REFUSED, "it does not speak TLS, which is enforced here")
            else:
                self._plain(transport, data)
            return
        if not port.tls.accepts_tls:
            port.refuse(self, TLS_REFUSED, "it speaks TLS, and there is no certificate: tls.server.certPath")
            return
        if (problem := port.hello(self._host)) is not None:
            port.refuse(self, REFUSED, problem)
            return
        self._deadline(port.handshake_ms, "no TLS handshake")
        self._first = data
        if port.tls.is_made:
            self._handshake()
        else:
            transport.pause_reading()
            port.tls.make_soon(self._made)

    def _plain(self, transport: asyncio.Transport, data: bytes) -> None:
        self._leave()
        protocol = self._protocol
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if isinstance(protocol, asyncio.BufferedProtocol):
            memoryview(protocol.get_buffer(len(data)))[: len(data)] = data
            protocol.buffer_updated(len(data))
        else:
            protocol.data_received(data)

    def _made(self, problem: str | None) -> None:
        """The context of a self-signed certificate is there, or cannot be made."""
        transport = self._transport
        if self not in self._port.waiting or transport is None or transport.is_closing():
            return
        if problem is not None:
            self._port.refuse(self, FAILED, problem)
            return
        self._handshake()
        if not transport.is_closing():
            transport.resume_reading()

    def _handshake(self) -> None:
        transport, port = self._transport, self._port
        assert transport is not None
        options: dict[str, Any] = {
            "server_side": True,
            "make_protocol": lambda: self._protocol,
            "on_handshake": self._over,
        }
        layer: BufferedTls | StreamTls
        if port.scratch is None:
            layer = StreamTls(port.tls.context, **options)
        else:
            layer = BufferedTls(port.scratch, port.tls.context, **options)
        transport.set_protocol(layer)
        layer.connection_made(transport)
        data, self._first = self._first, b""
        layer.received(data)

    def _over(self, _layer: TlsTransport, error: TlsError | None) -> None:
        if self not in self._port.waiting:
            return  # it was refused already
        if error is None:
            self._leave()
            self._port.counts[HANDSHAKES] += 1
            return
        self._leave()
        self._port.counts[FAILED] += 1
        self._port.told.tell(
            now_ms(), "%s: closed %s: TLS handshake failed: %s", self._port.name, self.address, error
        )


class BufferedWaiting(WaitingConnection, asyncio.BufferedProtocol):
    """Before a BufferedProtocol. They share one buffer: nothing stays in it between two calls."""

    def __init__(self, port: TlsPort, scratch: memoryview) -> None:
        super().__init__(port)
        self._scratch = scratch

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        self.first(bytes(self._scratch[:nbytes]))


class StreamWaiting(WaitingConnection, asyncio.Protocol):
    """Before a Protocol."""

    def data_received(self, data: bytes) -> None:
        self.first(data)
