"""Messages that a broker stored as master, by topic: a sum over the brokers of a group counts no message
twice.

Queues grow on slaves as well. So the ends of the queues are recorded when a term begins, and the growth of
the term is added when it ends: the counters of a slave stand still, and go on when it is master again.
"""

from itertools import pairwise
from typing import Final, NamedTuple

from broker.store.queue.consume_queue import ConsumeQueue
from broker.store.queue.queue_table import QueueTable
from broker.store.queue.size_counts import SIZE_BITS, SMALL_BYTES


class InCount(NamedTuple):
    """messages: stored messages. size: bytes of records that consumers may read."""

    messages: int = 0
    size: int = 0


Marks = dict[ConsumeQueue, tuple[int, int]]
"""Of each queue: its next offset, and the bytes of the records that this broker has put into it."""
SIZE_BOUNDS: Final = (SMALL_BYTES, 4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20)
"""RocketMQ's buckets for the sizes of messages, in bytes: powers of two, as size_counts.py needs them."""


class MessagesIn:
    """Counters since the start of this process. Owned by the event loop's thread."""

    def __init__(self, queues: QueueTable) -> None:
        self._queues = queues
        self._past: dict[str, InCount] = {}
        self._begun: Marks | None = None
        self._ended: tuple[Marks, Marks] | None = (
            None  # a term that is not in _past yet: a role change is quick
        )

    def term_begins(self) -> None:
        """This broker is master, and has stored nothing in this term yet."""
        if self._begun is None:
            self._begun = self._marks()

    def term_ends(self) -> None:
        """This broker stores nothing more. Called before the log is truncated."""
        if self._begun is not None:
            self._add_ended()
            self._ended, self._begun = (self._begun, self._marks()), None

    def _marks(self) -> Marks:
        return {queue: (queue.next_offset, queue.put_bytes) for queue in self._queues.each()}

    def _add_ended(self) -> None:
        if self._ended is not None:
            begun, ended = self._ended
            self._past, self._ended = self._sum(begun, ended), None

    def counts(self) -> dict[str, InCount]:
        """Returns the counters by topic; on a slave those of its earlier terms."""
        self._add_ended()
        return self._past if self._begun is None else self._sum(self._begun, self._marks())

    def _sum(self, begun: Marks, ended: Marks) -> dict[str, InCount]:
        """Returns the past counters, plus the growth of each queue between these marks."""
        found = {topic: list(count) for topic, count in self._past.items()}
        for queue, (messages, size) in ended.items():
            messages_before, size_before = begun.get(queue, (0, 0))
            total = found.get(queue.topic)
            if total is None:
                total = found[queue.topic] = [0, 0]
            total[0] += max(messages - messages_before, 0)
            total[1] += max(size - size_before, 0)
        return {topic: InCount(messages, size) for topic, (messages, size) in found.items()}

    def sizes(self, topic: str, messages: int) -> list[int]:
        """Returns how many of the topic's messages are at most as large as each of SIZE_BOUNDS and larger
        than the one before, and how many are larger than all. messages: of counts(), from the same moment."""
        counts = self._queues.size_counts.get(topic, [])
        ends = [*(bound.bit_length() - 1 for bound in SIZE_BOUNDS), SIZE_BITS]
        large = [sum(counts[begin + 1 : end + 1]) for begin, end in pairwise(ends)]
        return [max(messages - sum(large), 0), *large]
