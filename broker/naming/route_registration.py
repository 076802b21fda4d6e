"""Registration with every name server (103), so that clients find this broker; unregistration at shutdown
(104).

One task per name server: they do not wait for each other. It registers each period, at once on `trigger`
(role or topics changed), and again when a lost connection can be made anew, because a restarted name server
knows nothing.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from remoting.client import RemotingClient
from remoting.operation import Failed, Ok, in_short
from remoting.operations.route import (
    GET_ROUTEINFO_BY_TOPIC,
    REGISTER_BROKER,
    UNREGISTER_BROKER,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
    RouteRequest,
    TopicRouteData,
    UnregisterBrokerRequest,
)
from remoting.tasks import TaskSet, wait_for_event

logger = logging.getLogger(__name__)

RETRY_MS = 1_000
UNREGISTER_TIMEOUT_MS = 1_000
FIND_TIMEOUT_MS = 1_000

Registration = tuple[RegisterBrokerRequest, bytes]


class RouteRegistration:
    """What we announce, kept announced at every name server."""

    def __init__(
        self,
        client: RemotingClient,
        addresses: Sequence[str],
        *,
        period_ms: int,
        timeout_ms: int,
        registration: Callable[[], Registration | None],
        on_answer: Callable[[RegisterBrokerResponse], None] = lambda _: None,
    ) -> None:
        """registration: header and body to announce now; None announces nothing (no role yet)."""
        self._client, self._period_ms, self._timeout_ms = client, period_ms, timeout_ms
        self._registration, self._on_answer = registration, on_answer
        self._wake = {address: asyncio.Event() for address in addresses}
        self._registered: dict[str, bool] = {}

    def start(self, tasks: TaskSet) -> None:
        for address in self._wake:
            tasks.start(f"registration with name server {address}", partial(self._run, address))

    @property
    def registered(self) -> tuple[str, ...]:
        """The name servers that took our last registration."""
        return tuple(address for address, registered in self._registered.items() if registered)

    async def find(self, topic: str) -> TopicRouteData | None:
        """The topic's route, as the first name server that answers knows it."""
        for address in self.registered:
            outcome = await self._client.call(
                address, GET_ROUTEINFO_BY_TOPIC, RouteRequest(topic=topic), timeout_ms=FIND_TIMEOUT_MS
            )
            if isinstance(outcome, Ok):
                found: TopicRouteData | None = outcome.body
                return found
        return None

    def trigger(self) -> None:
        for wake in self._wake.values():
            wake.set()

    def connection_lost(self, address: str) -> None:
        if wake := self._wake.get(address):
            wake.set()

    async def unregister(self, header: UnregisterBrokerRequest) -> None:
        """Tell those that know us; a name server that cannot be reached finds out by itself."""
        calls = [
            self._client.call(address, UNREGISTER_BROKER, header, timeout_ms=UNREGISTER_TIMEOUT_MS)
            for address in self.registered
        ]
        await asyncio.gather(*calls)

    async def _run(self, address: str) -> None:
        wake = self._wake[address]
        while True:
            registration = self._registration()
            registered = registration is None or await self._register(address, registration)
            if not registered:
                wake.clear()  # whoever closes instead of answering is not asked again at once
            await wait_for_event(wake, self._period_ms if registered else RETRY_MS)

    async def _register(self, address: str, registration: Registration) -> bool:
        header, body = registration
        outcome = await self._client.call(address, REGISTER_BROKER, header, body, timeout_ms=self._timeout_ms)
        registered = isinstance(outcome, Ok)
        if registered != self._registered.get(address):  # one line per change, not one per try
            if isinstance(outcome, Ok):
                logger.info("registered with name server %s as brokerId %d", address, header.broker_id)
            else:
                said = in_short(outcome)
                logger.warning("name server %s does not take our registration: %s", address, said)
        self._registered[address] = registered
        if isinstance(outcome, Ok):
            self._on_answer(outcome.header)
        elif isinstance(outcome, Failed):
            logger.debug("registration with %s refused: %d %s", address, outcome.code, outcome.remark)
        return registered
