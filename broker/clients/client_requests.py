"""ClientRequests: sends requests to a client over the connection that the client opened."""

import asyncio
from typing import TypeAlias

from broker.clients.service import Clients
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.command import RemotingCommand, encode
from keelmq.remoting.operation import CommandError, Peer, UnknownOutcome

Pending: TypeAlias = "dict[int, asyncio.Future[RemotingCommand | None]]"
"""Requests on a connection that wait for their answers, by opaque."""


class ClientRequests:
    """answer_ms_max: timeout of a request. waiting_max: limit of requests that wait for an answer."""

    def __init__(self, clients: Clients, *, answer_ms_max: int, waiting_max: int) -> None:
        self._clients, self._answer_ms_max, self._waiting_max = clients, answer_ms_max, waiting_max
        self._waiting = 0

    async def ask(self, peer: Peer, command: RemotingCommand) -> RemotingCommand:
        """Returns the answer of the client. command: its opaque is set here.

        Raises CommandError (2) if too many requests wait, UnknownOutcome (207) if no answer arrives in time.
        """
        pending: Pending | None = getattr(peer, "pending", None)  # none over HTTP
        if pending is None:
            raise CommandError(ResponseCode.SYSTEM_ERROR, f"{peer.address} cannot be asked")
        if self._waiting >= self._waiting_max:
            raise CommandError(ResponseCode.SYSTEM_BUSY, f"{self._waiting} clients are being asked already")
        command.opaque = self._clients.next_opaque()
        future: asyncio.Future[RemotingCommand | None] = asyncio.get_running_loop().create_future()
        pending[command.opaque] = future
        self._waiting += 1
        try:
            peer.send(encode(command))
            async with asyncio.timeout(self._answer_ms_max / 1000):
                answer = await future
        except TimeoutError:
            answer = None
        finally:
            self._waiting -= 1
            pending.pop(command.opaque, None)
        if answer is None:
            remark = f"the client at {peer.address} has not answered"
            raise UnknownOutcome(ResponseCode.CONSUME_MSG_TIMEOUT, remark)
        return answer
