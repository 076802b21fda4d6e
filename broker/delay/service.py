"""Delivers delayed messages: what is due goes to its real topic, and the level's offset follows.

Only a master delivers. The offset of a level is given to the metadata table (and so to the replicas) when the
delivered copy is confirmed and on disk: a copy that is lost with its master is delivered again by the next
one, and none is lost. Source: RocketMQ 5.3.3 ScheduleMessageService.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from broker.delay.levels import SCHEDULE_TOPIC, DelayLevels
from broker.handlers.origin import destination, real_queue
from broker.handlers.writer import Letter, Refused, Writer
from broker.metadata.service import Metadata
from broker.store.consume_queue import ConsumeQueue
from broker.store.message_store import MessageStore
from broker.store.record import decode
from remoting.clock import wall_ms
from remoting.codes import ResponseCode

logger = logging.getLogger(__name__)

PERIOD_MS: Final = 100
BATCH_MAX: Final = 512
"""Messages of one level that are delivered in one go: the loop has other things to do."""


class DelayedDelivery:
    """Owned by the event loop's thread; run() is its task, deliver() one round."""

    def __init__(
        self,
        store: MessageStore,
        metadata: Metadata,
        writer: Writer,
        *,
        clock: Callable[[], int] = wall_ms,
    ) -> None:
        self._store, self._metadata, self._writer, self._clock = store, metadata, writer, clock
        self._levels: DelayLevels = store.delay_levels
        self._term: int | None = None  # masterEpoch that the positions below are of
        self._next: dict[int, int] = {}
        self._unsafe: deque[tuple[int, int, int]] = deque()  # end in the log, level, offset behind it
        self.delivered = 0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(PERIOD_MS / 1000)
            more = self.deliver()
            while more:
                await asyncio.sleep(0)  # connections have their turn
                more = self.deliver()

    def deliver(self) -> bool:
        """What is due now, at most BATCH_MAX per level. True: there is more."""
        if not self._may_deliver():
            return False
        self._settle()
        now, more = self._clock(), False
        for level in range(1, self._levels.count + 1):
            queue = self._store.find_queue(SCHEDULE_TOPIC, level - 1)
            if queue is not None:
                more = self._deliver_level(level, queue, now) or more
        return more

    def _may_deliver(self) -> bool:
        """Reads the positions again in each new term: another master may have gone on meanwhile."""
        store, gate = self._store, self._metadata.gate
        if not store.is_master:
            self._term = None
        if not (store.is_master and gate.writable) or gate.lease_is_over:
            return False  # a gate that is closed for a while ends no term
        if self._term != self._metadata.epoch:
            if store.dispatch_behind:
                return False  # the queues are not whole yet
            self._term = self._metadata.epoch
            self._unsafe.clear()
            self._next = {level: self._start(level) for level in range(1, self._levels.count + 1)}
        return True

    def _start(self, level: int) -> int:
        """Inside the queue, whatever the table says (store pitfall 20)."""
        offset, queue = self._metadata.delays.get(level), self._store.find_queue(SCHEDULE_TOPIC, level - 1)
        if queue is None:
            return 0
        inside = min(max(offset, queue.min_offset), queue.max_offset)
        if inside != offset:
            logger.error(
                "delay level %d: offset %d is outside of its queue %d..%d; it goes on at %d",
                level, offset, queue.min_offset, queue.max_offset, inside,
            )  # fmt: skip
        return inside

    def _settle(self) -> None:
        """Offsets whose messages cannot be lost any more become the table's."""
        safe = min(self._store.confirm_offset, self._store.commit_log.flushed_offset)
        while self._unsafe and self._unsafe[0][0] <= safe:
            _, level, offset = self._unsafe.popleft()
            self._metadata.delays.advance(level, offset)

    def _deliver_level(self, level: int, queue: ConsumeQueue, now: int) -> bool:
        at, count = max(self._next[level], queue.min_offset), 0
        while at < queue.max_offset and count < BATCH_MAX:
            log_offset, size, due_at = queue.unit(at)
            latest = now + self._levels.delay_ms(level)
            if now < due_at <= latest:  # what is later than that was stored by a clock that was wrong
                break
            end = self._deliver_record(log_offset, size)
            if end is None:
                break
            at += 1
            count += 1
            self._next[level] = at
            self._unsafe.append((end, level, at))
        return count == BATCH_MAX

    def _deliver_record(self, log_offset: int, size: int) -> int | None:
        """Where the copy ends in the log; 0: there is nothing to deliver. None: not now."""
        letter = self._copy_of(log_offset, size)
        if letter is None:
            return 0
        stored = self._writer.put(letter)
        if isinstance(stored, Refused):
            if stored.code != ResponseCode.MESSAGE_ILLEGAL:
                return None
            logger.error("the delayed record at %d cannot be delivered: %s", log_offset, stored.remark)
            return 0  # it would hold up its level for ever
        self.delivered += 1
        return stored.end

    def _copy_of(self, log_offset: int, size: int) -> Letter | None:
        """The properties stay as they are stored, also DELAY, REAL_TOPIC and REAL_QID."""
        view = self._store.commit_log.view(log_offset, size)
        if len(view) < size:
            logger.error("the delayed record at %d is gone: retention was shorter than its delay", log_offset)
            return None
        record = decode(view)
        where = real_queue(record.properties)
        if where is None or where[0] == SCHEDULE_TOPIC:
            logger.error("the delayed record at %d does not say where it belongs", log_offset)
            return None
        topic, queue_id = where
        return Letter(
            destination(self._metadata.topics, topic), queue_id, record.body, record.properties,
            record.flag, record.sys_flag, record.born_timestamp, record.born_host, record.reconsume_times,
        )  # fmt: skip
