"""Keeps what popping groups have out: checkpoints, acknowledgements, and sending again what is overdue.

Everything durable is in the log: in each new term the book is read again from the revive queues, from the
offsets on that the group CID_RMQ_SYS_REVIVE_GROUP has there. A message that comes again is followed by an
acknowledgement of its own, so the next master does not send it once more. Source: RocketMQ 5.3.3
PopReviveService, PopBufferMergeService.
"""

import asyncio
import logging
import struct
from collections.abc import Callable, Sequence
from typing import Final

from broker.handlers.writer import Letter, Refused, Stored, Writer
from broker.metadata.service import Metadata
from broker.pop.core.book import NO_NEWS, Checkpoint, Key, PopBook
from broker.pop.core.handles import RETRY_PREFIX, REVIVE_QUEUES, retry_topic, retry_topics, revive_topic
from broker.pop.core.order import OrderBook, QueueOfGroup
from broker.pop.progress import Place, Progress
from broker.pop.records import (
    ACK,
    BATCH_ACK,
    CHECKPOINT,
    RESET,
    REVIVE_GROUP,
    ack_body,
    ack_of,
    as_it_is,
    checkpoint_body,
    checkpoint_of,
    dead_letter,
    next_try,
    reset_body,
    reset_of,
    revive_letter,
)
from broker.store.consume_queue import FILLER_SIZE, ConsumeQueue
from broker.store.message_store import MessageStore
from broker.store.record import Record, decode, property_value
from broker.store.settings import NamedTopic
from broker.topics import DLQ_PREFIX, Topic
from remoting.clock import now_ms, wall_ms
from remoting.codes import ResponseCode
from remoting.complaints import Complaints

logger = logging.getLogger(__name__)

PERIOD_MS: Final = 100
BATCH_MAX: Final = 512
"""Records that are read, or checkpoints that are looked at, in one go: the loop has other things to do."""
REPLAY_MAX: Final = 50_000
"""Records of one revive queue that a new master reads at most, but for what comes at once."""
READY_STEP_MS: Final = 10


class Pop:
    """Owned by the event loop's thread; run() is its task, round() one step of it."""

    def __init__(
        self,
        store: MessageStore,
        metadata: Metadata,
        writer: Writer,
        *,
        cluster_name: str,
        broker_name: str,
        clock: Callable[[], int] = wall_ms,
        replay_max: int = REPLAY_MAX,
    ) -> None:
        self._store, self._metadata, self._writer = store, metadata, writer
        self.broker_name, self._clock, self._replay_max = broker_name, clock, replay_max
        self.topic = NamedTopic(revive_topic(cluster_name))
        self.book, self.order = PopBook([0] * REVIVE_QUEUES), OrderBook()
        self.progress = Progress(metadata.offsets, metadata.resets.is_pending)
        self.on_free: Callable[[str, str], None] = lambda group, topic: None
        """A queue of this topic gives the group messages again."""
        self.revived = 0
        self._complaints = Complaints(logger)
        self._term: int | None = None  # masterEpoch that all this is of
        self._target = -1  # all records before it must have their units before they are read again; -1: done
        self._next: dict[tuple[int, Place], int] = {}  # by revive queue: where groups go on, as far as read

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
        if self._target >= 0:
            return self._read_on()
        self._settle()
        while (queue := self.order.next_free(self._clock())) is not None:
            self.on_free(queue.group, queue.topic)
        self._hold_nothing_back()
        return self._revive_due()

    # -- terms -------------------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        return self._serves() and self._target < 0

    async def ready(self, timeout_ms: int) -> bool:
        """A new master has read what its predecessor left."""
        deadline_ms = now_ms() + timeout_ms
        while not self.is_ready:
            if now_ms() >= deadline_ms or not self._metadata.gate.writable:
                return False
            await asyncio.sleep(READY_STEP_MS / 1000)
        return True

    def _serves(self) -> bool:
        gate = self._metadata.gate
        if not self._store.is_master:
            self._term = None
        if not (self._store.is_master and gate.writable) or gate.lease_is_over:
            return False  # a gate that is closed for a while ends no term: what is known stays known
        if self._term != self._metadata.epoch:
            self._begin(self._metadata.epoch)
        return True

    def _begin(self, epoch: int) -> None:
        self.progress.clear()
        self.order = OrderBook()
        self.book = PopBook([self._start(queue_id) for queue_id in range(REVIVE_QUEUES)])
        self._target = self._store.commit_log.max_offset
        self._next.clear()
        self._term = epoch

    def _start(self, queue_id: int) -> int:
        """Inside the queue, whatever the table says."""
        queue = self._store.find_queue(self.topic.name, queue_id)
        if queue is None:
            return 0
        offset = self._metadata.offsets.query(REVIVE_GROUP, self.topic.name, queue_id)
        return min(max(offset, queue.min_offset), queue.max_offset)

    def _read_on(self) -> bool:
        if self._store.dispatch_offset < self._target:
            return False
        left = BATCH_MAX
        for queue_id in range(REVIVE_QUEUES):
            queue = self._store.find_queue(self.topic.name, queue_id)
            while queue is not None and self.book.ends[queue_id] < queue.max_offset:
                if not left:
                    return True
                self._read_again(queue, queue_id, self.book.ends[queue_id])
                left -= 1
        self._target = -1
        self._go_on()
        if len(self.book):
            logger.info("pop: %d checkpoints are open", len(self.book))
        return False

    def _read_again(self, queue: ConsumeQueue, queue_id: int, position: int) -> None:
        """One record that cannot be read, whoever wrote it, must not keep the others from being read."""
        self.book.passed(queue_id, position)
        try:
            record = self._record_of(queue, position)
            if record is not None:
                self._take_in(record, queue_id, position)
        except (ValueError, ArithmeticError, LookupError, struct.error) as error:
            text = "record %d of %s/%d is passed over, it cannot be read: %s"
            self._complaints.tell(self._clock(), text, position, self.topic.name, queue_id, error)

    def _take_in(self, record: Record, queue_id: int, position: int) -> None:
        tag = property_value(record.properties, b"TAGS")
        if tag == CHECKPOINT:
            checkpoint = checkpoint_of(record.body, queue_id)
            self.book.stored(checkpoint, position)
            at = (queue_id, checkpoint.key[:3])
            self._next[at] = max(self._next.get(at, 0), checkpoint.next_offset)
        elif tag == RESET:
            self._next.pop((queue_id, reset_of(record.body)), None)
        elif tag in (ACK, BATCH_ACK):
            key, offsets = ack_of(record.body)
            for offset in offsets:
                self.book.end(key, queue_id, offset)

    def _go_on(self) -> None:
        """Where the checkpoints say; the table of offsets may be older."""
        for (_, place), offset in self._next.items():
            if offset > self.progress.get(place):
                self.progress.set(place, offset, self._store.commit_log.max_offset)
        self._next.clear()

    def _record_of(self, queue: ConsumeQueue, queue_offset: int) -> Record | None:
        """None: it is older than the log."""
        if not queue.min_offset <= queue_offset < queue.max_offset:
            return None
        log_offset, size, _ = queue.unit(queue_offset)
        if size == FILLER_SIZE:
            return None
        view = self._store.commit_log.view(log_offset, size)
        return decode(view) if len(view) == size else None

    def _settle(self) -> None:
        end = self._store.commit_log.max_offset
        for queue_id, position in enumerate(map(self.book.position, range(REVIVE_QUEUES))):
            place = (REVIVE_GROUP, self.topic.name, queue_id)
            if position > max(self.progress.get(place), 0):
                self.progress.set(place, position, end)
        self.progress.settle(min(self._store.confirm_offset, self._store.commit_log.flushed_offset))

    # -- what goes out, and what comes back --------------------------------------------------------------

    def hand_out(self, checkpoint: Checkpoint) -> int | Refused:
        """Where in the log it is written that these messages are out."""
        end = self._put(checkpoint)
        if isinstance(end, int):
            key = checkpoint.key
            self.progress.set((key.group, key.topic, key.queue_id), checkpoint.next_offset, end)
        return end

    def reset(self, place: QueueOfGroup, offset: int) -> Refused | None:
        """The group goes on from there, whatever was out before. Written into every revive queue: in each, a
        new master reads what was before it and what is behind it. Refused: it may be in some of them."""
        body = reset_body(place, offset)
        for queue_id in range(REVIVE_QUEUES):
            stored = self._writer.put(self._letter(queue_id, RESET, body))
            if isinstance(stored, Refused):
                return stored
            self.book.passed(queue_id, stored.queue_offset)
        self.order.forget(place)
        self.progress.commit(place, offset)
        return None

    def _put(self, checkpoint: Checkpoint) -> int | Refused:
        body = checkpoint_body(checkpoint, self.broker_name)
        stored = self._writer.put(self._letter(checkpoint.revive_queue, CHECKPOINT, body))
        if isinstance(stored, Refused):
            return stored
        self.book.stored(checkpoint, stored.queue_offset)
        return stored.end

    def ack(self, key: Key, revive_queue: int, offsets: Sequence[int]) -> int | Refused:
        """Where in the log it is written that they are done with; 0: that was known, or is not any more."""
        checkpoint = self.book.find(key, revive_queue)
        still_open = (
            [] if checkpoint is None else [each for each in offsets if each in checkpoint.open_offsets]
        )
        if not still_open:
            return 0
        tag, body = ack_body(key, still_open, self.broker_name)
        stored = self._writer.put(self._letter(revive_queue, tag, body))
        if isinstance(stored, Refused):
            return stored
        self.book.passed(revive_queue, stored.queue_offset)
        for offset in still_open:
            self.book.end(key, revive_queue, offset)
        return stored.end

    def change(
        self, key: Key, revive_queue: int, offset: int, invisible_ms: int
    ) -> tuple[int, int] | Refused:
        """(pop time of the message's own new checkpoint, where that ends in the log). The new one first: what
        breaks off between the two comes twice, and is not lost."""
        checkpoint = self.book.find(key, revive_queue)
        if checkpoint is None or offset not in checkpoint.open_offsets:
            remark = "the receipt handle is over: its message was acknowledged, or comes again"
            return Refused(ResponseCode.NO_MESSAGE, remark)
        new_key = key._replace(start_offset=offset, pop_ms=self._clock())
        while self.book.find(new_key, revive_queue) is not None:  # changed twice within a millisecond
            new_key = new_key._replace(pop_ms=new_key.pop_ms + 1)
        end = self._put(Checkpoint(new_key, invisible_ms, (offset,), NO_NEWS, revive_queue))
        if isinstance(end, Refused):
            return end
        acked = self.ack(key, revive_queue, [offset])
        return (new_key.pop_ms, end) if isinstance(acked, Refused) else (new_key.pop_ms, acked)

    def _letter(self, revive_queue: int, tag: bytes, body: bytes) -> Letter:
        now = self._writer.tick.wall_ms or self._clock()
        return revive_letter(self.topic, revive_queue, tag, body, self._store.store_host, now)

    def _hold_nothing_back(self) -> None:
        for queue_id in range(REVIVE_QUEUES):
            for _ in range(BATCH_MAX):
                checkpoint = self.book.holding(queue_id, self._replay_max)
                if checkpoint is None:
                    break
                checkpoint.next_offset = NO_NEWS  # perhaps there was a reset since
                if isinstance(self._put(checkpoint), Refused):
                    break

    # -- what nobody acknowledged ------------------------------------------------------------------------

    def _revive_due(self) -> bool:
        now = self._clock()
        for _ in range(BATCH_MAX):
            checkpoint = self.book.next_due(now)
            if checkpoint is None or not self._revive(checkpoint):
                return False
        return True

    def _revive(self, checkpoint: Checkpoint) -> bool:
        """False: nothing can be written now."""
        done: list[int] = []
        for offset in checkpoint.open_offsets:
            if not self._send_again(checkpoint.key, offset):
                break
            done.append(offset)
        went_on = len(done) == len(checkpoint.open_offsets)
        acked = self.ack(checkpoint.key, checkpoint.revive_queue, done) if done else 0
        return went_on and not isinstance(acked, Refused)

    def _send_again(self, key: Key, offset: int) -> bool:
        queue = self._store.find_queue(key.topic, key.queue_id)
        record = self._record_of(queue, offset) if queue is not None else None
        if record is None:
            logger.error("message %d of %s/%d is gone before %s has acknowledged it: retention was shorter",
                         offset, key.topic, key.queue_id, key.group)  # fmt: skip
            return True
        group, origin = self._metadata.groups.get(key.group), origin_of(key.group, key.topic)
        if group is None or origin not in self._metadata.topics.topics:
            return True  # deleted meanwhile: nobody waits for it
        is_dead = record.reconsume_times >= group.retry_max_times
        stored = self._put_again(record, key, origin, is_dead=is_dead)
        if _is_illegal(stored) and not is_dead:
            stored = self._put_again(record, key, origin, is_dead=True)
        if isinstance(stored, Refused):
            if stored.code != ResponseCode.MESSAGE_ILLEGAL:
                return False
            logger.error("message %d of %s cannot come again: %s", offset, key.topic, stored.remark)
        self.revived += 1
        return True

    def _put_again(self, record: Record, key: Key, origin: str, *, is_dead: bool) -> Stored | Refused:
        """Its next try, or what is left of it when there is none."""
        name = DLQ_PREFIX + key.group if is_dead else retry_name(key)
        topic = self._topic(name)
        if topic is None:
            return Refused(ResponseCode.SYSTEM_ERROR, f"topic {name} cannot be created")
        if is_dead:
            letter = dead_letter(record, topic, origin)
        else:
            letter = next_try(record, topic, key.group, key.pop_ms)
        stored = self._writer.put(letter)
        if _is_illegal(stored):  # what was added may be too much
            stored = self._writer.put(as_it_is(record, topic))
        if is_dead and isinstance(stored, Stored):
            logger.warning(
                "a message of %s goes to %s after %d tries", origin, name, record.reconsume_times + 1
            )
        return stored

    def _topic(self, name: str) -> Topic | None:
        try:
            return self._metadata.topics.ensure(name, 1)
        except OSError as error:
            logger.error("topic %s cannot be created: %s", name, error)
            return None


def _is_illegal(stored: Stored | Refused) -> bool:
    return isinstance(stored, Refused) and stored.code == ResponseCode.MESSAGE_ILLEGAL


def retry_name(key: Key) -> str:
    return key.topic if key.topic.startswith(RETRY_PREFIX) else retry_topic(key.group, key.topic)


def origin_of(group: str, topic: str) -> str:
    """The topic that a message was sent to, from the one that it was popped from."""
    for prefix in retry_topics(group, ""):
        topic = topic.removeprefix(prefix)
    return topic
