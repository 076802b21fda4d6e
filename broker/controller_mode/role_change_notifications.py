"""notifyBrokerRoleChanged (1008), from verified and unverified peers.

A KeelMQ controller sends it on the connection that this broker opened to it, so its content is trusted.
RocketMQ's controllers connect to the broker's own port, to which any client can connect. Such a request only
makes the broker ask the controllers at once. Source: RocketMQ 5.3.3
AdminBrokerProcessor.notifyBrokerRoleChanged.
"""

from collections.abc import Callable
from typing import Final

from broker.controller_mode.controller_client import ControllerClient
from broker.controller_mode.replicas_manager import ReplicasManager
from keelmq.remoting.operation import Call, OperationTable, Reply
from keelmq.remoting.operations.controller import NOTIFY_BROKER_ROLE_CHANGED, NotifyBrokerRoleChangedRequest
from keelmq.runtime.clock import now_ms

HINT_PAUSE_MS: Final = 1_000
"""Hints within this time after the last one are ignored: a sender may send thousands."""


class RoleHints:
    """Hints from unverified peers that the role may have changed: 905 and 1008 at the broker's own port."""

    def __init__(self, poll_now: Callable[[], None], *, clock: Callable[[], int] = now_ms) -> None:
        """poll_now: asks the controllers for the role at once."""
        self._poll_now, self._clock = poll_now, clock
        self._hinted_ms = -HINT_PAUSE_MS

    def hint(self) -> None:
        """Asks the controllers, at most once in HINT_PAUSE_MS."""
        now = self._clock()
        if now - self._hinted_ms >= HINT_PAUSE_MS:
            self._hinted_ms = now
            self._poll_now()


class RoleChangeNotifications:
    """Handlers of 1008: trusted from controllers, a hint from any other peer."""

    def __init__(
        self,
        manager: ReplicasManager,
        controller: ControllerClient,
        hints: RoleHints,
        *,
        broker_name: str,
        dialled: Callable[[int], str | None],
    ) -> None:
        """dialled: of a connection's id, the address that this broker dialled for it; None: unknown."""
        self._manager, self._controller, self._hints = manager, controller, hints
        self._broker_name, self._dialled = broker_name, dialled

    def bind(self, table: OperationTable) -> None:
        """Binds 1008 at the broker's own port."""
        table.bind(NOTIFY_BROKER_ROLE_CHANGED, self.hinted)

    def bind_pushed(self, table: OperationTable) -> None:
        """Binds 1008 on connections that this broker opened, so the peer is a controller."""
        table.bind(NOTIFY_BROKER_ROLE_CHANGED, self.notify_broker_role_changed)

    async def notify_broker_role_changed(self, request: NotifyBrokerRoleChangedRequest, call: Call) -> None:
        """Passes the role to the ReplicasManager, and remembers which controller leads, and the controllers
        that the request names."""
        if request.controllers is not None:
            self._controller.learn(request.controllers)
        address = self._dialled(call.peer.connection_id)
        if address is not None and self._controller.is_one(address):
            self._controller.leads(address)  # only the active one sends 1008
        self._manager.notify_broker_role_changed(request, call.body)

    async def hinted(self, header: NotifyBrokerRoleChangedRequest, call: Call) -> Reply:
        """Treats a 1008 from an unverified peer as a hint: the broker asks its controllers for the role."""
        if header.broker_name in (None, "", self._broker_name):
            self._hints.hint()
        return Reply()
