"""Sends requests of remoting to masters: over TCP, or into the operation table of a broker in this process.

The table serves both protocols: no operation is written twice. A request that names another broker, or
arrives while this broker is not the master of its group, goes over TCP to the master that the route names.
"""

import asyncio
import itertools
from typing import Any, Final, Protocol

import msgspec

from keelmq.client.cluster.routes import TopicRoute
from keelmq.remoting.address_text import split_address
from keelmq.remoting.addresses import host_and_port_bytes
from keelmq.remoting.client import RemotingClient, outcome_of
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.command import decode, request_command
from keelmq.remoting.dispatch import Dispatcher
from keelmq.remoting.frame import LENGTH_BYTES
from keelmq.remoting.operation import Failed, Operation, OperationTable, Outcome, Unknown, Wire

NO_ADDRESS: Final = "127.0.0.1:1"
"""Shown as the client's address where gRPC does not know it, as on a Unix socket."""
ATTEMPT_MS: Final = 3_000
_connection_ids = itertools.count(-1, -1)
"""Below 0: the connections of remoting have the other numbers."""


class BrokerRequest(msgspec.Struct, frozen=True):
    """A request of remoting, once. client_address: of the client of gRPC."""

    operation: Operation[Any, Any]
    header: Wire
    body: object = None
    timeout_ms: int = ATTEMPT_MS
    client_address: str = NO_ADDRESS


class Masters(Protocol):
    """Where requests go."""

    async def call(self, route: TopicRoute, broker_name: str, request: BrokerRequest) -> Outcome[Any]:
        """Sends a request to the master of a group of brokers."""
        ...


class TcpMasters:
    """The masters that routes name, over the connections of a RemotingClient."""

    def __init__(self, client: RemotingClient) -> None:
        self._client = client

    async def call(self, route: TopicRoute, broker_name: str, request: BrokerRequest) -> Outcome[Any]:
        """See Masters.call()."""
        address = route.master(broker_name)
        if address is None:
            return Failed(ResponseCode.SERVICE_NOT_AVAILABLE, route.why_not_writable(broker_name))
        return await self._client.call(
            address, request.operation, request.header, request.body, timeout_ms=request.timeout_ms
        )


class InProcessMaster:
    """The broker of this process while routes name it as the master, and `others` for every other request."""

    def __init__(self, table: OperationTable, address: str, others: Masters) -> None:
        """address: the broker's, as in routes."""
        self._dispatcher = Dispatcher(table, name="proxy")
        self._address, self._others = address, others

    async def call(self, route: TopicRoute, broker_name: str, request: BrokerRequest) -> Outcome[Any]:
        """See Masters.call()."""
        if route.master(broker_name) == self._address:
            return await self.serve(request)
        return await self._others.call(route, broker_name, request)

    async def serve(self, request: BrokerRequest) -> Outcome[Any]:
        """Returns what this broker answers, whatever its role is."""
        command = request_command(request.operation, request.header, request.body)
        peer = InProcessPeer(request.client_address)
        frame = self._dispatcher.request(command, peer)
        try:
            async with asyncio.timeout(request.timeout_ms / 1000):
                frame = frame or await peer.answer
        except TimeoutError:
            return Unknown(f"no answer of this broker after {request.timeout_ms} ms")
        response = decode(frame[LENGTH_BYTES:])
        return outcome_of(request.operation, response, request.client_address, (ResponseCode.SUCCESS,))

    async def close(self) -> None:
        """Ends the requests that are being served."""
        await self._dispatcher.close()


class InProcessPeer:
    """The client of one request, as handlers see it: `answer` is the frame that they send."""

    is_tls = False
    certificate_names: tuple[str, ...] = ()
    is_admitted = True

    def __init__(self, address: str) -> None:
        self.connection_id = next(_connection_ids)
        self.address = address
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
