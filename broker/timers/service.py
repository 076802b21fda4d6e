"""Delivers timer messages on a master: reads the timer queue into the wheel, and puts due messages into their
real topics.

The progress becomes metadata when the delivered messages are confirmed and on disk. If a delivered message is
lost with its master, the next master delivers it again. Source: RocketMQ 5.3.3 TimerMessageStore; ADR 21 has
the differences.
"""

import logging
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from broker.admission.send_gate import PutRefused
from broker.config.client_settings import ClientSettings
from broker.message.delay_levels import SCHEDULED_TOPICS, TIMER_TOPIC
from broker.message.properties import with_properties
from broker.message.record import Record, property_value, store_timestamp
from broker.message.timer_properties import ROLL_TIMES, TAG_HASH_MAX, key_of, out_ms_of, recall_key
from broker.metadata import timers as rows
from broker.metadata.service import Metadata
from broker.put.message_to_store import MessageToStore
from broker.put.message_writer import MessageWriter
from broker.put.real_queue import destination, real_queue
from broker.put.term_service import SafeMarks, TermService
from broker.store.message_store import MessageStore
from broker.store.querying import header_of
from broker.store.queue.consume_queue import FILLER_SIZE, ConsumeQueue
from broker.timers.core.wheel import Frontier, TimerWheel
from keelmq.remoting.codes import ResponseCode
from keelmq.runtime.clock import wall_ms
from keelmq.runtime.histogram import Histogram

logger = logging.getLogger(__name__)

READ_MAX: Final = 4_096
DELIVER_MAX: Final = 512
ROLL_MAX: Final = 128
"""Units read, and messages delivered and rolled, in one round: the event loop has other work."""
FIRST_OFFSET_PERIOD_MS: Final = 60_000
"""How often the offset of the oldest undelivered timer is computed."""


class TimerService(TermService):
    """Owned by the event loop's thread."""

    def __init__(
        self,
        store: MessageStore,
        metadata: Metadata,
        writer: MessageWriter,
        *,
        settings: ClientSettings,
        clock: Callable[[], int] = wall_ms,
    ) -> None:
        """clock: wall time in ms."""
        super().__init__(store, metadata, writer, clock)
        self._settings = settings
        self.wheel = TimerWheel()
        self._replays = True  # the units of earlier masters are not all read
        self._first_offset = self._next_first_offset_ms = 0
        self._marks: SafeMarks[tuple[Frontier, int]] = SafeMarks()  # frontier, first offset
        self._marked: Frontier | None = None
        self._has_delivered = False  # since the last mark
        self._roll_end = 0  # timers before this offset of the queue are rolled
        self._roll_marked = 0  # the _roll_end of the last mark
        self.added = self.delivered = self.rolled = 0
        """Timers put into the wheel (those of earlier terms do not count), delivered, and written again for
        retention, in this process."""
        self.delivered_to = Counter[str]()
        """`delivered` by topic."""

    def _step(self) -> bool:
        self._settle()
        if not self.wheel.in_phase:
            if self._read():
                return True
            if self._replays:
                return False
            rolls_on = self._roll()
            self.wheel.begin_phase(self.due_ms)
            return self._deliver() or rolls_on
        return self._deliver()

    @property
    def is_full(self) -> bool:
        """Whether the wheel accepts no more timers."""
        return self.wheel.is_full

    @property
    def waiting(self) -> int:
        """Timers in the wheel, not delivered yet; 0 on a slave."""
        return len(self.wheel) if self._term is not None else 0

    @property
    def unread(self) -> int:
        """Messages of the timer queue that are not in the wheel yet; 0 on a slave."""
        queue = self._store.find_queue(TIMER_TOPIC, 0)
        if queue is None or self._term is None:
            return 0
        return max(queue.max_offset - max(self.wheel.read_end, queue.min_offset), 0)

    @property
    def due_ms(self) -> int:
        """Timers with this delivery time, and earlier ones, are due now."""
        return self._clock() - self._settings.timer_precision_ms

    @property
    def late_ms(self) -> int:
        """How long the next timer has been due, in ms; 0: none is due."""
        next_ms = self.wheel.next_ms
        if next_ms is None or self._term is None:
            return 0
        return max(self.due_ms - next_ms, 0)

    @property
    def unread_ms(self) -> int:
        """Age of the oldest message of the timer queue that is not in the wheel yet, in ms; 0: there is
        none."""
        queue = self._store.find_queue(TIMER_TOPIC, 0)
        if queue is None or not self.unread:
            return 0
        header = header_of(self._store.commit_log, queue, max(self.wheel.read_end, queue.min_offset))
        return 0 if header is None else max(self._clock() - store_timestamp(header), 0)

    @property
    def delays(self) -> Mapping[str, Histogram]:
        """The delays requested by producers of this master's timer messages, in s, by topic."""
        return self._writer.timer_delays

    @property
    def is_settled(self) -> bool:
        """Whether the next master would repeat no delivery of this term, once the progress is replicated."""
        return not self._marks and not self._has_delivered

    # -- terms -------------------------------------------------------------------------------------------

    def _has_replayed(self) -> bool:
        return not self._replays

    def _begin(self) -> None:
        queue, get = self._store.find_queue(TIMER_TOPIC, 0), self._metadata.timers.get
        end = 0 if queue is None else queue.next_offset
        offsets = {name: get(name, 0) for name in (rows.READ_OFFSET, rows.PHASE_OFFSET, rows.FIRST_OFFSET)}
        if any(offset > end for offset in offsets.values()):  # it would skip new messages (store pitfall 20)
            logger.error(
                "the progress of timers is beyond the end %d of their queue; continuing at the end: %s",
                end,
                offsets,
            )
        read_offset, phase_offset, self._first_offset = (min(offset, end) for offset in offsets.values())
        frontier = Frontier(
            get(rows.READ_MS, -1), read_offset, phase_offset, get(rows.SLOT_MS, -1), get(rows.SLOT_OFFSET, -1)
        )
        self.wheel = TimerWheel(frontier, start=self._first_offset)
        self._replays = True
        self._roll_end = self._roll_marked = 0
        self._marks.clear()
        self._marked = frontier

    # -- reading -----------------------------------------------------------------------------------------

    def _read(self) -> bool:
        """Reads new units into the wheel; only those of earlier terms while timerStopEnqueue is set. True:
        there are more."""
        queue, pauses = self._store.find_queue(TIMER_TOPIC, 0), self._settings.timer_stop_enqueue
        if queue is not None and not (pauses and not self._replays):
            at = max(self.wheel.read_end, queue.min_offset)
            end = min(queue.max_offset, at + READ_MAX)
            if not self._replays:
                self.added += max(end - at, 0)
            while at < end and not (pauses and self._is_of_this_term(queue, at)):
                self._read_unit(queue, at)
                at += 1
            if at == end < queue.max_offset:
                return True
        if self._replays and self._is_dispatched:
            self._replays = False
            if len(self.wheel):
                logger.info("%d timers are not delivered yet", len(self.wheel))
            next_ms = self.wheel.next_ms
            if not self._metadata.timers.table.rows and next_ms is not None and next_ms <= self.due_ms:
                logger.warning(
                    "%s has no progress; if the file is lost, timers that were delivered before this start "
                    "are delivered again, as far as the log has them", self._metadata.timers.path,
                )  # fmt: skip
        return False

    def _is_of_this_term(self, queue: ConsumeQueue, at: int) -> bool:
        return self._replays and queue.unit(at)[0] >= self._log_end

    def _read_unit(self, queue: ConsumeQueue, at: int) -> None:
        log_offset, size, code = queue.unit(at)
        if size == FILLER_SIZE:
            self.wheel.skip(at)
        elif code >= TAG_HASH_MAX:
            self.wheel.add(code, at)
        else:  # a recall, or a unit that RocketMQ wrote
            record = self._record(log_offset, size)
            out_ms = out_ms_of(record.properties) if record is not None else None
            key = recall_key(record.properties) if record is not None else None
            if out_ms is None:
                self.wheel.skip(at)
            elif key is None:
                self.wheel.add(out_ms, at)
            else:
                self.wheel.recall(out_ms, at, key)

    # -- rolling -----------------------------------------------------------------------------------------

    def roll_before(self, log_offset: int) -> None:
        """Begins to rewrite the undelivered timers whose records are in front of this log offset at the end
        of the queue: retention is about to delete them. On a slave it has no effect."""
        queue = self._store.find_queue(TIMER_TOPIC, 0)
        if queue is None or self._term is None or self._store.commit_log.min_offset >= log_offset:
            return
        low, high = max(self._roll_end, queue.min_offset), queue.max_offset
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if queue.unit(middle)[0] < log_offset else (low, middle)
        self._roll_end = max(self._roll_end, low)

    @property
    def held_offset(self) -> int:
        """Log offset of the first record that a new master would have to read; below it, retention deletes no
        timer that is not delivered. sys.maxsize: there is none, or this is a slave."""
        queue = self._store.find_queue(TIMER_TOPIC, 0)
        if queue is None or self._term is None or not self._store.is_master:
            return sys.maxsize
        at = max(self._metadata.timers.get(rows.FIRST_OFFSET, 0), queue.min_offset)
        if at >= queue.max_offset:
            return sys.maxsize
        log_offset, size, _ = queue.unit(at)
        return log_offset if size > 0 else sys.maxsize  # a lost entry does not hold back retention

    def _roll(self) -> bool:
        """Writes timers before _roll_end again, ROLL_MAX at most. True: there are more."""
        queue = self._store.find_queue(TIMER_TOPIC, 0)
        for _ in range(ROLL_MAX):
            timer = self.wheel.next_to_roll(self._roll_end)
            if timer is None:
                return False
            assert queue is not None, "timers without a queue"
            to_store = self._rolled_copy(queue, *timer)
            if to_store is not None:
                stored = self._writer.put(to_store)
                if isinstance(stored, PutRefused) and stored.code != ResponseCode.MESSAGE_ILLEGAL:
                    return False
                if isinstance(stored, PutRefused):
                    logger.error("timer %d cannot be rolled: %s", timer[1], stored.remark)
                self.rolled += 1
            self.wheel.rolled()
        return True

    def _rolled_copy(self, queue: ConsumeQueue, out_ms: int, at: int) -> MessageToStore | None:
        """Returns the timer, or the recall, in its rewritten form. None: its record is gone."""
        record = self._timer_record(queue, at)
        where = None if record is None else real_queue(record.properties)
        if record is None or where is None:
            return None
        times = property_value(record.properties, ROLL_TIMES) or b""
        count = int(times) + 1 if times.isdigit() and len(times) < 9 else 1
        return MessageToStore(
            destination(self._metadata.topics, where[0]), where[1], record.body,
            with_properties(record.properties, {ROLL_TIMES: b"%d" % count}), record.flag, record.sys_flag,
            record.born_timestamp, record.born_host, record.reconsume_times, timer_out_ms=out_ms,
        )  # fmt: skip

    def _timer_record(self, queue: ConsumeQueue, at: int) -> Record | None:
        """Returns the record of a timer; None: it is gone, which is logged."""
        record = None
        if at >= queue.min_offset:
            log_offset, size, _ = queue.unit(at)
            record = self._record(log_offset, size)
        if record is None:
            logger.error("timer %d was deleted by retention before it was due, or its entry is lost", at)
        return record

    # -- delivering --------------------------------------------------------------------------------------

    def _deliver(self) -> bool:
        """Delivers due timers, DELIVER_MAX at most. True: there are more."""
        queue = self._store.find_queue(TIMER_TOPIC, 0)
        for _ in range(DELIVER_MAX):
            due = self.wheel.next_due()
            if due is None:
                return False
            assert queue is not None, "timers without a queue"
            to_store = self._copy_of(queue, *due)
            if to_store is not None:
                stored = self._writer.put(to_store)
                if isinstance(stored, PutRefused) and stored.code != ResponseCode.MESSAGE_ILLEGAL:
                    return False
                if isinstance(stored, PutRefused):
                    logger.error("timer %d cannot be delivered: %s", due[1], stored.remark)
                self.delivered += 1
                self.delivered_to[to_store.topic.name] += 1
            self.wheel.delivered()
            self._has_delivered = True
        return True

    def _copy_of(self, queue: ConsumeQueue, out_ms: int, at: int) -> MessageToStore | None:
        """Returns the message for its real topic. None: it was recalled, or cannot be delivered."""
        record = self._timer_record(queue, at)
        if record is None or recall_key(record.properties) is not None:
            return None
        where = real_queue(record.properties)
        if where is None or where[0] in SCHEDULED_TOPICS:
            logger.error("timer %d, at %d in the log, has no valid REAL_TOPIC, REAL_QID", at, record.offset)
            return None
        unique_key = property_value(record.properties, b"UNIQ_KEY") or b""
        if self.wheel.is_recalled(out_ms, key_of(where[0], unique_key)):
            return None
        precision_ms = self._settings.timer_precision_ms
        times: dict[bytes, bytes | None] = {
            b"TIMER_ENQUEUE_MS": b"%d" % (record.store_timestamp // precision_ms * precision_ms),
            b"TIMER_DEQUEUE_MS": b"%d" % self._clock(),
        }
        return MessageToStore(
            destination(self._metadata.topics, where[0]), where[1], record.body,
            with_properties(record.properties, times), record.flag, record.sys_flag, record.born_timestamp,
            record.born_host, record.reconsume_times,
        )  # fmt: skip

    # -- progress ----------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Puts the progress that is safe by now into the replicated table."""
        if self._replays:
            return
        self._update_first_offset()
        frontier = self.wheel.frontier
        if self._roll_end > self._roll_marked and self.wheel.first_offset() >= self._roll_end:
            self._first_offset = self.wheel.first_offset()
            self._roll_marked, self._has_delivered = self._roll_end, False
            self._marks.add(self._store.commit_log.max_offset, (frontier, self._first_offset))
            self._marked = frontier
        if self._has_delivered and frontier != self._marked:  # without a delivery, the old mark is enough
            self._has_delivered = False
            self._marks.add(self._store.commit_log.max_offset, (frontier, self._first_offset))
            self._marked = frontier
        safe = list(self._marks.take(self._safe_offset))
        if safe:
            self._advance(*safe[-1])

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

    def _update_first_offset(self) -> None:
        now = self._clock()
        if now >= self._next_first_offset_ms or now < self._next_first_offset_ms - FIRST_OFFSET_PERIOD_MS:
            self._next_first_offset_ms = now + FIRST_OFFSET_PERIOD_MS
            self._first_offset = self.wheel.first_offset()
