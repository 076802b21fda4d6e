"""LagTimes: how old the messages are that consumer groups have not consumed, or not pulled yet.

A measurement reads one ConsumeQueue unit per queue in the event loop and, in a thread, the header of that
record, possibly from the disk. Only a master measures, before each scrape.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from broker.core.read_counters import ReadCounters
from broker.message.record import store_timestamp
from broker.metadata.offsets import Row, split_key
from broker.metadata.service import Metadata
from broker.store.message_store import MessageStore
from broker.store.querying import header_of
from keelmq.runtime.clock import wall_ms
from keelmq.runtime.slices import Slices

STEP: Final = 50
"""Pairs of group and topic between which the event loop does other work."""
SLICE_PAIRS: Final = 250
"""As STEP, without reading records: 1 to 3 ms."""


class Lag(NamedTuple):
    """The lag of a group in a topic. messages: not committed; inflight: pulled, and not committed; ready: not
    pulled. latency_ms, queueing_ms: age of the oldest message that is not committed, or not pulled; 0: there
    is none."""

    group: str
    topic: str
    messages: int
    inflight: int
    ready: int
    latency_ms: int = 0
    queueing_ms: int = 0


class LagTimes:
    """`found`: the result of the last measure(). Owned by the event loop's thread."""

    def __init__(
        self, store: MessageStore, metadata: Metadata, reads: ReadCounters, *, pairs_max: int
    ) -> None:
        self._store, self._metadata, self._reads, self._pairs_max = store, metadata, reads, pairs_max
        self.found: list[Lag] = []

    def counts(self) -> Slices[list[Lag]]:
        """Returns the counts of messages, each as it is now, without times."""
        rows, found = self._metadata.offsets.table.rows, list[Lag]()
        for number, key in enumerate(list(rows)[: self._pairs_max], 1):
            if number % SLICE_PAIRS == 0:
                yield
            row = rows.get(key)  # it may have been removed meanwhile
            if row is not None:
                found.append(self._count(key, row))
        return found

    async def measure(self) -> None:
        """Measures the oldest messages of all pairs. On a slave, the result is empty."""
        found: list[Lag] = []
        rows = self._metadata.offsets.table.rows
        keys = list(rows)[: self._pairs_max] if self._store.is_master else []
        for start in range(0, len(keys), STEP):
            step = [(key, rows[key]) for key in keys[start : start + STEP] if key in rows]
            lags = [self._count(key, row) for key, row in step]
            headers = [
                [self._headers(lag, row, pulled=pulled) for pulled in (False, True)]
                for lag, (_, row) in zip(lags, step, strict=True)
            ]
            times = await asyncio.to_thread(_oldest, headers)
            now = wall_ms()
            for lag, (stored, unpulled) in zip(lags, times, strict=True):
                ages = [max(now - at, 0) if at else 0 for at in (stored, unpulled)]
                found.append(lag._replace(latency_ms=ages[0], queueing_ms=ages[1]))
        self.found = found

    def _count(self, key: str, row: Row) -> Lag:
        topic, group = split_key(key)
        messages = ready = 0
        for queue_id, queue in self._store.queues.of_topic(topic).items():
            committed = row.get(queue_id, 0)
            messages += max(queue.max_offset - committed, 0)
            ready += max(queue.max_offset - self._pulled(topic, group, queue_id, committed), 0)
        return Lag(group, topic, messages, max(messages - ready, 0), ready)

    def _pulled(self, topic: str, group: str, queue_id: int, committed: int) -> int:
        """Returns the offset behind the last message that the group received from this process."""
        reads = self._reads.groups.get((topic, group))
        return committed if reads is None else max(reads.next_offsets.get(queue_id, 0), committed)

    def _headers(self, lag: Lag, row: Row, *, pulled: bool) -> list[memoryview]:
        """Returns the header of the oldest record of each queue that is not committed, or not pulled."""
        found = []
        for queue_id, queue in self._store.queues.of_topic(lag.topic).items():
            index = row.get(queue_id, 0)
            if pulled:
                index = self._pulled(lag.topic, lag.group, queue_id, index)
            index = max(index, queue.min_offset)
            if index < queue.max_offset:
                header = header_of(self._store.commit_log, queue, index)
                if header is not None:
                    found.append(header)
        return found


def _oldest(headers: Sequence[Sequence[Sequence[memoryview]]]) -> list[list[int]]:
    """Returns the earliest store timestamps, ms; 0: there is none. It may read from the disk."""
    return [[min(map(store_timestamp, each), default=0) for each in pair] for pair in headers]
