"""ConsumerSettings: the settings of a member of a consumer group, with units and defaults."""

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from keelmq.client.cluster.broker_monitor import PROBE_INTERVAL_MS
from keelmq.client.consumer.damage import DamagedListener
from keelmq.client.core.checks import INT32_MAX, check_callable, check_int, check_one_of, check_text
from keelmq.client.core.window import Limits
from keelmq.client.message import BODY_BYTES_MAX


class MessageModel(Enum):
    """RocketMQ's MessageModel."""

    CLUSTERING = "CLUSTERING"  # each message goes to one member of the group
    BROADCASTING = "BROADCASTING"  # each member gets every message, and keeps its own offsets in a file


class ConsumeFromWhere(Enum):
    """Where a group without a committed offset begins in a queue. Retry topics are always read from their
    start. As in RocketMQ, LAST_OFFSET and TIMESTAMP begin with the oldest message of a *young* queue: one
    that still has its first message, which is recent (in the broker's memory)."""

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"  # new messages only; all messages of a young queue
    STRICT_LAST_OFFSET = "STRICT_LAST_OFFSET"  # new messages only, also in a young queue; not in RocketMQ
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"  # the oldest stored message
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"  # consume_timestamp_ms; all messages of a young queue

    @property
    def wire(self) -> str:
        """Returns RocketMQ's name, for heartbeats."""
        return ConsumeFromWhere.LAST_OFFSET.value if self is self.STRICT_LAST_OFFSET else self.value


class DamagedPolicy(Enum):
    """What to do at a message that no replica can deliver, since its record on disk is damaged."""

    SKIP = "SKIP"  # report it, and go on
    STOP = "STOP"  # report it, and wait in this queue until it is healed or an operator marks it as lost


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """Defaults are RocketMQ's, except where a field says otherwise."""

    model: MessageModel = MessageModel.CLUSTERING
    from_where: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET
    """Of a new group. The default also gets the old messages of a young queue: see ConsumeFromWhere."""
    consume_timestamp_ms: int | None = None
    """For TIMESTAMP: ms since 1970; None: half an hour before the start."""

    consume_concurrency: int = 20
    """Concurrent listener calls; orderly: queues that are consumed concurrently."""
    consume_batch_size: int = 1
    """The largest number of messages in one listener call."""
    consume_timeout_ms: int = 15 * 60_000
    """A listener that takes longer is cancelled, and its messages are redelivered."""
    max_reconsume_times: int = -1
    """Retries before a message goes to %DLQ%group. -1: the group's setting at the broker (16); orderly: no
    limit."""
    orderly_suspend_ms: int = 1_000
    """How long a queue pauses after its listener failed."""

    pull_batch_size: int = 32
    pull_suspend_ms: int = 15_000
    """How long the broker may hold a pull of an empty queue."""
    limits: Limits = field(default_factory=Limits)
    """Per queue: while a limit is reached, nothing more is pulled."""

    body_bytes_max: int = BODY_BYTES_MAX
    """Bytes of one inflated body, and of all inflated bodies of one pull. A message with a longer body is
    treated as a damaged one (on_damaged)."""

    on_damaged: DamagedPolicy = DamagedPolicy.SKIP
    """Every damaged message is logged at ERROR with topic, queue and offset."""
    damaged_wait_ms: int = 5_000
    """SKIP: how long a queue waits for a message that a broker may still heal from another replica."""
    damaged_listener: DamagedListener | None = None
    """Called in the event loop with (queue, record), once for each damaged message, when it is skipped or
    when the queue stops at it. It must not block."""

    probe_interval_ms: int = PROBE_INTERVAL_MS
    """After this long without a response, a broker with waiting pulls gets a small request, to find out
    whether it hangs."""
    heartbeat_interval_ms: int = 30_000
    rebalance_interval_ms: int = 20_000
    persist_interval_ms: int = 5_000
    close_timeout_ms: int = 10_000
    """How long close() waits for running listeners. The last commits may take LAST_COMMITS_MS more."""

    instance_name: str | None = None
    """Part of the client id, and of the offset file of a broadcasting member; None: the process id, and
    "DEFAULT" for that file. Two broadcasting members on one machine need two names: the second one with the
    same offset file does not start (RuntimeError)."""
    offsets_dir: Path | None = None
    """The folder for offset files of broadcasting members; None: ~/.keelmq_offsets."""

    @property
    def stops_at_damaged(self) -> bool:
        """Returns whether a queue stops at a damaged message."""
        return self.on_damaged is DamagedPolicy.STOP

    def __post_init__(self) -> None:
        check_one_of("model", self.model, MessageModel)
        check_one_of("from_where", self.from_where, ConsumeFromWhere)
        check_one_of("limits", self.limits, Limits)
        check_one_of("on_damaged", self.on_damaged, DamagedPolicy)
        check_callable("damaged_listener", self.damaged_listener, plain=True, optional=True)
        check_text("instance_name", self.instance_name, optional=True)
        check_one_of("offsets_dir", self.offsets_dir, Path, optional=True)
        check_int("consume_timestamp_ms", self.consume_timestamp_ms, optional=True)
        check_int("max_reconsume_times", self.max_reconsume_times, least=-1, most=INT32_MAX)
        for name in ("orderly_suspend_ms", "pull_suspend_ms", "damaged_wait_ms", "close_timeout_ms"):
            check_int(name, getattr(self, name))
        for name in (
            "consume_concurrency", "consume_batch_size", "consume_timeout_ms", "pull_batch_size",
            "body_bytes_max", "probe_interval_ms", "heartbeat_interval_ms", "rebalance_interval_ms",
            "persist_interval_ms",
        ):  # fmt: skip
            check_int(name, getattr(self, name), least=1)
        if self.consume_batch_size > 1_024 or self.pull_batch_size > 1_024:
            raise ValueError("consume_batch_size and pull_batch_size are 1,024 at most")
