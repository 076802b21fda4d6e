"""Keeps the open transactions of a master: ends them, asks their producers, and gives up what nobody decides.

Everything durable is in the log: in each new term the book is read again from the half and the op queue,
from the offsets on that the group CID_RMQ_SYS_TRANS has there. These follow when what they pass over is
confirmed and on disk. A copy, a commit or an op record that is lost with its master is made again by the next
one. Source: RocketMQ 5.3.3 TransactionalMessageServiceImpl, EndTransactionProcessor.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from broker.client_settings import ClientSettings
from broker.handlers.origin import destination, real_queue
from broker.handlers.writer import Letter, Refused, Stored, Writer
from broker.metadata.service import Metadata
from broker.store.consume_queue import FILLER_SIZE, ConsumeQueue
from broker.store.message_store import MessageStore
from broker.store.record import Record, decode, encode, offset_message_id, property_value
from broker.topics import is_for_broker
from broker.transactions.core.book import End, Half, TransactionBook
from broker.transactions.messages import (
    GIVEN_UP_TOPIC,
    GROUP,
    HALF_TOPIC,
    OP_TOPIC,
    committed_letter,
    copy_letter,
    ended_by,
    given_up_letter,
    half_of,
    op_letter,
    resumed_letter,
    root_of,
)
from remoting.clock import now_ms, wall_ms
from remoting.codes import ResponseCode
from remoting.command import encode as encode_frame
from remoting.command import request_command
from remoting.operation import Peer
from remoting.operations.transactions import CHECK_TRANSACTION_STATE, CheckTransactionStateRequest

logger = logging.getLogger(__name__)

PERIOD_MS: Final = 100
BATCH_MAX: Final = 256
"""Records that are read, or producers that are asked, in one go: the loop has other things to do."""
MARKS_MAX: Final = 1_024
READY_STEP_MS: Final = 10
ABSENT_MS: Final = 1_000
"""How soon a producer is looked for again that is not here; later if many are looked for."""
HELD_MAX: Final = 10_000
"""Half messages, ended ones for the most part, that a new master reads because of an open one before them."""
MOVE_ON_MS: Final = 60_000
"""Half messages of absent producers get a copy as often, so that the queues before it can be forgotten."""


@dataclass(slots=True)
class _Replay:
    """target: all records before it must have their units. early: halves that were stored meanwhile."""

    target: int
    op_at: int
    half_at: int
    early: list[Half] = field(default_factory=list)


class Transactions:
    """Owned by the event loop's thread; run() is its task, round() one step of it."""

    def __init__(
        self,
        store: MessageStore,
        metadata: Metadata,
        writer: Writer,
        *,
        settings: ClientSettings,
        broker_name: str,
        find_producer: Callable[[str], Peer | None],
        give_up_after_ms: int = 0,
        clock: Callable[[], int] = wall_ms,
    ) -> None:
        """find_producer: a connection of that group. give_up_after_ms: age that no transaction reaches; 0:
        none."""
        self._store, self._metadata, self._writer = store, metadata, writer
        self._settings, self._broker_name = settings, broker_name
        self._find_producer, self._clock = find_producer, clock
        self._give_up_after_ms = give_up_after_ms
        self.book = TransactionBook()
        self._term: int | None = None  # masterEpoch that the book is of
        self._replay: _Replay | None = None
        self._owed: list[int] = []  # halves that have ended, and whose op record could not be written
        self._marks: deque[tuple[int, int, int]] = deque()  # end in the log, half position, op position
        self._marked = (-1, -1)
        self._opaque = 0
        self.ended: Counter[tuple[End, str]] = Counter()  # by topic, of this process

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
        if self._replay is not None:
            return self._read_on(self._replay)
        self._write_ops()
        self._settle()
        holds_back = self._hold_nothing_back()
        return self._ask_due() or holds_back

    # -- terms -------------------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        return self._term == self._metadata.epoch and self._replay is None

    async def ready(self, timeout_ms: int) -> bool:
        """A new master has read what its predecessor left."""
        deadline_ms = now_ms() + timeout_ms
        while not self.is_ready:
            if now_ms() >= deadline_ms:
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
        half_at, op_at = self._start(HALF_TOPIC.name), self._start(OP_TOPIC.name)
        self.book = TransactionBook(half_at, op_at)
        self._replay = _Replay(self._store.commit_log.max_offset, op_at, half_at)
        self._owed.clear()
        self._marks.clear()
        self._marked = (-1, -1)
        self._term = epoch

    def _start(self, topic: str) -> int:
        """Inside the queue, whatever the table says."""
        queue = self._store.find_queue(topic, 0)
        if queue is None:
            return 0
        offset = self._metadata.offsets.query(GROUP, topic, 0)
        return min(max(offset, queue.min_offset), queue.max_offset)

    def _read_on(self, replay: _Replay) -> bool:
        if self._store.dispatch_offset < replay.target:
            return False
        book, left = self.book, BATCH_MAX
        ops, halves = self._store.find_queue(OP_TOPIC.name, 0), self._store.find_queue(HALF_TOPIC.name, 0)
        while ops is not None and replay.op_at < ops.max_offset and left:
            record = self._record_of(ops, replay.op_at)
            book.replay_op(replay.op_at, ended_by(record.body) if record is not None else ())
            replay.op_at += 1
            left -= 1
        while halves is not None and replay.half_at < halves.max_offset and left:
            record = self._record_of(halves, replay.half_at)
            if record is not None:
                book.replay_half(self._half_of_record(record))
            replay.half_at += 1
            left -= 1
        if not left:
            return True
        book.replayed()
        book.half_end = max(book.half_end, replay.half_at)
        self._replay = None
        for half in replay.early:
            if half.queue_offset >= book.half_end:
                book.stored(half)
        if len(book):
            logger.info("%d open transactions", len(book))
        return False

    def _record_of(self, queue: ConsumeQueue, queue_offset: int) -> Record | None:
        log_offset, size, _ = queue.unit(queue_offset)
        return None if size == FILLER_SIZE else self._record(log_offset, size)

    def _record(self, log_offset: int, size: int) -> Record | None:
        """None: it is older than the log."""
        view = self._store.commit_log.view(log_offset, size)
        return decode(view) if len(view) == size else None

    def _settle(self) -> None:
        """Positions whose passing cannot be lost any more become the group's offsets, both together."""
        marked = (self.book.half_position, self.book.op_position)
        if marked != self._marked:
            if len(self._marks) >= MARKS_MAX:
                self._marks.pop()
            self._marks.append((self._store.commit_log.max_offset, *marked))
            self._marked = marked
        safe = min(self._store.confirm_offset, self._store.commit_log.flushed_offset)
        while self._marks and self._marks[0][0] <= safe:
            _, half_position, op_position = self._marks.popleft()
            self._metadata.offsets.commit(GROUP, HALF_TOPIC.name, 0, half_position)
            self._metadata.offsets.commit(GROUP, OP_TOPIC.name, 0, op_position)

    # -- half messages, and their ends -------------------------------------------------------------------

    def refuse(self) -> Refused | None:
        """Why no new transaction is taken."""
        if self._settings.reject_transaction_message:
            remark = f"the broker[{self._broker_name}] sending transaction message is forbidden"
            return Refused(ResponseCode.NO_PERMISSION, remark)
        if self.book.is_full:
            return Refused(
                ResponseCode.SYSTEM_BUSY, f"{len(self.book)} transactions are open, none more fits"
            )
        return None

    def stored(self, letter: Letter, stored: Stored) -> None:
        """This half message was put. What comes before the term is noticed is found in the queue."""
        if self._term != self._metadata.epoch:
            return
        half = self._half(stored, letter.properties, letter.born_timestamp, self._clock())
        if self._replay is not None:
            self._replay.early.append(half)
        else:
            self.book.stored(half)

    def end(self, record: Record, how: End) -> int | Refused:
        """Where in the log it is written that this half message's transaction has ended; 0: it had already,
        in this way. Only when is_ready."""
        root = root_of(record.queue_offset, record.properties)
        half = self.book.find(root)
        if half is None:
            known = self.book.end_of(root)
            if known is how:
                return 0
            state = "has ended long since" if known is None else f"is {known.value} already"
            return Refused(ResponseCode.SYSTEM_ERROR, f"the transaction of half message {root} {state}")
        end = 0
        if how is End.COMMITTED:
            stored = self._commit(record)
            if isinstance(stored, Refused):
                return stored
            end = stored.end
        self.ended[how, _topic_of(record)] += 1
        return max(self._end(half, how), end)

    def resume(self, record: Record) -> Stored | Refused:
        """An operator wants the producer of a message that was given up to be asked again."""
        letter = resumed_letter(record)
        stored = self._writer.put(letter)
        if isinstance(stored, Stored):
            self.stored(letter, stored)
        return stored

    def _commit(self, record: Record) -> Stored | Refused:
        where = real_queue(record.properties)
        if where is None or is_for_broker(where[0]):
            return Refused(ResponseCode.SYSTEM_ERROR, "the half message does not say where it belongs")
        topic, queue_id = where
        return self._writer.put(committed_letter(record, destination(self._metadata.topics, topic), queue_id))

    def _end(self, half: Half, how: End) -> int:
        """The op record right behind the message: one packet takes both to the replicas."""
        self.book.end(half.root, how)
        self._owed.append(half.queue_offset)
        return self._write_ops()

    def _write_ops(self) -> int:
        """Where they end in the log; 0: nothing was to be written, or it will be later."""
        if not self._owed:
            return 0
        letter = op_letter(self._owed, self._store.store_host, self._clock())
        stored = self._writer.put(letter)
        if isinstance(stored, Refused):
            return 0
        self.book.op_stored(stored.queue_offset, max(self._owed))
        self._owed.clear()
        return stored.end

    # -- questions ---------------------------------------------------------------------------------------

    def _ask_due(self) -> bool:
        now = self._clock()
        for _ in range(BATCH_MAX):
            half = self.book.next_due(now)
            if half is None or not self._ask(half, now):
                return False
        return True

    def _ask(self, half: Half, now: int) -> bool:
        """False: nothing can be written now."""
        record = self._half_record(half)
        if record is None:
            return True
        is_old = 0 < self._give_up_after_ms < now - min(record.born_timestamp, record.store_timestamp)
        if half.checks >= self._settings.transaction_check_max or is_old:
            return self._give_up(half, record)
        group = (property_value(record.properties, b"PGROUP") or b"").decode("utf-8", "replace")
        peer = self._find_producer(group)
        wait_ms = min(self._settings.transaction_check_interval, ABSENT_MS + len(self.book) // 10)
        if peer is None and now - half.stored_ms < MOVE_ON_MS:
            self.book.put_off(half.root, now + wait_ms)
            return True
        if peer is None:  # nobody was asked, and it does not count: the copy only moves on in its queue
            return self._move_on(half, record, now + wait_ms)
        letter = copy_letter(record, half, half.checks + 1)
        stored = self._writer.put(letter)
        if isinstance(stored, Refused):
            return False
        self.book.stored(self._half(stored, letter.properties, letter.born_timestamp, now))
        self._send_question(peer, replace(record, properties=letter.properties), stored)
        return True

    def _half_record(self, half: Half) -> Record | None:
        """None: it is gone, and its transaction with it."""
        record = self._record(half.log_offset, half.size)
        if record is None:
            logger.error("the half message %d is gone: retention was shorter than its transaction", half.root)
            self.book.end(half.root, End.GIVEN_UP)
        return record

    def _move_on(self, half: Half, record: Record, due_ms: int) -> bool:
        """A copy of which nobody is asked before due_ms. False: nothing can be written now."""
        letter = copy_letter(record, half, half.checks)
        stored = self._writer.put(letter)
        if isinstance(stored, Refused):
            return False
        self.book.stored(self._half(stored, letter.properties, letter.born_timestamp, self._clock()))
        self.book.put_off(half.root, due_ms)
        return True

    def _hold_nothing_back(self) -> bool:
        """A long immunity must not keep the queues' positions: the next master would read all since then.
        True: there is more to do."""
        for _ in range(BATCH_MAX):
            half = self.book.holding(HELD_MAX)
            if half is None:
                return False
            record = self._half_record(half)
            if record is not None and not self._move_on(half, record, half.due_ms):
                return False
        return True

    def _give_up(self, half: Half, record: Record) -> bool:
        try:
            topic = self._metadata.topics.ensure(GIVEN_UP_TOPIC, 1)
        except OSError as error:
            logger.error("topic %s cannot be created: %s", GIVEN_UP_TOPIC, error)
            return False
        if isinstance(self._writer.put(given_up_letter(record, topic)), Refused):
            return False
        logger.warning("transaction %d is given up after %d questions: its message is in %s",
                       half.root, half.checks, GIVEN_UP_TOPIC)  # fmt: skip
        self.ended[End.GIVEN_UP, _topic_of(record)] += 1
        self._end(half, End.GIVEN_UP)
        return True

    def _send_question(self, peer: Peer, record: Record, stored: Stored) -> None:
        """The producer names the copy in its answer; what it sees is the message that it sent."""
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

    def _half(self, stored: Stored, properties: bytes, born_ms: int, stored_ms: int) -> Half:
        settings, size = self._settings, stored.end - stored.offset
        return half_of(
            stored.queue_offset, stored.offset, size, properties, born_ms=born_ms, stored_ms=stored_ms,
            timeout_ms=settings.transaction_time_out, interval_ms=settings.transaction_check_interval,
            give_up_after_ms=self._give_up_after_ms,
        )  # fmt: skip

    def _half_of_record(self, record: Record) -> Half:
        stored = Stored(record.offset, record.offset + record.size, record.queue_offset)
        return self._half(stored, record.properties, record.born_timestamp, record.store_timestamp)


def _topic_of(record: Record) -> str:
    where = real_queue(record.properties)
    return where[0] if where is not None else ""
