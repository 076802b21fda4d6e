"""The checkpoints of popping groups: popped messages, their acknowledgements, the revival of overdue ones.

Everything durable is in the log. Each new term reads the revive queues again, from the consumer offsets of
the group CID_RMQ_SYS_REVIVE_GROUP. A revived message is followed by an acknowledgement of the old one, so the
next master does not revive it again. Source: RocketMQ 5.3.3 PopReviveService, PopBufferMergeService.
"""

import logging
import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from broker.admission.send_gate import PutRefused
from broker.message.record import Record, property_value
from broker.metadata.core.topic_names import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    REVIVE_QUEUES,
    retry_topic,
    retry_topics,
    revive_topic,
)
from broker.metadata.service import Metadata
from broker.metadata.topics import Topic
from broker.pop.core.order import Block, OrderState, QueueOfGroup
from broker.pop.core.state import NO_NEXT_OFFSET, Checkpoint, Key, PopState, renewed_due_ms
from broker.pop.group_offsets import GroupOffsets
from broker.pop.records import (
    ACK,
    BATCH_ACK,
    CHECKPOINT,
    RESET,
    REVIVE_GROUP,
    SETTLED_GROUP,
    ack_body,
    ack_of,
    checkpoint_body,
    checkpoint_of,
    dead_letter,
    reset_body,
    reset_of,
    retry_message,
    revive_message,
    unchanged_message,
)
from broker.pop.revive_counts import OF_ACK, OF_CHECKPOINT, ReviveCounts
from broker.put.message_to_store import MessageToStore, PutMessageResult
from broker.put.message_writer import MessageWriter
from broker.put.term_service import TermService
from broker.store.log.mapped_file import is_file_name
from broker.store.message_store import MessageStore
from broker.store.queue.consume_queue import ConsumeQueue
from broker.store.settings import NamedTopic
from keelmq.remoting.codes import ResponseCode
from keelmq.runtime.clock import wall_ms
from keelmq.runtime.rate_limited_log import RateLimitedLogger

logger = logging.getLogger(__name__)

BATCH_MAX: Final = 512
"""Records read, checkpoints written again, or messages revived in one round: the event loop has other work. A
checkpoint has up to 32 messages, and the last one of a round is revived as a whole."""
PUT_OFF_MS: Final = 10_000
"""A checkpoint whose retry topic cannot be created is tried again after this time."""
REPLAY_MAX: Final = 5_000
"""Limit of the useless records of one revive queue that a new master reads, since an open checkpoint precedes
them. It reads a record in 10 to 20 us, and answers no pop or acknowledgement until then: reading those of all
queues takes less than a second, below READY_MS."""


class Renewed(NamedTuple):
    """end: the log must be safe up to here before the answer. visible_in: see RenewPoppedResponse."""

    end: int
    visible_in: int | None


class PopService(TermService):
    """Owned by the event loop's thread."""

    def __init__(
        self,
        store: MessageStore,
        metadata: Metadata,
        writer: MessageWriter,
        *,
        cluster_name: str,
        broker_name: str,
        on_free: Callable[[str, str], None],
        on_dead: Callable[[str, str], None],
        on_retry_queues: Callable[[str], None],
        has_separate_retry_queues: Callable[[], bool],
        clock: Callable[[], int] = wall_ms,
        replay_max: int = REPLAY_MAX,
    ) -> None:
        """on_free: called with (group, topic) when a queue that was popped in order is no longer blocked.
        on_dead: called with (topic, group) for each dead letter. on_retry_queues: called with a retry topic
        that has new queues, before there is a message in them. has_separate_retry_queues:
        useSeparateRetryQueue.
        clock: wall time in ms."""
        super().__init__(store, metadata, writer, clock)
        self.broker_name, self._replay_max, self._on_free = broker_name, replay_max, on_free
        self._on_dead, self._on_retry_queues = on_dead, on_retry_queues
        self._has_separate_retry_queues = has_separate_retry_queues
        self.topic = NamedTopic(revive_topic(cluster_name))
        self.state, self.order = PopState([0] * REVIVE_QUEUES), OrderState()
        self.offsets = GroupOffsets(metadata.offsets, metadata.resets.is_pending)
        self.counts = ReviveCounts()
        self._limited_logger = RateLimitedLogger(logger)
        self._replays = True  # the revive queues are not read to their end
        self._next: dict[tuple[int, QueueOfGroup], int] = {}
        """(revive queue, queue of a group) -> the group's next offset there, from the checkpoints read so
        far that the table of consumer offsets may not have."""
        self._settled = [0] * REVIVE_QUEUES  # the offsets of SETTLED_GROUP when the term began

    def _step(self) -> bool:
        if self._replays:
            return self._read_on()
        self._settle()
        while (queue := self.order.next_free(self._clock())) is not None:
            self._on_free(queue.group, queue.topic)
        has_more = self._rewrite_old_checkpoints()
        return self._revive_due() or has_more

    # -- terms -------------------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Like TermService.is_ready, and this broker accepts writes now."""
        return self._serves() and super().is_ready

    def _has_replayed(self) -> bool:
        return not self._replays

    def _begin(self) -> None:
        self.offsets.clear()
        self.order = OrderState()
        self.state = PopState([self._first(queue_id) for queue_id in range(REVIVE_QUEUES)])
        self._settled = [self._committed(SETTLED_GROUP, queue_id) for queue_id in range(REVIVE_QUEUES)]
        self._replays = True
        self._next.clear()

    def _committed(self, group: str, queue_id: int) -> int:
        return self._metadata.offsets.query(group, self.topic.name, queue_id)

    def _first(self, queue_id: int) -> int:
        return self._inside(self.topic.name, queue_id, self._committed(REVIVE_GROUP, queue_id))

    def _read_on(self) -> bool:
        """Reads a batch of the records of earlier masters. True: there is more to do at once."""
        if not self._is_dispatched:
            return False
        left = BATCH_MAX
        for queue_id in range(REVIVE_QUEUES):
            queue = self._store.find_queue(self.topic.name, queue_id)
            while queue is not None and self.state.ends[queue_id] < queue.max_offset:
                if not left:
                    return True
                self._replay(queue, queue_id, self.state.ends[queue_id])
                left -= 1
        self._replays = False
        self._restore_offsets()
        if len(self.state):
            logger.info("pop: %d checkpoints are open", len(self.state))
        return False

    def _replay(self, queue: ConsumeQueue, queue_id: int, position: int) -> None:
        """Applies one record of a revive queue. A record that cannot be read is skipped with a log line: it
        must not block the ones behind it."""
        self.state.passed(queue_id, position)
        try:
            record = self._record_at(queue, position)
            if record is not None:
                self._apply(record, queue_id, position)
        except (ValueError, ArithmeticError, LookupError, struct.error) as error:
            text = "record %d of %s/%d is skipped, it cannot be read: %s"
            self._limited_logger.tell(self._clock(), text, position, self.topic.name, queue_id, error)

    def _apply(self, record: Record, queue_id: int, position: int) -> None:
        tag = property_value(record.properties, b"TAGS")
        if tag == CHECKPOINT:
            checkpoint = checkpoint_of(record.body, queue_id)
            self.state.stored(checkpoint, position)
            self.counts.read(checkpoint.key, OF_CHECKPOINT, queue_id)
            if position >= self._settled[queue_id]:
                at = (queue_id, QueueOfGroup(*checkpoint.key[:3]))
                self._next[at] = max(self._next.get(at, 0), checkpoint.next_offset)
        elif tag == RESET:
            self._next.pop((queue_id, reset_of(record.body)), None)
        elif tag in (ACK, BATCH_ACK):
            key, offsets = ack_of(record.body)
            for offset in offsets:
                self.state.end(key, queue_id, offset)
            self.counts.read(key, OF_ACK, queue_id)

    def _restore_offsets(self) -> None:
        """Sets the next offsets from the checkpoints; the table of consumer offsets may be older."""
        for (_, place), offset in self._next.items():
            if offset > self.offsets.get(place):
                self.offsets.set(place, offset, self._store.commit_log.max_offset)
        self._next.clear()

    def _settle(self) -> None:
        """Commits the offsets that are safe by now: the groups', and the positions in the revive queues."""
        end = self._store.commit_log.max_offset
        for queue_id, read_to in enumerate(self.state.ends):
            positions = (REVIVE_GROUP, self.state.position(queue_id)), (SETTLED_GROUP, read_to)
            for group, position in positions:
                place = QueueOfGroup(group, self.topic.name, queue_id)
                if position > max(self.offsets.get(place), 0):
                    self.offsets.set(place, position, end)
        self.offsets.settle(self._safe_offset)

    # -- for metrics -------------------------------------------------------------------------------------

    def lags(self) -> list[int]:
        """Returns for each revive queue how many records a new master would read."""
        ends = (self._store.max_queue_offset(self.topic.name, queue_id) for queue_id in range(REVIVE_QUEUES))
        return [max(end - self.state.position(queue_id), 0) for queue_id, end in enumerate(ends)]

    def late_ms(self) -> list[int]:
        """Returns for each revive queue for how long a checkpoint has been overdue, in ms; 0: none is."""
        now = self._clock()
        since = self.state.overdue_since(now)
        return [now - since.get(queue_id, now) for queue_id in range(REVIVE_QUEUES)]

    # -- handing out and acknowledging -----------------------------------------------------------------

    def hand_out(self, checkpoint: Checkpoint) -> int | PutRefused:
        """Writes the checkpoint of popped messages, and moves the group's offset. Returns the record's end in
        the log."""
        end = self._put(checkpoint)
        if isinstance(end, int):
            key = checkpoint.key
            self.offsets.set(QueueOfGroup(*key[:3]), checkpoint.next_offset, end)
        return end

    def reset(self, place: QueueOfGroup, offset: int) -> PutRefused | None:
        """Sets the group's offset, regardless of earlier pops. Writes a record to every revive queue, because
        a new master reads each of them separately. PutRefused: some of the queues may have the record."""
        body = reset_body(place, offset)
        for queue_id in range(REVIVE_QUEUES):
            stored = self._writer.put(self._message(queue_id, RESET, body))
            if isinstance(stored, PutRefused):
                return stored
            self.state.passed(queue_id, stored.queue_offset)
        self.order.forget(place)
        self.offsets.commit(place, offset)
        return None

    def _put(self, checkpoint: Checkpoint) -> int | PutRefused:
        body = checkpoint_body(checkpoint, self.broker_name)
        stored = self._writer.put(self._message(checkpoint.revive_queue, CHECKPOINT, body))
        self.counts.put(checkpoint.key, OF_CHECKPOINT, stored, checkpoint.revive_queue)
        if isinstance(stored, PutRefused):
            return stored
        self.state.stored(checkpoint, stored.queue_offset)
        return stored.end

    def ack(self, key: Key, revive_queue: int, offsets: Sequence[int]) -> int | PutRefused:
        """Acknowledges messages of a checkpoint. Returns the end of the record in the log; 0: none of them
        was open."""
        checkpoint = self.state.find(key, revive_queue)
        still = set() if checkpoint is None else set(checkpoint.open_offsets)
        still_open = [each for each in offsets if each in still]
        if not still_open:
            return 0
        tag, body = ack_body(key, still_open, self.broker_name)
        stored = self._writer.put(self._message(revive_queue, tag, body))
        self.counts.put(key, OF_ACK, stored, revive_queue)
        if isinstance(stored, PutRefused):
            return stored
        self.state.passed(revive_queue, stored.queue_offset)
        for offset in still_open:
            self.state.end(key, revive_queue, offset)
        return stored.end

    def change(
        self, key: Key, revive_queue: int, offset: int, invisible_ms: int, *, is_suspended: bool = False
    ) -> tuple[int, int] | PutRefused:
        """Writes a separate checkpoint for one message with another invisible time, and acknowledges the
        message in the old one. is_suspended: its next delivery is no further attempt. Returns the pop time of
        the new checkpoint, and the end of the records in the log. The new one is written first: a crash
        between the two repeats the message instead of losing it."""
        checkpoint = self.state.find(key, revive_queue)
        if checkpoint is None or offset not in checkpoint.open_offsets:
            remark = "the receipt handle has expired: the message was acknowledged or popped again"
            return PutRefused(ResponseCode.NO_MESSAGE, remark)
        new_key = key._replace(start_offset=offset, pop_ms=self._clock())
        while self.state.find(new_key, revive_queue) is not None:  # changed twice within a millisecond
            new_key = new_key._replace(pop_ms=new_key.pop_ms + 1)
        changed = Checkpoint(new_key, invisible_ms, (offset,), NO_NEXT_OFFSET, revive_queue)
        changed.is_suspended = is_suspended
        end = self._put(changed)
        if isinstance(end, PutRefused):
            return end
        acked = self.ack(key, revive_queue, [offset])
        return (new_key.pop_ms, end) if isinstance(acked, PutRefused) else (new_key.pop_ms, acked)

    def renew(
        self, group: str, topic: str, owner: str, invisible_ms: int, delivered: Collection[int] = ()
    ) -> Renewed | PutRefused:
        """Keeps what a client has received from a topic and its retry topics invisible for invisible_ms from
        now, under the same keys. delivered: times of pops whose messages it has; they are renewed from now
        on. Of more than BATCH_MAX checkpoints, the next call renews the others."""
        now, end, left, dues = self._clock(), 0, BATCH_MAX, list[int]()
        for checkpoint in self.state.owned(group, owner):
            key, due_ms = checkpoint.key, checkpoint.due_ms
            if origin_of(group, key.topic) != topic:
                continue
            is_new = not checkpoint.is_delivered
            if is_new and (key.pop_ms not in delivered or due_ms <= now):
                continue
            renewed_ms = renewed_due_ms(due_ms, key.pop_ms, now_ms=now, invisible_ms=invisible_ms)
            if (is_new or renewed_ms > due_ms) and left:
                # An earlier record has the next offset, and the group may have been reset since.
                renewed = replace(checkpoint, invisible_ms=renewed_ms - key.pop_ms, is_delivered=True)
                renewed.next_offset = NO_NEXT_OFFSET
                put = self._put(renewed)
                if isinstance(put, PutRefused):
                    return put
                end, due_ms, left = put, renewed_ms, left - 1
            dues.append(due_ms)
        for place, block in self._blocks_of(group, topic, owner):
            block.is_delivered = block.is_delivered or block.pop_ms in delivered
            if not block.is_delivered:
                continue
            due_ms = renewed_due_ms(block.due_ms, block.pop_ms, now_ms=now, invisible_ms=invisible_ms)
            if due_ms > block.due_ms:
                self.order.renew(place, due_ms)
            dues.append(due_ms)
        return Renewed(end, max(min(dues) - now, 0) if dues else None)

    def give_back(self, group: str, topic: str, owner: str, invisible_ms: int) -> Renewed | PutRefused:
        """Makes what an ended client has from a topic and its retry topics visible in invisible_ms or less.
        Its handles are valid until then, and nobody renews them. Of more than BATCH_MAX checkpoints, the next
        call gives the others back: visible_in is not None."""
        end, count, due_ms = 0, 0, self._clock() + invisible_ms
        for checkpoint in self.state.owned(group, owner):
            if origin_of(group, checkpoint.key.topic) != topic:
                continue
            if count == BATCH_MAX:
                return Renewed(end, invisible_ms)
            first_ms = min(checkpoint.due_ms, due_ms)
            given = replace(checkpoint, invisible_ms=first_ms - checkpoint.key.pop_ms, owner="")
            given.next_offset = NO_NEXT_OFFSET  # as in renew()
            put = self._put(given)
            if isinstance(put, PutRefused):
                return put
            end, count = put, count + 1
        for place, block in self._blocks_of(group, topic, owner):
            block.owner = ""
            self.order.renew(place, min(block.due_ms, due_ms))
        return Renewed(end, None)

    def _blocks_of(self, group: str, topic: str, owner: str) -> Iterator[tuple[QueueOfGroup, Block]]:
        known = self._metadata.topics.get(topic)
        for queue_id in range(0 if known is None else known.queue_count):
            place = QueueOfGroup(group, topic, queue_id)
            block = self.order.blocks.get(place)
            if block is not None and block.owner == owner:
                yield place, block

    def _message(self, revive_queue: int, tag: bytes, body: bytes) -> MessageToStore:
        now = self._writer.tick.wall_ms or self._clock()
        return revive_message(self.topic, revive_queue, tag, body, self._store.store_host, now)

    def _rewrite_old_checkpoints(self) -> bool:
        """Writes old open checkpoints again at the end of their queue: a new master reads the queue from the
        oldest open one. True: there are more."""
        left = BATCH_MAX
        for queue_id in range(REVIVE_QUEUES):
            while (checkpoint := self.state.holding(queue_id, self._replay_max)) is not None:
                if not left:
                    return True
                checkpoint.next_offset = NO_NEXT_OFFSET  # the group may have been reset since
                if isinstance(self._put(checkpoint), PutRefused):
                    return False
                left -= 1
        return False

    # -- revival ------------------------------------------------------------------------------------------

    def _revive_due(self) -> bool:
        now, left = self._clock(), BATCH_MAX
        while left > 0:
            checkpoint = self.state.next_due(now)
            if checkpoint is None:
                return False
            left -= checkpoint.open.bit_count()
            refused = self._revive(checkpoint)
            if refused is None:
                continue
            if refused.code != ResponseCode.TOPIC_NOT_EXIST:
                return False  # no record can be written now
            self.state.put_off(checkpoint, now + PUT_OFF_MS)  # the other groups' topics may exist
        return True

    def _revive(self, checkpoint: Checkpoint) -> PutRefused | None:
        """Delivers the open messages of a checkpoint again. Returns why one of them could not be written."""
        done: list[int] = []
        refused = None
        for offset in checkpoint.open_offsets:
            refused = self._revive_message(checkpoint, offset)
            if refused is not None:
                break
            done.append(offset)
        acked = self.ack(checkpoint.key, checkpoint.revive_queue, done) if done else 0
        return acked if isinstance(acked, PutRefused) else refused

    def _revive_message(self, checkpoint: Checkpoint, offset: int) -> PutRefused | None:
        key = checkpoint.key
        queue = self._store.find_queue(key.topic, key.queue_id)
        record = self._record_at(queue, offset) if queue is not None else None
        if record is None:
            logger.error("message %d of %s/%d was deleted by retention before %s acknowledged it",
                         offset, key.topic, key.queue_id, key.group)  # fmt: skip
            return None
        group, origin = self._metadata.groups.get(key.group), origin_of(key.group, key.topic)
        if group is None or origin not in self._metadata.topics.topics:
            return None  # the group or the topic was deleted: no consumer waits for the message
        times = record.reconsume_times + (not checkpoint.is_suspended)
        is_dead = not checkpoint.is_suspended and times > group.retry_max_times
        stored = self._put_retry(record, key, origin, times, is_dead=is_dead)
        if _is_illegal(stored) and not is_dead:
            stored = self._put_retry(record, key, origin, times, is_dead=True)
        if isinstance(stored, PutRefused):
            if stored.code != ResponseCode.MESSAGE_ILLEGAL:
                return stored
            logger.error("message %d of %s cannot be delivered again: %s", offset, key.topic, stored.remark)
        return None

    def _put_retry(
        self, record: Record, key: Key, origin: str, reconsume_times: int, *, is_dead: bool
    ) -> PutMessageResult | PutRefused:
        """Puts the message into the group's retry topic, or into its dead letter topic."""
        name = DLQ_PREFIX + key.group if is_dead else retry_name(key)
        if not is_file_name(name):
            return PutRefused(ResponseCode.MESSAGE_ILLEGAL, f"the name of the topic {name} is too long")
        keeps_queue = not is_dead and self._has_separate_retry_queues()
        topic = self._topic(name, self._metadata.topics.topics[origin].queue_count if keeps_queue else 1)
        if topic is None:
            return PutRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic {name} cannot be created")
        queue_id = min(record.queue_id, topic.write_queue_nums - 1) if keeps_queue else 0
        if is_dead:
            to_store = dead_letter(record, topic, origin, reconsume_times)
        else:
            to_store = retry_message(record, topic, key, reconsume_times, queue_id=queue_id)
        stored = self._writer.put(to_store)
        if _is_illegal(stored):  # the added properties may exceed the limit
            stored = self._writer.put(unchanged_message(record, topic, reconsume_times, queue_id=queue_id))
        self.counts.retry(key, stored)
        if is_dead and isinstance(stored, PutMessageResult):
            self._on_dead(origin, key.group)
            logger.warning("a message of %s is moved to %s after %d tries", origin, name, reconsume_times)
        return stored

    def _topic(self, name: str, queue_nums: int) -> Topic | None:
        topics = self._metadata.topics
        before = topics.get(name)
        try:
            topic = topics.ensure_queues(name, queue_nums)
            if topic is not before:
                self._on_retry_queues(name)
            return topic
        except OSError as error:
            self._limited_logger.tell(self._clock(), "topic %s cannot be created: %s", name, error)
            return None


def _is_illegal(stored: PutMessageResult | PutRefused) -> bool:
    return isinstance(stored, PutRefused) and stored.code == ResponseCode.MESSAGE_ILLEGAL


def retry_name(key: Key) -> str:
    """Returns the retry topic for the messages of this checkpoint."""
    return key.topic if key.topic.startswith(RETRY_PREFIX) else retry_topic(key.group, key.topic)


def origin_of(group: str, topic: str) -> str:
    """Returns the topic to which a message was sent; `topic`: the one that it was popped from."""
    for prefix in retry_topics(group, ""):
        topic = topic.removeprefix(prefix)
    return topic
