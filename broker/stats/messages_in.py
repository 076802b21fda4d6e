"""Messages that a broker stored as master, by topic: a sum over the brokers of a group counts no message
twice.

Queues grow on slaves as well. So the ends of the queues are recorded when a term begins, and the growth of
the term is added when it ends: the counters of a slave stand still, and go on when it is master again.
"""

from itertools import pairwise
from typing import Final, NamedTuple

from broker.store.queue.queue_table import QueueTable
from broker.store.queue.size_counts import SIZE_BITS, SMALL_BYTES


class InCount(NamedTuple):
    """messages: stored messages. size: bytes of records that consumers may read."""

    messages: int = 0
    size: int = 0


SIZE_BOUNDS: Final = (SMALL_BYTES, 4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20)
"""RocketMQ's buckets for the sizes of messages, in bytes: powers of two, as size_counts.py needs them."""


class MessagesIn:
    """Counters since the start of this process. Owned by the event loop's thread."""

    def __init__(self, queues: QueueTable) -> None:
        self._queues = queues
        self._past: dict[str, InCount] = {}
        self._begun: dict[tuple[str, int], InCount] | None = None

    def term_begins(self) -> None:
        """This broker is master, and has stored nothing in this term yet."""
        if self._begun is None:
            each = self._queues.each()
            self._begun = {(q.topic, q.queue_id): InCount(q.next_offset, q.put_bytes) for q in each}

    def term_ends(self) -> None:
        """This broker stores nothing more. Called before the log is truncated."""
        self._past, self._begun = self.counts(), None

    def counts(self) -> dict[str, InCount]:
        """Returns the counters by topic; on a slave those of its earlier terms."""
        begun = self._begun
        if begun is None:
            return self._past
        found: dict[str, InCount] = {}
        for topic, queues in self._queues.topics():
            messages, size = self._past.get(topic, InCount())
            for queue_id, queue in queues.items():
                begin = begun.get((topic, queue_id), InCount())
                messages += max(queue.next_offset - begin.messages, 0)
                size += max(queue.put_bytes - begin.size, 0)
            found[topic] = InCount(messages, size)
        return found

    def sizes(self, topic: str, messages: int) -> list[int]:
        """Returns how many of the topic's messages are at most as large as each of SIZE_BOUNDS and larger
        than the one before, and how many are larger than all. messages: of counts(), from the same moment."""
        counts = self._queues.size_counts.get(topic, [])
        ends = [*(bound.bit_length() - 1 for bound in SIZE_BOUNDS), SIZE_BITS]
        large = [sum(counts[begin + 1 : end + 1]) for begin, end in pairwise(ends)]
        return [max(messages - sum(large), 0), *large]
