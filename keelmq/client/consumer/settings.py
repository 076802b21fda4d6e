"""ConsumerSettings: the settings of a member of a consumer group, with units and defaults."""

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from keelmq.client.cluster.broker_monitor import PROBE_INTERVAL_MS
from keelmq.client.core.window import Limits


class MessageModel(Enum):
    CLUSTERING = "CLUSTERING"  # each message goes to one member of the group
    BROADCASTING = "BROADCASTING"  # each member gets every message, and keeps its own offsets in a file


class ConsumeFromWhere(Enum):
    """Where a group without a committed offset begins. Retry topics are always read from their start."""

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"  # what comes from now on; all of a topic that is quite new
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"  # the oldest message that is still there
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"  # consume_timestamp_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """Defaults are RocketMQ's, except where a field says otherwise."""

    model: MessageModel = MessageModel.CLUSTERING
    from_where: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET
    consume_timestamp_ms: int | None = None
    """For TIMESTAMP: ms since 1970; None: half an hour before the start."""

    consume_concurrency: int = 20
    """Listeners that run at a time; orderly: queues that are consumed at a time."""
    consume_batch_size: int = 1
    """Messages that one call of the listener gets at most."""
    consume_timeout_ms: int = 15 * 60_000
    """A listener that takes longer is cancelled, and its messages come again."""
    max_reconsume_times: int = -1
    """Retries until a message goes to %DLQ%group. -1: what the group is configured for at the broker (16);
    orderly: for ever."""
    orderly_suspend_ms: int = 1_000
    """A queue rests for so long after its listener failed."""

    pull_batch_size: int = 32
    pull_suspend_ms: int = 15_000
    """How long an empty queue's pull waits at the broker."""
    limits: Limits = field(default_factory=Limits)
    """Of each queue: above them nothing more is pulled."""

    probe_interval_ms: int = PROBE_INTERVAL_MS
    """A broker at which pulls wait, and that says nothing for so long, is asked whether it is there."""
    heartbeat_interval_ms: int = 30_000
    rebalance_interval_ms: int = 20_000
    persist_interval_ms: int = 5_000
    close_timeout_ms: int = 10_000
    """So long close() waits for listeners that run."""

    instance_name: str | None = None
    """Part of the client id, and of the file of a broadcasting member; None: the process id, and "DEFAULT"
    for that file. Two members on one machine that broadcast need two names."""
    offsets_dir: Path | None = None
    """Of broadcasting members; None: ~/.keelmq_offsets"""

    def __post_init__(self) -> None:
        for name in (
            "consume_concurrency", "consume_batch_size", "consume_timeout_ms", "pull_batch_size",
            "probe_interval_ms", "heartbeat_interval_ms", "rebalance_interval_ms", "persist_interval_ms",
        ):  # fmt: skip
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be above 0")
        if self.consume_batch_size > 1_024 or self.pull_batch_size > 1_024:
            raise ValueError("consume_batch_size and pull_batch_size are 1,024 at most")
