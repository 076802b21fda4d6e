"""How brokers know a client: heartbeats (34) to all of them, and a farewell (35).

A broker forgets a client whose connection closes, so a lost connection is answered with a heartbeat at once,
not at the next tick: without it the group would be shared out without us, and transactions asked of nobody.
"""

import asyncio
import itertools
import logging
import os
import socket
from collections.abc import Callable, Collection

from remoting.client import RemotingClient
from remoting.operation import Empty, Ok
from remoting.operations.clients import (
    HEART_BEAT,
    UNREGISTER_CLIENT,
    HeartbeatData,
    UnregisterClientRequest,
)
from remoting.tasks import wait_for_event

logger = logging.getLogger(__name__)

HEARTBEAT_INTERVAL_MS = 30_000
HEARTBEAT_TIMEOUT_MS = 3_000
FAREWELL_TIMEOUT_MS = 1_000
AT_ONCE_MAX = 64
"""Brokers that are told at a time."""
AGAIN_MS = 1_000
"""A broker that did not take a heartbeat is tried again after so long."""

_counter = itertools.count(1)


def make_client_id(instance_name: str | None = None) -> str:
    """Unique for each object of each process, unless an instance name says otherwise: two clients of one id
    in a group would take each other's queues."""
    return f"{socket.gethostname()}@{instance_name or f'{os.getpid()}#{next(_counter)}'}"


class Membership:
    """`data`: what we are, asked anew for each heartbeat. `addresses`: the brokers that should know.
    `on_lost`: one that knew us does not any more; its route may be old."""

    def __init__(
        self,
        client: RemotingClient,
        *,
        data: Callable[[], HeartbeatData],
        addresses: Callable[[], Collection[str]],
        interval_ms: int = HEARTBEAT_INTERVAL_MS,
        on_lost: Callable[[], None] | None = None,
    ) -> None:
        self._client, self._data, self._addresses, self._interval_ms = client, data, addresses, interval_ms
        self._on_lost = on_lost
        self._known: set[str] = set()
        self._wake = asyncio.Event()
        self._gate = asyncio.Semaphore(AT_ONCE_MAX)

    def wake(self) -> None:
        """Something changed: subscriptions, routes, a connection."""
        self._wake.set()

    def lost(self, address: str) -> None:
        """Its connection closed."""
        if address in self._known:
            self._forget(address)
            self._wake.set()

    def all_know(self) -> bool:
        """Every broker that should know has taken a heartbeat over the connection that it has with us."""
        return self._known.issuperset(self._addresses())

    def _forget(self, address: str) -> None:
        if address in self._known:
            self._known.discard(address)
            if self._on_lost is not None:
                self._on_lost()

    async def run(self) -> None:
        """For ever: every interval, and when something changed."""
        while True:
            all_know = await self.beat()
            await wait_for_event(self._wake, self._interval_ms if all_know else AGAIN_MS)

    async def beat(self) -> bool:
        """One heartbeat to every broker, all at once. False: somebody did not take it."""
        addresses = set(self._addresses())
        answers = await asyncio.gather(*(self._beat(address) for address in sorted(addresses)))
        self._known &= addresses
        return all(answers)

    async def tell(self, addresses: Collection[str]) -> None:
        """A heartbeat to those of them that do not know us yet."""
        await asyncio.gather(*(self._beat(address) for address in sorted(set(addresses) - self._known)))

    async def _beat(self, address: str) -> bool:
        async with self._gate:
            outcome = await self._client.call(
                address, HEART_BEAT, Empty(), self._data(), timeout_ms=HEARTBEAT_TIMEOUT_MS
            )
        if isinstance(outcome, Ok):
            self._known.add(address)
            return True
        self._forget(address)
        logger.debug("heartbeat to %s: %s", address, outcome.remark)
        return False

    async def leave(self, *, producer_group: str | None = None, consumer_group: str | None = None) -> None:
        """Tell everybody who knows us. Bounded; who does not hear it sees the connection close."""
        client_id = self._data().client_id
        header = UnregisterClientRequest(
            clientID=client_id, producer_group=producer_group, consumer_group=consumer_group
        )
        known, self._known = sorted(self._known), set()
        await asyncio.gather(
            *(
                self._client.call(address, UNREGISTER_CLIENT, header, timeout_ms=FAREWELL_TIMEOUT_MS)
                for address in known
            )
        )
