"""All ConsumeQueues of a store by (topic, queueId), and who waits at them for the next message.

Owned by the event loop thread. A queue exists in memory from the first message or waiter on, on disk from its
first unit on.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from broker.store.commit_log import CommitLog
from broker.store.consume_queue import ConsumeQueue
from broker.store.index import MessageIndex
from broker.store.record import Parsed, index_keys, java_hash, parse

SCAN_BYTES: Final = 8 << 20
"""Of the log, looked through in one go."""
WAITERS_MAX: Final = 65_536


class QueueTable:
    """`table` is read directly by the data path: topic -> queueId -> queue."""

    def __init__(self, base: Path, file_bytes: int) -> None:
        self._base = base
        self._file_bytes = file_bytes
        self.table: dict[str, dict[int, ConsumeQueue]] = {}
        self.woken: list[ConsumeQueue] = []
        """Queues with waiters that got a unit; wake() calls these."""
        self.waiter_count = 0

    def load(self, log_min_offset: int) -> None:
        """Open every queue that has a directory. StoreError: a file has another size than configured."""
        self._base.mkdir(exist_ok=True)
        for topic_path in sorted(self._base.iterdir()):
            for path in sorted(topic_path.iterdir()):
                if path.name.isdecimal():
                    self.get(topic_path.name, int(path.name)).load(log_min_offset=log_min_offset)

    def each(self) -> list[ConsumeQueue]:
        return [queue for queues in self.table.values() for queue in queues.values()]

    def get(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, created (without a file) when it is new."""
        queues = self.table.setdefault(topic, {})
        queue = queues.get(queue_id)
        if queue is None:
            directory = self._base / topic / str(queue_id)
            queue = queues[queue_id] = ConsumeQueue(directory, topic, queue_id, self._file_bytes)
        return queue

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        queues = self.table.get(topic)
        return None if queues is None else queues.get(queue_id)

    def index_record(self, index: MessageIndex, offset: int, parsed: Parsed) -> bool:
        """The record at `offset`, which index.offset points to. False: no room, index.offset went back."""
        size, topic, queue_id, _, _, timestamp, properties = parsed
        if not topic:
            index.offset = offset + size
            return True
        name = topic.decode("utf-8", "replace")
        queue = self.find(name, queue_id)
        prefix_hash = java_hash(f"{name}#") if queue is None else queue.key_prefix_hash
        index.add([(prefix_hash, offset, timestamp, *index_keys(properties))], offset + size)
        return index.offset == offset + size

    def catch_up(self, index: MessageIndex, log: CommitLog, end: int, records_max: int) -> bool:
        """Index up to records_max records in front of `end`. True: more to do."""
        index.settle()
        if index.offset >= end:
            return False
        begin = max(index.offset, log.min_offset)
        view = log.view(begin, SCAN_BYTES, end=end)
        pos, count, index.offset = 0, 0, begin
        while pos < len(view) and count < records_max:
            parsed = parse(view, pos, len(view), offset=begin + pos)
            if parsed is None or not self.index_record(index, begin + pos, parsed):
                break
            pos += parsed[0]
            count += 1
        index.settle()
        return pos > 0 and not index.fault and index.offset < end

    def topic_counts(self) -> dict[str, int]:
        """Messages that each topic has ever had, by the offsets of its queues."""
        return {topic: sum(q.max_offset for q in queues.values()) for topic, queues in self.table.items()}

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
