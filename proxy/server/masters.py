"""Sends requests of remoting to masters: over TCP, or into the operation table of a broker in this process.

The table serves both protocols: no operation is written twice. A request that names another broker, or
arrives while this broker is not the master of its group, goes over TCP to the master that the route names.
"""

import asyncio
import copy
from typing import Any, Final, Protocol

import msgspec

from keelmq.client.cluster.routes import TopicRoute
from keelmq.remoting.client import RemotingClient, outcome_of
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.command import decode, request_command
from keelmq.remoting.dispatch import Dispatcher
from keelmq.remoting.frame import LENGTH_BYTES
from keelmq.remoting.operation import Failed, Operation, OperationTable, Outcome, Unknown, Wire
from proxy.server.guard import Guard
from proxy.server.senders import NO_ADDRESS, InProcessPeer, Sender

ATTEMPT_MS: Final = 3_000


class BrokerRequest(msgspec.Struct, frozen=True):
    """A request of remoting, once. sender: the client of gRPC; None: this server asks for itself."""

    operation: Operation[Any, Any]
    header: Wire
    body: object = None
    timeout_ms: int = ATTEMPT_MS
    sender: Sender | None = None


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

    def __init__(self, table: OperationTable, address: str, others: Masters, guard: Guard) -> None:
        """address: the broker's, as in routes. others: sign as this server."""
        self._dispatcher = Dispatcher(table, name="proxy")
        unchecked = copy.copy(table)
        unchecked.access = None
        self._own = Dispatcher(unchecked, name="proxy")
        self._address, self._others, self._guard = address, others, guard

    async def call(self, route: TopicRoute, broker_name: str, request: BrokerRequest) -> Outcome[Any]:
        """See Masters.call()."""
        if route.master(broker_name) == self._address:
            return await self.serve(request)
        if request.sender is not None and self._guard.is_on:
            command = request_command(request.operation, request.header, request.body)
            refused = self._guard.why_not_forwarded(command, request.sender)
            if refused is not None:
                return refused
        return await self._others.call(route, broker_name, request)

    async def serve(self, request: BrokerRequest) -> Outcome[Any]:
        """Returns what this broker answers, whatever its role is."""
        command = request_command(request.operation, request.header, request.body)
        peer = InProcessPeer(request.sender or Sender(NO_ADDRESS))
        dispatcher = self._own if request.sender is None else self._dispatcher
        frame = dispatcher.request(command, peer)
        try:
            async with asyncio.timeout(request.timeout_ms / 1000):
                frame = frame or await peer.answer
        except TimeoutError:
            return Unknown(f"no answer of this broker after {request.timeout_ms} ms")
        response = decode(frame[LENGTH_BYTES:])
        return outcome_of(request.operation, response, peer.address, (ResponseCode.SUCCESS,))

    async def close(self) -> None:
        """Ends the requests that are being served."""
        await self._dispatcher.close()
        await self._own.close()
