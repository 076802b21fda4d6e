"""Connections of slaves to a broker that is not master: they wait a moment, because it may become master.

Slaves learn of an election when the new master does, and connect while it still prepares its term. A slave
that is refused then returns after a pause, and its TLS handshake would use the CPU that the promotion needs.
So bytes of such a connection are not processed until this broker is master.
"""

import asyncio
from collections.abc import Callable
from typing import Final, cast

HOLD_MS: Final = 500
"""A promotion needs about 5 ms."""
PRODUCERS_FIRST_MS: Final = 15
"""A new master that may acknowledge alone answers waiting producers before it serves its slaves, whose TLS
handshakes and first packets occupy its event loop for some ms."""


class HeldConnections:
    """The connections that wait; `accepted` is a factory for loop.create_server(). `are_served`: this broker
    is master, and they need not wait."""

    are_served = False

    def __init__(
        self,
        make_protocol: Callable[[], asyncio.Protocol],
        *,
        on_refused: Callable[[str, str], None],
        waiting_max: int,
        hold_ms: int = HOLD_MS,
    ) -> None:
        """make_protocol: for a connection that is accepted. on_refused(address, why): one was closed."""
        self.make_protocol = make_protocol
        self._on_refused = on_refused
        self._waiting_max, self._hold_ms = waiting_max, hold_ms
        self._waiting: dict[HeldConnection, asyncio.TimerHandle] = {}
        self._serving_soon: asyncio.TimerHandle | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def accepted(self) -> asyncio.Protocol:
        """Returns the protocol of a new connection."""
        return self.make_protocol() if self.are_served else HeldConnection(self)

    def enter(self, connection: "HeldConnection") -> None:
        """Holds a new connection, or closes it."""
        if self._closed:  # since it was accepted
            connection.abort()
            return
        if len(self._waiting) >= self._waiting_max:
            self._refuse(connection, f"{self._waiting_max} wait for this broker to be master")
            return
        loop = asyncio.get_running_loop()
        self._waiting[connection] = loop.call_later(self._hold_ms / 1000, self._overdue, connection)
        if self.are_served:  # since it was accepted; in connection_made() it cannot go on yet
            loop.call_soon(self._go_on)

    def leave(self, connection: "HeldConnection") -> None:
        """Forgets a connection that was lost."""
        if (timer := self._waiting.pop(connection, None)) is not None:
            timer.cancel()

    def serve(self, after_ms: int) -> None:
        """Serves waiting and new connections, beginning `after_ms` from now: this broker is master."""
        self.hold()
        if after_ms:
            self._serving_soon = asyncio.get_running_loop().call_later(after_ms / 1000, self._serve)
        else:
            self._serve()

    def hold(self) -> None:
        """Serves no new connection from now on: this broker is not master."""
        self.are_served = False
        if self._serving_soon is not None:
            self._serving_soon.cancel()
            self._serving_soon = None

    def _serve(self) -> None:
        self.are_served = True
        self._go_on()

    def _go_on(self) -> None:
        if not self.are_served:
            return
        for connection in list(self._waiting):
            self.leave(connection)
            connection.go_on()

    def close(self) -> None:
        """Aborts all connections, and those that are made from now on."""
        self._closed = True
        self.hold()
        for connection in list(self._waiting):
            self.leave(connection)
            connection.abort()

    def _overdue(self, connection: "HeldConnection") -> None:
        self._refuse(connection, "this broker is not master")

    def _refuse(self, connection: "HeldConnection", why: str) -> None:
        self.leave(connection)
        self._on_refused(connection.address, why)
        connection.abort()


class HeldConnection(asyncio.Protocol):
    """A waiting connection: it keeps the bytes of one read, and reads no more."""

    def __init__(self, held: HeldConnections) -> None:
        self._held = held
        self._transport: asyncio.Transport | None = None
        self._kept = b""
        self.address = "?"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class is not a subclass of it
        if peer := transport.get_extra_info("peername"):
            self.address = f"{peer[0]}:{peer[1]}"
        self._held.enter(self)

    def data_received(self, data: bytes) -> None:
        self._kept += data
        if self._transport is not None:
            self._transport.pause_reading()  # not in connection_made(): uvloop begins to read after it

    def connection_lost(self, exc: Exception | None) -> None:
        self._held.leave(self)

    def go_on(self) -> None:
        """Passes the connection to the protocol that serves it."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        protocol = self._held.make_protocol()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if self._kept and not transport.is_closing():
            protocol.data_received(self._kept)
        if not transport.is_closing():
            transport.resume_reading()

    def abort(self) -> None:
        """Closes the connection at once."""
        if self._transport is not None:
            self._transport.abort()
