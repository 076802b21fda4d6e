"""The settings of replication, and its interfaces to the rest of the broker."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

import msgspec

from broker.core.report_lease import REPORT_MS
from broker.ha.core.epochs import Epochs
from broker.ha.core.master_link import LinkSettings
from broker.ha.core.slave_link import SlaveSettings
from keelmq.remoting.operation import LocalProtocolError
from keelmq.remoting.operations.controller import SyncStateSet

BATCH_BYTES_MAX = 1 << 20
"""Larger packets delay the producers that share the event loop, without a gain."""


class HaSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Times in ms. The comments name the configuration keys. Raises ValueError for a batch_bytes out of
    range."""

    batch_bytes: int  # haTransferBatchSize
    send_heartbeat_interval_ms: int  # haSendHeartbeatInterval
    housekeeping_interval_ms: int  # haHousekeepingInterval
    max_time_slave_not_catchup_ms: int  # haMaxTimeSlaveNotCatchup
    all_ack: bool  # allAckInSyncStateSet
    in_sync_replicas: int  # inSyncReplicas
    acknowledges_alone: bool  # minInSyncReplicas and awaited copies are 1
    sync_from_last_file: bool  # syncFromLastFile
    async_learner: bool  # asyncLearner
    bytes_per_second: int  # maxHaTransferByteInSecond with haFlowControlEnable, per link; 0: no limit
    far_bytes_per_second: int  # maxHaTransferByteInSecond: to a replica far behind, while producers write
    catch_up_threads: int  # haCatchUpThreads
    stay_awake: bool  # haStayAwake
    sync_flush: bool  # flushDiskType=SYNC_FLUSH: confirmOffset and acks cover only what is on disk
    has_lease: bool = True  # isolationLeaseEnable

    def __post_init__(self) -> None:
        if not 1 <= self.batch_bytes <= BATCH_BYTES_MAX:
            raise ValueError(f"haTransferBatchSize must be 1..{BATCH_BYTES_MAX}, not {self.batch_bytes}")

    @property
    def master_link(self) -> LinkSettings:
        """Of a master's links."""
        return LinkSettings(
            batch_bytes=self.batch_bytes,
            send_heartbeat_interval_ms=self.send_heartbeat_interval_ms,
            housekeeping_interval_ms=self.housekeeping_interval_ms,
            bytes_per_second=self.bytes_per_second,
            far_bytes_per_second=self.far_bytes_per_second,
            is_watched=self.all_ack,
        )

    def slave_link(self, *, file_bytes: int) -> SlaveSettings:
        """Returns the settings of a slave's link. file_bytes: mappedFileSizeCommitLog."""
        return SlaveSettings(
            file_bytes=file_bytes,
            send_heartbeat_interval_ms=min(self.send_heartbeat_interval_ms, REPORT_MS),
            silent_interval_ms=self.housekeeping_interval_ms // 2,
            housekeeping_interval_ms=self.housekeeping_interval_ms,
            sync_from_last_file=self.sync_from_last_file,
            async_learner=self.async_learner,
            sync_flush=self.sync_flush,
            pulls_metadata=True,
        )


class MasterHaAddress(NamedTuple):
    """`ha_address`: the master's "host:port" for replication. `file_bytes`: the size of its CommitLog files;
    None: the master did not report it."""

    ha_address: str
    file_bytes: int | None = None


class EpochPassed(LocalProtocolError):
    """The masterEpoch of a role is below one that the log has: an old notification, or controllers that lost
    their state. `known_epoch`: the newest epoch of the log."""

    def __init__(self, epoch: int, known_epoch: int) -> None:
        super().__init__(
            f"masterEpoch {epoch} is below epoch {known_epoch} of the log: these controllers lost their "
            "state, or belong to another cluster; `mqadmin importControllerState` restores the state"
        )
        self.known_epoch = known_epoch


class FoundEpochs(msgspec.Struct, frozen=True):
    """The epochs of a log whose epoch file is damaged or lost. end: the log is to be cut there."""

    epochs: Epochs
    end: int


FindEpochs = Callable[[int], Awaitable["FoundEpochs | str"]]
"""Finds the epochs of the log from its master, of this masterEpoch. A text: why they are not known yet."""


class SyncStateSetController(Protocol):
    """Decides about changes of the SyncStateSet in one term: the controllers, by the ReplicasManager."""

    async def alter_sync_state_set(self, new_set: frozenset[int], current_epoch: int) -> SyncStateSet | None:
        """Proposes `new_set` on top of the set of current_epoch. Returns the controller's new set; None:
        refused or unknown."""
        ...

    async def read_sync_state_set(self, doubted_epoch: int) -> SyncStateSet | None:
        """Returns the controller's set; None: it is not known.

        No change that was proposed on top of `doubted_epoch` takes effect after this answer.
        """
        ...


Clock = Callable[[], int]
"""Returns monotonic ms, so that a step of the wall clock ends no link and no membership."""
