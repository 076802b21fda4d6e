"""Registration with every name server (103), so that clients find this broker, and unregistration (104).

Each name server has its own task, so none waits for another. The task registers each period, at once after
trigger() (role or topics have changed), and after a lost connection, because a restarted name server knows
nothing.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

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
from keelmq.runtime.tasks import TaskSet, wait_for_event

logger = logging.getLogger(__name__)

UNREGISTERED_PERIOD_MS = 1_000
"""How often a name server is asked that did not accept the last registration."""
UNREGISTER_TIMEOUT_MS = 1_000
FIND_TIMEOUT_MS = 1_000

Registration = tuple[RegisterBrokerRequest, bytes]


class RouteRegistration:
    """Keeps this broker registered with every name server."""

    def __init__(
        self,
        client: RemotingClient,
        addresses: Sequence[str],
        *,
        period_ms: int,
        timeout_ms: int,
        registration: Callable[[], Registration | None],
        on_answer: Callable[[RegisterBrokerResponse], None],
    ) -> None:
        """registration: header and body to send now; None sends nothing (no role yet). on_answer: called with
        each answer to a registration."""
        self._client, self.period_ms, self.timeout_ms = client, period_ms, timeout_ms
        self._registration, self._on_answer = registration, on_answer
        self._wake = {address: asyncio.Event() for address in addresses}
        self._registered: dict[str, bool] = {}

    def start(self, tasks: TaskSet) -> None:
        for address in self._wake:
            tasks.start(f"registration with name server {address}", partial(self._run, address))

    @property
    def registered(self) -> tuple[str, ...]:
        """The name servers that accepted the last registration."""
        return tuple(address for address, registered in self._registered.items() if registered)

    async def find(self, topic: str) -> TopicRouteData | None:
        """Returns the topic's route from the first name server that answers; None: no one did."""
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
            wake.set()

    async def unregister(self, header: UnregisterBrokerRequest) -> None:
        """Unregisters from the name servers that know this broker. Others notice by themselves."""
        calls = [
            self._client.call(address, UNREGISTER_BROKER, header, timeout_ms=UNREGISTER_TIMEOUT_MS)
            for address in self.registered
        ]
        await asyncio.gather(*calls)

    async def _run(self, address: str) -> None:
        wake = self._wake[address]
        while True:
            registration = self._registration()
            registered = registration is None or await self._register_broker(address, registration)
            if not registered:
                wake.clear()  # a name server that closes the connection is not asked again at once
            await wait_for_event(wake, self.period_ms if registered else UNREGISTERED_PERIOD_MS)

    async def _register_broker(self, address: str, registration: Registration) -> bool:
        header, body = registration
        outcome = await self._client.call(address, REGISTER_BROKER, header, body, timeout_ms=self.timeout_ms)
        registered = isinstance(outcome, Ok)
        if registered != self._registered.get(address):  # one line per change, not one per try
            if isinstance(outcome, Ok):
                logger.info("registered with name server %s as brokerId %d", address, header.broker_id)
            else:
                said = in_short(outcome)
                logger.warning("name server %s does not accept the registration: %s", address, said)
        self._registered[address] = registered
        if isinstance(outcome, Ok):
            self._on_answer(outcome.header)
        elif isinstance(outcome, Failed):
            logger.debug("registration with %s refused: %d %s", address, outcome.code, outcome.remark)
        return registered
