"""Requests of clients that do not speak remoting: those of gRPC, whose proxy is in this process, or sends
them from another one (29007).

Each is judged here, as its client's: by the credential and the address of the client. So a proxy needs no
users and no rights of its own to a topic, and what only the master of a message can check (the topic of a
half message) is checked there."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any, Final

import msgspec

from keelmq.remoting.address_text import split_address
from keelmq.remoting.addresses import host_and_port_bytes
from keelmq.remoting.codes import RequestCode, ResponseCode
from keelmq.remoting.command import RemotingCommand, decode
from keelmq.remoting.dispatch import Dispatcher, record
from keelmq.remoting.frame import LENGTH_BYTES
from keelmq.remoting.operation import (
    ANYBODY,
    Call,
    CommandError,
    OperationTable,
    Peer,
    RemoteProtocolError,
    Reply,
)
from keelmq.remoting.operations.clients import SERVE_FOR_CLIENT, ServeForClientRequest
from keelmq.security.core.signature import Credential

NO_ADDRESS: Final = "127.0.0.1:1"
"""Shown as the client's address where it is not known."""
_connection_ids = itertools.count(-1, -1)
"""Below 0: the connections of remoting have the other numbers."""


def is_proxied(peer: Peer) -> bool:
    """Returns whether the request was sent for a client of gRPC."""
    return peer.connection_id < 0


class Sender(msgspec.Struct, frozen=True):
    """A client. credential: what it has signed; None: it is anonymous, or nothing is checked."""

    address: str
    credential: Credential | None = None

    def is_same_user(self, other: "Sender") -> bool:
        """Returns whether both are of one user. Anonymous ones are all alike."""
        return self.access_key == other.access_key

    @property
    def access_key(self) -> str:
        """The user's name; "": it is anonymous."""
        return "" if self.credential is None else self.credential.access_key

    def header(self, *, judge_only: bool = False) -> ServeForClientRequest:
        """Returns the header of 29007 for a request of this client."""
        access_key, signature, signed = self.credential or (None, None, b"")
        return ServeForClientRequest(
            client_address=self.address,
            access_key=access_key,
            signature=signature,
            signed_text=signed.decode() or None,
            judge_only=judge_only,
        )


class ClientPeer:
    """The client of one request, as the access check and handlers see it. `answer` gets the frame that they
    send, once."""

    is_tls = False
    certificate_names: tuple[str, ...] = ()
    is_admitted = True

    def __init__(self, sender: Sender, answer: Callable[[bytes], bool], is_gone: Callable[[], bool]) -> None:
        self.connection_id = next(_connection_ids)
        self.address, self.credential = sender.address, sender.credential
        self.send, self.is_closing = answer, is_gone
        self.in_flight = self.in_flight_bytes = 0
        self.known_requests: Any = None

    @property
    def address_bytes(self) -> bytes:
        """Returns the client's address and port as records store them."""
        return host_and_port_bytes(*split_address(self.address))

    def is_paused(self) -> bool:
        """Returns False: an answer is one object in memory."""
        return False

    def write_parts(self, parts: list[bytes | memoryview]) -> bool:
        """As send(), for a frame in parts."""
        return self.send(b"".join(parts))

    def refuse_request(self) -> str | None:
        """Returns None: the proxy has its own limits."""
        return None

    def admitted(self) -> None:
        """Called once the access check has let the request pass."""


class ProxiedRequests:
    """Serves a table to clients of gRPC."""

    name = "requests of proxies"

    def __init__(self, table: OperationTable) -> None:
        self._table = table
        self._dispatcher = Dispatcher(table, name="proxy")

    def bind(self) -> None:
        """Binds 29007, whose answer is that of the request in its body."""
        self._table.bind(SERVE_FOR_CLIENT, self.serve_for_client)

    @property
    def checks_access(self) -> bool:
        """Returns whether clients need a signature, or rights."""
        return self._table.access is not None

    def judge(self, command: RemotingCommand, sender: Sender) -> None:
        """Raises CommandError if the client may not send this request now. The refusal is in the audit log
        then, as one of remoting."""
        access = self._table.access
        if access is None:
            return
        peer = ClientPeer(sender, lambda frame: False, lambda: True)
        try:
            access.admit(command, peer)
        except CommandError as error:
            record(self._table, command, peer, ANYBODY, error.code, error.remark, {})
            raise

    def unchecked(self) -> "ProxiedRequests":
        """Returns the same table without an access check: for requests of this server itself."""
        return ProxiedRequests(self._table.with_access(None))

    async def serve(self, command: RemotingCommand, sender: Sender) -> bytes:
        """Returns the answer's frame."""
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def answered(frame: bytes) -> bool:
            if answer.done():
                return False
            answer.set_result(frame)
            return True

        peer = ClientPeer(sender, answered, answer.done)
        return self._dispatcher.request(command, peer) or await answer

    async def serve_for_client(self, header: ServeForClientRequest, call: Call) -> Reply | None:
        """Serves a request that a proxy sends for its client (29007). Its answer has the opaque of this
        request. Raises CommandError."""
        sender = _sender_of(header)
        try:
            request = decode(call.raw_body[LENGTH_BYTES:])
        except RemoteProtocolError as error:
            raise CommandError(ResponseCode.INVALID_PARAMETER, f"the body is no request: {error}") from None
        if request.code == RequestCode.KEELMQ_SERVE_FOR_CLIENT or request.is_response:
            raise CommandError(ResponseCode.INVALID_PARAMETER, "the body is no request of a client")
        if header.judge_only:
            self.judge(request, sender)
            return Reply()
        request.opaque = call.opaque
        client = ClientPeer(sender, call.peer.send, call.peer.is_closing)
        frame = self._dispatcher.request(request, client)
        if frame is not None:
            call.peer.send(frame)
        return None

    async def close(self) -> None:
        """Ends the requests that are being served."""
        await self._dispatcher.close()


def _sender_of(header: ServeForClientRequest) -> Sender:
    """Raises CommandError."""
    try:
        split_address(header.client_address)
    except ValueError as error:
        raise CommandError(ResponseCode.INVALID_PARAMETER, f"clientAddress: {error}") from None
    if header.access_key is None:
        return Sender(header.client_address)
    signed = (header.signed_text or "").encode()
    return Sender(header.client_address, Credential(header.access_key, header.signature or "", signed))
