"""RemotingClient: calls to other processes over one shared connection per address.

Every call ends Ok, Failed or Unknown. Failed: the request was surely not carried out. Unknown: it may have
been, after a timeout or a lost connection. The client repeats no request, except once after GO_AWAY (the
server did not accept it).
"""

import asyncio
import itertools
import logging
import os
import socket
import weakref
from collections.abc import Callable, Collection
from typing import Any, Final, NamedTuple, Protocol, TypeVar, cast, runtime_checkable

from keelmq.remoting.address_text import split_address
from keelmq.remoting.close_all import close_all
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.command import (
    BadRequest,
    RemotingCommand,
    decode_body,
    encode,
    parse_header,
    request_command,
)
from keelmq.remoting.connection import SCRATCH_BYTES, Connection
from keelmq.remoting.dispatch import Dispatcher
from keelmq.remoting.operation import Failed, Ok, Operation, OperationTable, Outcome, Unknown, Wire
from keelmq.runtime.backoff import Backoff
from keelmq.runtime.config import why_refused
from keelmq.runtime.stop_steps import StopSteps
from keelmq.runtime.tasks import cancel_all
from keelmq.runtime.tls.contexts import ClientTls, Tls
from keelmq.runtime.tls.dial import open_tls
from keelmq.runtime.tls.transport import TlsError

logger = logging.getLogger(__name__)

LOST = " lost"
"""The end of the remark of a call whose connection was closed, without TLS."""
PENDING_MAX = 65_535
"""Calls that may wait on one connection; more fail at once."""
OPAQUE_MASK = 0x7FFFFFFF
UNACKNOWLEDGED_MS = 5_000
"""A connection ends when the other machine does not acknowledge sent bytes for this long; the system's own
limit is a quarter of an hour. The next call resolves the name again, in case the peer has a new address."""

Resp = TypeVar("Resp", bound=Wire)

_opaques = itertools.count(1)


@runtime_checkable
class RepeatingSigner(Protocol):
    """A signer that may know another way to sign a request that a server has refused."""

    def signs_anew(self, address: str, remark: str) -> bool:
        """Whether requests to this address are signed in another way from now on."""


TLS_BACKOFF: Final = Backoff(100, 5_000)
"""Pauses after refused certificates. Renewed ones are used within 5 s as well."""
DISTRUSTED_MAX: Final = 10_000
"""Addresses; more begin anew."""


class _Distrusted(NamedTuple):
    """An address whose last handshakes ended with a refused certificate. until_s: the loop's time before
    which there is no other handshake."""

    failures: int
    until_s: float
    reason: str


class RemotingClient:
    """Calls other processes. `table` serves requests that the other end pushes (1008). `on_closed` gets the
    address of every established connection that ends, except during close(). `drop_silent_ms`: a connection
    on which nothing arrived during a whole timed-out call of at least this duration is closed (half-open
    links); None: never. `tls`: for all connections; False: plain, unless connect_with() was called.
    `signer`: called with every request, and the address that the connection goes to, just before it is
    encoded; it may set ext fields. None: requests are not signed, unless sign_with() was called. A
    RepeatingSigner may have a refused request signed and sent once more.
    `on_refused(address, operation's name, remark)`: a request was answered with NO_PERMISSION. In a child
    process that was forked after the client was made, every call raises RuntimeError, and so does a call in
    another event loop than the first one."""

    def __init__(
        self,
        table: OperationTable | None = None,
        *,
        connect_timeout_ms: int = 3000,
        on_closed: Callable[[str], None] | None = None,
        drop_silent_ms: int | None = None,
        tls: Tls = False,
        signer: Callable[[RemotingCommand, str], None] | None = None,
        on_refused: Callable[[str, str, str], None] | None = None,
    ) -> None:
        self._dispatcher = Dispatcher(table or OperationTable(), name="client")
        self._connect_timeout_ms, self.drop_silent_ms = connect_timeout_ms, drop_silent_ms
        self._on_closed, self._signer, self._on_refused = on_closed, signer or _default_signer, on_refused
        self.tls = ClientTls.of(tls) or _default_tls
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._connections: dict[str, Connection] = {}
        self._open: set[Connection] = set()  # includes those that left the table but are not closed yet
        self._connecting: dict[str, asyncio.Task[Connection | str]] = {}
        self._distrusted: dict[str, _Distrusted] = {}
        self._closed = self._inherited = False
        self._loop: asyncio.AbstractEventLoop | None = None  # of the first call: it has the connections
        _clients.add(self)

    async def call(
        self,
        address: str,
        operation: Operation[Any, Resp],
        header: Wire,
        body: object = None,
        *,
        timeout_ms: int = 3000,
        good: Collection[int] = (ResponseCode.SUCCESS,),
    ) -> Outcome[Resp]:
        """Sends one request and returns its outcome; connecting counts against timeout_ms. Codes in `good`
        are Ok."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        response: RemotingCommand | Failed | Unknown = Unknown("not sent")
        for _ in range(2):
            connection = await self._connection(address, deadline - loop.time())
            if isinstance(connection, str):
                return Failed(ResponseCode.RPC_SEND_TO_CHANNEL_FAILED, connection)
            command = request_command(operation, header, body)
            response = await self._exchange(connection, address, command, deadline)
            if not isinstance(response, RemotingCommand):
                break
            if response.code == ResponseCode.GO_AWAY:
                self._forget(address, connection)  # again over a new connection, in the remaining time
            elif not self._signs_anew(connection, response):
                break
        if not isinstance(response, RemotingCommand):
            return response
        if response.code == ResponseCode.NO_PERMISSION and self._on_refused is not None:
            self._on_refused(address, operation.name, response.remark or "")
        return outcome_of(operation, response, address, good)

    async def oneway(
        self, address: str, operation: Operation[Any, Any], header: Wire, body: object = None
    ) -> bool:
        """Sends a request that gets no response. False: surely not sent."""
        command = request_command(operation, header, body, oneway=True)
        command.opaque = next(_opaques) & OPAQUE_MASK
        if self._signer is not None:
            connection = await self._connection(address, self._connect_timeout_ms / 1000)
            if isinstance(connection, str):
                return False
            self._signer(command, connection.peer_address)
        return await self.send(address, encode(command))

    async def send(self, address: str, frame: bytes) -> bool:
        """Sends a whole frame of a oneway request, which no signer sees. False: surely not sent."""
        connection = self._connections.get(address)
        if connection is None or connection.is_closing():
            found = await self._connection(address, self._connect_timeout_ms / 1000)
            if isinstance(found, str):
                return False
            connection = found
        return connection.send(frame)

    @property
    def connections(self) -> frozenset[Connection]:
        """The connections that are open now, also those that are closing."""
        return frozenset(self._open)

    def address_of(self, connection_id: int) -> str | None:
        """Returns the address that was dialled for this connection (Peer.connection_id): a request that the
        other end pushes names the socket only. None: it is not the connection that calls use."""
        found = (each for each, made in self._connections.items() if made.connection_id == connection_id)
        return next(found, None)

    def connect_soon(self, address: str) -> None:
        """Opens the connection in the background, unless there is one: a call that follows need not wait for
        it. If the address cannot be reached, that call reports it, not this one."""
        connection = self._connections.get(address)
        if (connection is None or connection.is_closing()) and not self._closed and not self._inherited:
            self._connecting_to(address)

    def drop(self, address: str) -> None:
        """Aborts the connection, if there is one: its waiting calls end Unknown now, not at their
        timeouts."""
        connection = self._connections.get(address)
        if connection is not None:
            self._forget(address, connection)
            connection.abort()

    async def close(self) -> None:
        """Closes every connection; waiting calls end with Unknown. May be called twice."""
        if self._inherited:
            return
        self._closed = True
        await cancel_all(self._connecting.values())
        self._connections.clear()
        steps = StopSteps("client")
        steps.add("running handlers", self._dispatcher.close)
        steps.add("connections", lambda: close_all(self._open))
        await steps.run()

    def forked(self) -> None:
        """Resets this object in a forked child: the connections are the parent's, and a byte sent from the
        child would corrupt them."""
        self._inherited = True
        self._connections = {}  # the rest is kept, so that nothing of it is closed here

    # ---- calls ----

    async def _exchange(
        self, connection: Connection, address: str, command: RemotingCommand, deadline: float
    ) -> RemotingCommand | Failed | Unknown:
        """Sends one command and waits for its response. `deadline`: in loop time."""
        pending = connection.pending
        if len(pending) >= PENDING_MAX:
            return Failed(ResponseCode.SYSTEM_BUSY, f"{len(pending)} calls wait for {address}")
        opaque = next(_opaques) & OPAQUE_MASK
        while opaque in pending:
            opaque = next(_opaques) & OPAQUE_MASK
        command.opaque = opaque
        if self._signer is not None:
            self._signer(command, connection.peer_address)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[RemotingCommand | None] = loop.create_future()
        pending[opaque] = future
        activity, started = connection.activity + 1, loop.time()  # the write below counts one
        timer = loop.call_at(deadline, _expire, future)
        try:
            if not connection.send(encode(command)):
                return Failed(
                    ResponseCode.RPC_SEND_TO_CHANNEL_FAILED, f"{address} is closing{self._why(connection)}"
                )
            response = await future
        except TimeoutError:
            waited_ms = (loop.time() - started) * 1000
            self._timed_out(connection, address, activity, waited_ms)
            return Unknown(f"no answer from {address} after {waited_ms:.0f} ms")
        finally:
            timer.cancel()
            pending.pop(opaque, None)
        if response is not None:
            return response
        return Unknown(f"connection to {address}{LOST}{self._why(connection)}")

    def _signs_anew(self, connection: Connection, response: RemotingCommand) -> bool:
        return (
            response.code == ResponseCode.NO_PERMISSION
            and isinstance(self._signer, RepeatingSigner)
            and self._signer.signs_anew(connection.peer_address, response.remark or "")
        )

    def _why(self, connection: Connection) -> str:
        fault = connection.tls_fault
        return "" if fault is None or self.tls is None else f": {self.tls.explain(str(fault))}"

    def _timed_out(self, connection: Connection, address: str, activity: int, waited_ms: float) -> None:
        if self.drop_silent_ms is None or waited_ms < self.drop_silent_ms:
            return
        if connection.activity == activity:
            logger.info("client: closed %s: nothing arrived for %d ms", address, waited_ms)
            self._forget(address, connection)
            connection.abort()

    # ---- connections ----

    async def _connection(self, address: str, timeout_s: float) -> Connection | str:
        """Returns the shared connection, or the reason why there is none. Callers share attempts; one that
        runs out of time leaves the attempt to the others."""
        if self._inherited:
            raise RuntimeError(
                "this client was opened before the process was forked, and its connections are the parent's: "
                "open another one in the child"
            )
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise RuntimeError(
                "this client was used in another event loop, which has its connections: open another client "
                "in this loop (each asyncio.run() has a loop of its own)"
            )
        connection = self._connections.get(address)
        if connection is not None and not connection.is_closing():
            return connection
        if self._closed:
            return "client is closed"
        distrusted = self._distrusted.get(address)
        if distrusted is not None and address not in self._connecting and loop.time() < distrusted.until_s:
            return distrusted.reason
        task = self._connecting_to(address)
        await asyncio.wait((task,), timeout=max(timeout_s, 0))
        if not task.done():
            return f"cannot connect to {address}: no connection in time"
        return "client is closed" if task.cancelled() else task.result()

    def _connecting_to(self, address: str) -> asyncio.Task[Connection | str]:
        task = self._connecting.get(address)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._connect(address))
            self._connecting[address] = task
            task.add_done_callback(lambda _: self._connecting.pop(address, None))
        return task

    async def _connect(self, address: str) -> Connection | str:
        try:
            host, port = split_address(address)
            async with asyncio.timeout(self._connect_timeout_ms / 1000):
                transport, connection = await self._dial(address, host, port)
        except TimeoutError:
            return f"cannot connect to {address}: no answer in {self._connect_timeout_ms} ms"
        except TlsError as error:
            assert self.tls is not None
            reason = f"cannot connect to {address}: {self.tls.explain(str(error))}"
            if error.__cause__ is not None:
                self._distrust(address, reason)
            return reason
        except OSError as error:
            return f"cannot connect to {address}: {why_refused(error)}"
        except ValueError as error:
            return f"cannot connect to {address}: {error}"
        sock = transport.get_extra_info("socket")
        if sock is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS)
        self._distrusted.pop(address, None)
        if not connection.is_closing():
            self._connections[address] = connection
        return connection

    def _distrust(self, address: str, reason: str) -> None:
        """A certificate was refused, by this end or the other one, which the next handshake would not change:
        calls fail at once until a pause is over, without a handshake that costs both ends CPU time."""
        before = self._distrusted.get(address)
        failures = 1 if before is None else before.failures + 1
        until_s = asyncio.get_running_loop().time() + TLS_BACKOFF.limit_ms(failures) / 1000
        if len(self._distrusted) >= DISTRUSTED_MAX:
            self._distrusted.clear()
        self._distrusted[address] = _Distrusted(failures, until_s, reason)

    async def _dial(self, address: str, host: str, port: int) -> tuple[asyncio.Transport, Connection]:
        def made() -> Connection:
            return Connection(
                self._dispatcher,
                self._scratch,
                on_made=self._open.add,
                on_lost=lambda lost: self._lost(address, lost),
            )

        if self.tls is not None:
            found = await open_tls(self.tls, made, host, port, self._scratch)
            return found, cast(Connection, found.protocol)
        return await asyncio.get_running_loop().create_connection(made, host, port)

    def _forget(self, address: str, connection: Connection) -> None:
        if self._connections.get(address) is connection:
            del self._connections[address]

    def _lost(self, address: str, connection: Connection) -> None:
        self._open.discard(connection)
        self._forget(address, connection)
        if self._on_closed is not None and not self._closed:
            self._on_closed(address)


def _forked() -> None:
    for client in list(_clients):
        client.forked()


def connect_with(tls: ClientTls | None) -> None:
    """For command lines: clients that are made from now on, and get no `tls` of their own, use this one."""
    global _default_tls
    _default_tls = tls


def sign_with(signer: Callable[[RemotingCommand, str], None] | None) -> None:
    """For command lines: clients that are made from now on, and get no `signer` of their own, use this
    one."""
    global _default_signer
    _default_signer = signer


_default_tls: ClientTls | None = None
_default_signer: Callable[[RemotingCommand, str], None] | None = None
_clients: "weakref.WeakSet[RemotingClient]" = weakref.WeakSet()
os.register_at_fork(after_in_child=_forked)


def _expire(future: asyncio.Future[RemotingCommand | None]) -> None:
    if not future.done():
        future.set_exception(TimeoutError())


def outcome_of(
    operation: Operation[Any, Resp], response: RemotingCommand, address: str, good: Collection[int]
) -> Outcome[Resp]:
    """Returns what a response means. address: of the server, for the text of a wrong one."""
    try:
        header = parse_header(operation.response, response.ext_fields)
        body = decode_body(operation.response_body, response.body)
    except BadRequest as error:
        if response.code in good:
            return Unknown(f"{address} answers {operation.name} with {error.remark}")
        return Failed(response.code, response.remark or "")
    if response.code in good:
        return Ok(header, body, response.code, response.remark or "")
    return Failed(response.code, response.remark or "", header, body)
