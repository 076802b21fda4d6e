"""ConsumeQueue units of records that were appended to the log at once, for one queue or more."""

from typing import NamedTuple

from broker.message.indexed_keys import Keyed
from broker.store.queue.consume_queue import ConsumeQueue


class QueueUnits(NamedTuple):
    """Consecutive units of one queue. queue_offset: of the first message. messages: number of queue offsets
    that they take. units: packed as the queue stores them. log_bytes: total size of their records."""

    queue: ConsumeQueue
    queue_offset: int
    messages: int
    units: bytes
    log_bytes: int


class DispatchRequest(NamedTuple):
    """end: CommitLog offset where the last record ends; all units become visible when confirmOffset has
    reached it. timestamp: store timestamp of the records in ms. keys: of the records that have any; [] if
    the store has no index."""

    end: int
    queue_units: list[QueueUnits]
    timestamp: int
    keys: list[Keyed]
