"""A broker's reaction to a role update: become master or slave, reconnect, adopt a SyncStateSet, ask for an
election, stay, or register again.

Pure. Role updates come from registration (1003), election (1002), poll (1004) and notification (1008), in any
order and any number of times. A strictly newer masterEpoch wins; at the same epoch only the master's address
and the SyncStateSet may change; anything older is ignored. `Role.epoch` is the epoch of the last *finished*
role change, so a change that failed half-way is decided and executed again (broker-ha pitfall 25). Source:
RIP-44, RocketMQ 5.3.3 ReplicasManager; reconnecting at a new address is ours (pitfall 50).
"""

import msgspec


class RoleUpdate(msgspec.Struct, frozen=True):
    """A controller's statement. master_broker_id None: no master is recorded, or none that is alive."""

    master_epoch: int
    master_broker_id: int | None = None
    master_address: str | None = None
    sync_state_set: frozenset[int] = frozenset()
    sync_state_set_epoch: int = 0

    @property
    def version(self) -> tuple[int, int]:
        """Orders role updates: (masterEpoch, syncStateSetEpoch)."""
        return self.master_epoch, self.sync_state_set_epoch


class Role(msgspec.Struct, frozen=True):
    """The role of this broker. epoch 0: none yet since it was registered. address: its own, as registered;
    empty: not known."""

    broker_id: int
    epoch: int = 0
    master_broker_id: int | None = None
    master_address: str | None = None
    sync_state_set_epoch: int = 0
    address: str = ""

    @property
    def is_master(self) -> bool:
        """This broker is the master of the last finished change."""
        return self.epoch > 0 and self.master_broker_id == self.broker_id

    def __str__(self) -> str:
        if self.epoch == 0:
            return "nothing"
        return f"{'master' if self.is_master else f'slave of {self.master_broker_id}'} at {self.epoch}"


class ChangeToMaster(msgspec.Struct, frozen=True):
    """Become the master of the update's epoch."""

    role_update: RoleUpdate


class ChangeToSlave(msgspec.Struct, frozen=True):
    """Follow the update's master. Also if only its address changed: the HA link is connected again."""

    role_update: RoleUpdate


class AdoptSyncStateSet(msgspec.Struct, frozen=True):
    """Stay master, with a newer SyncStateSet."""

    role_update: RoleUpdate


class AskForElection(msgspec.Struct, frozen=True):
    """There is no master: send 1002 for this broker."""


class RegisterAgain(msgspec.Struct, frozen=True):
    """Another process is registered with this broker's id: do not serve until the controllers accept this one
    again. The reason is for operators."""

    reason: str


class Stay(msgspec.Struct, frozen=True):
    """Do nothing; the reason is for the log."""

    reason: str = "nothing new"


Decision = ChangeToMaster | ChangeToSlave | AdoptSyncStateSet | AskForElection | RegisterAgain | Stay


def id_is_taken(mine: Role, role_update: RoleUpdate) -> bool:
    """Returns whether the update's master has this broker's id and another address. An id does not identify a
    process: a copy of its disk has the same one."""
    if role_update.master_broker_id != mine.broker_id or not mine.address:
        return False
    return role_update.master_address not in (None, mine.address)


def decide_role(mine: Role, role_update: RoleUpdate) -> Decision:
    """Returns the reaction to `role_update`. Total; Stay if it has no effect."""
    if role_update.master_epoch < mine.epoch:
        return Stay(f"masterEpoch {role_update.master_epoch} is older than ours, {mine.epoch}")
    if role_update.master_broker_id is None:
        return AskForElection()
    if id_is_taken(mine, role_update):
        return RegisterAgain(f"brokerId {mine.broker_id} is master at {role_update.master_address} now")
    if role_update.master_epoch > mine.epoch:
        return (
            ChangeToMaster(role_update)
            if role_update.master_broker_id == mine.broker_id
            else ChangeToSlave(role_update)
        )
    if role_update.master_broker_id != mine.master_broker_id:
        return Stay(
            f"masterEpoch {role_update.master_epoch} names two masters: {mine.master_broker_id} and "
            f"{role_update.master_broker_id}; was the controller's store replaced?"
        )
    if mine.is_master:
        newer = role_update.sync_state_set_epoch > mine.sync_state_set_epoch
        return AdoptSyncStateSet(role_update) if newer else Stay()
    if role_update.master_address and role_update.master_address != mine.master_address:
        return ChangeToSlave(role_update)
    return Stay()


def newest(one: RoleUpdate | None, other: RoleUpdate) -> RoleUpdate:
    """Returns the one of two pending updates to act on; at equal versions the later one, which may carry a
    new address."""
    return one if one is not None and one.version > other.version else other


def finished(mine: Role, role_update: RoleUpdate) -> Role:
    """Returns the role after a change for `role_update` has completed."""
    return Role(
        broker_id=mine.broker_id,
        epoch=role_update.master_epoch,
        master_broker_id=role_update.master_broker_id,
        master_address=role_update.master_address,
        sync_state_set_epoch=role_update.sync_state_set_epoch,
        address=mine.address,
    )
