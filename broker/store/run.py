"""Run: units of records that were appended to the log at once, in one queue or in several."""

from typing import NamedTuple

from broker.store.consume_queue import ConsumeQueue
from broker.store.indexed_keys import Keyed


class Part(NamedTuple):
    """Consecutive units of one queue. units: packed, as the queue has them. messages: so many queue offsets
    they take. log_bytes: of their records."""

    queue: ConsumeQueue
    queue_offset: int
    messages: int
    units: bytes
    log_bytes: int


class Run(NamedTuple):
    """end: of the last record in the log; they are dispatched together. keys: of those records that have any;
    [] without an index."""

    end: int
    parts: list[Part]
    timestamp: int
    keys: list[Keyed]
