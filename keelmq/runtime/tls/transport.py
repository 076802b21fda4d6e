"""A TLS layer between a transport of the event loop and the protocol above it.

It is not the TLS of the event loop (`ssl=`), because that one begins with the first byte of a connection, so
a port could not serve both; because its write buffer does not count what waits in the transport below, so
bounds on unsent bytes would not hold; and because asyncio and uvloop do it differently.
Invariants: bytes of the protocol are encrypted at once, so the buffer of the transport below is all that is
unsent. While the protocol has paused reading, at most one read of ciphertext is kept.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Iterable
from typing import Any, Final, cast

from keelmq.runtime.tls.names import certificate_names

HANDSHAKE_BYTES_MAX: Final = 262_144
"""Limit of the peer during the handshake: a chain of certificates has some thousand."""
PLAIN_BYTES: Final = 262_144
"""Decrypted bytes that a protocol without its own buffer gets at once."""

AnyProtocol = asyncio.BufferedProtocol | asyncio.Protocol


class TlsError(Exception):
    """The handshake cannot succeed; the text says why. `__cause__`: the ssl.SSLError, if there is one."""


class TlsTransport(asyncio.Transport):
    """The protocol of the transport below, and the transport of the one above.

    make_protocol() is called when the handshake is over; `protocol` is its result. on_handshake gets None
    then, or the error; it is called once, unless the connection is aborted before.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        *,
        server_side: bool,
        make_protocol: Callable[[], AnyProtocol],
        on_handshake: Callable[["TlsTransport", TlsError | None], None],
        server_hostname: str | None = None,
    ) -> None:
        super().__init__()
        self._context = context
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=server_hostname
        )
        self._make_protocol, self._on_handshake = make_protocol, on_handshake
        self.protocol: AnyProtocol | None = None
        self._below: asyncio.Transport | None = None
        self._handshake_bytes = 0
        self._is_over = self._closing = self._reading_paused = self._delivering = False
        self._fault: Exception | None = None

    # ---- protocol of the transport below ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._below = cast(asyncio.Transport, transport)  # uvloop's is none by class
        self._handshake()

    def received(self, data: bytes | memoryview) -> None:
        """Takes ciphertext."""
        if self._closing:
            return
        self._incoming.write(data)
        if self.protocol is None:
            self._handshake_bytes += len(data)
            self._handshake()
        if self.protocol is not None:
            self._deliver()

    def eof_received(self) -> bool:
        if self.protocol is None:
            self._failed(TlsError("the peer closed the connection during the handshake"))
        elif not self._closing:
            self.protocol.eof_received()
        return False  # the transport below closes itself

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        if self.protocol is None:
            self._failed(TlsError("the connection was lost during the handshake"))
        else:
            self.protocol.connection_lost(self._fault or exc)

    def pause_writing(self) -> None:
        if self.protocol is not None:
            self.protocol.pause_writing()

    def resume_writing(self) -> None:
        if self.protocol is not None:
            self.protocol.resume_writing()

    # ---- handshake ----

    def _handshake(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            if self._handshake_bytes > HANDSHAKE_BYTES_MAX:
                self._failed(TlsError(f"the handshake did not end within {HANDSHAKE_BYTES_MAX} bytes"))
            return
        except (ssl.SSLError, ssl.CertificateError) as error:
            self._flush()  # the alert, so that the peer learns the reason
            failure = TlsError(reason_of(error))
            failure.__cause__ = error
            self._failed(failure)
            return
        self._flush()
        self._is_over = True
        self.protocol = self._make_protocol()
        self._on_handshake(self, None)
        self.protocol.connection_made(self)

    def _failed(self, error: TlsError) -> None:
        if not self._is_over:
            self._is_over = True
            self._on_handshake(self, error)
        self._closing = True
        if self._below is not None:
            self._below.close()

    # ---- reading ----

    def _deliver(self) -> None:
        """Decrypts what has arrived; the protocol gets it in pieces as large as its buffer."""
        if self._delivering:
            return
        self._delivering = True
        try:
            more = True
            while more and not self._reading_paused and not self._closing:
                more = self._deliver_once()
        finally:
            self._delivering = False
        self._flush()  # answers to key updates

    def _deliver_once(self) -> bool:
        """Returns whether more may follow."""
        protocol = self.protocol
        if isinstance(protocol, asyncio.BufferedProtocol):
            buffer = memoryview(protocol.get_buffer(-1))
            count, more = self._decrypt(buffer)
            if count:
                protocol.buffer_updated(count)
        else:
            buffer = memoryview(bytearray(PLAIN_BYTES))
            count, more = self._decrypt(buffer)
            if count:
                cast(asyncio.Protocol, protocol).data_received(bytes(buffer[:count]))
        if self._fault is not None:
            self.abort()
        elif not more and self._is_at_end and not self._closing:
            assert self.protocol is not None
            self.protocol.eof_received()
            self.close()
        return more

    _is_at_end = False

    def _decrypt(self, buffer: memoryview) -> tuple[int, bool]:
        """Fills `buffer`: one read of OpenSSL gives one record. Returns the bytes, and whether there is
        more."""
        filled, size = 0, len(buffer)
        while filled < size:
            if not self._incoming.pending and not self._tls.pending():
                return filled, False
            try:
                count = cast(int, self._tls.read(size - filled, buffer[filled:]))
            except ssl.SSLWantReadError:
                return filled, False
            except ssl.SSLZeroReturnError:
                count = 0
            except ssl.SSLError as error:
                self._fault = TlsError(reason_of(error))
                self._fault.__cause__ = error
                return filled, False
            if not count:
                self._is_at_end = True
                return filled, False
            filled += count
        return filled, True

    # ---- transport of the protocol above ----

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "sslcontext":
            return self._context
        if name == "ssl_object":
            return self._tls
        if name == "tls_fault":
            return self._fault
        if name == "certificate_names":
            return certificate_names(self._tls.getpeercert())
        return default if self._below is None else self._below.get_extra_info(name, default)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or not data:
            return
        self._encrypt(data)
        self._flush()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))  # fewer records; it is copied by the encryption anyway

    def _encrypt(self, data: bytes | bytearray | memoryview) -> None:
        try:
            written = self._tls.write(data)
            if written == len(data):
                return
            rest = memoryview(data)
            while rest := rest[written:]:
                written = self._tls.write(rest)  # a record at a time
        except ssl.SSLError as error:
            self._fault = TlsError(reason_of(error))
            self._fault.__cause__ = error
            self.abort()

    def _flush(self) -> None:
        if self._outgoing.pending and self._below is not None and not self._below.is_closing():
            self._below.write(self._outgoing.read())

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        if self.protocol is not None:
            with contextlib.suppress(ssl.SSLError):  # it has written its close_notify then
                self._tls.unwrap()
            self._flush()
        if self._below is not None:
            self._below.close()

    def abort(self) -> None:
        self._closing = True
        if self._below is not None:
            self._below.abort()

    def is_closing(self) -> bool:
        return self._closing or (self._below is not None and self._below.is_closing())

    def pause_reading(self) -> None:
        self._reading_paused = True
        if self._below is not None:
            self._below.pause_reading()

    def resume_reading(self) -> None:
        """What has arrived already is delivered before more is read."""
        self._reading_paused = False
        if self._incoming.pending or self._tls.pending():
            asyncio.get_running_loop().call_soon(self._go_on)
        elif self._below is not None and not self.is_closing():
            self._below.resume_reading()

    def _go_on(self) -> None:
        if self._reading_paused or self._closing:
            return
        self._deliver()
        if not self._reading_paused and self._below is not None and not self.is_closing():
            self._below.resume_reading()

    def is_reading(self) -> bool:
        return not self._reading_paused and not self.is_closing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if self._below is not None:
            self._below.set_write_buffer_limits(high=high, low=low)

    def get_write_buffer_size(self) -> int:
        return 0 if self._below is None else self._below.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return (0, 0) if self._below is None else self._below.get_write_buffer_limits()

    def can_write_eof(self) -> bool:
        return False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = cast(AnyProtocol, protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self.protocol is not None, "before the end of the handshake"
        return self.protocol


class BufferedTls(TlsTransport, asyncio.BufferedProtocol):
    """Reads ciphertext into `scratch`, which all connections of an event loop may share."""

    def __init__(self, scratch: memoryview, context: ssl.SSLContext, **options: Any) -> None:
        super().__init__(context, **options)
        self._scratch = scratch

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        self.received(self._scratch[:nbytes])


class StreamTls(TlsTransport, asyncio.Protocol):
    """For an acceptor whose other connections are asyncio.Protocols: uvloop does not change the kind of a
    protocol while it reads."""

    def data_received(self, data: bytes) -> None:
        self.received(data)


def reason_of(error: Exception) -> str:
    """Returns OpenSSL's words, without the place in its sources."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    return str(error)
