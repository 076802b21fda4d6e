"""The outcome of a send: SendResult if the broker acknowledged the message, SendError otherwise.

A message that is stored, but whose flush or replication timed out (codes 10, 11 and 12), gets no SendResult:
it is sent again, and ends as a SendError of kind UNKNOWN if no attempt is acknowledged in time.
"""

from dataclasses import dataclass
from enum import Enum, IntEnum


class SendStatus(IntEnum):
    """Only an acknowledged message has a result: codes 10, 11 and 12 are retried, and end as a SendError."""

    SEND_OK = 0


@dataclass(frozen=True, slots=True)
class SendResult:
    """An acknowledged message. `msg_id`: the UNIQ_KEY; `offset_msg_id`: the broker's id. `attempts`: requests
    sent for this message; `uncertain_attempts`: those of them that may have stored another copy.
    `transaction_id`: the broker's. `region_id`, `trace_on`: the broker's settings for message traces."""

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
    """Why a send failed, and whether the message may be stored."""

    # Surely not stored: no name server answered, or none knows the topic or a master of it, or the timeout
    # passed before the first attempt.
    NO_ROUTE = "no route"
    REFUSED = "refused"  # surely not stored: a broker refused it, or no broker could be reached
    UNKNOWN = "unknown"  # at least one attempt may be stored
    CLOSED = "closed"  # surely not stored: the producer was closed


class SendError(Exception):
    """A send failed. `msg_id`: the UNIQ_KEY of all attempts, "" if there was none. `sent`: of a split batch,
    the results of the parts before the failed one, which are stored."""

    def __init__(
        self,
        kind: SendErrorKind,
        remark: str,
        attempts: int,
        msg_id: str = "",
        sent: tuple[SendResult, ...] = (),
    ) -> None:
        super().__init__(f"{_outcome(kind, attempts)}: {remark}")
        self.kind, self.remark, self.attempts, self.msg_id, self.sent = kind, remark, attempts, msg_id, sent


def _outcome(kind: SendErrorKind, attempts: int) -> str:
    """Returns the beginning of the text. NO_ROUTE also covers a group without a master, whose route is known:
    the remark says which case it was."""
    what = "not sent" if kind is SendErrorKind.NO_ROUTE or not attempts else kind.value
    return f"{what} after {attempts} attempt{'' if attempts == 1 else 's'}" if attempts else what
