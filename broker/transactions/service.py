"""The open transactions of a master: ends them, checks them with their producers, gives up undecided ones.

Everything durable is in the log. Each new term reads the half queue and the op queue again, from the consumer
offsets of the group CID_RMQ_SYS_TRANS. These offsets advance when the records behind the decision are
confirmed and on disk. If a copy, a commit or an op record is lost with its master, the next master writes it
again. Source: RocketMQ 5.3.3 TransactionalMessageServiceImpl, EndTransactionProcessor.
"""

import logging
from collections import Counter
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec.structs import replace

from broker.admission.send_gate import PutRefused
from broker.config.client_settings import ClientSettings
from broker.message.checked_topic import checked_topic
from broker.message.record import Record, encode, offset_message_id, property_value
from broker.metadata.service import Metadata
from broker.metadata.topics import is_for_broker
from broker.put.message_to_store import MessageToStore, PutMessageResult
from broker.put.message_writer import MessageWriter
from broker.put.real_queue import destination, real_queue
from broker.put.term_service import SafeMarks, TermService
from broker.store.message_store import MessageStore
from broker.transactions.core.state import End, Half, TransactionState
from broker.transactions.messages import (
    GIVEN_UP_TOPIC,
    GROUP,
    HALF_TOPIC,
    OP_TOPIC,
    committed_message,
    copy_message,
    ended_by,
    given_up_message,
    half_of,
    op_message,
    resumed_message,
    root_of,
)
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.command import encode as encode_frame
from keelmq.remoting.command import request_command
from keelmq.remoting.operation import Peer
from keelmq.remoting.operations.transactions import CHECK_TRANSACTION_STATE, CheckTransactionStateRequest
from keelmq.runtime.clock import wall_ms
from keelmq.runtime.histogram import Histogram

logger = logging.getLogger(__name__)

BATCH_MAX: Final = 256
"""Records read, or producers asked, in one round: the event loop has other work."""
ABSENT_MS: Final = 1_000
"""Pause between two searches for a producer that is not connected; longer if many transactions are open."""
ENDED_BEHIND_OPEN_MAX: Final = 10_000
"""Half messages, most of them ended, that a new master may have to read because an open one precedes them."""
COPY_PERIOD_MS: Final = 60_000
"""Period of the copies of a half message whose producer is absent: they let the queue positions advance."""


class _Replay(msgspec.Struct):
    """The next offsets to read in both queues. early: half messages that were stored meanwhile."""

    op_at: int
    half_at: int
    early: list[Half] = msgspec.field(default_factory=list)


TIMED_TOPICS_MAX: Final = 1_000
COMMIT_BOUNDS_S: Final = (5, 60, 600, 3_600, 43_200, 86_400)


class TransactionService(TermService):
    """Owned by the event loop's thread."""

    def __init__(
        self,
        store: MessageStore,
        metadata: Metadata,
        writer: MessageWriter,
        *,
        settings: ClientSettings,
        broker_name: str,
        find_producer: Callable[[str, str], Peer | None],
        give_up_after_ms: int = 0,
        clock: Callable[[], int] = wall_ms,
    ) -> None:
        """find_producer(group, topic): returns a connection of the producer group that may send to the topic.
        give_up_after_ms: age at which a transaction is given up after any number of checks; 0: none.
        clock: wall time in ms."""
        super().__init__(store, metadata, writer, clock)
        self._settings, self._broker_name = settings, broker_name
        self._find_producer, self._give_up_after_ms = find_producer, give_up_after_ms
        self.state = TransactionState()
        self._replay: _Replay | None = None  # None: the queues have been read in this term
        self._op_due: list[int] = []  # ended half messages whose op record could not be written yet
        self._marks: SafeMarks[tuple[int, int]] = SafeMarks()  # (half position, op position)
        self._marked = (-1, -1)
        self._opaque = 0
        self.ended: Counter[tuple[End, str]] = Counter()
        self.commit_times: dict[str, Histogram] = {}
        """Seconds from a message's birth to its commit, by topic; of the first TIMED_TOPICS_MAX."""
        """Transactions that ended in this process, by how and topic."""

    def _step(self) -> bool:
        if self._replay is not None:
            return self._read_on(self._replay)
        self._write_ops()
        self._settle()
        has_more = self._copy_old_half_messages()
        return self._check_due() or has_more

    # -- terms -------------------------------------------------------------------------------------------

    def _has_replayed(self) -> bool:
        return self._replay is None

    def _begin(self) -> None:
        half_at, op_at = self._first(HALF_TOPIC.name), self._first(OP_TOPIC.name)
        self.state = TransactionState(half_at, op_at)
        self._replay = _Replay(op_at, half_at)
        self._op_due.clear()
        self._marks.clear()
        self._marked = (-1, -1)

    def _first(self, topic: str) -> int:
        return self._inside(topic, 0, self._metadata.offsets.query(GROUP, topic, 0))

    def _read_on(self, replay: _Replay) -> bool:
        """Reads a batch of the records of earlier masters: first all op records, then the half messages."""
        if not self._is_dispatched:
            return False
        state, left = self.state, BATCH_MAX
        ops, halves = self._store.find_queue(OP_TOPIC.name, 0), self._store.find_queue(HALF_TOPIC.name, 0)
        while ops is not None and replay.op_at < ops.max_offset and left:
            record = self._record_at(ops, replay.op_at)
            state.replay_op(replay.op_at, ended_by(record.body) if record is not None else ())
            replay.op_at += 1
            left -= 1
        while halves is not None and replay.half_at < halves.max_offset and left:
            record = self._record_at(halves, replay.half_at)
            if record is not None:
                state.replay_half(self._half_of_record(record))
            replay.half_at += 1
            left -= 1
        if not left:
            return True
        state.replayed()
        state.half_end = max(state.half_end, replay.half_at)
        self._replay = None
        for half in replay.early:
            if half.queue_offset >= state.half_end:
                state.stored(half)
        if len(state):
            logger.info("%d open transactions", len(state))
        return False

    def _settle(self) -> None:
        """Commits the queue positions of the group that are safe by now, both together."""
        marked = (self.state.half_position, self.state.op_position)
        if marked != self._marked:
            self._marks.add(self._store.commit_log.max_offset, marked)
            self._marked = marked
        for half_position, op_position in self._marks.take(self._safe_offset):
            self._metadata.offsets.commit(GROUP, HALF_TOPIC.name, 0, half_position)
            self._metadata.offsets.commit(GROUP, OP_TOPIC.name, 0, op_position)

    # -- half messages and their ends --------------------------------------------------------------------

    def refuse(self) -> PutRefused | None:
        """Returns why half messages are refused now; None: they are accepted."""
        if self._settings.reject_transaction_message:
            remark = f"the broker[{self._broker_name}] sending transaction message is forbidden"
            return PutRefused(ResponseCode.NO_PERMISSION, remark)
        if self.state.is_full:
            return PutRefused(
                ResponseCode.SYSTEM_BUSY,
                f"{len(self.state)} transactions are open, which is the limit",
            )
        return None

    def stored(self, to_store: MessageToStore, stored: PutMessageResult) -> None:
        """Adds a half message that was put. One that is put before the service notices its term is read from
        the queue."""
        if self._term != self._metadata.epoch:
            return
        half = self._half(stored, to_store.properties, to_store.born_timestamp, self._clock())
        if self._replay is not None:
            self._replay.early.append(half)
        else:
            self.state.stored(half)

    def end(self, record: Record, how: End) -> int | PutRefused:
        """Commits or rolls back the transaction of this half message; only when is_ready.

        Returns the end of its records in the log; 0: it had already ended in this way. Refused: it ended in
        another way, or too long ago to be known."""
        root = root_of(record.queue_offset, record.properties)
        half = self.state.find(root)
        if half is None:
            known = self.state.end_of(root)
            if known is how:
                return 0
            state = "ended long ago" if known is None else f"is already {known.value}"
            return PutRefused(ResponseCode.SYSTEM_ERROR, f"the transaction of half message {root} {state}")
        end = 0
        if how is End.COMMITTED:
            stored = self._commit(record)
            if isinstance(stored, PutRefused):
                return stored
            end = stored.end
            self._observe_commit(record)
        self.ended[how, _topic_of(record)] += 1
        return max(self._end(half, how), end)

    def _observe_commit(self, record: Record) -> None:
        topic, seconds = _topic_of(record), max(self._clock() - record.born_timestamp, 0) / 1_000
        histogram = self.commit_times.get(topic)
        if histogram is None:
            if len(self.commit_times) >= TIMED_TOPICS_MAX:
                return
            histogram = self.commit_times[topic] = Histogram(COMMIT_BOUNDS_S)
        histogram.observe(seconds)

    def resume(self, record: Record) -> PutMessageResult | PutRefused:
        """Stores a message that was given up as a new half message, so that its producer is asked again."""
        to_store = resumed_message(record)
        stored = self._writer.put(to_store)
        if isinstance(stored, PutMessageResult):
            self.stored(to_store, stored)
        return stored

    def _commit(self, record: Record) -> PutMessageResult | PutRefused:
        where = real_queue(record.properties)
        if where is None or is_for_broker(where[0]):
            return PutRefused(ResponseCode.SYSTEM_ERROR, "the half message has no valid REAL_TOPIC, REAL_QID")
        topic, queue_id = where
        return self._writer.put(
            committed_message(record, destination(self._metadata.topics, topic), queue_id)
        )

    def _end(self, half: Half, how: End) -> int:
        """Writes the op record right behind the message, so that one packet replicates both."""
        self.state.end(half.root, how)
        self._op_due.append(half.queue_offset)
        return self._write_ops()

    def _write_ops(self) -> int:
        """Writes an op record for all ended half messages that have none. Returns its end in the log; 0:
        there are none, or it cannot be written now and is tried again in the next round."""
        if not self._op_due:
            return 0
        to_store = op_message(self._op_due, self._store.store_host, self._clock())
        stored = self._writer.put(to_store)
        if isinstance(stored, PutRefused):
            return 0
        self.state.op_stored(stored.queue_offset, max(self._op_due))
        self._op_due.clear()
        return stored.end

    # -- checks ------------------------------------------------------------------------------------------

    def _check_due(self) -> bool:
        now = self._clock()
        for _ in range(BATCH_MAX):
            half = self.state.next_due(now)
            if half is None or not self._check(half, now):
                return False
        return True

    def _check(self, half: Half, now: int) -> bool:
        """Asks the producer of this half message. False: no record can be written now."""
        record = self._half_record(half)
        if record is None:
            return True
        if half.checks >= self._settings.transaction_check_max or self._is_old(half, record, now):
            return self._give_up(half, record)
        group = (property_value(record.properties, b"PGROUP") or b"").decode("utf-8", "replace")
        peer = self._find_producer(group, checked_topic(record.topic, record.properties))
        wait_ms = min(self._settings.transaction_check_interval, ABSENT_MS + len(self.state) // 10)
        if peer is None and now - half.stored_ms < COPY_PERIOD_MS:
            self.state.put_off(half.root, now + wait_ms)
            return True
        if peer is None:  # no producer is asked, so this is not a check: the copy lets the position advance
            return self._put_copy(half, record, now + wait_ms)
        to_store = copy_message(record, half, half.checks + 1)
        stored = self._writer.put(to_store)
        if isinstance(stored, PutRefused):
            return self._cannot_copy(half, record, stored)
        self.state.stored(self._half(stored, to_store.properties, to_store.born_timestamp, now))
        self._send_check(peer, replace(record, properties=to_store.properties), stored)
        return True

    def _is_old(self, half: Half, record: Record, now: int) -> bool:
        """Whether the transaction is given up for its age. A producer whose clock is far behind sends half
        messages that seem old at once: it has the usual time to end them."""
        if not half.checks and now - half.stored_ms <= self._settings.transaction_time_out:
            return False
        return 0 < self._give_up_after_ms < now - min(record.born_timestamp, record.store_timestamp)

    def _half_record(self, half: Half) -> Record | None:
        """Returns its record. None: retention has deleted it, and its transaction is given up."""
        record = self._record(half.log_offset, half.size)
        if record is None:
            logger.error("half message %d was deleted by retention before its transaction ended", half.root)
            self.state.end(half.root, End.GIVEN_UP)
        return record

    def _put_copy(self, half: Half, record: Record, due_ms: int) -> bool:
        """Stores a copy whose producer is not asked before due_ms. False: no record can be written now."""
        to_store = copy_message(record, half, half.checks)
        stored = self._writer.put(to_store)
        if isinstance(stored, PutRefused):
            return self._cannot_copy(half, record, stored)
        self.state.stored(self._half(stored, to_store.properties, to_store.born_timestamp, self._clock()))
        self.state.put_off(half.root, due_ms)
        return True

    def _cannot_copy(self, half: Half, record: Record, refused: PutRefused) -> bool:
        """False: no record can be written now. A half message without room for the properties of a copy, of
        RocketMQ or an earlier release, is given up: it would keep all others from being checked."""
        return refused.code == ResponseCode.MESSAGE_ILLEGAL and self._give_up(half, record)

    def _copy_old_half_messages(self) -> bool:
        """Copies old open half messages to the end of the queue: the next master reads the queue from the
        oldest one. True: there is more to do."""
        for _ in range(BATCH_MAX):
            half = self.state.holding(ENDED_BEHIND_OPEN_MAX)
            if half is None:
                return False
            record = self._half_record(half)
            if record is not None and not self._put_copy(half, record, half.due_ms):
                return False
        return True

    def _give_up(self, half: Half, record: Record) -> bool:
        """Moves the message to TRANS_CHECK_MAX_TIME_TOPIC. False: no record can be written now."""
        try:
            topic = self._metadata.topics.ensure(GIVEN_UP_TOPIC, 1)
        except OSError as error:
            logger.error("topic %s cannot be created: %s", GIVEN_UP_TOPIC, error)
            return False
        if isinstance(self._writer.put(given_up_message(record, topic)), PutRefused):
            return False
        logger.warning("transaction %d is given up after %d checks: its message is in %s",
                       half.root, half.checks, GIVEN_UP_TOPIC)  # fmt: skip
        self.ended[End.GIVEN_UP, _topic_of(record)] += 1
        self._end(half, End.GIVEN_UP)
        return True

    def _send_check(self, peer: Peer, record: Record, stored: PutMessageResult) -> None:
        """Sends CHECK_TRANSACTION_STATE. The message in it looks as the producer sent it; the offsets in the
        header name the copy, and the producer's END_TRANSACTION repeats them."""
        topic, queue_id = real_queue(record.properties) or (record.topic, record.queue_id)
        unique_key = (property_value(record.properties, b"UNIQ_KEY") or b"").decode("utf-8", "replace")
        transaction_id = property_value(record.properties, b"__transactionId__")
        header = CheckTransactionStateRequest(
            topic=topic,
            tran_state_table_offset=stored.queue_offset,
            commit_log_offset=stored.offset,
            msg_id=unique_key,
            transaction_id=(transaction_id or b"").decode("utf-8", "replace") or unique_key,
            offset_msg_id=offset_message_id(self._store.store_host, stored.offset),
            bname=self._broker_name,
        )
        seen = replace(
            record, topic=topic, queue_id=queue_id, queue_offset=stored.queue_offset, offset=stored.offset
        )
        command = request_command(CHECK_TRANSACTION_STATE, header, encode(seen))
        self._opaque = command.opaque = (self._opaque + 1) & 0x7FFFFFFF
        peer.send(encode_frame(command))

    def _half(self, stored: PutMessageResult, properties: bytes, born_ms: int, stored_ms: int) -> Half:
        settings, size = self._settings, stored.end - stored.offset
        return half_of(
            stored.queue_offset, stored.offset, size, properties, born_ms=born_ms, stored_ms=stored_ms,
            timeout_ms=settings.transaction_time_out, interval_ms=settings.transaction_check_interval,
            give_up_after_ms=self._give_up_after_ms,
        )  # fmt: skip

    def _half_of_record(self, record: Record) -> Half:
        stored = PutMessageResult(record.offset, record.offset + record.size, record.queue_offset)
        return self._half(stored, record.properties, record.born_timestamp, record.store_timestamp)


def _topic_of(record: Record) -> str:
    where = real_queue(record.properties)
    return where[0] if where is not None else ""
