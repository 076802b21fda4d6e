"""One change of the role: this broker becomes master, or the slave of another one.

The order is: fence (no writes), HA service, metadata, unfence. A change that fails half-way leaves the broker
fenced, and can be repeated. core/role.py decides whether to change. Source: RocketMQ 5.3.3
ReplicasManager.changeToMaster and changeToSlave.
"""

import asyncio
import errno
import logging
from collections.abc import Callable

from broker.admission.pending_replies import PendingReplies
from broker.admission.send_gate import HAND_OVER, ROLE, SendGate
from broker.controller_mode.slave_sync import Leader, SlaveSync
from broker.core.role import Role, RoleUpdate
from broker.ha.ports import MasterHaAddress, SyncStateSetController
from broker.ha.service import HaService
from broker.metadata.service import Metadata
from broker.stats.messages_in import MessagesIn
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operations.controller import SyncStateSet

logger = logging.getLogger(__name__)

HA_ADDRESS_PERIOD_MS = 200
"""Interval of requests for a master's HA address while it is unknown, and of checks for a newer update."""
PROMOTION_MS = 10_000
"""A promotion needs some milliseconds; one that lasts longer than this is considered stuck."""
FATE_UNKNOWN = "the broker stopped being master before enough replicas confirmed; the message may be stored"


class RoleChange:
    """Carries out one role change. The caller makes sure that no two run at once."""

    def __init__(
        self,
        ha: HaService,
        *,
        gate: SendGate,
        pending: PendingReplies,
        metadata: Metadata,
        sync: SlaveSync,
        messages_in: MessagesIn,
        on_metadata_replicated: Callable[[], None],
        close_clients: Callable[[], None],
    ) -> None:
        """on_metadata_replicated: replies may be due. close_clients: closes all connections of clients."""
        self.ha, self.sync = ha, sync
        self._gate, self._pending, self._metadata, self._messages_in = gate, pending, metadata, messages_in
        self._on_metadata_replicated, self._close_clients = on_metadata_replicated, close_clients
        self._master: MasterHaAddress | None = None

    async def change_to_master(
        self, after: Role, update: RoleUpdate, controller: SyncStateSetController
    ) -> None:
        """Makes this broker master. Returns when messages are accepted. Raises TimeoutError after
        PROMOTION_MS."""
        self.fence(f"role is changing: master at masterEpoch {update.master_epoch}")
        async with asyncio.timeout(PROMOTION_MS / 1000):
            await self.ha.become_master(
                broker_id=after.broker_id,
                epoch=update.master_epoch,
                sync_state_set=sync_state_set_of(update),
                controller=controller,
            )
        self._master = None
        self.sync.follow(None)
        await self._metadata.begin_term(after.epoch, self.ha, on_released=self._on_metadata_replicated)
        self._messages_in.term_begins()  # the next offset of each queue is known now
        self._gate.open(ROLE)

    async def change_to_slave(
        self, before: Role, after: Role, update: RoleUpdate, *, is_superseded: Callable[[], bool]
    ) -> bool:
        """Makes this broker the slave of the update's master. False: a newer role update arrived
        (is_superseded) before the HA address of this master was known."""
        assert update.master_address is not None
        self.fence(
            f"role is changing: slave of {update.master_broker_id} at masterEpoch {update.master_epoch}"
        )
        if before.is_master:
            self.send_clients_away()
        while (master := await self.sync.find_master(update.master_address)) is None:
            logger.info("the HA address of master %s is not known yet", update.master_address)
            await asyncio.sleep(HA_ADDRESS_PERIOD_MS / 1000)
            if is_superseded():
                return False
        await self._follow(after.broker_id, update.master_epoch, master)
        self._metadata.end_term()
        self.sync.follow(Leader(update.master_address, after.epoch, after.broker_id))
        self._gate.close(ROLE, f"this broker is slave of {update.master_address}")
        return True

    async def leave_role(self, reason: str) -> None:
        """Ends the role: this broker serves no slave and follows no master. The broker is fenced."""
        await self.ha.leave_role(reason)
        self._metadata.end_term()
        self.sync.follow(None)

    def fence(self, remark: str) -> None:
        """Refuses writes. Waiting replies keep waiting: messages that replicas have confirmed are safe."""
        self._gate.close(ROLE, remark)
        self._messages_in.term_ends()  # before the log is truncated

    def send_clients_away(self) -> None:
        """Called when the broker is no longer master: fails the waiting replies, whose messages may be stored
        or lost. KeelMQ's producers read the route again when their connection closes. In a hand-over the
        connections stay open: every stored message is replicated, and the held ones still get their
        answers."""
        self._pending.fail_all(ResponseCode.FLUSH_SLAVE_TIMEOUT, FATE_UNKNOWN)
        if not self._gate.is_closed_by(HAND_OVER):
            self._close_clients()  # after the answers above have left

    async def refresh_ha_address(self, role: Role, master: MasterHaAddress) -> None:
        """Connects to the slave's master at this HA address, unless it is already followed there. Raises
        EpochPassed if the log has a later epoch."""
        if master != self._master:
            await self._follow(role.broker_id, role.epoch, master)

    async def _follow(self, broker_id: int, epoch: int, master: MasterHaAddress) -> None:
        await self.ha.become_slave(
            broker_id=broker_id,
            epoch=epoch,
            master_ha_address=master.ha_address,
            master_file_bytes=master.file_bytes,
        )
        self._master = master


def sync_state_set_of(update: RoleUpdate) -> SyncStateSet:
    """Returns the SyncStateSet of a role update in its wire form."""
    return SyncStateSet(
        sync_state_set=sorted(update.sync_state_set),
        sync_state_set_epoch=update.sync_state_set_epoch,
    )


def failure_text(error: Exception) -> str:
    """Returns why a role change failed, and the remedy."""
    if isinstance(error, TimeoutError):
        return f"it did not end within {PROMOTION_MS} ms"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return "the disk of storePathRootDir is full: make room, it goes on trying"
    return str(error) or type(error).__name__
