"""RoleChangeNotifier: sends NOTIFY_BROKER_ROLE_CHANGED (1008) to the replicas of a broker group.

A KeelMQ broker gets it over the connection that it has opened itself, at once. The client of RocketMQ's
broker does not know 1008 there: it logs an error and ignores it. Such a broker gets it at its own address,
over a connection that this controller opens, as from RocketMQ's controller. Its heartbeats show which kind a
broker is. A notification is oneway; a replica that misses it reads the same by polling (1004).
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from keelmq.remoting.client import RemotingClient
from keelmq.remoting.command import encode, request_command
from keelmq.remoting.operations.controller import (
    NOTIFY_BROKER_ROLE_CHANGED,
    NotifyBrokerRoleChangedRequest,
    SyncStateSet,
)
from keelmq.runtime.tasks import cancel_all
from keelmq.runtime.tls.contexts import ClientTls
from keelmq.security.signer import Signer
from namesrv.plugins.controller.core.state import BrokerSet, State
from namesrv.plugins.controller.election.liveness_view import LivenessView
from namesrv.plugins.controller.settings import LiveConfig

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_MS: Final = 1_000
PAUSES_S: Final = (0.1, 0.5, 2.0)
"""Between the attempts to reach an address; together less than the period of a poll, 5 s."""
IN_FLIGHT_MAX: Final = 1_024
"""Notifications to addresses; beyond it, brokers wait for their next poll."""


class RoleChangeNotifier:
    """Event loop only. `added_controllers()`: request addresses of the controllers that were added at run
    time, as "host:port;host:port"; None: there are none."""

    def __init__(
        self,
        state: Callable[[], State],
        liveness_view: LivenessView,
        config: LiveConfig,
        added_controllers: Callable[[], str | None],
        signer: Signer | None = None,
        tls: ClientTls | None = None,
    ) -> None:
        self._state, self._liveness_view, self._config = state, liveness_view, config
        self._added_controllers, self._signer, self._tls = added_controllers, signer, tls
        self._client: RemotingClient | None = None
        self._sending: dict[str, asyncio.Task[None]] = {}  # by address

    async def stop(self) -> None:
        """Cancels the notifications in flight and closes the connections to brokers."""
        await cancel_all(self._sending.values())
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def notify_all(self) -> None:
        """Sends 1008 to the live replicas of every group that has a master. Other requests are served between
        groups: a new leader of thousands of groups would otherwise answer none for a second."""
        for broker_name in list(self._state().brokers):
            broker_set = self._state().brokers.get(broker_name)
            if broker_set is not None and broker_set.master_broker_id is not None:
                self.notify(broker_set)
                await asyncio.sleep(0)

    def notify(self, broker_set: BrokerSet, only: int | None = None) -> None:
        """Sends 1008 with the master and SyncStateSet of `broker_set` to its live replicas.

        `only`: just to this broker id. Does nothing if notifyBrokerRoleChanged is false.
        """
        if not self._config.current.notify_broker_role_changed:
            return
        header = NotifyBrokerRoleChangedRequest(
            master_address=broker_set.master_address,
            master_epoch=broker_set.master_epoch,
            sync_state_set_epoch=broker_set.sync_state_set_epoch,
            master_broker_id=broker_set.master_broker_id,
            broker_name=broker_set.broker_name,
            controllers=self._added_controllers(),
        )
        body = SyncStateSet(
            sync_state_set=sorted(broker_set.sync_state_set),
            sync_state_set_epoch=broker_set.sync_state_set_epoch,
        )
        command = request_command(NOTIFY_BROKER_ROLE_CHANGED, header, body, oneway=True)
        if self._signer is not None:
            self._signer(command, "")
        frame = encode(command)
        for broker_id in sorted(broker_set.replicas) if only is None else [only]:
            heartbeat = self._liveness_view.last_heartbeat(broker_set.key(broker_id))
            if heartbeat is None:
                continue
            if heartbeat.takes_pushes:
                heartbeat.peer.send(frame)
            elif (replica := broker_set.replicas.get(broker_id)) is not None:
                self._send_soon(replica.address, header, body)

    def _send_soon(self, address: str, header: NotifyBrokerRoleChangedRequest, body: SyncStateSet) -> None:
        """Sends at the broker's address, in place of an older notification that is not sent yet."""
        older = self._sending.pop(address, None)
        if older is not None:
            older.cancel()
        elif len(self._sending) >= IN_FLIGHT_MAX:
            logger.warning("%d notifications are in flight: %s waits for its poll", IN_FLIGHT_MAX, address)
            return
        task = self._sending[address] = asyncio.create_task(self._send(address, header, body))
        task.add_done_callback(lambda _: self._sent(address, task))

    def _sent(self, address: str, task: asyncio.Task[None]) -> None:
        if self._sending.get(address) is task:
            del self._sending[address]

    async def _send(self, address: str, header: NotifyBrokerRoleChangedRequest, body: SyncStateSet) -> None:
        if self._client is None:
            self._client = RemotingClient(
                connect_timeout_ms=CONNECT_TIMEOUT_MS, tls=self._tls, signer=self._signer
            )
        for pause_s in (*PAUSES_S, None):
            if await self._client.oneway(address, NOTIFY_BROKER_ROLE_CHANGED, header, body):
                return
            if pause_s is not None:
                await asyncio.sleep(pause_s)
        logger.info("%s could not be notified of its role: it reads it with its next poll", address)
