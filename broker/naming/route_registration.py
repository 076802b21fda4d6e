"""Registration with every name server (103), so that clients find this broker, and unregistration (104).

Each name server has its own task, so none waits for another. The task registers each period, at once after
trigger() (role or topics have changed), and after a lost connection, because a restarted name server has no
routes. A table that does not fit into one request is registered in parts, one after the other; a round of
parts that is interrupted is begun again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

import msgspec

from broker.core.readiness import NOT_ASKED
from broker.naming.registration import missing_listeners
from broker.naming.split_check import SplitCheck
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Failed, Ok, in_short
from keelmq.remoting.operations.route import (
    GET_BROKER_MEMBER_GROUP,
    GET_ROUTEINFO_BY_TOPIC,
    REGISTER_BROKER,
    UNREGISTER_BROKER,
    BrokerMemberGroupBody,
    BrokerMemberGroupRequest,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
    RouteRequest,
    TopicRouteData,
    UnregisterBrokerRequest,
)
from keelmq.runtime.clock import now_ms
from keelmq.runtime.tasks import TaskSet, wait_for_event

logger = logging.getLogger(__name__)

UNREGISTERED_PERIOD_MS = 1_000
"""Interval of retries at a name server that did not accept the last registration."""
UNRENEWED_MS = 120_000
"""A name server drops a broker that has not registered for this time."""
UNREGISTER_TIMEOUT_MS = 1_000
FIND_TIMEOUT_MS = 1_000

NO_ROLE = f"it has not registered for {UNRENEWED_MS // 1_000} s, because its role is not settled"

Registration = tuple[RegisterBrokerRequest, bytes]
"""Header and body of one 103."""


class Registrations(msgspec.Struct, frozen=True):
    """The present registration for a name server. requests: several if the topics do not fit into one.
    is_current: False ends a round of parts, because another role has to be announced. near_split: the topics
    may soon not fit into one request."""

    requests: Sequence[Registration]
    is_current: Callable[[], bool] = lambda: True
    near_split: bool = False

    @property
    def is_split(self) -> bool:
        """Whether there are several requests."""
        return len(self.requests) > 1


class RouteRegistration:
    """Keeps this broker registered with every name server."""

    def __init__(
        self,
        client: RemotingClient,
        addresses: Sequence[str],
        *,
        period_ms: int,
        timeout_ms: int,
        registration: Callable[[], Awaitable[Registrations | None]],
        on_answer: Callable[[RegisterBrokerResponse], None],
    ) -> None:
        """registration: the registration to send now; None: none (no role yet). on_answer: called with the
        answer to each registration, of several parts to the last."""
        self._client, self.period_ms, self.timeout_ms = client, period_ms, timeout_ms
        self._registration, self._on_answer = registration, on_answer
        self._wake = {address: asyncio.Event() for address in addresses}
        self._problems = dict.fromkeys(addresses, NOT_ASKED)
        self._accepted_ms = dict.fromkeys(addresses, 0)  # the last registration
        self._missing: dict[str, list[str]] = {}
        self._splits = SplitCheck(client)

    def start(self, tasks: TaskSet) -> None:
        for address in self._wake:
            tasks.start(f"registration with name server {address}", partial(self._run, address))

    @property
    def registered(self) -> tuple[str, ...]:
        """The name servers that accepted the last registration."""
        return tuple(address for address, problem in self._problems.items() if not problem)

    @property
    def problems(self) -> Mapping[str, str]:
        """Why this broker is not registered, by name server; without those where it is."""
        return {address: problem for address, problem in self._problems.items() if problem}

    @property
    def no_split(self) -> str:
        """Which name servers cannot be registered with in parts, and why; empty: none is known."""
        return self._splits.problem

    async def find(self, topic: str) -> TopicRouteData | None:
        """Returns the topic's route from the first name server that answers; None: none did."""
        for address in self.registered:
            outcome = await self._client.call(
                address, GET_ROUTEINFO_BY_TOPIC, RouteRequest(topic=topic), timeout_ms=FIND_TIMEOUT_MS
            )
            if isinstance(outcome, Ok):
                found: TopicRouteData | None = outcome.body
                return found
        return None

    async def members(self, cluster: str, broker_name: str) -> dict[int, str]:
        """Returns the registered brokers of a group by broker id, from the first name server that answers."""
        request = BrokerMemberGroupRequest(cluster_name=cluster, broker_name=broker_name)
        for address in self.registered:
            outcome = await self._client.call(
                address, GET_BROKER_MEMBER_GROUP, request, timeout_ms=FIND_TIMEOUT_MS
            )
            if isinstance(outcome, Ok) and isinstance(outcome.body, BrokerMemberGroupBody):
                return outcome.body.broker_member_group.broker_addrs
        return {}

    def trigger(self) -> None:
        """Registers with all name servers at once, in the background."""
        for wake in self._wake.values():
            wake.set()

    def connection_lost(self, address: str) -> None:
        """Registers again if this is the address of a name server."""
        if wake := self._wake.get(address):
            self._splits.forget(address)
            wake.set()

    async def unregister(self, header: UnregisterBrokerRequest) -> None:
        """Unregisters from the name servers that know this broker. Others detect its end themselves."""
        calls = [
            self._client.call(address, UNREGISTER_BROKER, header, timeout_ms=UNREGISTER_TIMEOUT_MS)
            for address in self.registered
        ]
        await asyncio.gather(*calls)

    async def _run(self, address: str) -> None:
        wake = self._wake[address]
        while True:
            registrations = await self._registration()
            if registrations is not None:
                problem = await self._register_broker(address, registrations)
                if problem is None:
                    continue  # another role has to be announced
                if problem:
                    wake.clear()  # a name server that closes the connection is not asked again at once
                    await wait_for_event(wake, UNREGISTERED_PERIOD_MS)
                    continue
                self._accepted_ms[address] = now_ms()
            elif not self._problems[address] and now_ms() - self._accepted_ms[address] >= UNRENEWED_MS:
                self._set_problem(address, NO_ROLE)
            await wait_for_event(wake, self.period_ms)

    async def _register_broker(self, address: str, registrations: Registrations) -> str | None:
        """Returns why the broker is not registered; empty: it is; None: the round was ended."""
        problem: str | None = ""
        if registrations.is_split or registrations.near_split:
            found = await self._splits.refusal(
                address, registrations.requests[0][0], timeout_ms=self.timeout_ms
            )
            problem = found if registrations.is_split else ""
        if not problem:
            problem = await self._send_all(address, registrations)
        if problem is not None:
            if not problem and self._problems[address]:
                broker_id = registrations.requests[0][0].broker_id
                logger.info("registered with name server %s as brokerId %d", address, broker_id)
            self._set_problem(address, problem)
        return problem

    def _set_problem(self, address: str, problem: str) -> None:
        """Records why this broker is not registered there; empty: it is. One line per change, not per try."""
        if problem and problem != self._problems[address]:
            logger.warning("name server %s does not have this broker: %s", address, problem)
        self._problems[address] = problem

    def _set_missing(self, address: str, missing: list[str]) -> None:
        """Logs the listeners of this broker that the name server does not have, once per change."""
        if missing and missing != self._missing.get(address):
            logger.warning(
                "name server %s has no listener %s (its key listeners): no client gets the address of this "
                "broker there",
                address, ", ".join(missing),
            )  # fmt: skip
        self._missing[address] = missing

    async def _send_all(self, address: str, registrations: Registrations) -> str | None:
        answer, missing = RegisterBrokerResponse(), list[str]()
        for header, body in registrations.requests:
            if not registrations.is_current():
                return None
            outcome = await self._client.call(
                address, REGISTER_BROKER, header, body, timeout_ms=self.timeout_ms
            )
            if not isinstance(outcome, Ok):
                if isinstance(outcome, Failed):
                    logger.debug("registration with %s refused: %d %s", address, outcome.code, outcome.remark)
                return in_short(outcome)
            answer = outcome.header
            missing = missing_listeners(header, answer)
        self._set_missing(address, missing)
        self._on_answer(answer)
        return ""
