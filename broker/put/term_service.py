"""A background service of a master that lives as long as a term: delay levels, timers, transactions, pop.

The state of such a service is in the log and in replicated tables, never in a separate file: in each new term
it starts over from the log, because another master may have continued meanwhile. It is idle on a slave, while
writes are refused, and after the isolation lease is over. Source: RocketMQ 5.3.3
BrokerController.changeSpecialServiceStatus.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

from broker.message.record import Record, decode
from broker.metadata.service import Metadata
from broker.put.message_writer import MessageWriter
from broker.store.message_store import MessageStore
from broker.store.queue.consume_queue import FILLER_SIZE, ConsumeQueue
from broker.store.whole_reading import DamagedRecordError, check_record
from keelmq.runtime.clock import now_ms, wall_ms
from keelmq.runtime.rate_limited_log import RateLimitedLogger

logger = logging.getLogger(__name__)

PERIOD_MS: Final = 100
"""Pause between two rounds, when there is no more work at once."""
READY_STEP_MS: Final = 10
MARKS_MAX: Final = 1_024

T = TypeVar("T")


class SafeMarks(Generic[T]):
    """Values that count as soon as the log up to their mark can no longer be lost.

    Marks never decrease. With MARKS_MAX of them the newest one is replaced: its value is a later state of the
    same progress, so only a little more is repeated after a crash.
    """

    def __init__(self, marks_max: int | None = MARKS_MAX) -> None:
        """marks_max None: every value counts, none may be replaced by a later one."""
        self._marks: deque[tuple[int, T]] = deque()
        self._marks_max = marks_max

    def __len__(self) -> int:
        return len(self._marks)

    def add(self, end: int, value: T) -> None:
        """`end`: the log offset up to which the log must be safe."""
        if self._marks_max is not None and len(self._marks) >= self._marks_max:
            self._marks.pop()
        self._marks.append((end, value))

    def take(self, safe_offset: int) -> Iterator[T]:
        """Removes and yields the values, oldest first, whose log is safe below safe_offset."""
        while self._marks and self._marks[0][0] <= safe_offset:
            yield self._marks.popleft()[1]

    def clear(self) -> None:
        """Forgets all values: a new term starts over."""
        self._marks.clear()


class TermService(ABC):
    """Owned by the event loop's thread. run() is its task, round() one step of it."""

    def __init__(
        self,
        store: MessageStore,
        metadata: Metadata,
        writer: MessageWriter,
        clock: Callable[[], int] = wall_ms,
    ) -> None:
        """clock: wall time in ms."""
        self._store, self._metadata, self._writer, self._clock = store, metadata, writer, clock
        self._term: int | None = None  # masterEpoch that the state is of; None: the next round starts over
        self._damage_log = RateLimitedLogger(logger, level=logging.ERROR)
        self._log_end = 0  # of the log when the term began: records before it are of earlier masters

    @abstractmethod
    def _begin(self) -> None:
        """Starts over for a new term: forgets all state of the last one. _log_end is set."""

    @abstractmethod
    def _step(self) -> bool:
        """Does a bounded amount of work in the current term. True: there is more to do at once."""

    @abstractmethod
    def _has_replayed(self) -> bool:
        """Whether all records of earlier masters have been read in this term."""

    async def run(self) -> None:
        """Runs until an error ends it; the supervised task starts it again, and it starts over."""
        while True:
            try:
                more = self.round()
            except BaseException:
                self._term = None
                raise
            await asyncio.sleep(0 if more else PERIOD_MS / 1000)

    def round(self) -> bool:
        """One step, if this broker may serve. True: there is more to do at once. It waits for a damaged
        record until it is healed, or an operator sets a mark."""
        try:
            return self._serves() and self._step()
        except DamagedRecordError as error:
            self._damage_log.tell(now_ms(), "%s waits: %s", type(self).__name__, error)
            return False

    @property
    def is_ready(self) -> bool:
        """This term's state is complete: the records of earlier masters have been read."""
        return self._term == self._metadata.epoch and self._has_replayed()

    async def ready(self, timeout_ms: int) -> bool:
        """Waits until is_ready. False: it is not within timeout_ms, or this broker stops accepting writes."""
        deadline_ms = now_ms() + timeout_ms
        while not self.is_ready:
            if now_ms() >= deadline_ms or not self._metadata.gate.writable:
                return False
            await asyncio.sleep(READY_STEP_MS / 1000)
        return True

    @property
    def has_term(self) -> bool:
        """Whether this broker is master, and the state is one of its terms, perhaps not complete yet. For
        metrics: unlike is_ready it begins no term, and a closed gate does not matter."""
        return self._store.is_master and self._term is not None

    def _serves(self) -> bool:
        """Whether this broker may act as master now. Begins a new term's state.

        A gate that is closed for a while ends no term: the state stays valid. The end of the mastership does.
        """
        gate = self._metadata.gate
        if not self._store.is_master:
            self._term = None
        if not (self._store.is_master and gate.writable) or gate.lease_is_over:
            return False
        if self._term != self._metadata.epoch:
            self._log_end = self._store.commit_log.max_offset
            self._begin()
            self._term = self._metadata.epoch
        return True

    # -- for the services --------------------------------------------------------------------------------

    @property
    def _is_dispatched(self) -> bool:
        """Every record of earlier masters has its unit in a consume queue."""
        return self._store.dispatch_offset >= self._log_end

    @property
    def _safe_offset(self) -> int:
        """The log below it is confirmed and on disk: neither a fail-over nor a crash loses it."""
        return min(self._store.confirm_offset, self._store.commit_log.flushed_offset)

    def _inside(self, topic: str, queue_id: int, offset: int) -> int:
        """`offset`, moved into the queue, regardless of a table (store pitfall 20). 0: there is no queue."""
        queue = self._store.find_queue(topic, queue_id)
        return 0 if queue is None else min(max(offset, queue.min_offset), queue.max_offset)

    def _record(self, log_offset: int, size: int) -> Record | None:
        """Returns the record of `size` bytes at log_offset. None: retention has deleted it, or its unit is
        lost, which has no size. Raises DamagedRecordError."""
        view = self._store.commit_log.view(log_offset, size)
        if len(view) != size or size <= 0:
            return None
        check_record(self._store.log_check, log_offset, size)
        return decode(view)

    def _record_at(self, queue: ConsumeQueue, queue_offset: int) -> Record | None:
        """Returns the record of a queue's unit. None: retention has deleted it, or the unit is a filler."""
        if not queue.min_offset <= queue_offset < queue.max_offset:
            return None
        log_offset, size, _ = queue.unit(queue_offset)
        return None if size == FILLER_SIZE else self._record(log_offset, size)
