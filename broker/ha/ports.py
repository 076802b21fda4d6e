"""The settings of replication, and the protocols that it depends on: a log, a store, the broker's
callbacks."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

import msgspec

from broker.ha.core.epochs import Epochs
from broker.store.cut_store import CutPlan
from broker.store.damage import DamagedRanges
from broker.store.log.sync_fault import SyncFault
from broker.store.log_check import Piece
from keelmq.remoting.operation import LocalProtocolError
from keelmq.remoting.operations.controller import SyncStateSet
from keelmq.runtime.slices import Slices

BATCH_BYTES_MAX = 1 << 20
"""Larger packets delay the producers that share the event loop, and gain nothing."""


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


class MasterHaAddress(NamedTuple):
    """`ha_address`: the master's "host:port" for replication. `file_bytes`: the size of its CommitLog files;
    None: the master did not say."""

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


class ReplicatedLog(Protocol):
    """The part of store.CommitLog that replication uses."""

    file_bytes: int
    min_offset: int
    max_offset: int
    sync_fault: SyncFault

    @property
    def flushed_offset(self) -> int:
        """The log is on disk up to this offset."""
        ...

    def view(self, offset: int, limit: int, *, end: int | None = None) -> memoryview:
        """Returns up to `limit` bytes at `offset` of one file, below `end` or the log's end."""
        ...

    def open_file(self, offset: int) -> int:
        """Returns a new descriptor of the file that holds `offset`; the caller closes it."""
        ...

    def is_record_start(self, offset: int) -> bool:
        """Returns whether a record starts at `offset`, or the log ends there."""
        ...

    def receive_view(self) -> memoryview:
        """Returns the writable memory behind the log's end. Raises OSError if there is no room, or a sync
        failed."""
        ...

    def received(self, count: int) -> None:
        """Appends the `count` bytes that were written into receive_view()."""
        ...

    def sync(self) -> object:
        """Syncs the log to disk. Raises SyncError."""
        ...


class FoundEpochs(msgspec.Struct, frozen=True):
    """The epochs of a log whose epoch file is damaged or lost. end: the log is to be cut there."""

    epochs: Epochs
    end: int


FindEpochs = Callable[[int], Awaitable["FoundEpochs | str"]]
"""Finds the epochs of the log by its master, of this masterEpoch. A text: why they are not known yet."""


class SendCheck(Protocol):
    """The part of store.LogCheck that replication uses: no damage is sent to a replica."""

    is_all_whole: bool

    def known_end(self, offset: int) -> int:
        """Returns how far the log is known to be whole from `offset` on, and may be sent."""
        ...

    def needs_check(self, offset: int) -> bool:
        """Returns whether check_some() or a check in a thread may find that more can be sent."""
        ...

    def check_some(self, offset: int) -> None:
        """Checks less than a millisecond's work of records from `offset` on."""
        ...

    def found(self, piece: Piece) -> None:
        """Takes the result of a check in a thread."""
        ...


class ReplicatedStore(Protocol):
    """The part of store.MessageStore that replication uses."""

    confirm_offset: int

    @property
    def log_check(self) -> SendCheck:
        """What may be sent to a replica."""
        ...

    @property
    def damage(self) -> DamagedRanges:
        """What is damaged of the log."""
        ...

    @property
    def commit_log(self) -> ReplicatedLog:
        """The log."""
        ...

    @property
    def dispatch_behind(self) -> bool:
        """Whether confirmed records are not dispatched to queues and index yet."""
        ...

    @property
    def dispatch_backlog(self) -> int:
        """Confirmed bytes that are not dispatched yet."""
        ...

    def set_confirm_offset(self, offset: int) -> None:
        """Moves confirmOffset to `offset`; records that end at or below it may be read."""
        ...

    def dispatch(self, records_max: int) -> bool:
        """Dispatches up to `records_max` records. Returns True if there are more."""
        ...

    is_cutting: bool

    def plan_cut(self, offset: int) -> Slices[CutPlan]:
        """Prepares begin_cut() in slices. Changes nothing."""
        ...

    def begin_cut(self, offset: int, plan: CutPlan | None = None) -> None:
        """Truncates the log at `offset` in memory, and takes no bytes until end_cut()."""
        ...

    def begin_reset(self, offset: int) -> None:
        """Empties the log, which then begins at `offset`; continues like begin_cut()."""
        ...

    def write_cut(self) -> None:
        """Writes the truncation to disk, in any thread. Raises OSError."""
        ...

    def end_cut(self) -> None:
        """Ends the truncation after write_cut() has succeeded."""
        ...

    @property
    def scanned_offset(self) -> int:
        """End of the last whole record that is known."""
        ...

    def tail_fault(self) -> str:
        """Returns why the log must not be cut at scanned_offset; "": nothing confirmed would be lost."""
        ...

    def name_tail_damage(self) -> bool:
        """Adds what tail_fault() tells to `damage`. Returns whether it tells any."""
        ...

    @property
    def scan_behind(self) -> bool:
        """Whether bytes were received that scan() has not read."""
        ...

    def scan(self, records_max: int) -> bool:
        """Reads up to `records_max` received records for what a promotion needs. Returns True if there are
        more."""
        ...

    def become_master(self) -> None:
        """Accepts messages from producers from now on."""
        ...

    def become_slave(self) -> None:
        """Accepts only bytes from a master from now on."""
        ...


class HaEvents(Protocol):
    """The reports of the HA service to the broker, and its requests to the controller."""

    def on_confirm(self, offset: int) -> None:
        """Called when confirmOffset moved to `offset`; the store has it already."""
        ...

    def on_replicated(self, offset: int) -> None:
        """Called when enough replicas have the bytes below `offset`: replies to messages that end at or below
        it may be sent."""
        ...

    async def alter_sync_state_set(self, new_set: frozenset[int], current_epoch: int) -> SyncStateSet | None:
        """Proposes `new_set` on top of the set of current_epoch. Returns the controller's new set; None:
        refused or unknown."""
        ...

    async def read_sync_state_set(self, doubted_epoch: int) -> SyncStateSet | None:
        """Returns the controller's set; None: it is not known.

        No change that was proposed on top of `doubted_epoch` takes effect after this answer.
        """
        ...

    def on_in_sync_changed(self, count: int) -> None:
        """Called when the agreed set has a new number of members, `count`."""
        ...


Clock = Callable[[], int]
"""Returns monotonic ms, so that a step of the wall clock ends no link and no membership."""
