"""The broker's calls to the controllers: finds the active one, asks it, and sends heartbeats to all of them.

A controller never forwards. So 1005 goes to every configured address at once, and the active one is
remembered. After "not leader", a lost connection or a timeout the look-up is repeated at once, with a short
back-off (RocketMQ waits for its next round, up to 10 s). Heartbeats go to every controller, also to those
that joined later, which the leader names in its answers. Without them a new active controller would consider
this broker dead.
"""

import asyncio
import logging
import random
import re
from collections.abc import Callable, Collection, Coroutine, Sequence
from functools import partial
from typing import Any

from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Empty, Failed, Ok, Operation, Outcome, Unknown, Wire, in_short
from keelmq.remoting.operations.controller import GET_METADATA_INFO, ControllerMetadata, MasterInfo
from keelmq.remoting.operations.route import (
    BROKER_HEARTBEAT,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)
from keelmq.runtime.backoff import Backoff
from keelmq.runtime.clock import now_ms
from keelmq.runtime.tasks import TaskSet, cancel_all, wait_for_event

logger = logging.getLogger(__name__)

CALL_TIMEOUT_MS = 3_000
LOOKUP_TIMEOUT_MS = 1_000
REPORTED_LEADER_WAIT_MS = 200
"""How long the look-up waits for the leader's own answer after a follower has named the leader."""
AGAIN = Backoff(first_ms=50, max_ms=200)
REDIAL_MS = 500
"""How often a controller is dialled for a heartbeat while it cannot be reached."""
OFTEN_MS = 200
"""The interval to a controller that finds hung masters (HEARTBEAT_SILENCE_MIN_MS in its core/hang.py)."""
LEARNED_MAX = 16
"""Limit of the controllers beside the configured ones; a healthy group has at most seven."""
_ADDRESS = re.compile(r"[^\s;]+:[0-9]{1,5}")

LOOK_AGAIN = (ResponseCode.CONTROLLER_NOT_LEADER, ResponseCode.RPC_SEND_TO_CHANNEL_FAILED)
"""Codes of requests that were certainly not executed, and that another controller may execute."""


class ControllerClient:
    """Calls to the active controller. Every request is repeatable, or fenced by an epoch.

    addresses: of all controllers, configured or learned."""

    def __init__(
        self,
        client: RemotingClient,
        addresses: Sequence[str],
        *,
        on_addresses: Callable[[Sequence[str]], None],
    ) -> None:
        """addresses: the configured ones. on_addresses: gets all addresses when they change."""
        self._client, self._configured = client, tuple(addresses)
        self.addresses = self._configured
        self._on_addresses = on_addresses
        self._active: str | None = None
        self._replaced = asyncio.Event()
        """Set, and exchanged for another one, when another controller leads than before."""
        self._led_last: str | None = None
        self._looking = asyncio.Lock()
        self._silent = False
        self._why: dict[str, str] = {}
        """By address: the answer to the last look-up."""

    @property
    def active_address(self) -> str | None:
        """The controller that answered as the active one last; None: none is known."""
        return self._active

    async def call(
        self,
        operation: Operation[Any, Any],
        header: Wire,
        body: object = None,
        *,
        timeout_ms: int = CALL_TIMEOUT_MS,
        good: Collection[int] = (ResponseCode.SUCCESS,),
    ) -> Outcome[Any]:
        """Sends a request to the active controller, and looks for it until timeout_ms is over. An Unknown is
        not repeated here: the caller knows whether it may be."""
        deadline_ms, failures = now_ms() + timeout_ms, 0
        outcome: Outcome[Any] = Failed(ResponseCode.RPC_SEND_TO_CHANNEL_FAILED, "no active controller found")
        while (left_ms := deadline_ms - now_ms()) > 0:
            address = await self._find_active()
            if address is not None:
                calling = self._client.call(address, operation, header, body, timeout_ms=left_ms, good=good)
                outcome = await self._unless_replaced(address, calling)
                if isinstance(outcome, Ok) and isinstance(outcome.header, MasterInfo):
                    self.learn(outcome.header.controllers)
                if isinstance(outcome, Ok) or (
                    isinstance(outcome, Failed) and outcome.code not in LOOK_AGAIN
                ):
                    return outcome
                self._forget(address, outcome)
                if isinstance(outcome, Unknown):
                    return outcome
            failures += 1
            await asyncio.sleep(AGAIN.pause_ms(failures, random.random()) / 1000)
        return outcome

    def learn(self, added: str | None) -> None:
        """Adds the addresses of further controllers ("host:port;..."), as reported by the active one."""
        found = [each for each in (added or "").split(";") if _ADDRESS.fullmatch(each)][:LEARNED_MAX]
        addresses = tuple(dict.fromkeys((*self._configured, *found)))
        if addresses != self.addresses:
            logger.info("controllers: %s", ";".join(addresses))
            self.addresses = addresses
            self._on_addresses(addresses)

    def is_one(self, address: str) -> bool:
        """Returns whether a controller has this address, as far as it is known."""
        return address in self.addresses or address in self._configured

    def leads(self, address: str) -> None:
        """This controller acts as the active one: calls go there from now on. Those that wait for another
        one's answer end Unknown now. That controller may be lost without a sign, and would keep them, a new
        master's 1001 among them, until their timeout."""
        if address != self._active:
            logger.info("active controller is %s", address)
        self._active = address
        if address != self._led_last:
            self._led_last = address
            replaced, self._replaced = self._replaced, asyncio.Event()
            replaced.set()

    async def _unless_replaced(
        self, address: str, calling: Coroutine[Any, Any, Outcome[Any]]
    ) -> Outcome[Any]:
        """Returns the outcome of a call to `address`. Unknown: another controller leads now."""
        call = asyncio.create_task(calling)
        try:
            while not call.done() and self._active in (None, address):
                replaced = asyncio.create_task(self._replaced.wait())
                try:
                    await asyncio.wait((call, replaced), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    replaced.cancel()
            if call.done():
                return call.result()
            return Unknown(f"{address} did not answer yet, and {self._active} leads now")
        finally:
            await cancel_all((call,))

    def connection_lost(self, address: str) -> None:
        """The connection to this controller closed: the next call looks for the active one again."""
        if address == self._active:
            self._active = None

    def _forget(self, address: str, outcome: Outcome[Any]) -> None:
        logger.info("controller %s did not answer as the active one (%s); looking again", address, outcome)
        if self._active == address:
            self._active = None

    async def _find_active(self) -> str | None:
        async with self._looking:  # callers share one look-up
            if self._active is None:
                found = await self._look_up()
                if found is not None:
                    self.leads(found)
                elif not self._silent:
                    said = "; ".join(f"{each}: {self._why.get(each, 'silent')}" for each in self.addresses)
                    logger.warning("no active controller: %s", said)
                self._silent = self._active is None
            return self._active

    async def _look_up(self) -> str | None:
        """Asks all controllers at once. Returns the one that claims to lead, else the first one named."""
        pending = {asyncio.create_task(self._metadata(address)) for address in self.addresses}
        reported_leader: str | None = None
        try:
            while pending:
                timeout = REPORTED_LEADER_WAIT_MS / 1000 if reported_leader else None
                done, pending = await asyncio.wait(
                    pending, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
                )
                if not done:
                    break
                answers = [answer for task in done if (answer := task.result()) is not None]
                for answer in answers:
                    if answer.is_leader and answer.controller_leader_address:
                        return answer.controller_leader_address
                    reported_leader = reported_leader or answer.controller_leader_address or None
        finally:
            await cancel_all(pending)
        return reported_leader

    async def _metadata(self, address: str) -> ControllerMetadata | None:
        outcome = await self._client.call(address, GET_METADATA_INFO, Empty(), timeout_ms=LOOKUP_TIMEOUT_MS)
        if isinstance(outcome, Ok):
            self._why[address] = "knows no leader"
            found: ControllerMetadata = outcome.header
            return found
        self._why[address] = in_short(outcome)
        return None


class Heartbeats:
    """Sends 904 to every controller: each interval, at once on send_now(), and soon after a failure. The
    answer proves that the controller has heard this broker (core/lease.py); RocketMQ's brokers ask for
    none. A controller that detects hung masters announces that to the masters that it watches, and gets a
    heartbeat every OFTEN_MS."""

    def __init__(
        self,
        client: RemotingClient,
        addresses: Sequence[str],
        *,
        interval_ms: int,
        heartbeat: Callable[[], BrokerHeartbeatRequest | None],
        on_answer: Callable[[str, int, int], None],
    ) -> None:
        """heartbeat: the heartbeat to send now; None: none. on_answer(controller, sent_ms, answered_ms)."""
        self._client, self._interval_ms, self._heartbeat = client, interval_ms, heartbeat
        self._on_answer = on_answer
        self._addresses = tuple(addresses)
        self._wake: dict[str, asyncio.Event] = {}
        self._tasks: TaskSet | None = None

    def start(self, tasks: TaskSet) -> None:
        """Starts a task for each controller."""
        self._tasks = tasks
        self.follow(self._addresses)

    def follow(self, addresses: Sequence[str]) -> None:
        """Sends to these from now on, and to no others. Called after start()."""
        assert self._tasks is not None, "started"
        for address in self._wake.keys() - set(addresses):
            self._wake.pop(address).set()
        for address in addresses:
            if address not in self._wake:
                wake = self._wake[address] = asyncio.Event()
                self._tasks.start(f"heartbeat to controller {address}", partial(self._run, address, wake))

    def configure(self, *, interval_ms: int) -> None:
        """Changes the interval, and sends a heartbeat to every controller at once."""
        self._interval_ms = interval_ms
        self.send_now()

    def send_now(self) -> None:
        """Sends a heartbeat to every controller at once."""
        for wake in self._wake.values():
            wake.set()

    def connection_lost(self, address: str) -> None:
        """Dials again at once: a controller that lost the connection suspects this broker within ms."""
        if wake := self._wake.get(address):
            wake.set()

    async def _run(self, address: str, wake: asyncio.Event) -> None:
        often = False
        while self._wake.get(address) is wake:
            header, began_ms = self._heartbeat(), now_ms()
            outcome: Outcome[BrokerHeartbeatResponse] | None = None
            if header is not None:
                outcome = await self._client.call(
                    address, BROKER_HEARTBEAT, header, timeout_ms=self._interval_ms
                )
            if isinstance(outcome, Ok):
                self._on_answer(address, began_ms, now_ms())
                often = bool(outcome.header.finds_hung_masters)
            unsent = isinstance(outcome, Failed) and outcome.code == ResponseCode.RPC_SEND_TO_CHANNEL_FAILED
            pause_ms = min(
                self._interval_ms, REDIAL_MS if unsent else OFTEN_MS if often else self._interval_ms
            )
            await wait_for_event(wake, max(began_ms + pause_ms - now_ms(), 0))
