"""Sends requests of remoting to masters: over TCP, or into the operation table of a broker in this process.

The table serves both protocols: no operation is written twice. A request that names another broker, or
arrives while this broker is not the master of its group, goes over TCP to the master that the route names.
"""

import asyncio
from collections.abc import Collection
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from broker.clients.proxied_requests import NO_ADDRESS, ProxiedRequests, Sender
from keelmq.client.cluster.routes import TopicRoute
from keelmq.remoting.client import RemotingClient, outcome_of
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.command import RemotingCommand, decode, encode, request_command
from keelmq.remoting.frame import LENGTH_BYTES
from keelmq.remoting.operation import Failed, Operation, Outcome, Unknown, Wire
from keelmq.remoting.operations.clients import SERVE_FOR_CLIENT

ATTEMPT_MS: Final = 3_000
DONE: Final = (ResponseCode.SUCCESS,)


class Identity(NamedTuple):
    """What a heartbeat says of its client. version: see keelmq.remoting.codes.py."""

    language: str
    version: int


class BrokerRequest(msgspec.Struct, frozen=True):
    """A request of remoting, once. sender: the client of gRPC; None: this server asks for itself. good:
    codes of answers that are no refusals. identity: of a client, for which the request is then served (29007)
    also where nothing is checked; None: it does not matter."""

    operation: Operation[Any, Any]
    header: Wire
    body: object = None
    timeout_ms: int = ATTEMPT_MS
    sender: Sender | None = None
    good: Collection[int] = DONE
    identity: Identity | None = None

    def command(self) -> RemotingCommand:
        """Returns the request, without an opaque."""
        command = request_command(self.operation, self.header, self.body)
        if self.identity is not None:
            command.language, command.version = self.identity
        return command


class Masters(Protocol):
    """Where requests go."""

    async def call(self, route: TopicRoute, broker_name: str, request: BrokerRequest) -> Outcome[Any]:
        """Sends a request to the master of a group of brokers."""
        ...


class TcpMasters:
    """The masters that routes name, over the connections of a RemotingClient."""

    def __init__(self, client: RemotingClient, *, for_clients: bool = False) -> None:
        """for_clients: masters judge a client's request as its own (29007), and `client` signs as a member:
        without it, a request has the rights of this server."""
        self._client, self._for_clients = client, for_clients

    async def call(self, route: TopicRoute, broker_name: str, request: BrokerRequest) -> Outcome[Any]:
        """See Masters.call()."""
        address = route.master(broker_name)
        if address is None:
            return Failed(ResponseCode.SERVICE_NOT_AVAILABLE, route.why_not_writable(broker_name))
        operation, header, body = request.operation, request.header, request.body
        if request.sender is not None and (self._for_clients or request.identity is not None):
            body = encode(request.command())
            header = request.sender.header()
            operation = msgspec.structs.replace(SERVE_FOR_CLIENT, response=operation.response,
                                                response_body=operation.response_body)  # fmt: skip
        return await self._client.call(
            address, operation, header, body, timeout_ms=request.timeout_ms, good=request.good
        )


class InProcessMaster:
    """The broker of this process while routes name it as the master, and `others` for every other request."""

    def __init__(self, requests: ProxiedRequests, address: str, others: Masters) -> None:
        """requests: of this broker. address: its own, as in routes."""
        self._requests, self._own = requests, requests.unchecked()
        self._address, self._others = address, others

    async def call(self, route: TopicRoute, broker_name: str, request: BrokerRequest) -> Outcome[Any]:
        """See Masters.call()."""
        if route.master(broker_name) == self._address:
            return await self.serve(request)
        return await self._others.call(route, broker_name, request)

    async def serve(self, request: BrokerRequest) -> Outcome[Any]:
        """Returns what this broker answers, whatever its role is."""
        command = request.command()
        requests = self._own if request.sender is None else self._requests
        sender = request.sender or Sender(NO_ADDRESS)
        try:
            async with asyncio.timeout(request.timeout_ms / 1000):
                frame = await requests.serve(command, sender)
        except TimeoutError:
            return Unknown(f"no answer of this broker after {request.timeout_ms} ms")
        response = decode(frame[LENGTH_BYTES:])
        return outcome_of(request.operation, response, sender.address, request.good)

    async def close(self) -> None:
        """Ends the requests of this server; those of clients end with the broker's ports."""
        await self._own.close()
