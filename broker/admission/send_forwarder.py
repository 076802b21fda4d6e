"""Messages that reach a broker that is not master any more: held, stored here after all, or forwarded.

A stock client reads the route again after up to 30 s, and gives up a message after three refusals, within
milliseconds. So a broker that is not master accepts the message, and sends it to the master over its own
connection as soon as there is a master: a name server may show this broker as an alias of its master
(routeAliasesEnable) while the master is gone. The answer contains the broker that stored the message
(masterAddress), and our client then reads the route again. A forwarded message is never forwarded again: two
brokers that each consider the other one the master would forward it endlessly.

If the master is lost without a sign while it has a forwarded message, the message goes to its successor: it
may be stored twice, as it would be if the client, which gets no answer, sent it again. But a stock client
would send it to the lost master, and has no time left for a third attempt. Half messages are not repeated:
the second one would be checked, and committed as well.
"""

import asyncio
import logging
import random
import weakref
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from broker.admission.fast_path import FastPathPeer
from broker.admission.send_gate import DISK_FULL, HAND_OVER, ROLE, SendGate
from broker.message.record import is_half
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.command import FLAG_ONEWAY, response_frame
from keelmq.remoting.operation import Failed, Ok, Operation, Outcome, Unknown, Wire
from keelmq.remoting.operations.broker import SEND_MESSAGE_V2, SendMessageRequestV2, SendMessageResponse
from keelmq.runtime.backoff import Backoff
from keelmq.runtime.clock import now_ms
from keelmq.runtime.tasks import cancel_all

logger = logging.getLogger(__name__)

FORWARDED_GROUP: Final = "KEELMQ_FORWARDED"
"""producerGroup of a message that another broker has forwarded."""
TAKEN_MAX: Final = 4_096
TAKEN_BYTES_MAX: Final = 64 << 20
"""Limits of the messages that are held or being forwarded; more are refused."""
FORWARD_TIMEOUT_MS: Final = 2_500
"""Below the clients' timeout of 3 s."""
RETRY: Final = Backoff(first_ms=2, max_ms=20)
REPLACED_MS: Final = 250
REPLACED_STEP_MS: Final = 50
"""How long a master that was replaced may take to answer, and how often that is checked."""
MOVE_MS_MAX: Final = 2_000
"""How long a request waits for a mastership change; below the clients' timeout of 3 s."""
GATHER_STEP_MS: Final = 2
MOVE_STEP_MS: Final = 10
"""A fixed period: the check whether the mastership has moved must not slow down."""

NOT_YET: Final = (ResponseCode.RPC_SEND_TO_CHANNEL_FAILED, ResponseCode.SERVICE_NOT_AVAILABLE)
"""Codes that prove that the message was not stored; the new master may accept it in a moment."""
TOO_FEW: Final = "in-sync replicas not enough"
_NO_MASTER: Final = Failed(ResponseCode.SERVICE_NOT_AVAILABLE, "no master is known")

Resp = TypeVar("Resp", bound=Wire)


class _Replaced(Unknown, frozen=True):
    """Another broker has become master before this one answered."""


class SendFields(Protocol):
    """Header fields of a send that are forwarded; broker/put/send_commands.py has the types of both codes.

    310 has `group` in addition.
    """

    @property
    def topic(self) -> str:
        """The topic that the client names."""

    @property
    def default_topic(self) -> str:
        """The template if the topic is created: TBW102."""

    @property
    def default_topic_queue_nums(self) -> int:
        """Number of queues if the topic is created."""

    @property
    def queue_id(self) -> int:
        """The queue; below 0: the broker chooses."""

    @property
    def sys_flag(self) -> int:
        """RocketMQ's MessageSysFlag."""

    @property
    def born_timestamp(self) -> int:
        """When the client made the message, in ms."""

    @property
    def flag(self) -> int:
        """The message's flag, which only applications read."""

    @property
    def properties(self) -> str:
        """The properties in their wire form."""

    @property
    def reconsume_times(self) -> int:
        """How often consumers have failed on the message."""

    @property
    def max_reconsume_times(self) -> int:
        """Tries before the message becomes a dead letter."""

    @property
    def batch(self) -> bool:
        """Whether the body is a batch of messages."""


class ForwardableSend(Protocol):
    """The fields of a decoded send request that this module needs."""

    @property
    def opaque(self) -> int:
        """The number that the response repeats."""

    @property
    def flag(self) -> int:
        """The command's flag: FLAG_ONEWAY."""

    @property
    def ext(self) -> SendFields:
        """The header fields."""


Taken: TypeAlias = tuple[ForwardableSend, bytes, FastPathPeer, int]
"""Command, body, connection, deadline (ms, monotonic)."""

ForwardToMaster: TypeAlias = Callable[
    [Operation[Any, Any], Wire, Wire | None], Awaitable[Outcome[Any] | None]
]
"""Sends a request (operation, header, body) to the master. None: no other broker is known as master."""


async def no_other_master(
    operation: Operation[Any, Any], header: Wire, body: Wire | None
) -> Outcome[Any] | None:
    """ForwardToMaster of a broker without controller mode: there is no other master."""
    return None


async def answer_of_master(
    gate: SendGate,
    forward_to_master: ForwardToMaster,
    operation: Operation[Any, Any],
    header: Wire,
    body: Wire | None = None,
    *,
    clock: Callable[[], int] = now_ms,
) -> Outcome[Any] | None:
    """Returns the master's answer; asks again while the mastership moves. None: this broker is master now."""
    deadline_ms = clock() + MOVE_MS_MAX
    while not gate.writable:
        outcome = await forward_to_master(operation, header, body)
        moves = gate.is_closed_by(HAND_OVER) or (isinstance(outcome, Failed) and outcome.code in NOT_YET)
        if isinstance(outcome, Ok) or not moves or clock() >= deadline_ms:
            return outcome or Failed(ResponseCode.SERVICE_NOT_AVAILABLE, gate.remark)
        await asyncio.sleep(MOVE_STEP_MS / 1000)
    return None


class SendForwarder:
    """Owned by the event loop's thread. take() is the gate's hold_or_forward."""

    def __init__(
        self,
        client: RemotingClient,
        gate: SendGate,
        *,
        broker_name: str,
        master: Callable[[], str | None],
        send_here: Callable[[Any, bytes, FastPathPeer], bytes | None],
        successor_is_due: Callable[[], bool] = lambda: False,
    ) -> None:
        """master: returns the address of the master if it is another broker; else None. send_here: the send
        handler, for held messages when this broker stays master after all. successor_is_due: whether this
        master hands over in a moment, because its disk is full."""
        self._successor_is_due = successor_is_due
        self._client, self._gate, self._master, self._broker_name = client, gate, master, broker_name
        self._send_here = send_here
        self._held: deque[Taken] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._bytes = 0
        self._master_refuses = False
        self._probe = asyncio.Lock()
        self._failures = 0
        self.forwarded = 0
        self.last_taken_ms = 0
        self.senders: weakref.WeakSet[FastPathPeer] = weakref.WeakSet()
        """Connections that brought messages to forward. They may be closing by now."""

    @property
    def count(self) -> int:
        """Messages that are held or being forwarded."""
        return len(self._held) + len(self._tasks)

    def take(self, command: ForwardableSend, body: bytes, peer: FastPathPeer) -> bool:
        """Holds the message, to store it here or at the master as soon as either is possible. False: it must
        be refused."""
        gate = self._gate
        holds = gate.is_closed_by(HAND_OVER)
        may_be_stored = (
            holds
            or gate.is_closed_by(ROLE)
            or gate.is_gathering
            or (gate.is_closed_by(DISK_FULL) and self._successor_is_due())
        )
        if not may_be_stored and self._master() is None:
            return False
        if getattr(command.ext, "group", "") == FORWARDED_GROUP:
            return False
        if self.count >= TAKEN_MAX or self._bytes + len(body) > TAKEN_BYTES_MAX:
            return False
        now = now_ms()
        self.last_taken_ms = now
        self.senders.add(peer)
        self._bytes += len(body)
        taken = (command, body, peer, now + FORWARD_TIMEOUT_MS)
        if holds:
            self._held.append(taken)
        else:
            self._forward_soon(taken)
        return True

    async def forward_to_master(
        self, operation: Operation[Any, Resp], header: Wire, body: Wire | None = None
    ) -> Outcome[Resp] | None:
        """Sends another request to the master, once. None: no other master is known."""
        address = self._master()
        if address is None:
            return None
        return await self._client.call(address, operation, header, body, timeout_ms=FORWARD_TIMEOUT_MS)

    def settle(self) -> None:
        """Stores or forwards the held messages, once the master is known."""
        held, self._held = self._held, deque()
        for taken in held:
            command, body, peer, _ = taken
            if self._gate.writable:
                self._bytes -= len(body)
                self._store_here(command, body, peer)
            else:
                self._forward_soon(taken)

    async def close(self) -> None:
        """Cancels the forwarding. Messages that are being forwarded get no answer."""
        await cancel_all(self._tasks)

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

    def _store_here(self, command: ForwardableSend, body: bytes, peer: FastPathPeer) -> None:
        reply = self._send_here(command, body, peer)
        if reply is not None and not peer.is_closing():
            peer.send(reply)

    async def _deliver(
        self, command: ForwardableSend, body: bytes, deadline_ms: int
    ) -> Outcome[SendMessageResponse] | None:
        """Returns the master's answer. None: this broker is master by now.

        While the new master accepts no messages yet, one message at a time is tried, and the others wait.
        """
        outcome: Outcome[SendMessageResponse] = _NO_MASTER
        doubt: _Replaced | None = None
        with suppress(TimeoutError):  # of _turn()
            while now_ms() < deadline_ms:
                if self._gate.decides():
                    return None
                if self._gate.writable:
                    async with self._turn(deadline_ms):
                        if self._gate.is_gathering:
                            await asyncio.sleep(GATHER_STEP_MS / 1000)
                    continue
                if not self._master_refuses:
                    outcome = await self._attempt(command, body, deadline_ms)
                else:
                    async with self._turn(deadline_ms):
                        if not self._master_refuses:
                            continue
                        self._failures += 1
                        await asyncio.sleep(RETRY.pause_ms(self._failures, random.random()) / 1000)
                        outcome = await self._attempt(command, body, deadline_ms)
                if isinstance(outcome, _Replaced) and not is_half(command.ext.properties.encode()):
                    doubt = outcome
                    await asyncio.sleep(GATHER_STEP_MS / 1000)
                elif not is_too_early(outcome):
                    return outcome if isinstance(outcome, Ok) else doubt or outcome
        if self._gate.writable:
            return None  # its own refusal gives the reason
        if doubt is not None:
            return doubt
        return outcome if self._master() is not None else Failed(_NO_MASTER.code, self._gate.unavailable)

    @asynccontextmanager
    async def _turn(self, deadline_ms: int) -> AsyncIterator[None]:
        """Holds `_probe`. Raises TimeoutError: other messages held it until the deadline; after that, the
        message would be stored after its client has given up."""
        async with asyncio.timeout((deadline_ms - now_ms()) / 1000):
            await self._probe.acquire()
        try:
            yield
        finally:
            self._probe.release()

    async def _attempt(
        self, command: ForwardableSend, body: bytes, deadline_ms: int
    ) -> Outcome[SendMessageResponse]:
        address, left_ms = self._master(), deadline_ms - now_ms()
        outcome: Outcome[SendMessageResponse] = _NO_MASTER
        if address is not None and left_ms > 0:
            header = _header(command, self._broker_name)
            call = self._client.call(address, SEND_MESSAGE_V2, header, body, timeout_ms=left_ms)
            outcome = await self._unless_replaced(address, asyncio.create_task(call))
        self._master_refuses = is_too_early(outcome)
        if not self._master_refuses:
            self._failures = 0
            self.forwarded += 1
        return outcome

    async def _unless_replaced(
        self, address: str, call: "asyncio.Task[Outcome[SendMessageResponse]]"
    ) -> Outcome[SendMessageResponse]:
        """Returns the master's answer; Unknown if another broker has been master for REPLACED_MS: this one
        hangs. In a hand-over, the old master answers sooner."""
        replaced_ms = 0
        try:
            while not call.done():
                await asyncio.wait((call,), timeout=REPLACED_STEP_MS / 1000)
                replaced_ms = 0 if self._master() == address else replaced_ms + REPLACED_STEP_MS
                if replaced_ms > REPLACED_MS and not call.done():
                    return _Replaced(f"{address} was replaced as master before it answered")
            return call.result()
        finally:
            call.cancel()


def is_too_early(outcome: Outcome[Any]) -> bool:
    """Returns whether the request surely was not carried out because the group has no master at this address
    now, or one whose replicas are not in sync yet."""
    if not isinstance(outcome, Failed):
        return False
    too_few = outcome.code == ResponseCode.SYSTEM_ERROR and outcome.remark.startswith(TOO_FEW)
    return outcome.code in NOT_YET or too_few


def _header(command: ForwardableSend, broker_name: str) -> SendMessageRequestV2:
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
