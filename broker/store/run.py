"""Run: consecutive units of one queue, whose records were appended to the log at once."""

from typing import NamedTuple

from broker.store.consume_queue import UNIT_BYTES, ConsumeQueue
from broker.store.indexed_keys import Keyed


class Run(NamedTuple):
    """end: of the last record in the log; they are dispatched together. units: packed, as the queue has them.
    log_bytes: of all records. keys: of those records that have any; [] without an index."""

    end: int
    queue: ConsumeQueue
    queue_offset: int
    units: bytes
    log_bytes: int
    timestamp: int
    keys: list[Keyed]

    @property
    def unit_count(self) -> int:
        return len(self.units) // UNIT_BYTES
