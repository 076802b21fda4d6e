"""Messages that a broker stored as master, by topic: a sum over the brokers of a group counts no message
twice.

Queues grow on slaves as well. So the ends of the queues are recorded when a term begins, and the growth of
the term is added when it ends: the counters of a slave stand still, and go on when it is master again.
"""

from typing import NamedTuple

from broker.store.queue.queue_table import QueueTable


class InCount(NamedTuple):
    """messages: stored messages. size: bytes of records that consumers may read."""

    messages: int = 0
    size: int = 0


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
