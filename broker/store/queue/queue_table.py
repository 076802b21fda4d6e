"""All ConsumeQueues of a store by (topic, queueId), and who waits at them for the next message.

Owned by the event loop thread. A queue exists in memory from the first message or waiter on, on disk from its
first unit on. It is a BatchQueue where its topic has queue.type=BatchCQ, or where its first record says so: a
replica has records before it has their topics. It stays what it is.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Final, Protocol

from broker.store.batch_queue import BatchQueue
from broker.store.commit_log import CommitLog
from broker.store.consume_queue import ConsumeQueue
from broker.store.index import MessageIndex
from broker.store.indexed_keys import Keyed
from broker.store.inner_batch import INNER_BATCH, keys_of
from broker.store.mapped_file import is_file_name
from broker.store.record import Buffer, Parsed, index_keys, java_hash, parse
from broker.store.settings import BATCH_FILE_BYTES

log = logging.getLogger(__name__)

WAITERS_MAX: Final = 65_536


class BatchTopics(Protocol):
    """What a store must know of topics: broker/topics.py."""

    on_batch_topic: Callable[[str], None] | None

    def is_batch(self, name: str) -> bool: ...


def _never(topic: str) -> bool:
    return False


def _directories(base: Path) -> Iterator[tuple[str, int]]:
    """(topic, queueId) of each queue that has one."""
    for topic_path in sorted(base.iterdir()) if base.is_dir() else ():
        for path in sorted(topic_path.iterdir()):
            if path.name.isdecimal():
                yield topic_path.name, int(path.name)


class QueueTable:
    """`table` is read directly by the data path: topic -> queueId -> queue. BatchQueues are not in it."""

    def __init__(self, base: Path, file_bytes: int, batch_file_bytes: int = BATCH_FILE_BYTES) -> None:
        self._base, self._batch_base = base, base.with_name(f"batch{base.name}")
        self._file_bytes, self._batch_file_bytes = file_bytes, batch_file_bytes
        self.table: dict[str, dict[int, ConsumeQueue]] = {}
        self._batch_table: dict[str, dict[int, BatchQueue]] = {}
        self.has_batch_type: Callable[[str], bool] = _never
        self.woken: list[ConsumeQueue] = []
        """Queues with waiters that got a unit; wake() calls these."""
        self.waiter_count = 0

    def load(self, log_min_offset: int) -> None:
        """Open every queue that has a directory. StoreError: a file has another size than configured."""
        self._base.mkdir(exist_ok=True)
        for topic, queue_id in _directories(self._base):
            self._new(topic, queue_id).load(log_min_offset=log_min_offset)
        for topic, queue_id in _directories(self._batch_base):
            self._new_batch(topic, queue_id).load(log_min_offset=log_min_offset)

    def each(self) -> list[ConsumeQueue]:
        return [queue for _, queues in self.topics() for queue in queues.values()]

    def topics(self) -> Iterator[tuple[str, Mapping[int, ConsumeQueue]]]:
        """Every topic that has a queue."""
        return chain(self.table.items(), self._batch_table.items())

    def of_topic(self, topic: str) -> Mapping[int, ConsumeQueue]:
        return self.table.get(topic) or self._batch_table.get(topic, {})

    def get(self, topic: str, queue_id: int, sys_flag: int = 0) -> ConsumeQueue:
        """The queue, created (without a file) when it is new; sys_flag: of the record that it is for."""
        queue = self.find(topic, queue_id)
        if queue is not None:
            return queue
        if sys_flag & INNER_BATCH or self.is_batch(topic):
            return self._new_batch(topic, queue_id)
        return self._new(topic, queue_id)

    def of_record(
        self, parsed: Parsed, sys_flag: int, on_new: Callable[[str, int], None] | None
    ) -> ConsumeQueue | None:
        """As get(); on_new hears of one that was not there. None: its topic can have no directory."""
        topic, queue_id = parsed[1].decode("utf-8", "replace"), parsed[2]
        if not is_file_name(topic):
            log.error("a record of queue %d has the topic %r: no queue for it", queue_id, topic)
            return None
        queue = self.find(topic, queue_id)
        if queue is None:
            queue = self.get(topic, queue_id, sys_flag)
            if on_new is not None:
                on_new(topic, queue_id)
        return queue

    def _new(self, topic: str, queue_id: int) -> ConsumeQueue:
        directory = self._base / topic / str(queue_id)
        queue = ConsumeQueue(directory, topic, queue_id, self._file_bytes)
        self.table.setdefault(topic, {})[queue_id] = queue
        return queue

    def _new_batch(self, topic: str, queue_id: int) -> BatchQueue:
        directory = self._batch_base / topic / str(queue_id)
        queue = BatchQueue(directory, topic, queue_id, self._batch_file_bytes)
        self._batch_table.setdefault(topic, {})[queue_id] = queue
        return queue

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        queues = self.table.get(topic)
        queue = None if queues is None else queues.get(queue_id)
        if queue is None and self._batch_table:
            return self._batch_table.get(topic, {}).get(queue_id)
        return queue

    # -- retention ---------------------------------------------------------------------------------------

    def go_on_from(self, topic: str, queue_id: int, end: int) -> None:
        """At a new master: all messages of this queue up to `end` were deleted, here or elsewhere."""
        self.get(topic, queue_id).go_on_from(end)

    def emptied(self, begin: int) -> dict[tuple[str, int], int]:
        """(topic, queueId) -> next offset, of queues whose messages are all deleted; the log begins there."""
        queues = self.each() if begin else []
        return {(each.topic, each.queue_id): each.next_offset for each in queues if each.ended_before(begin)}

    # -- all of them -------------------------------------------------------------------------------------

    def truncate(self, log_offset: int, *, crashed: bool = False) -> None:
        """crashed: what lies behind their ends may be of before the crash."""
        for queue in self.each():
            queue.truncate(log_offset)
            if crashed:
                queue.drop_stale()

    def destroy(self) -> None:
        for queue in self.each():
            queue.destroy()

    def close(self) -> None:
        for queue in self.each():
            queue.close()

    # -- inner batches -----------------------------------------------------------------------------------

    def follow(self, topics: BatchTopics) -> None:
        """These say which topics have queue.type=BatchCQ."""
        self.has_batch_type = topics.is_batch
        topics.on_batch_topic = self.become_batch

    def is_batch(self, topic: str) -> bool:
        """Will a new queue of the topic be a BatchQueue?"""
        return topic in self._batch_table or self.has_batch_type(topic)

    def has_messages(self, topic: str, *, in_batches: bool) -> bool:
        """Has it queues of that kind with a numbering to go on with? A deleted topic can have some."""
        table: Mapping[str, Mapping[int, ConsumeQueue]] = self._batch_table if in_batches else self.table
        return any(queue.next_offset for queue in table.get(topic, {}).values())

    def become_batch(self, topic: str) -> None:
        """The topic has queue.type=BatchCQ: where nothing but waiters is, they wait at a BatchQueue."""
        queues = self.table.get(topic, {})
        for queue in [queue for queue in queues.values() if not queue.next_offset]:
            del queues[queue.queue_id]
            self._new_batch(topic, queue.queue_id).waiters = queue.waiters
        if not queues:
            self.table.pop(topic, None)

    # -- keys --------------------------------------------------------------------------------------------

    def keyed(
        self, queue: ConsumeQueue | None, offset: int, parsed: Parsed, buffer: Buffer, pos: int
    ) -> list[Keyed]:
        """For the index, of the record at `offset`, which is at buffer[pos]. queue: its own, if any."""
        size, topic, _, _, _, timestamp, properties = parsed
        if queue is None:
            prefix_hash = java_hash(f"{topic.decode('utf-8', 'replace')}#")
        else:
            prefix_hash = queue.key_prefix_hash
        own = (prefix_hash, offset, timestamp, *index_keys(properties))
        if not isinstance(queue, BatchQueue):
            return [own]
        inner = keys_of(buffer[pos : pos + size])
        return [own, *((prefix_hash, offset, timestamp, *keys) for keys in inner)]

    def catch_up(self, index: MessageIndex, log: CommitLog, end: int, records_max: int) -> bool:
        """Index up to records_max records in front of `end`. True: more to do."""
        index.settle()
        if index.offset >= end:
            return False
        begin = max(index.offset, log.min_offset)
        view = log.view(begin, log.file_bytes, end=end)
        pos, count, index.offset, keys_found = 0, 0, begin, list[Keyed]()
        while pos < len(view) and count < records_max:
            parsed = parse(view, pos, len(view), offset=begin + pos)
            if parsed is None:
                break
            if parsed[1]:
                queue = self.find(parsed[1].decode("utf-8", "replace"), parsed[2])
                keys_found += self.keyed(queue, begin + pos, parsed, view, pos)
            pos += parsed[0]
            count += 1
        index.add(keys_found, begin + pos)
        index.settle()
        return pos > 0 and not index.fault and index.offset < end

    def topic_counts(self) -> dict[str, int]:
        """Messages that each topic has ever had, by the offsets of its queues."""
        return {topic: sum(q.max_offset for q in queues.values()) for topic, queues in self.topics()}

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Next offset that consumers will see; bounded by confirmOffset. 0 for an unknown queue."""
        queue = self.find(topic, queue_id)
        return 0 if queue is None else queue.max_offset

    def min_offset(self, topic: str, queue_id: int) -> int:
        queue = self.find(topic, queue_id)
        return 0 if queue is None else queue.min_offset

    # -- waiting -----------------------------------------------------------------------------------------

    def wait_for(self, topic: str, queue_id: int, offset: int, callback: Callable[[], None]) -> bool:
        """Call back once, when the queue has a unit at `offset`. False: too many wait already."""
        if self.waiter_count >= WAITERS_MAX:
            return False
        self.waiter_count += 1
        self.get(topic, queue_id).waiters.append((offset, callback))
        return True

    def stop_waiting(self, topic: str, queue_id: int, callback: Callable[[], None]) -> None:
        queue = self.find(topic, queue_id)
        if queue is not None:
            kept = [waiter for waiter in queue.waiters if waiter[1] is not callback]
            self.waiter_count -= len(queue.waiters) - len(kept)
            queue.waiters = kept

    def wake(self) -> None:
        woken, self.woken = self.woken, []
        for queue in woken:
            waiters, queue.waiters = queue.waiters, []
            for waiter in waiters:
                if waiter[0] < queue.max_offset:
                    self.waiter_count -= 1
                    waiter[1]()
                else:
                    queue.waiters.append(waiter)
