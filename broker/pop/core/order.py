"""Pops in order: a queue gives its next messages only when the ones before are acknowledged. Pure.

A block is what a group has popped from a queue. While one of its messages is neither acknowledged nor visible
again, the queue gives nothing; then it continues at the first message that is not acknowledged. Source:
RocketMQ 5.3.3 ConsumerOrderInfoManager.
"""

import heapq
from dataclasses import dataclass, field
from typing import Final, NamedTuple

BLOCKS_MAX: Final = 200_000


class QueueOfGroup(NamedTuple):
    group: str
    topic: str
    queue_id: int


@dataclass(slots=True)
class Block:
    """visible_ms: of messages whose time was changed. counts: how often each was out before, if it was.
    next_offset: behind all of them, and behind what the filter passed over."""

    pop_ms: int
    invisible_ms: int
    offsets: tuple[int, ...]
    next_offset: int
    attempt_id: str = ""
    acked: set[int] = field(default_factory=set)
    visible_ms: dict[int, int] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    watched_ms: int = 0

    @property
    def unacked(self) -> list[int]:
        return [offset for offset in self.offsets if offset not in self.acked]

    @property
    def progress(self) -> int:
        """The group's offset in the queue: everything before it is acknowledged."""
        return next((offset for offset in self.offsets if offset not in self.acked), self.next_offset)

    def free_at_ms(self) -> int:
        """When all that are not acknowledged are visible again; 0: none is left."""
        due_ms = self.pop_ms + self.invisible_ms
        return max((self.visible_ms.get(offset, due_ms) for offset in self.unacked), default=0)


class OrderState:
    def __init__(self) -> None:
        self.blocks: dict[QueueOfGroup, Block] = {}
        self._free: list[tuple[int, QueueOfGroup]] = []  # heap; some are stale

    def is_blocked(self, queue: QueueOfGroup, attempt_id: str, *, now_ms: int) -> bool:
        """The same attempt, asked again because its answer was lost, gets the same messages."""
        block = self.blocks.get(queue)
        if block is None or (attempt_id and attempt_id == block.attempt_id):
            return False
        return now_ms < block.free_at_ms()

    @property
    def is_full(self) -> bool:
        return len(self.blocks) >= BLOCKS_MAX

    def popped(self, queue: QueueOfGroup, block: Block) -> None:
        """These messages go out; block.counts is filled in."""
        before = self.blocks.get(queue)
        if before is not None:
            again = before.attempt_id and before.attempt_id == block.attempt_id
            left = set(before.unacked)
            block.counts = {
                offset: count
                for offset in block.offsets
                if offset in left and (count := before.counts.get(offset, 0) + (not again)) > 0
            }
        self.put(queue, block)

    def put(self, queue: QueueOfGroup, block: Block) -> None:
        self.blocks[queue] = block
        self._watch(queue, block)

    def ack(self, queue: QueueOfGroup, offset: int, pop_ms: int) -> Block | None:
        """The block, changed. None: it is not out in this pop (any more)."""
        block = self.blocks.get(queue)
        if block is None or block.pop_ms != pop_ms or offset not in block.offsets:
            return None
        block.acked.add(offset)
        if not block.unacked:
            del self.blocks[queue]
        self._watch(queue, block)
        return block

    def change(self, queue: QueueOfGroup, offset: int, pop_ms: int, visible_ms: int) -> Block | None:
        block = self.blocks.get(queue)
        if block is None or block.pop_ms != pop_ms or offset not in block.unacked:
            return None
        block.visible_ms[offset] = visible_ms
        self._watch(queue, block)
        return block

    def forget(self, queue: QueueOfGroup) -> None:
        self.blocks.pop(queue, None)

    def _watch(self, queue: QueueOfGroup, block: Block) -> None:
        free_ms = block.free_at_ms()
        if free_ms and free_ms != block.watched_ms:  # most acknowledgements change nothing
            block.watched_ms = free_ms
            heapq.heappush(self._free, (free_ms, queue))

    def next_free(self, now_ms: int) -> QueueOfGroup | None:
        """A queue that gives messages again, each time once."""
        while self._free and self._free[0][0] <= now_ms:
            free_ms, queue = heapq.heappop(self._free)
            block = self.blocks.get(queue)
            if block is not None and block.free_at_ms() == free_ms:
                return queue
        return None
