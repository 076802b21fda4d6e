"""Who sends a request: a client of gRPC, as the handlers and the access check of remoting see it."""

import asyncio
import itertools
from typing import Any, Final

import msgspec

from keelmq.remoting.address_text import split_address
from keelmq.remoting.addresses import host_and_port_bytes
from keelmq.security.core.signature import Credential

NO_ADDRESS: Final = "127.0.0.1:1"
"""Shown as the client's address where gRPC does not know it, as on a Unix socket."""
_connection_ids = itertools.count(-1, -1)
"""Below 0: the connections of remoting have the other numbers."""


class Sender(msgspec.Struct, frozen=True):
    """credential: what the client has signed; None: it is anonymous, or nothing is checked."""

    address: str
    credential: Credential | None = None


class InProcessPeer:
    """The client of one request, as handlers see it: `answer` is the frame that they send."""

    is_tls = False
    certificate_names: tuple[str, ...] = ()
    is_admitted = True

    def __init__(self, sender: Sender) -> None:
        self.connection_id = next(_connection_ids)
        self.address, self.credential = sender.address, sender.credential
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.in_flight = self.in_flight_bytes = 0
        self.known_requests: Any = None

    @property
    def address_bytes(self) -> bytes:
        """Returns the client's address and port as records store them."""
        host, port = split_address(self.address)
        return host_and_port_bytes(host.strip("[]"), port)

    def is_closing(self) -> bool:
        """Returns whether nobody waits for the answer any more."""
        return self.answer.done()

    def is_paused(self) -> bool:
        """Returns False: an answer is one object in memory."""
        return False

    def send(self, frame: bytes) -> bool:
        """Ends the wait for the answer. False: nobody waits."""
        if self.answer.done():
            return False
        self.answer.set_result(frame)
        return True

    def write_parts(self, parts: list[bytes | memoryview]) -> bool:
        """As send(), for a frame in parts."""
        return self.send(b"".join(parts))

    def refuse_request(self) -> str | None:
        """Returns None: gRPC's own limits apply."""
        return None

    def admitted(self) -> None:
        """Called once the access check has let the request pass."""
