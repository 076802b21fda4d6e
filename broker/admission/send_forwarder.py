"""Messages that reach a broker while, or after, the mastership leaves it: held, stored here, or forwarded.

A stock client asks for the route again after up to 30 s, and gives up a message after three refusals, which
take it some milliseconds. So a broker that is not master takes the message all the same and hands it to the
master, over its own connection; the answer says where it was stored (masterAddress), and our client reads
the route again. A forwarded message is never forwarded again: two brokers that believe in each other would
play ping-pong.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from broker.pending import HAND_OVER, HotPeer, SendGate
from remoting.client import RemotingClient
from remoting.clock import now_ms
from remoting.codes import ResponseCode
from remoting.command import FLAG_ONEWAY, response_frame
from remoting.operation import Failed, Ok, Operation, Outcome, Unknown, Wire
from remoting.operations.broker import SEND_MESSAGE_V2, SendMessageRequestV2, SendMessageResponse

if TYPE_CHECKING:
    from broker.handlers.send_commands import SendCommand

logger = logging.getLogger(__name__)

FORWARDED_GROUP: Final = "KEELMQ_FORWARDED"
"""producerGroup of a message that another broker sent on."""
TAKEN_MAX: Final = 4_096
TAKEN_BYTES_MAX: Final = 64 << 20
"""Messages held or on their way; more are refused."""
FORWARD_TIMEOUT_MS: Final = 2_500
"""Below the three seconds that clients wait."""
RETRY_MIN_MS: Final = 2
RETRY_MAX_MS: Final = 20

NOT_YET: Final = (ResponseCode.RPC_SEND_TO_CHANNEL_FAILED, ResponseCode.SERVICE_NOT_AVAILABLE)
"""Surely not stored; the new master may be a moment away."""
TOO_FEW: Final = "in-sync replicas not enough"
_NO_MASTER: Final = Failed(ResponseCode.SERVICE_NOT_AVAILABLE, "no master is known")

Resp = TypeVar("Resp", bound=Wire)
Taken: TypeAlias = "tuple[SendCommand, bytes, HotPeer, int]"
"""Command, body, connection, deadline."""


class LateSends:
    """Owned by the event loop's thread. take() is the gate's detour."""

    def __init__(
        self,
        client: RemotingClient,
        gate: SendGate,
        *,
        broker_name: str,
        master: Callable[[], str | None],
    ) -> None:
        """master: who is, if it is another broker; None: not known, or this one."""
        self._client, self._gate, self._master, self._broker_name = client, gate, master, broker_name
        self._send_here: Callable[[SendCommand, bytes, HotPeer], bytes | None] | None = None
        self._held: deque[Taken] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._bytes = 0
        self._trouble = False
        self._probe = asyncio.Lock()
        self._pause_ms = RETRY_MIN_MS
        self.forwarded = 0
        self.last_taken_ms = 0

    def serve(self, send_here: "Callable[[SendCommand, bytes, HotPeer], bytes | None]") -> None:
        """send_here: the send handler, for what was held when this broker stays master after all."""
        self._send_here = send_here

    @property
    def count(self) -> int:
        return len(self._held) + len(self._tasks)

    def take(self, command: "SendCommand", body: bytes, peer: HotPeer) -> bool:
        holds = self._gate.is_closed_by(HAND_OVER)
        if not holds and self._master() is None:
            return False
        if getattr(command.ext, "group", "") == FORWARDED_GROUP:
            return False
        if self.count >= TAKEN_MAX or self._bytes + len(body) > TAKEN_BYTES_MAX:
            return False
        now = now_ms()
        self.last_taken_ms = now
        self._bytes += len(body)
        taken = (command, body, peer, now + FORWARD_TIMEOUT_MS)
        if holds:
            self._held.append(taken)
        else:
            self._forward_soon(taken)
        return True

    async def hand_on(self, operation: Operation[Any, Resp], header: Wire) -> Outcome[Resp] | None:
        """Another request for the master, once. None: no other master is known."""
        address = self._master()
        if address is None:
            return None
        return await self._client.call(address, operation, header, timeout_ms=FORWARD_TIMEOUT_MS)

    def settle(self) -> None:
        """It is decided who is master: what was held is stored here, or goes to the other one."""
        held, self._held = self._held, deque()
        for taken in held:
            command, body, peer, _ = taken
            if self._gate.writable:
                self._bytes -= len(body)
                self._store_here(command, body, peer)
            else:
                self._forward_soon(taken)

    async def quiet(self, quiet_ms: int) -> None:
        """Everything is answered, and for so long nothing new came."""
        self.last_taken_ms = now_ms()
        while True:
            left_ms = self.last_taken_ms + quiet_ms - now_ms()
            if left_ms <= 0 and not self.count:
                return
            await asyncio.sleep(max(left_ms, RETRY_MAX_MS) / 1000)

    async def close(self) -> None:
        """What is still on its way gets no answer."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- forwarding --------------------------------------------------------------------------------------

    def _forward_soon(self, taken: Taken) -> None:
        task = asyncio.create_task(self._forward(taken))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forward(self, taken: Taken) -> None:
        command, body, peer, deadline_ms = taken
        try:
            outcome = await self._deliver(command, body, deadline_ms)
        finally:
            self._bytes -= len(body)
        if outcome is None:
            self._store_here(command, body, peer)
        elif not command.flag & FLAG_ONEWAY and not peer.is_closing():
            peer.send(_answer(command.opaque, outcome, self._master()))

    def _store_here(self, command: "SendCommand", body: bytes, peer: HotPeer) -> None:
        assert self._send_here is not None
        reply = self._send_here(command, body, peer)
        if reply is not None and not peer.is_closing():
            peer.send(reply)

    async def _deliver(
        self, command: "SendCommand", body: bytes, deadline_ms: int
    ) -> Outcome[SendMessageResponse] | None:
        """While the new master does not take messages yet, one at a time asks, and the others wait for it.
        None: this broker is master by now."""
        outcome: Outcome[SendMessageResponse] = _NO_MASTER
        while now_ms() < deadline_ms:
            if self._gate.writable:
                return None
            if not self._trouble:
                outcome = await self._attempt(command, body, deadline_ms)
            else:
                async with self._probe:
                    if not self._trouble:
                        continue
                    await asyncio.sleep(self._pause_ms / 1000)
                    self._pause_ms = min(2 * self._pause_ms, RETRY_MAX_MS)
                    outcome = await self._attempt(command, body, deadline_ms)
            if not _is_early(outcome):
                return outcome
        return outcome

    async def _attempt(
        self, command: "SendCommand", body: bytes, deadline_ms: int
    ) -> Outcome[SendMessageResponse]:
        address, left_ms = self._master(), deadline_ms - now_ms()
        outcome: Outcome[SendMessageResponse] = _NO_MASTER
        if address is not None and left_ms > 0:
            header = _header(command, self._broker_name)
            outcome = await self._client.call(address, SEND_MESSAGE_V2, header, body, timeout_ms=left_ms)
        self._trouble = _is_early(outcome)
        if not self._trouble:
            self._pause_ms = RETRY_MIN_MS
            self.forwarded += 1
        return outcome


def _is_early(outcome: Outcome[SendMessageResponse]) -> bool:
    if not isinstance(outcome, Failed):
        return False
    too_few = outcome.code == ResponseCode.SYSTEM_ERROR and outcome.remark.startswith(TOO_FEW)
    return outcome.code in NOT_YET or too_few


def _header(command: "SendCommand", broker_name: str) -> SendMessageRequestV2:
    ext = command.ext
    return SendMessageRequestV2(  # one-letter names: the wire's own
        a=FORWARDED_GROUP,
        b=ext.topic,
        c=ext.default_topic,
        d=ext.default_topic_queue_nums,
        e=ext.queue_id,
        f=ext.sys_flag,
        g=ext.born_timestamp,
        h=ext.flag,
        i=ext.properties,
        j=ext.reconsume_times,
        l=ext.max_reconsume_times,
        m=ext.batch,
        n=broker_name,
    )


def _answer(opaque: int, outcome: Outcome[SendMessageResponse], master: str | None) -> bytes:
    match outcome:
        case Ok(header=header):
            header = header.model_copy(update={"master_address": master})
            return response_frame(opaque, ResponseCode.SUCCESS, None, header)
        case Failed(code=code, remark=remark, header=header):
            stored = ResponseCode.FLUSH_DISK_TIMEOUT <= code <= ResponseCode.FLUSH_SLAVE_TIMEOUT
            return response_frame(opaque, code, remark, header if stored else None)
        case Unknown(remark=remark):
            text = f"forwarded to {master}: {remark}; the message may be stored"
            return response_frame(opaque, ResponseCode.SYSTEM_ERROR, text)
