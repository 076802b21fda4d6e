"""One change of the role: this broker becomes master, or the slave of another one.

The order is: fence (no writes), HA service, metadata, unfence. A change that fails half-way leaves the broker
fenced, and can be repeated. core/role.py decides whether to change. Source: RocketMQ 5.3.3
ReplicasManager.changeToMaster and changeToSlave.
"""

import asyncio
import errno
import logging
from collections.abc import Callable
from typing import Protocol

from broker.core.role import Role, RoleUpdate
from broker.ha.ports import MasterHaAddress
from keelmq.remoting.operations.controller import SyncStateSet

logger = logging.getLogger(__name__)

HA_ADDRESS_PERIOD_MS = 200
"""How often the HA address of a master is asked for while nobody knows it, and a newer update looked for."""
PROMOTION_MS = 10_000
"""A promotion takes some milliseconds; one that takes longer than this is considered stuck."""


class HaRoles(Protocol):
    """What a role change needs of the HA service."""

    async def become_master(self, *, broker_id: int, epoch: int, sync_state_set: SyncStateSet) -> None:
        """Begins a term as master (HaService.become_master)."""

    async def become_slave(
        self, *, broker_id: int, epoch: int, master_ha_address: str, master_file_bytes: int | None
    ) -> None:
        """Begins to copy from this master. master_file_bytes: its mappedFileSizeCommitLog; None: unknown."""

    async def leave_role(self, reason: str) -> None:
        """Ends the role: no slave is served, and no master is copied."""

    def adopt_sync_state_set(self, sync_state_set: SyncStateSet) -> None:
        """Takes the controller's SyncStateSet; an older one than the known is ignored."""


class RoleChangeEffects(Protocol):
    """What a role change does to the rest of the broker."""

    def fence(self, remark: str) -> None:
        """Refuses writes. Waiting replies keep waiting: messages that replicas have confirmed are safe."""
        ...

    def send_clients_away(self) -> None:
        """Called when the broker is no longer master: fails the waiting replies, whose messages may be stored
        or lost, and closes the connections of clients."""
        ...

    def unfence(self) -> None:
        """Accepts writes again."""
        ...

    async def find_master(self, master_address: str) -> MasterHaAddress | None:
        """Returns the HA address of the master at this broker address. None: not known yet."""
        ...

    async def serve_as(self, role: Role) -> None:
        """Begins the term of the metadata, as master or as slave; epoch 0: as neither. Called while the
        broker is fenced."""
        ...

    def announce(self, role: Role) -> None:
        """Reports the role to name servers and controllers, without waiting for them."""
        ...


class RoleChange:
    """Carries out one role change. The caller makes sure that no two run at once."""

    def __init__(self, ha: HaRoles, effects: RoleChangeEffects) -> None:
        self._ha, self._effects = ha, effects
        self._master: MasterHaAddress | None = None

    async def change_to_master(self, after: Role, update: RoleUpdate) -> None:
        """Makes this broker master. Returns when messages are accepted. Raises TimeoutError after
        PROMOTION_MS."""
        self._fence("master", update)
        async with asyncio.timeout(PROMOTION_MS / 1000):
            await self._ha.become_master(
                broker_id=after.broker_id,
                epoch=update.master_epoch,
                sync_state_set=sync_state_set_of(update),
            )
        self._master = None
        await self._effects.serve_as(after)
        self._effects.unfence()

    async def change_to_slave(
        self, before: Role, after: Role, update: RoleUpdate, *, is_superseded: Callable[[], bool]
    ) -> bool:
        """Makes this broker the slave of the update's master. False: a newer role update arrived
        (is_superseded) before the HA address of this master was known."""
        assert update.master_address is not None
        self._fence(f"slave of {update.master_broker_id}", update)
        if before.is_master:
            self._effects.send_clients_away()
        while (master := await self._effects.find_master(update.master_address)) is None:
            logger.info("the HA address of master %s is not known yet", update.master_address)
            await asyncio.sleep(HA_ADDRESS_PERIOD_MS / 1000)
            if is_superseded():
                return False
        await self._follow(after.broker_id, update.master_epoch, master)
        await self._effects.serve_as(after)
        return True

    async def refresh_ha_address(self, role: Role, master: MasterHaAddress) -> None:
        """Connects to the slave's master at this HA address, unless it is already followed there. Raises
        EpochPassed if the log has a later epoch."""
        if master != self._master:
            await self._follow(role.broker_id, role.epoch, master)

    def _fence(self, name: str, update: RoleUpdate) -> None:
        self._effects.fence(f"role is changing: {name} at masterEpoch {update.master_epoch}")

    async def _follow(self, broker_id: int, epoch: int, master: MasterHaAddress) -> None:
        await self._ha.become_slave(
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
    """Returns why a role change failed, and what an operator can do about it."""
    if isinstance(error, TimeoutError):
        return f"it did not end within {PROMOTION_MS} ms"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return "the disk of storePathRootDir is full: make room, it goes on trying"
    return str(error) or type(error).__name__
