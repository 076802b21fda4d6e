"""ReviveCounts: counts of the records of the revive topic and of revived messages, for metrics.

Source: RocketMQ 5.3.3 PopMetricsManager.
"""

from collections import Counter
from typing import Final, NamedTuple, TypeVar

from broker.admission.send_gate import PutRefused
from broker.core.read_counters import PAIRS_MAX
from broker.pop.core.state import Key
from broker.put.message_to_store import PutMessageResult
from keelmq.remoting.codes import ResponseCode

OF_CHECKPOINT, OF_ACK = "CK", "ACK"
"""RocketMQ's values of the label revive_message_type. Records of resets are KeelMQ's, and not counted."""
PUT_OK: Final = "PUT_OK"
_STATUSES: Final[dict[int, str]] = {
    ResponseCode.SERVICE_NOT_AVAILABLE: "SERVICE_NOT_AVAILABLE",
    ResponseCode.MESSAGE_ILLEGAL: "MESSAGE_ILLEGAL",
}
_OTHER_STATUS: Final = "UNKNOWN_ERROR"
Labels = TypeVar("Labels", bound=NamedTuple)


class Written(NamedTuple):
    """Labels of a record that was written, or refused, in the revive topic."""

    group: str
    topic: str
    kind: str
    status: str


class Applied(NamedTuple):
    """Labels of a record of the revive topic that became part of the state."""

    group: str
    topic: str
    queue_id: int
    kind: str


class Retried(NamedTuple):
    """Labels of an attempt to deliver a message again."""

    group: str
    topic: str
    status: str


class ReviveCounts:
    """Since the start of this process; they do not grow while it is not master. Groups are created and
    deleted, so after PAIRS_MAX labels no new ones are counted. Owned by the event loop's thread."""

    def __init__(self) -> None:
        self.written, self.applied = Counter[Written](), Counter[Applied]()
        self.retried = Counter[Retried]()

    def put(self, key: Key, kind: str, stored: PutMessageResult | PutRefused, queue_id: int) -> None:
        """Counts a record that was put into this revive queue; stored ones are applied at once."""
        status = status_of(stored)
        _count(self.written, Written(key.group, key.topic, kind, status))
        if status is PUT_OK:
            self.read(key, kind, queue_id)

    def read(self, key: Key, kind: str, queue_id: int) -> None:
        """Counts a record that was read and applied."""
        _count(self.applied, Applied(key.group, key.topic, queue_id, kind))

    def retry(self, key: Key, stored: PutMessageResult | PutRefused) -> None:
        """Counts a message that was put into the retry topic or the dead-letter topic."""
        _count(self.retried, Retried(key.group, key.topic, status_of(stored)))


def _count(counter: Counter[Labels], labels: Labels) -> None:
    if labels in counter or len(counter) < PAIRS_MAX:
        counter[labels] += 1


def status_of(stored: PutMessageResult | PutRefused) -> str:
    """Returns RocketMQ's name of the outcome, of those that can be distinguished here."""
    return _STATUSES.get(stored.code, _OTHER_STATUS) if isinstance(stored, PutRefused) else PUT_OK
