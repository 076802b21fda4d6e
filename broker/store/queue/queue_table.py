"""All ConsumeQueues of a store by (topic, queueId), and the callbacks that wait for their next message.

Owned by the event loop thread. A queue exists in memory from its first message or waiter on, and on disk from
its first unit on. It is a BatchQueue if its topic has queue.type=BatchCQ, or if its first record shows it,
since a replica may get records before their topics. Its kind never changes.
"""

import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from broker.message.delay_levels import SCHEDULED_TOPICS
from broker.message.inner_batch import INNER_BATCH, MESSAGES_MAX
from broker.message.record import Parsed
from broker.message.record_scan import QueueScans, new_queue_scan
from broker.store.log.disk_jobs import Job
from broker.store.log.mapped_file import is_file_name
from broker.store.queue.batch_queue import BatchQueue
from broker.store.queue.consume_queue import ConsumeQueue
from broker.store.queue.opening import how_to_repair
from broker.store.queue.size_counts import SizeCounts, no_records
from keelmq.runtime.clock import now_ms
from keelmq.runtime.rate_limited_log import RateLimitedLogger
from keelmq.runtime.slices import Slices

log = logging.getLogger(__name__)

WAITERS_MAX: Final = 65_536
EMPTIED_AT_ONCE: Final = 1_024
"""Queues that one step of emptied() checks: 1 to 2 ms."""
CUT_AT_ONCE: Final = 1_024
"""The same of to_cut()."""


class BatchTopics(Protocol):
    """The store's interface to the topics (broker/metadata/topics.py). on_batch_topic is set by the store,
    and called with each topic that has queue.type=BatchCQ."""

    on_batch_topic: Callable[[str], None] | None

    def is_batch(self, name: str) -> bool:
        """Returns whether the topic has queue.type=BatchCQ."""


class QueueDirectory(NamedTuple):
    """The directory of a queue. status: of the directory."""

    topic: str
    queue_id: int
    path: str
    status: os.stat_result


def queue_directories(base: Path) -> Iterator[QueueDirectory]:
    """Returns the queues that have a directory, by topic. Other files, such as a file manager's, are skipped.
    A store may have 100,000."""
    if not base.is_dir():
        return
    with os.scandir(base) as topics:
        for topic in sorted((each for each in topics if each.is_dir()), key=lambda each: each.name):
            with os.scandir(topic) as found:
                queues = [each for each in found if each.name.isdecimal() and each.is_dir()]
            for queue in sorted(queues, key=lambda each: int(each.name)):
                yield QueueDirectory(topic.name, int(queue.name), queue.path, queue.stat())


class QueueTable:
    """`table` is read directly by the fast path: topic -> queueId -> queue, without BatchQueues."""

    def __init__(self, base: Path, file_bytes: int, batch_file_bytes: int, topics: BatchTopics) -> None:
        """base: directory of the ConsumeQueues; BatchQueues are in one beside it. topics: knows which topics
        have queue.type=BatchCQ, and calls become_batch() when one gets it."""
        self._base, self._batch_base = base, base.with_name(f"batch{base.name}")
        self._file_bytes, self._batch_file_bytes = file_bytes, batch_file_bytes
        self.table: dict[str, dict[int, ConsumeQueue]] = {}
        self._batch_table: dict[str, dict[int, BatchQueue]] = {}
        self.queue_scans: QueueScans = {}
        """Of the queues of records that were read from the log, for record_scan.py. One is plain from the
        first record on that is dispatched."""
        self.size_counts: defaultdict[str, SizeCounts] = defaultdict(no_records)
        """By topic: the large messages that this broker has stored as master."""
        self.has_batch_type: Callable[[str], bool] = topics.is_batch
        topics.on_batch_topic = self.become_batch
        self.moved_on: dict[tuple[str, int], int] = {}
        """The next queue offsets of queues that have skipped some; see UnreadNumbers.skip()."""
        self.first_offset = self.skipped_to = 0
        """Queue offset of the first message of a queue that is made now, of a BatchQueue's a multiple, and
        the queue's skipped_to."""
        self.woken: list[ConsumeQueue] = []
        """Queues with waiters that got a unit since the last wake()."""
        self.waiter_count = 0
        self.has_lost_entries = False
        """Whether the start has found lost files, or files without their ends: the scrub begins anew."""
        self._failures = RateLimitedLogger(log, level=logging.ERROR)

    def load(self, log_min_offset: int) -> None:
        """Opens every queue that has a directory. log_min_offset: where the CommitLog begins. StoreError: a
        file has another size than configured."""
        self._base.mkdir(exist_ok=True)
        for topic, queue_id, _, _ in queue_directories(self._base):
            self._new(topic, queue_id).load(log_min_offset=log_min_offset)
        for topic, queue_id, _, _ in queue_directories(self._batch_base):
            self._new_batch(topic, queue_id).load(log_min_offset=log_min_offset)

    def each(self) -> list[ConsumeQueue]:
        """All queues of both kinds."""
        return [queue for _, queues in self.topics() for queue in queues.values()]

    def ends(self) -> list[tuple[str, int, int]]:
        """Returns (topic, queueId, max_offset) of each queue, for the file of ends, in which they are listed
        then; any thread."""
        tables: list[Mapping[str, Mapping[int, ConsumeQueue]]] = [self.table.copy(), self._batch_table.copy()]
        found = list[tuple[str, int, int]]()
        for queue in (queue for table in tables for few in table.values() for queue in tuple(few.values())):
            end = queue.max_offset
            queue.is_listed = end > 0
            found.append((queue.topic, queue.queue_id, end))
        return found

    def topics(self) -> Iterator[tuple[str, Mapping[int, ConsumeQueue]]]:
        """Each topic that has a queue, and its queues by queueId."""
        return chain(self.table.items(), self._batch_table.items())

    def of_topic(self, topic: str) -> Mapping[int, ConsumeQueue]:
        """The topic's queues by queueId; empty if it has none."""
        return self.table.get(topic) or self._batch_table.get(topic, {})

    def get(self, topic: str, queue_id: int, sys_flag: int = 0) -> ConsumeQueue:
        """Returns the queue, and makes it, without a file, if it is new. sys_flag: of the record for which it
        is needed."""
        queue = self.find(topic, queue_id)
        if queue is not None:
            return queue
        if sys_flag & INNER_BATCH or self.is_batch(topic):
            queue, first_offset = self._new_batch(topic, queue_id), self.first_offset * MESSAGES_MAX
        else:
            queue, first_offset = self._new(topic, queue_id), self.first_offset
        if first_offset:
            queue.next_offset = self.moved_on[topic, queue_id] = first_offset
            queue.skipped_to = self.skipped_to
        return queue

    def of_record(
        self, parsed: Parsed, sys_flag: int, on_new: Callable[[str, int], None] | None = None
    ) -> ConsumeQueue | None:
        """As get(), for a record from the log, and gives the queue its QueueScan. on_new: is called if the
        queue has no unit yet. None: the topic's name cannot be that of a directory."""
        topic, queue_id = parsed[1].decode("utf-8", "replace"), parsed[2]
        if not is_file_name(topic):
            if on_new is not None:
                text = "a record of queue %d has the invalid topic %r: it is added to no ConsumeQueue"
                log.error(text, queue_id, topic)
            return None
        queue = self.get(topic, queue_id, sys_flag)
        if on_new is not None and not queue.max_offset:
            on_new(topic, queue_id)
            queue = self.get(topic, queue_id, sys_flag)  # it may be of the other kind now
        is_plain = on_new is not None and not isinstance(queue, BatchQueue) and topic not in SCHEDULED_TOPICS
        queue_scan = new_queue_scan(queue, queue.key_prefix_hash, is_plain=is_plain)
        self.queue_scans.setdefault(parsed[1], {})[queue_id] = queue_scan
        return queue

    def _new(self, topic: str, queue_id: int) -> ConsumeQueue:
        directory = self._base / topic / str(queue_id)
        queue = ConsumeQueue(directory, topic, queue_id, self._file_bytes)
        queue.size_counts = self.size_counts[topic]
        self.table.setdefault(topic, {})[queue_id] = queue
        return queue

    def _new_batch(self, topic: str, queue_id: int) -> BatchQueue:
        directory = self._batch_base / topic / str(queue_id)
        queue = BatchQueue(directory, topic, queue_id, self._batch_file_bytes)
        queue.size_counts = self.size_counts[topic]
        self._batch_table.setdefault(topic, {})[queue_id] = queue
        return queue

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue; None if there is none."""
        queues = self.table.get(topic)
        queue = None if queues is None else queues.get(queue_id)
        if queue is None and self._batch_table:
            return self._batch_table.get(topic, {}).get(queue_id)
        return queue

    def log_lost_files(self) -> None:
        """Logs which queues have files without units in front of their last one. To be called when the units
        that a crash has left unwritten are cut."""
        for queue in self.each():
            self.has_lost_entries |= bool(queue.shortened)
            if paths := queue.lost_files():
                self.has_lost_entries = True
                where, count = f"{queue.topic}/{queue.queue_id}", len(paths)
                text = (
                    "the ConsumeQueue %s has lost %d files, from %s on: consumers get an error until the"
                    " scrub has made their entries again; if it is off (scrubBytesPerSecond=0), %s"
                )
                log.error(text, where, count, paths[0], how_to_repair(queue.directory))

    # -- retention ---------------------------------------------------------------------------------------

    def go_on_from(self, topic: str, queue_id: int, end: int) -> None:
        """At a new master: all messages of this queue in front of `end` were deleted, here or at another
        broker. See ConsumeQueue.go_on_from()."""
        queue = self.get(topic, queue_id)
        if queue.seen_to or queue.max_offset or self.moved_on.get((topic, queue_id)) != queue.next_offset:
            queue.go_on_from(end)
        else:  # it has skipped some, and has no record
            queue.next_offset = max(queue.next_offset, end)

    def emptied(self, begin: int) -> Iterator[dict[tuple[str, int], int]]:
        """Yields the next queue offsets by (topic, queueId) of queues whose messages are all deleted, and of
        moved_on, after each EMPTIED_AT_ONCE queues. begin: where the CommitLog begins."""
        if self.moved_on:
            yield self.moved_on
        queues = self.each() if begin else []
        for at in range(0, len(queues), EMPTIED_AT_ONCE):
            few = queues[at : at + EMPTIED_AT_ONCE]
            yield {(q.topic, q.queue_id): q.next_offset for q in few if q.ended_before(begin)}

    # -- all of them -------------------------------------------------------------------------------------

    def truncate(self, log_offset: int, *, crashed: bool = False) -> None:
        """Truncates all queues, see ConsumeQueue.truncate(). crashed: bytes behind their ends may be left of
        before the crash, and are zeroed."""
        for queue in self.each():
            queue.truncate(log_offset, crashed=crashed)
            if crashed:
                queue.drop_stale()

    def to_cut(self, log_offset: int) -> Slices[tuple[list[ConsumeQueue], ConsumeQueue | None]]:
        """Returns the queues that cut() may change, and of the others the one with the newest record; in
        slices. Changes nothing: the caller adds the queues that change meanwhile."""
        found, newest, newest_end = list[ConsumeQueue](), None, 0
        for number, queue in enumerate(self.each(), 1):
            if queue.needs_cut(log_offset):
                found.append(queue)
            elif (end := queue.log_end_offset()) > newest_end:
                newest, newest_end = queue, end
            if number % CUT_AT_ONCE == 0:
                yield
        return found, newest

    def cut(self, log_offset: int, queues: Iterable[ConsumeQueue]) -> list[Job]:
        """As truncate(), but for readers only; the returned jobs do it on disk. queues: at least those that
        to_cut() finds."""
        return [job for queue in queues for job in queue.cut(log_offset)]

    def cut_all(self) -> list[Job]:
        """As cut(), but removes all units of all queues."""
        return [job for queue in self.each() for job in queue.cut_all()]

    def close(self) -> None:
        """Closes all files, without a sync."""
        for queue in self.each():
            queue.close()

    # -- inner batches -----------------------------------------------------------------------------------

    def is_batch(self, topic: str) -> bool:
        """Whether a new queue of the topic will be a BatchQueue."""
        return topic in self._batch_table or self.has_batch_type(topic)

    def has_messages(self, topic: str, *, in_batches: bool) -> bool:
        """Whether the topic has queues of that kind in which queue offsets were assigned. A deleted topic may
        have some."""
        table: Mapping[str, Mapping[int, ConsumeQueue]] = self._batch_table if in_batches else self.table
        return any(queue.next_offset for queue in table.get(topic, {}).values())

    def become_batch(self, topic: str) -> None:
        """The topic has queue.type=BatchCQ: its queues without a message become BatchQueues, and keep their
        waiters."""
        queues = self.table.get(topic, {})
        self.queue_scans.pop(topic.encode(), None)
        for queue in [queue for queue in queues.values() if not queue.next_offset]:
            del queues[queue.queue_id]
            self._new_batch(topic, queue.queue_id).waiters = queue.waiters
        if not queues:
            self.table.pop(topic, None)

    def max_offset(self, topic: str, queue_id: int) -> int:
        """The queue offset of the next message that consumers will see, which confirmOffset limits; 0 for an
        unknown queue."""
        queue = self.find(topic, queue_id)
        return 0 if queue is None else queue.max_offset

    def next_offset(self, topic: str, queue_id: int) -> int:
        """The queue offset of the next record that is written to the log; 0 for an unknown queue."""
        queue = self.find(topic, queue_id)
        return 0 if queue is None else queue.next_offset

    def min_offset(self, topic: str, queue_id: int) -> int:
        """The queue offset of the oldest message; 0 for an unknown queue."""
        queue = self.find(topic, queue_id)
        return 0 if queue is None else queue.min_offset

    # -- waiting -----------------------------------------------------------------------------------------

    def wait_for(self, topic: str, queue_id: int, offset: int, callback: Callable[[], None]) -> bool:
        """Registers a callback that is called once, when the queue has a unit at `offset`. A callback waits
        at most once at a queue; a new offset replaces the old one. False: WAITERS_MAX wait already."""
        if self.waiter_count >= WAITERS_MAX:
            return False
        waiters = self.get(topic, queue_id).waiters
        if callback not in waiters:
            self.waiter_count += 1
        waiters[callback] = offset
        return True

    def stop_waiting(self, topic: str, queue_id: int, callback: Callable[[], None]) -> None:
        """Removes the callback, if it waits."""
        queue = self.find(topic, queue_id)
        if queue is not None and queue.waiters.pop(callback, None) is not None:
            self.waiter_count -= 1

    def wake(self) -> None:
        """Calls the callbacks whose offset is there. An exception of one is logged and affects no other: the
        caller may be in the middle of a put, of replication, or of another connection's acknowledgement."""
        woken, self.woken = self.woken, []
        for queue in woken:
            waiters, end = queue.waiters, queue.max_offset
            for callback in [callback for callback, offset in waiters.items() if offset < end]:
                if waiters.pop(callback, None) is None:
                    continue  # an earlier callback has removed it
                self.waiter_count -= 1
                try:
                    callback()
                except Exception as error:  # noqa: BLE001 - logged
                    self._failures.tell(
                        now_ms(), "a waiter for %s, queue %d, failed: %r", queue.topic, queue.queue_id, error,
                        exc_info=error,
                    )  # fmt: skip
