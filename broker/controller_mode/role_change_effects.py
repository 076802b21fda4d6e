"""What a role change, and the HA service, do to the rest of the broker: gate, store, topics, announcements.

The ReplicasManager decides and orders; the HaService replicates; both act on the broker through the two
classes here. Nothing in them decides anything.
"""

import logging
from collections.abc import Callable

from broker.core.role import Role
from broker.ha.ports import MasterDoor
from broker.metadata.service import Metadata
from broker.pending import HAND_OVER, ROLE, PendingReplies, SendGate
from broker.replicas_manager import ReplicasManager
from broker.slave_sync import Leader, SlaveSync
from remoting.codes import ResponseCode
from remoting.operations.controller import SyncStateSet

logger = logging.getLogger(__name__)

FATE_UNKNOWN = "the broker stopped being master before enough replicas confirmed; the message may be stored"


class BrokerRoleShell:
    """RoleShell of this broker."""

    def __init__(
        self,
        *,
        gate: SendGate,
        pending: PendingReplies,
        metadata: Metadata,
        sync: SlaveSync,
        close_clients: Callable[[], None],
        announce: Callable[[], None],
    ) -> None:
        self._gate, self._pending, self._metadata, self._sync = gate, pending, metadata, sync
        self._close_clients, self._announce = close_clients, announce

    def fence(self, remark: str) -> None:
        self._gate.close(ROLE, remark)

    def send_clients_away(self) -> None:
        """A producer of ours reads the route again when its connection closes. Not in a hand-over: nobody's
        fate is unknown then, and what is held wants its answers (late_sends.py)."""
        self._pending.fail_all(ResponseCode.FLUSH_SLAVE_TIMEOUT, FATE_UNKNOWN)
        if not self._gate.is_closed_by(HAND_OVER):
            self._close_clients()  # after those answers have left

    def unfence(self) -> None:
        self._gate.open(ROLE)

    async def find_master(self, master_address: str) -> MasterDoor | None:
        return await self._sync.find_master(master_address)

    async def serve_as(self, role: Role) -> None:
        if role.is_master:
            self._sync.lead(None)
            self._metadata.begin_term(role.epoch)
        else:
            self._metadata.end_term()
            self._sync.lead(Leader(role.master_address or "", role.epoch, role.broker_id))

    def announce(self, role: Role) -> None:
        if not role.is_master:
            self._gate.close(ROLE, f"this broker is slave of {role.master_address}")
        self._announce()


class BrokerHaEvents:
    """HaEvents of this broker."""

    def __init__(self, *, gate: SendGate, pending: PendingReplies, metadata: Metadata, copies: int) -> None:
        """copies: of inSyncReplicas, if replies wait for so many."""
        self._gate, self._pending, self._metadata, self._copies = gate, pending, metadata, copies
        self._replicated = 0
        metadata.on_released = self._release
        self.manager: ReplicasManager | None = None

    def on_confirm(self, offset: int) -> None:
        """The HA service has told the store."""

    def on_replicated(self, offset: int) -> None:
        self._replicated = offset
        self._release()

    def _release(self) -> None:
        """Messages of a topic that they created wait for the topic, too."""
        self._pending.release(min(self._replicated, self._metadata.hold_offset()))

    def on_in_sync_changed(self, count: int) -> None:
        self._gate.in_sync = count
        self._pending.few_replicas = count < self._copies

    async def alter_sync_state_set(self, new_set: frozenset[int], current_epoch: int) -> SyncStateSet | None:
        return await self.manager.alter_sync_state_set(new_set, current_epoch) if self.manager else None

    async def read_sync_state_set(self, doubted_epoch: int) -> SyncStateSet | None:
        return await self.manager.read_sync_state_set(doubted_epoch) if self.manager else None
