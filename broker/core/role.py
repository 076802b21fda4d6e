"""What a broker makes of news about its master: become master or slave, re-dial, adopt a set, ask, or stay.

Pure. News come from registration (1003), election (1002), poll (1004) and push (1008), in any order and any
number of times. A strictly newer masterEpoch wins; at the same epoch only the master's address and the
SyncStateSet may move; anything older is ignored. `Role.epoch` is the epoch of the last *finished* role
change: a half-done change is therefore decided again and repeated (broker-ha pitfall 25).
Source: RIP-44, RocketMQ 5.3.3 ReplicasManager; the re-dial is ours (pitfall 50).
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class MasterNews:
    """What a controller said. master_broker_id None: no master is recorded (or none that lives)."""

    master_epoch: int
    master_broker_id: int | None = None
    master_address: str | None = None
    sync_state_set: frozenset[int] = frozenset()
    sync_state_set_epoch: int = 0

    @property
    def version(self) -> tuple[int, int]:
        return self.master_epoch, self.sync_state_set_epoch


@dataclass(frozen=True, slots=True)
class Role:
    """What this broker is. epoch 0: nothing yet since the process started."""

    broker_id: int
    epoch: int = 0
    master_broker_id: int | None = None
    master_address: str | None = None
    sync_state_set_epoch: int = 0

    @property
    def is_master(self) -> bool:
        return self.epoch > 0 and self.master_broker_id == self.broker_id

    def __str__(self) -> str:
        if self.epoch == 0:
            return "nothing"
        return f"{'master' if self.is_master else f'slave of {self.master_broker_id}'} at {self.epoch}"


@dataclass(frozen=True, slots=True)
class ChangeToMaster:
    news: MasterNews


@dataclass(frozen=True, slots=True)
class ChangeToSlave:
    """Also when only the master's address changed: the HA link is dialled again."""

    news: MasterNews


@dataclass(frozen=True, slots=True)
class AdoptSyncStateSet:
    news: MasterNews


@dataclass(frozen=True, slots=True)
class AskForElection:
    """Nobody is master: send 1002 for ourselves."""


@dataclass(frozen=True, slots=True)
class Stay:
    reason: str = field(default="nothing new")


Decision = ChangeToMaster | ChangeToSlave | AdoptSyncStateSet | AskForElection | Stay


def decide_role(mine: Role, news: MasterNews) -> Decision:
    """What to do about `news`; total, and Stay for everything that was already done."""
    if news.master_epoch < mine.epoch:
        return Stay(f"masterEpoch {news.master_epoch} is older than ours, {mine.epoch}")
    if news.master_broker_id is None:
        return AskForElection()
    if news.master_epoch > mine.epoch:
        return ChangeToMaster(news) if news.master_broker_id == mine.broker_id else ChangeToSlave(news)
    if news.master_broker_id != mine.master_broker_id:
        return Stay(
            f"masterEpoch {news.master_epoch} names two masters: {mine.master_broker_id} and "
            f"{news.master_broker_id}; was the controller's store replaced?"
        )
    if mine.is_master:
        newer = news.sync_state_set_epoch > mine.sync_state_set_epoch
        return AdoptSyncStateSet(news) if newer else Stay()
    if news.master_address and news.master_address != mine.master_address:
        return ChangeToSlave(news)
    return Stay()


def newest(one: MasterNews | None, other: MasterNews) -> MasterNews:
    """Of two pending news the one to act on; at equal versions the later one (it may carry a new address)."""
    return one if one is not None and one.version > other.version else other


def finished(mine: Role, news: MasterNews) -> Role:
    """The role after a change for `news` has completed."""
    return Role(
        broker_id=mine.broker_id,
        epoch=news.master_epoch,
        master_broker_id=news.master_broker_id,
        master_address=news.master_address,
        sync_state_set_epoch=news.sync_state_set_epoch,
    )
