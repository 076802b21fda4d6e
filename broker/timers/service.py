"""Delivers timer messages: reads the timer queue into the wheel, and what is due goes to its real topic.

Only a master does. How far it is becomes metadata when the delivered copies are confirmed and on disk: a copy
that is lost with its master is delivered again by the next one, and none is lost. Source: RocketMQ 5.3.3
TimerMessageStore; how this differs: docs/adr (timers are read from the log).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from broker.client_settings import ClientSettings
from broker.delay.levels import LAID_BY, TIMER_TOPIC
from broker.handlers.origin import destination, real_queue
from broker.handlers.property_text import with_properties
from broker.handlers.writer import Letter, Refused, Writer
from broker.metadata import timers as rows
from broker.metadata.service import Metadata
from broker.store.consume_queue import FILLER_SIZE, ConsumeQueue
from broker.store.message_store import MessageStore
from broker.store.record import Record, decode, property_value
from broker.timers.core.wheel import Frontier, TimerWheel
from broker.timers.times import TAG_HASH_MAX, key_of, out_ms_of, recall_key
from remoting.clock import wall_ms
from remoting.codes import ResponseCode

logger = logging.getLogger(__name__)

PERIOD_MS: Final = 100
READ_MAX: Final = 4_096
DELIVER_MAX: Final = 512
"""Units that are read, and messages that are delivered, in one go: the loop has other things to do."""
MARKS_MAX: Final = 1_024
LOOK_BACK_MS: Final = 60_000
"""How often it is looked up where the oldest timer is that is still to come."""


class Timers:
    """Owned by the event loop's thread; run() is its task, round() one step of it."""

    def __init__(
        self,
        store: MessageStore,
        metadata: Metadata,
        writer: Writer,
        *,
        settings: ClientSettings,
        clock: Callable[[], int] = wall_ms,
    ) -> None:
        self._store, self._metadata, self._writer, self._clock = store, metadata, writer, clock
        self._settings = settings
        self.wheel = TimerWheel()
        self._term: int | None = None  # masterEpoch that the wheel is of
        self._target: int | None = None  # the log had this end when the term began: all units of it first
        self._first_offset = self._next_look_ms = 0
        self._marks: deque[tuple[int, Frontier, int]] = deque()  # end in the log, and what it makes safe
        self._marked: Frontier | None = None
        self._moved = False  # since the last mark
        self.added = self.delivered = 0
        """Since the start: into the wheel (those of earlier terms do not count), and out of it."""

    async def run(self) -> None:
        while True:
            try:
                more = self.round()
            except BaseException:
                self._term = None  # the next run reads everything again
                raise
            await asyncio.sleep(0 if more else PERIOD_MS / 1000)

    def round(self) -> bool:
        """True: there is more to do at once."""
        if not self._serves():
            return False
        self._settle()
        if not self.wheel.in_phase:
            if self._read():
                return True
            if self._target is not None:
                return False
            self.wheel.begin_phase(self._clock() - self._settings.timer_precision_ms)
        return self._deliver()

    @property
    def is_full(self) -> bool:
        return self.wheel.is_full

    @property
    def waiting(self) -> int:
        """Timers that are to come."""
        return len(self.wheel) if self._term is not None else 0

    @property
    def unread(self) -> int:
        """Messages of the timer queue that are not in the wheel yet."""
        queue = self._store.find_queue(TIMER_TOPIC, 0)
        if queue is None or self._term is None:
            return 0
        return max(queue.max_offset - max(self.wheel.read_end, queue.min_offset), 0)

    @property
    def late_ms(self) -> int:
        """How long the next timer has been due."""
        next_ms = self.wheel.next_ms
        if next_ms is None or self._term is None:
            return 0
        return max(self._clock() - self._settings.timer_precision_ms - next_ms, 0)

    @property
    def is_settled(self) -> bool:
        """No delivery of this term would be repeated by the next master, once the table is replicated."""
        return not self._marks and not self._moved

    # -- terms -------------------------------------------------------------------------------------------

    def _serves(self) -> bool:
        gate = self._metadata.gate
        if not self._store.is_master:
            self._term = None
        if not (self._store.is_master and gate.writable) or gate.lease_is_over:
            return False  # a gate that is closed for a while ends no term: what is known stays known
        if self._term != self._metadata.epoch:
            self._begin()
            self._term = self._metadata.epoch
        return True

    def _begin(self) -> None:
        queue, get = self._store.find_queue(TIMER_TOPIC, 0), self._metadata.timers.get
        end = 0 if queue is None else queue.next_offset
        offsets = {name: get(name, 0) for name in (rows.READ_OFFSET, rows.PHASE_OFFSET, rows.FIRST_OFFSET)}
        if any(offset > end for offset in offsets.values()):  # what comes there now is new (store pitfall 20)
            logger.error("the progress of timers is beyond the end %d of their queue: %s", end, offsets)
        read_offset, phase_offset, self._first_offset = (min(offset, end) for offset in offsets.values())
        frontier = Frontier(
            get(rows.READ_MS, -1), read_offset, phase_offset, get(rows.SLOT_MS, -1), get(rows.SLOT_OFFSET, -1)
        )
        self.wheel = TimerWheel(frontier, start=self._first_offset)
        self._target = self._store.commit_log.max_offset
        self._marks.clear()
        self._marked = frontier

    # -- reading -----------------------------------------------------------------------------------------

    def _read(self) -> bool:
        """New units into the wheel; in a pause, those of before the term. True: there are more."""
        queue, pauses = self._store.find_queue(TIMER_TOPIC, 0), self._settings.timer_stop_enqueue
        if queue is not None and not (pauses and self._target is None):
            at = max(self.wheel.read_end, queue.min_offset)
            end = min(queue.max_offset, at + READ_MAX)
            if self._target is None:
                self.added += max(end - at, 0)
            while at < end and not (pauses and self._came_in_this_term(queue, at)):
                self._read_unit(queue, at)
                at += 1
            if at == end < queue.max_offset:
                return True
        if self._target is not None and self._store.dispatch_offset >= self._target:
            self._target = None
            if len(self.wheel):
                logger.info("%d timers are to come", len(self.wheel))
        return False

    def _came_in_this_term(self, queue: ConsumeQueue, at: int) -> bool:
        return self._target is not None and queue.unit(at)[0] >= self._target

    def _read_unit(self, queue: ConsumeQueue, at: int) -> None:
        log_offset, size, code = queue.unit(at)
        if size == FILLER_SIZE:
            self.wheel.skip(at)
        elif code >= TAG_HASH_MAX:
            self.wheel.add(code, at)
        else:  # it recalls another one, or RocketMQ wrote the unit
            record = self._record(log_offset, size)
            out_ms = out_ms_of(record.properties) if record is not None else None
            key = recall_key(record.properties) if record is not None else None
            if out_ms is None:
                self.wheel.skip(at)
            elif key is None:
                self.wheel.add(out_ms, at)
            else:
                self.wheel.recall(out_ms, at, key)

    def _record(self, log_offset: int, size: int) -> Record | None:
        """None: it is older than the log."""
        view = self._store.commit_log.view(log_offset, size)
        return decode(view) if len(view) == size else None

    # -- delivering --------------------------------------------------------------------------------------

    def _deliver(self) -> bool:
        queue = self._store.find_queue(TIMER_TOPIC, 0)
        for _ in range(DELIVER_MAX):
            due = self.wheel.next_due()
            if due is None:
                return False
            assert queue is not None, "timers without a queue"
            letter = self._copy_of(queue, *due)
            if letter is not None:
                stored = self._writer.put(letter)
                if isinstance(stored, Refused) and stored.code != ResponseCode.MESSAGE_ILLEGAL:
                    return False
                if isinstance(stored, Refused):
                    logger.error("timer %d cannot be delivered: %s", due[1], stored.remark)
                self.delivered += 1
            self.wheel.delivered()
            self._moved = True
        return True

    def _copy_of(self, queue: ConsumeQueue, out_ms: int, at: int) -> Letter | None:
        """None: there is nothing to deliver."""
        if at < queue.min_offset:
            record = None
        else:
            log_offset, size, _ = queue.unit(at)
            record = self._record(log_offset, size)
        if record is None:
            logger.error("timer %d is gone: retention was shorter than its delay", at)
            return None
        if recall_key(record.properties) is not None:
            return None
        where = real_queue(record.properties)
        if where is None or where[0] in LAID_BY:
            logger.error("timer %d, at %d in the log, does not say where it belongs", at, record.offset)
            return None
        unique_key = property_value(record.properties, b"UNIQ_KEY") or b""
        if self.wheel.is_recalled(out_ms, key_of(where[0], unique_key)):
            return None
        precision_ms = self._settings.timer_precision_ms
        times: dict[bytes, bytes | None] = {
            b"TIMER_ENQUEUE_MS": b"%d" % (record.store_timestamp // precision_ms * precision_ms),
            b"TIMER_DEQUEUE_MS": b"%d" % self._clock(),
        }
        return Letter(
            destination(self._metadata.topics, where[0]), where[1], record.body,
            with_properties(record.properties, times), record.flag, record.sys_flag, record.born_timestamp,
            record.born_host, record.reconsume_times,
        )  # fmt: skip

    # -- progress ----------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """What cannot be lost any more becomes the table's."""
        if self._target is not None:
            return
        self._look_back()
        frontier = self.wheel.frontier
        if self._moved and frontier != self._marked:  # without a delivery the old one is as good
            self._moved = False
            if len(self._marks) >= MARKS_MAX:
                self._marks.pop()
            self._marks.append((self._store.commit_log.max_offset, frontier, self._first_offset))
            self._marked = frontier
        safe = min(self._store.confirm_offset, self._store.commit_log.flushed_offset)
        while self._marks and self._marks[0][0] <= safe:
            _, done, first_offset = self._marks.popleft()
            if not self._marks or self._marks[0][0] > safe:
                self._advance(done, first_offset)

    def _advance(self, done: Frontier, first_offset: int) -> None:
        self._metadata.timers.advance(
            {
                rows.READ_MS: done.read_ms,
                rows.READ_OFFSET: done.read_offset,
                rows.PHASE_OFFSET: done.phase_offset,
                rows.SLOT_MS: done.slot_ms,
                rows.SLOT_OFFSET: done.slot_offset,
                rows.FIRST_OFFSET: first_offset,
            }
        )

    def _look_back(self) -> None:
        now = self._clock()
        if now >= self._next_look_ms or now < self._next_look_ms - LOOK_BACK_MS:
            self._next_look_ms = now + LOOK_BACK_MS
            self._first_offset = self.wheel.first_offset()
