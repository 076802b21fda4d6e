"""Registers a client at brokers: heartbeats (34) to all of them, and unregistration (35).

A broker forgets a client whose connection closes, so the broker monitor then asks for a heartbeat at once,
not at the next tick: otherwise the group would rebalance without this client, and the broker would have no
producer to check transactions with.
"""

import asyncio
import itertools
import logging
import math
import os
import random
import socket
from collections.abc import Callable, Collection

from keelmq.client.cluster.broker_monitor import BrokerMonitor
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Empty, Ok
from keelmq.remoting.operations.clients import (
    HEART_BEAT,
    UNREGISTER_CLIENT,
    HeartbeatData,
    UnregisterClientRequest,
)
from keelmq.runtime.backoff import Backoff
from keelmq.runtime.tasks import wait_for_event

logger = logging.getLogger(__name__)

HEARTBEAT_INTERVAL_MS = 30_000
HEARTBEAT_TIMEOUT_MS = 3_000
FAREWELL_TIMEOUT_MS = 1_000
AT_ONCE_MAX = 64
"""Brokers that get a heartbeat concurrently."""
AGAIN = Backoff(first_ms=1_000, max_ms=4_000)
"""The pause before the next heartbeat to a broker that did not accept one."""

_counter = itertools.count(1)


def make_client_id(instance_name: str | None = None) -> str:
    """Returns an id that is unique for each object of each process, unless an instance name is given: with
    equal ids in a group, two clients would both consume the same queues."""
    return f"{socket.gethostname()}@{instance_name or f'{os.getpid()}#{next(_counter)}'}"


class Membership:
    """`data`: returns the content of each heartbeat. `addresses`: the brokers that should know this client.
    `monitor`: learns which brokers do, and requests heartbeats that are due before their time."""

    def __init__(
        self,
        client: RemotingClient,
        monitor: BrokerMonitor,
        *,
        data: Callable[[], HeartbeatData],
        addresses: Callable[[], Collection[str]],
        interval_ms: int = HEARTBEAT_INTERVAL_MS,
    ) -> None:
        self._client, self._data, self._addresses, self._interval_ms = client, data, addresses, interval_ms
        self._monitor = monitor
        self._gate = asyncio.Semaphore(AT_ONCE_MAX)

    def wake(self) -> None:
        """Sends heartbeats now: subscriptions or routes changed."""
        self._monitor.heartbeat_due.set()

    def all_know(self) -> bool:
        """Returns whether every broker that should know this client accepted a heartbeat over its present
        connection."""
        return set(self._addresses()) <= set(self._monitor.registered_at)

    async def run(self) -> None:
        """Sends heartbeats every interval, and after changes, until cancelled."""
        failures = 0
        while True:
            failures = 0 if await self.send_to_all() else failures + 1
            pause_ms = math.ceil(AGAIN.pause_ms(failures, random.random()))
            timeout_ms = min(pause_ms, self._interval_ms) if failures else self._interval_ms
            await wait_for_event(self._monitor.heartbeat_due, timeout_ms)

    async def send_to_all(self) -> bool:
        """Sends one heartbeat to every broker, concurrently. False: a broker did not accept it."""
        addresses = set(self._addresses())
        answers = await asyncio.gather(*(self._send(address) for address in sorted(addresses)))
        self._monitor.registers_at(addresses)
        return all(answers)

    async def tell(self, addresses: Collection[str]) -> None:
        """Sends a heartbeat to those of the brokers that do not know this client yet."""
        unaware = set(addresses).difference(self._monitor.registered_at)
        await asyncio.gather(*(self._send(address) for address in sorted(unaware)))

    async def _send(self, address: str) -> bool:
        async with self._gate:
            outcome = await self._client.call(
                address, HEART_BEAT, Empty(), self._data(), timeout_ms=HEARTBEAT_TIMEOUT_MS
            )
        if isinstance(outcome, Ok):
            self._monitor.registered(address)
            return True
        self._monitor.heartbeat_failed(address)
        logger.debug("heartbeat to %s: %s", address, outcome.remark)
        return False

    async def leave(self, *, producer_group: str | None = None, consumer_group: str | None = None) -> None:
        """Unregisters at all brokers that know this client (UNREGISTER_CLIENT, 35), within a time limit; a
        broker that does not get the request sees the connection close."""
        client_id = self._data().client_id
        header = UnregisterClientRequest(
            clientID=client_id, producer_group=producer_group, consumer_group=consumer_group
        )
        known = sorted(self._monitor.registered_at)
        self._monitor.registers_at(())
        await asyncio.gather(
            *(
                self._client.call(address, UNREGISTER_CLIENT, header, timeout_ms=FAREWELL_TIMEOUT_MS)
                for address in known
            )
        )
