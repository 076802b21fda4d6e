"""Messages that a broker stored as master, by topic: a sum over the brokers of a group counts no message
twice.

Queues grow on slaves as well. So the ends of the queues are recorded when a term begins, and the growth of
the term is added after it has ended: the counters of a slave do not grow until it is master again.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from broker.store.queue.consume_queue import ConsumeQueue
from broker.store.queue.queue_table import QueueTable
from broker.store.queue.size_counts import SIZE_BITS, SMALL_BYTES
from keelmq.runtime.slices import Slices


class InCount(NamedTuple):
    """messages: stored messages. size: bytes of records that consumers may read."""

    messages: int = 0
    size: int = 0


NOTHING: Final = InCount()


class Marks(NamedTuple):
    """The queues of one moment, and of each its next offset and the bytes of the records that this broker has
    put into it: three lists, because a role change waits for them."""

    queues: Sequence[ConsumeQueue]
    offsets: Sequence[int]
    sizes: Sequence[int]


SLICE_QUEUES: Final = 2_000
"""Queues that one slice of a sum reads: 1 ms."""
SIZE_BOUNDS: Final = (SMALL_BYTES, 4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20)
"""RocketMQ's buckets for the sizes of messages, in bytes: powers of two, as size_counts.py needs them."""


class MessagesIn:
    """Counters since the start of this process. Owned by the event loop's thread."""

    def __init__(self, queues: QueueTable) -> None:
        self._queues = queues
        self._past: Mapping[str, InCount] = {}
        """Of the terms that were added up; replaced, never changed."""
        self._ended: list[tuple[Marks, Marks]] = []
        """Terms that are not in _past yet, oldest first: a role change does not wait for their sum."""
        self._begun: Marks | None = None

    def term_begins(self) -> None:
        """This broker is master, and has stored nothing in this term yet."""
        if self._begun is None:
            self._begun = self._marks()

    def term_ends(self) -> None:
        """This broker stores no more messages. Called before the log is truncated."""
        if self._begun is not None:
            self._ended.append((self._begun, self._marks()))
            self._begun = None

    def _marks(self) -> Marks:
        queues = self._queues.each()
        return Marks(queues, [queue.next_offset for queue in queues], [queue.put_bytes for queue in queues])

    def add_ended(self) -> Slices[None]:
        """Adds up the terms that have ended. To be called periodically: each uses memory until then."""
        while self._ended:
            past, term = self._past, self._ended[0]
            found = yield from _sum(past, *term, self._queues)
            if self._past is past:  # else another call was faster
                del self._ended[0]
                self._past = found

    def counts(self) -> Slices[Mapping[str, InCount]]:
        """Returns the counters by topic; on a slave those of its earlier terms."""
        while True:
            yield from self.add_ended()
            past, begun = self._past, self._begun
            if begun is None:
                return past
            found = yield from _sum(past, begun, None, self._queues)
            if self._past is past and self._begun is begun:  # else a term has ended, and its queues were cut
                return found

    def sizes(self, topic: str, messages: int) -> list[int]:
        """Returns how many of the topic's messages are at most as large as each of SIZE_BOUNDS and larger
        than the one before, and how many are larger than all. messages: of counts(), from the same moment."""
        counts = self._queues.size_counts.get(topic, [])
        ends = [*(bound.bit_length() - 1 for bound in SIZE_BOUNDS), SIZE_BITS]
        large = [sum(counts[begin + 1 : end + 1]) for begin, end in pairwise(ends)]
        return [max(messages - sum(large), 0), *large]


def _sum(
    past: Mapping[str, InCount], begun: Marks, ended: Marks | None, queues: QueueTable
) -> Slices[Mapping[str, InCount]]:
    """Returns the past counters, plus the growth of each queue between these marks. ended None: until now, of
    `queues`."""
    places = dict(zip(begun.queues, range(len(begun.queues)), strict=True))
    yield
    ends: Sequence[ConsumeQueue] = queues.each() if ended is None else ended.queues
    grown: dict[str, list[int]] = {}
    for number, queue in enumerate(ends):
        if number % SLICE_QUEUES == SLICE_QUEUES - 1:
            yield
        if ended is None:
            messages, size = queue.next_offset, queue.put_bytes
        else:
            messages, size = ended.offsets[number], ended.sizes[number]
        at = places.get(queue)
        if at is not None:
            messages, size = messages - begun.offsets[at], size - begun.sizes[at]
        total = grown.get(queue.topic)
        if total is None:
            total = grown[queue.topic] = [0, 0]
        total[0] += max(messages, 0)
        total[1] += max(size, 0)
    found = dict(past)
    for number, (topic, (messages, size)) in enumerate(grown.items()):
        if number % SLICE_QUEUES == SLICE_QUEUES - 1:
            yield
        before = past.get(topic, NOTHING)
        found[topic] = InCount(before.messages + messages, before.size + size)
    return found
