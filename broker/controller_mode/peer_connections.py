"""Connections to the other members of the SyncStateSet: one of them is the next master.

A slave asks its new master for the HA address before it replicates. A new connection, with TLS and signed
requests, costs both brokers some ms of CPU in the middle of a fail-over, so it is opened at a quiet time. The
controllers know the addresses (1006).
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

from broker.controller_mode.controller_client import ControllerClient
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Empty, Ok
from keelmq.remoting.operations.broker import GET_BROKER_CONFIG
from keelmq.remoting.operations.controller import (
    GET_SYNC_STATE_DATA,
    BrokerReplicasInfo,
    ReplicaIdentity,
    ReplicasInfo,
)
from keelmq.runtime.tasks import wait_for_event

logger = logging.getLogger(__name__)

PERIOD_MS = 30_000
"""Between two requests over each connection. Servers close connections that are idle for 120 s."""
SETTLE_MS = 500
"""From a change of the SyncStateSet to the new connections: a fail-over comes first."""
CALL_TIMEOUT_MS = 1_000


class PeerConnections:
    """Keeps the connections of one broker open. Idle until members() has named other brokers."""

    def __init__(
        self,
        client: RemotingClient,
        controller: ControllerClient,
        *,
        broker_name: str,
        broker_id: Callable[[], int],
        period_ms: int = PERIOD_MS,
        settle_ms: int = SETTLE_MS,
    ) -> None:
        """broker_id: of this broker."""
        self._client, self._controller = client, controller
        self._broker_name, self._broker_id = broker_name, broker_id
        self._period_ms, self._settle_ms = period_ms, settle_ms
        self.sync_state_set: frozenset[int] = frozenset()
        """As a controller said last."""
        self._changed = asyncio.Event()

    def members(self, sync_state_set: frozenset[int]) -> None:
        """Handles the SyncStateSet from a controller, changed or not."""
        if sync_state_set != self.sync_state_set:
            self.sync_state_set = sync_state_set
            self._changed.set()

    async def run(self) -> None:
        """Connects after each change, and once per period. Runs until it is cancelled."""
        settle_ms = 0  # not urgent at the start
        while True:
            if await wait_for_event(self._changed, self._period_ms):
                await asyncio.sleep(settle_ms / 1000)
                self._changed.clear()
            if self.sync_state_set - {self._broker_id()}:
                await self._connect()
                settle_ms = self._settle_ms

    async def _connect(self) -> None:
        addresses = await self._addresses()
        await asyncio.gather(*map(self._ask, addresses))

    async def _addresses(self) -> list[str]:
        """Returns the addresses of the other SyncStateSet members that the controllers consider alive."""
        group = await self._group()
        return self._others([] if group is None else group.in_sync_replicas)

    async def replicas(self) -> list[str]:
        """Returns the addresses of the other replicas that the controllers consider alive: the master first,
        then the members of the SyncStateSet, then the others."""
        group = await self._group()
        if group is None:
            return []
        others = self._others([*group.in_sync_replicas, *group.not_in_sync_replicas])
        return sorted(others, key=lambda address: address != group.master_address)

    async def _group(self) -> ReplicasInfo | None:
        """Returns this group as the controllers know it; None: they do not answer, or do not know it."""
        outcome = await self._controller.call(
            GET_SYNC_STATE_DATA, Empty(), [self._broker_name], timeout_ms=CALL_TIMEOUT_MS
        )
        if not isinstance(outcome, Ok) or not isinstance(outcome.body, BrokerReplicasInfo):
            logger.debug("addresses of the SyncStateSet: %s", outcome)
            return None
        return outcome.body.replicas_info_table.get(self._broker_name)

    def _others(self, members: Iterable[ReplicaIdentity]) -> list[str]:
        return [
            member.broker_address
            for member in members
            if member.alive and member.broker_id != self._broker_id() and member.broker_address
        ]

    async def _ask(self, address: str) -> None:
        """Sends a slave's first request (SlaveSync.find_master): the first one over a connection
        also brings the nonce that members sign with."""
        outcome = await self._client.call(address, GET_BROKER_CONFIG, Empty(), timeout_ms=CALL_TIMEOUT_MS)
        if not isinstance(outcome, Ok):
            logger.debug("connection to %s: %s", address, outcome)
