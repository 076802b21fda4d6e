"""Delivers delayed messages: a due message goes to its real topic, and the offset of its level advances.

Only on a master. The offset of a level goes into the metadata table (and so to the replicas) when the
delivered message is confirmed and on disk: if it is lost with its master, the next master delivers it again,
and none is lost. If the table itself is lost, the copies of delivered messages in the log replace it. Source:
RocketMQ 5.3.3 ScheduleMessageService.
"""

import logging
from collections.abc import Callable, Generator, Iterator
from typing import Final

from broker.admission.send_gate import PutRefused
from broker.message.delay_levels import SCHEDULE_TOPIC, DelayLevels
from broker.message.record import Record
from broker.metadata.service import Metadata
from broker.put.message_to_store import MessageToStore
from broker.put.message_writer import MessageWriter
from broker.put.real_queue import destination, real_queue
from broker.put.term_service import SafeMarks, TermService
from broker.store.message_store import MessageStore
from broker.store.queue.consume_queue import ConsumeQueue
from broker.store.whole_reading import DamagedRecordError
from broker.timers.delivered_copies import SCAN_MAX, first_undelivered
from keelmq.remoting.codes import ResponseCode
from keelmq.runtime.clock import now_ms, wall_ms

logger = logging.getLogger(__name__)

BATCH_MAX: Final = 512
"""Messages of all levels delivered in one round: the event loop has other work."""


class ScheduleMessageService(TermService):
    """Owned by the event loop's thread. A round delivers at most BATCH_MAX due messages;
    the next one continues with the level behind, so that no level starves."""

    def __init__(
        self,
        store: MessageStore,
        metadata: Metadata,
        writer: MessageWriter,
        *,
        clock: Callable[[], int] = wall_ms,
    ) -> None:
        """clock: wall time in ms."""
        super().__init__(store, metadata, writer, clock)
        self._levels: DelayLevels = store.delay_levels
        self._next: dict[int, int] = {}  # level -> queue offset; empty: not known yet in this term
        self._search: Iterator[int] | None = None  # finds them
        self._marks: SafeMarks[tuple[int, int]] = SafeMarks(None)  # (level, next offset)
        self._turn = 0  # the next round begins behind this level
        self.delivered = 0
        """Messages delivered in this process."""

    def _begin(self) -> None:
        self._marks.clear()
        self._next, self._search = {}, None

    def _has_replayed(self) -> bool:
        return bool(self._next)

    def _step(self) -> bool:
        if not self._next:
            if self._store.dispatcher.dispatch_behind:
                return False  # the queues are not complete yet
            self._search = self._search or self._find_offsets()
            looks = 0
            for more in self._search:
                looks += more
                if looks >= SCAN_MAX:
                    return True
        for level, offset in self._marks.take(self._safe_offset):
            self._metadata.delays.advance(level, offset)
        now, left, behind = self._clock(), BATCH_MAX, self._turn
        for step in range(self._levels.count):
            level = (behind + step) % self._levels.count + 1
            queue = self._store.find_queue(SCHEDULE_TOPIC, level - 1)
            if queue is not None:
                left -= self._deliver_level(level, queue, now, left)
            if not left:
                self._turn = level
                return True
        return False

    def _find_offsets(self) -> Iterator[int]:
        """Sets _next. Yields how many messages were read since the last time."""
        found = {}
        for level in range(1, self._levels.count + 1):
            queue = self._store.find_queue(SCHEDULE_TOPIC, level - 1)
            if queue is None or self._metadata.delays.has(level):
                found[level] = self._first(level)
            else:
                found[level] = yield from self._without_offset(level, queue)
        self._next = found

    def _without_offset(self, level: int, queue: ConsumeQueue) -> Generator[int, None, int]:
        """Returns where a level with messages but without an offset continues: delayOffset.json is lost, or
        none of its messages was delivered yet."""
        now, begin = self._clock(), queue.min_offset
        offset = yield from first_undelivered(self._store, queue, now_ms=now, record_of=self._record_if_whole)
        due = self._due_at_once(queue, offset, now)
        if offset > begin:
            self._marks.add(self._log_end, (level, offset))
            logger.error(
                "delay level %d: its offset in %s is lost; messages up to %d were delivered, as their copies "
                "in the log show, so delivery goes on at %d%s",
                level, self._metadata.delays.path, offset - 1, offset,
                f"; {due} may be delivered again" if due else "",
            )  # fmt: skip
        elif due:
            logger.warning(
                "delay level %d: %s has no offset of it, and no copy of a delivered message is in the log; "
                "if the file is lost, the %d messages that are due may be delivered again",
                level, self._metadata.delays.path, due,
            )  # fmt: skip
        return offset

    def _due_at_once(self, queue: ConsumeQueue, offset: int, now: int) -> int:
        """Returns how many messages from this offset on are due."""
        low, high = offset, queue.max_offset
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if queue.unit(middle)[2] <= now else (low, middle)
        return low - offset

    def _record_if_whole(self, log_offset: int, size: int) -> Record | None:
        try:
            return self._record(log_offset, size)
        except DamagedRecordError:
            return None

    def _first(self, level: int) -> int:
        offset, queue = self._metadata.delays.get(level), self._store.find_queue(SCHEDULE_TOPIC, level - 1)
        if queue is None:
            return 0
        inside = self._inside(SCHEDULE_TOPIC, level - 1, offset)
        if inside != offset:
            logger.error(
                "delay level %d: offset %d is outside its queue %d..%d; continuing at %d",
                level, offset, queue.min_offset, queue.max_offset, inside,
            )  # fmt: skip
        return inside

    def _deliver_level(self, level: int, queue: ConsumeQueue, now: int, count_max: int) -> int:
        """Delivers up to count_max due messages; returns how many."""
        at, count = max(self._next[level], queue.min_offset), 0
        while at < queue.max_offset and count < count_max:
            log_offset, size, due_at = queue.unit(at)
            latest = now + self._levels.delay_ms(level)
            if now < due_at <= latest:  # a later one was stored with a wrong clock: deliver it now
                break
            try:
                end = self._deliver_record(log_offset, size)
            except DamagedRecordError as error:  # the other levels continue
                self._damage_log.tell(now_ms(), "delay level %d waits: %s", level, error)
                break
            if end is None:
                break
            at += 1
            count += 1
            self._next[level] = at
            self._marks.add(end, (level, at))
        return count

    def _deliver_record(self, log_offset: int, size: int) -> int | None:
        """Returns the end of the delivered message in the log; 0: there is nothing to deliver. None: it
        cannot be written now."""
        to_store = self._copy_of(log_offset, size)
        if to_store is None:
            return 0
        stored = self._writer.put(to_store)
        if isinstance(stored, PutRefused):
            if stored.code != ResponseCode.MESSAGE_ILLEGAL:
                return None
            logger.error("the delayed record at %d cannot be delivered: %s", log_offset, stored.remark)
            return 0  # it would block its level permanently
        self.delivered += 1
        return stored.end

    def _copy_of(self, log_offset: int, size: int) -> MessageToStore | None:
        """Returns the message as it goes to its real topic; its properties stay, also DELAY, REAL_TOPIC and
        REAL_QID. None: it cannot be delivered."""
        record = self._record(log_offset, size)
        if record is None:
            logger.error(
                "the delayed record at %d was deleted by retention before it was due, or its entry is lost",
                log_offset,
            )
            return None
        where = real_queue(record.properties)
        if where is None or where[0] == SCHEDULE_TOPIC:
            logger.error("the delayed record at %d has no valid REAL_TOPIC, REAL_QID", log_offset)
            return None
        topic, queue_id = where
        return MessageToStore(
            destination(self._metadata.topics, topic), queue_id, record.body, record.properties,
            record.flag, record.sys_flag, record.born_timestamp, record.born_host, record.reconsume_times,
        )  # fmt: skip
