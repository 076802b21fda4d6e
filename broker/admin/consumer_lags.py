"""ConsumerLags: writes how far each consumer group is behind, for analytics; of a master only.

Offsets and queue ends are in memory, and are read in small steps, between which the event loop continues. The
time of the oldest message costs one ConsumeQueue unit and, in a thread, the header of one record per queue.
A queue in which the group has committed no offset counts from its beginning, as in the metrics.
"""

import asyncio
import heapq
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from broker.config.broker_config import BrokerConfig
from broker.message.record import store_timestamp
from broker.metadata.groups import BUILT_IN
from broker.metadata.offsets import Row, split_key
from broker.metadata.service import Metadata
from broker.store.message_store import MessageStore
from broker.store.querying import header_of
from keelmq.remoting.records import ConsumerLag
from keelmq.remoting.telemetry import TelemetryWriter
from keelmq.runtime.clock import wall_ms

logger = logging.getLogger(__name__)

PAIRS_MAX: Final = 1_000
"""Pairs of group and topic that are written at a time: those with the most messages behind."""
EXAMINED_MAX: Final = 20_000
"""Pairs that are checked; each check takes about 10 us."""
STEP: Final = 50


class Behind(NamedTuple):
    """A pair of group and topic: its unconsumed messages, of all queues, and its committed offsets."""

    messages: int
    group: str
    topic: str
    offsets: Row


class ConsumerLags:
    """Owned by the event loop's thread."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        metadata: Metadata,
        writer: TelemetryWriter,
        broker_id: Callable[[], int | None],
    ) -> None:
        """broker_id: of this broker; None: it is not master."""
        self._config, self._store, self._metadata = config, store, metadata
        self._writer, self._broker_id = writer, broker_id

    async def run(self) -> None:
        """Writes the records every telemetryConsumerLagInterval, until cancelled."""
        while True:
            await asyncio.sleep(self._config.telemetry_consumer_lag_interval / 1_000)
            await self.write()

    async def write(self) -> None:
        """Writes one record for each pair. Does nothing unless this broker is master."""
        if self._broker_id() is None:
            return
        rows = self._metadata.offsets.table.rows
        keys = [key for key in rows if split_key(key)[1] not in BUILT_IN]
        found = []
        for number, key in enumerate(keys[:EXAMINED_MAX]):
            row = rows.get(key)  # it may have been removed meanwhile
            if row is not None:
                topic, group = split_key(key)
                found.append(Behind(self._messages(topic, row), group, topic, dict(row)))
            if number % STEP == STEP - 1:
                await asyncio.sleep(0)
        written = heapq.nlargest(PAIRS_MAX, found, key=lambda each: each.messages)
        if left_out := len(keys) - len(written):
            logger.warning(
                "telemetry: the lag of %d pairs of consumer group and topic is left out: "
                "of %d pairs, at most the %d with the most messages behind are written",
                left_out, len(keys), PAIRS_MAX,
            )  # fmt: skip
        for start in range(0, len(written), STEP):
            await self._write_step(written[start : start + STEP])

    def _messages(self, topic: str, row: Row) -> int:
        queues = self._store.queues.of_topic(topic)
        return sum(
            max(queue.max_offset - max(row.get(queue_id, 0), queue.min_offset), 0)
            for queue_id, queue in queues.items()
        )

    async def _write_step(self, pairs: Sequence[Behind]) -> None:
        headers = [list(self._oldest(each)) for each in pairs]
        oldest = await asyncio.to_thread(_oldest_times, headers)
        broker_id, ts = self._broker_id(), wall_ms()
        if broker_id is None:
            return
        for pair, stored_ts in zip(pairs, oldest, strict=True):
            self._writer.put(
                ConsumerLag(
                    ts=ts,
                    cluster_name=self._config.broker_cluster_name,
                    broker_name=self._config.broker_name,
                    broker_id=broker_id,
                    consumer_group=pair.group,
                    topic=pair.topic,
                    lag_messages=pair.messages,
                    lag_ms=max(0, ts - stored_ts) if stored_ts else 0,
                )
            )

    def _oldest(self, pair: Behind) -> Iterator[memoryview]:
        """Yields the header of the oldest unconsumed record of each queue, of a pair that is behind."""
        for queue_id, queue in self._store.queues.of_topic(pair.topic).items():
            index = max(pair.offsets.get(queue_id, 0), queue.min_offset)
            if index < queue.max_offset:
                header = header_of(self._store.commit_log, queue, index)
                if header is not None:
                    yield header


def _oldest_times(headers: Sequence[Sequence[memoryview]]) -> list[int]:
    """Returns the earliest store timestamp of each sequence, ms; 0: it is empty. A page that is not in memory
    is read from the disk here."""
    return [min(map(store_timestamp, each), default=0) for each in headers]
