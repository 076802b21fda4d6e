"""RoleChangeNotifier: sends NOTIFY_BROKER_ROLE_CHANGED (1008) to the replicas of a broker group.

A notification is sent oneway, over the connection that the replica itself has opened. A replica that misses
it reads the same by polling (1004).
"""

import asyncio
from collections.abc import Callable

from keelmq.remoting.command import encode, request_command
from keelmq.remoting.operations.controller import (
    NOTIFY_BROKER_ROLE_CHANGED,
    NotifyBrokerRoleChangedRequest,
    SyncStateSet,
)
from keelmq.security.signer import Signer
from namesrv.plugins.controller.core.state import BrokerSet, State
from namesrv.plugins.controller.election.liveness_view import LivenessView
from namesrv.plugins.controller.settings import LiveConfig


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
    ) -> None:
        self._state, self._liveness_view, self._config = state, liveness_view, config
        self._added_controllers, self._signer = added_controllers, signer

    async def notify_all(self) -> None:
        """Sends 1008 to the live replicas of every group that has a master. Others are served between groups:
        a new leader of thousands of groups would otherwise answer nobody for a second."""
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
            if heartbeat is not None:
                heartbeat.peer.send(frame)
