"""What comes of a send, and one message on its way over all its attempts.

Only what is promised is a result: a message that is stored but whose flush or replication came not in time
(10, 11, 12) is sent again, and in the end a SendError of kind UNKNOWN.
"""

import asyncio
from dataclasses import dataclass, field
from enum import Enum, IntEnum

from client.core.queue_choice import FaultTable, QueueChooser
from remoting.codes import ResponseCode

RETRY_PAUSE_MIN_MS = 5
RETRY_PAUSE_MAX_MS = 20

RETRY_CODES = frozenset(
    {
        ResponseCode.RPC_SEND_TO_CHANNEL_FAILED,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.GO_AWAY,
    }
)
STORED_CODES = frozenset(
    {ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.FLUSH_SLAVE_TIMEOUT}
)
"""The master has the message, but the flush or replication came not in time: neither yes nor no."""


class SendStatus(IntEnum):
    """Only what is promised is a result: codes 10, 11 and 12 are retried, and in the end a SendError."""

    SEND_OK = 0


@dataclass(frozen=True, slots=True)
class SendResult:
    """`msg_id`: the UNIQ_KEY; `offset_msg_id`: the broker's. `attempts`: requests tried for this message;
    `uncertain_attempts`: those of them that may have stored another copy. `transaction_id`: as the broker
    named it. `region_id`, `trace_on`: what the broker says of message traces."""

    status: SendStatus
    msg_id: str
    offset_msg_id: str
    topic: str
    broker_name: str
    queue_id: int
    queue_offset: int
    attempts: int
    uncertain_attempts: int
    transaction_id: str = ""
    region_id: str = "DefaultRegion"
    trace_on: bool = True


class SendErrorKind(Enum):
    NO_ROUTE = (
        "no route"  # surely not stored: no name server answered, or none knows the topic or a master of it
    )
    REFUSED = "refused"  # surely not stored: a broker said no, or no broker could be reached
    UNKNOWN = "unknown"  # at least one attempt may be stored
    CLOSED = "closed"  # surely not stored: the producer was closed


class SendError(Exception):
    """`msg_id`: the UNIQ_KEY that every attempt carried; "" if there was none. `sent`: of a batch that was
    split, the results of the parts before this one; they are stored."""

    def __init__(
        self,
        kind: SendErrorKind,
        remark: str,
        attempts: int,
        msg_id: str = "",
        sent: tuple[SendResult, ...] = (),
    ) -> None:
        super().__init__(f"{kind.value} after {attempts} attempts: {remark}")
        self.kind, self.remark, self.attempts, self.msg_id, self.sent = kind, remark, attempts, msg_id, sent


@dataclass(slots=True)
class Letter:
    """One message, or one batch, over all its attempts. `reconsume_times`: of what a consumer sends back."""

    topic: str
    body: bytes
    sys_flag: int
    flag: int
    properties: str
    unique_key: str
    deadline_ms: int
    batch: bool = False
    reconsume_times: int = 0
    max_reconsume_times: int | None = None
    attempts: int = 0
    uncertain: int = 0
    in_doubt: bool = False  # an attempt is out and unanswered
    last_broker: str = ""
    last_address: str = ""
    problem: SendErrorKind = SendErrorKind.NO_ROUTE
    remark: str = "no attempt was made"

    def fail(self, kind: SendErrorKind, remark: str) -> None:
        self.problem, self.remark = kind, remark

    def error(self) -> SendError:
        uncertain = self.uncertain + self.in_doubt
        kind = SendErrorKind.UNKNOWN if uncertain else self.problem
        return SendError(kind, self.remark, self.attempts, self.unique_key)


@dataclass(slots=True)
class Recovery:
    """Of one topic. While `failing`, an attempt needs `probe`: so there is one at a time."""

    chooser: QueueChooser
    failing: bool = False
    probe: asyncio.Lock = field(default_factory=asyncio.Lock)
    pause_ms: int = 0

    @classmethod
    def of(cls, faults: FaultTable | None) -> "Recovery":
        return cls(QueueChooser(faults))

    def failed(self) -> None:
        self.failing = True

    def succeeded(self) -> None:
        self.failing, self.pause_ms = False, 0

    def next_pause_ms(self) -> int:
        """0 first: the route is asked at once."""
        pause_ms = self.pause_ms
        self.pause_ms = min(max(2 * pause_ms, RETRY_PAUSE_MIN_MS), RETRY_PAUSE_MAX_MS)
        return pause_ms
