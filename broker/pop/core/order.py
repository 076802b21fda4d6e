"""Ordered pops: a queue returns its next messages only when the previous ones are acknowledged. Pure.

A block is the messages that a group popped last from a queue. While one of them is neither acknowledged nor
visible again, the queue is blocked. The next pop begins at the first unacknowledged message. Source: RocketMQ
5.5 ConsumerOrderInfoManager.
"""

import heapq
from typing import Final, NamedTuple

import msgspec

BLOCKS_MAX: Final = 200_000


class QueueOfGroup(NamedTuple):
    """A queue as one group reads it; its offsets are per group."""

    group: str
    topic: str
    queue_id: int


class Block(msgspec.Struct):
    """visible_ms: when messages with a changed invisible time are visible again. counts: earlier deliveries
    of each message that had any, without those that the consumer suspended (the offsets in `suspended`).
    next_offset: behind all of them and the messages that the filter skipped. owner: the client for which the
    block is renewed once is_delivered; empty: it is not."""

    pop_ms: int
    invisible_ms: int
    offsets: tuple[int, ...]
    next_offset: int
    attempt_id: str = ""
    owner: str = ""
    is_delivered: bool = False
    acked: set[int] = msgspec.field(default_factory=set)
    visible_ms: dict[int, int] = msgspec.field(default_factory=dict)
    suspended: set[int] = msgspec.field(default_factory=set)
    counts: dict[int, int] = msgspec.field(default_factory=dict)
    watched_ms: int = 0

    @property
    def unacked(self) -> list[int]:
        """The offsets that are not acknowledged, ascending."""
        return [offset for offset in self.offsets if offset not in self.acked]

    @property
    def progress(self) -> int:
        """The group's offset in the queue: everything before it is acknowledged."""
        return next((offset for offset in self.offsets if offset not in self.acked), self.next_offset)

    @property
    def due_ms(self) -> int:
        """When its messages are visible again, except those with a changed invisible time."""
        return self.pop_ms + self.invisible_ms

    def free_at_ms(self) -> int:
        """Returns when all unacknowledged messages are visible again; 0: there are none."""
        return max((self.visible_ms.get(offset, self.due_ms) for offset in self.unacked), default=0)


class OrderState:
    """The blocks of all groups, and when they are due."""

    def __init__(self) -> None:
        self.blocks: dict[QueueOfGroup, Block] = {}
        self._free: list[tuple[int, QueueOfGroup]] = []  # heap; some are stale

    def is_blocked(self, queue: QueueOfGroup, attempt_id: str, *, now_ms: int) -> bool:
        """Returns whether the queue is blocked. A repeated attempt, whose answer was lost, is not blocked: it
        gets the same messages."""
        block = self.blocks.get(queue)
        if block is None or (attempt_id and attempt_id == block.attempt_id):
            return False
        return now_ms < block.free_at_ms()

    @property
    def is_full(self) -> bool:
        """Whether no further queue can be popped in order."""
        return len(self.blocks) >= BLOCKS_MAX

    def popped(self, queue: QueueOfGroup, block: Block) -> None:
        """Replaces the queue's block by that of a new pop, and fills in block.counts."""
        before = self.blocks.get(queue)
        if before is not None:
            again = before.attempt_id and before.attempt_id == block.attempt_id
            left = set(before.unacked)
            counted = set() if again else left - before.suspended
            block.counts = {
                offset: count
                for offset in block.offsets
                if offset in left and (count := before.counts.get(offset, 0) + (offset in counted)) > 0
            }
        self.put(queue, block)

    def put(self, queue: QueueOfGroup, block: Block) -> None:
        """Adds a block, in place of the queue's previous one."""
        self.blocks[queue] = block
        self._watch(queue, block)

    def ack(self, queue: QueueOfGroup, offset: int, pop_ms: int) -> Block | None:
        """Acknowledges a message. Returns its block; None: the queue's block belongs to another pop, or lacks
        the message."""
        block = self.blocks.get(queue)
        if block is None or block.pop_ms != pop_ms or offset not in block.offsets:
            return None
        block.acked.add(offset)
        if not block.unacked:
            del self.blocks[queue]
        self._watch(queue, block)
        return block

    def change(
        self, queue: QueueOfGroup, offset: int, pop_ms: int, visible_ms: int, *, is_suspended: bool = False
    ) -> Block | None:
        """Sets when a message is visible again. is_suspended: its next delivery is no further attempt.
        Returns its block; None: as ack(), or it is acknowledged."""
        block = self.blocks.get(queue)
        if block is None or block.pop_ms != pop_ms or offset not in block.unacked:
            return None
        block.visible_ms[offset] = visible_ms
        (block.suspended.add if is_suspended else block.suspended.discard)(offset)
        self._watch(queue, block)
        return block

    def renew(self, queue: QueueOfGroup, due_ms: int) -> None:
        """Sets when the messages of the queue's block are visible again."""
        block = self.blocks[queue]
        block.invisible_ms = due_ms - block.pop_ms
        self._watch(queue, block)

    def forget(self, queue: QueueOfGroup) -> None:
        """Drops the block of a queue, so that the next pop is not blocked."""
        self.blocks.pop(queue, None)

    def _watch(self, queue: QueueOfGroup, block: Block) -> None:
        free_ms = block.free_at_ms()
        if free_ms and free_ms != block.watched_ms:  # most acknowledgements change nothing
            block.watched_ms = free_ms
            heapq.heappush(self._free, (free_ms, queue))

    def next_free(self, now_ms: int) -> QueueOfGroup | None:
        """Returns a queue that is no longer blocked, each one once; None: there is none."""
        while self._free and self._free[0][0] <= now_ms:
            free_ms, queue = heapq.heappop(self._free)
            block = self.blocks.get(queue)
            if block is not None and block.free_at_ms() == free_ms:
                return queue
        return None
