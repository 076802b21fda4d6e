"""What the HA service needs of the store and of the broker around it, and its settings."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from remoting.operation import LocalProtocolError
from remoting.operations.controller import SyncStateSet

BATCH_BYTES_MAX = 1 << 20
"""Larger packets hurt the producers that share the loop, and gain nothing."""


@dataclass(frozen=True, slots=True)
class HaSettings:
    """Times in ms. The names in the comments are RocketMQ's keys."""

    batch_bytes: int = 131_072  # haTransferBatchSize
    send_heartbeat_interval_ms: int = 5_000  # haSendHeartbeatInterval
    housekeeping_interval_ms: int = 20_000  # haHousekeepingInterval
    max_time_slave_not_catchup_ms: int = 15_000  # haMaxTimeSlaveNotCatchup
    check_sync_state_set_period_ms: int = 5_000  # checkSyncStateSetPeriod: accepted; we look every 100 ms
    all_ack: bool = False  # allAckInSyncStateSet
    in_sync_replicas: int = 1  # inSyncReplicas
    sync_from_last_file: bool = False
    async_learner: bool = False
    bytes_per_second: int = 0  # maxHaTransferByteInSecond, with haFlowControlEnable; of one link
    far_bytes_per_second: int = 104_857_600  # maxHaTransferByteInSecond: far behind, while producers write
    catch_up_threads: int = 4  # haCatchUpThreads
    stay_awake: bool = False  # haStayAwake
    sync_flush: bool = False  # flushDiskType=SYNC_FLUSH: confirmOffset and acks are of what is on disk

    def __post_init__(self) -> None:
        if not 1 <= self.batch_bytes <= BATCH_BYTES_MAX:
            raise ValueError(f"haTransferBatchSize must be 1..{BATCH_BYTES_MAX}, not {self.batch_bytes}")


class MasterDoor(NamedTuple):
    """Where a master serves its log, and the size of the files of that log; None: it does not tell."""

    ha_address: str
    file_bytes: int | None = None


class EpochPassed(LocalProtocolError):
    """A role at a masterEpoch below one that the log has seen: late news, or controllers that lost what they
    knew."""

    def __init__(self, epoch: int, known_epoch: int) -> None:
        super().__init__(
            f"masterEpoch {epoch} is below epoch {known_epoch} of the log: these controllers lost what they "
            "knew, or are another cluster's; importControllerState of mqadmin gives it back to them"
        )
        self.known_epoch = known_epoch


class ReplicatedLog(Protocol):
    """store.CommitLog, as far as replication uses it."""

    file_bytes: int
    min_offset: int
    max_offset: int

    @property
    def flushed_offset(self) -> int: ...

    def view(self, offset: int, limit: int, *, end: int | None = None) -> memoryview: ...
    def open_file(self, offset: int) -> int: ...
    def is_record_start(self, offset: int) -> bool: ...
    def receive_view(self) -> memoryview: ...
    def received(self, count: int) -> None: ...
    def sync(self) -> object: ...


class ReplicatedStore(Protocol):
    """store.MessageStore, as far as replication uses it."""

    confirm_offset: int

    @property
    def commit_log(self) -> ReplicatedLog: ...

    @property
    def dispatch_behind(self) -> bool: ...

    def set_confirm_offset(self, offset: int) -> None: ...
    def dispatch(self, records_max: int) -> bool: ...
    def truncate(self, offset: int) -> None: ...
    def truncate_half_message(self) -> int: ...
    def reset_to(self, offset: int) -> None: ...
    def become_master(self) -> None: ...
    def become_slave(self) -> None: ...


class HaEvents(Protocol):
    """What the service tells the broker, and what it asks of the controller."""

    def on_confirm(self, offset: int) -> None:
        """confirmOffset moved to offset; the store knows already."""
        ...

    def on_replicated(self, offset: int) -> None:
        """Replies to messages that end at or below offset may go."""
        ...

    async def alter_sync_state_set(
        self, new_set: frozenset[int], current_epoch: int
    ) -> SyncStateSet | None: ...

    async def read_sync_state_set(self, doubted_epoch: int) -> SyncStateSet | None:
        """The controller's set; no change that was asked for on top of doubted_epoch may come after it."""
        ...

    def on_in_sync_changed(self, count: int) -> None: ...


Clock = Callable[[], int]
"""Monotonic ms: a step of the wall clock never ends a link or a membership."""
