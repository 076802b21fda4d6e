"""Which messages are out, until when, and from where all that can be read again. Pure.

A checkpoint says: these messages of a queue went to a group, and come again at due_ms unless they are
acknowledged. Each is a record of a revive queue, as is each acknowledgement; so whoever reads a revive queue
from position() on has this book again. A checkpoint that holds its queue's position back for long is written
once more, behind the others. Source: RocketMQ 5.3.3 PopCheckPoint, PopReviveService.
"""

import heapq
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, NamedTuple

OPEN_MAX: Final = 200_000
"""Checkpoints; nothing more is handed out then."""
NO_NEWS: Final = -1
INVISIBLE_MS_MAX: Final = 43_200_000
"""12 h, as RocketMQ's proxy has it (maxInvisibleTimeMills): what nobody acknowledges fills the book until
then."""


class Key(NamedTuple):
    """Names a checkpoint; its acknowledgements carry it. topic: that was popped, perhaps a retry topic."""

    group: str
    topic: str
    queue_id: int
    start_offset: int
    pop_ms: int


@dataclass(slots=True)
class Checkpoint:
    """open: bit i stands while offsets[i] is not done with. next_offset: where the group goes on in the
    queue; NO_NEWS: an earlier record has said it. position: of the newest record that says all this, in
    revive queue revive_queue."""

    key: Key
    invisible_ms: int
    offsets: tuple[int, ...]
    next_offset: int
    revive_queue: int
    position: int = -1
    open: int = -1

    def __post_init__(self) -> None:
        if self.open < 0:
            self.open = (1 << len(self.offsets)) - 1

    @property
    def due_ms(self) -> int:
        return self.key.pop_ms + self.invisible_ms

    @property
    def open_offsets(self) -> list[int]:
        return [offset for at, offset in enumerate(self.offsets) if self.open >> at & 1]

    def end(self, offset: int) -> bool:
        """False: it was done with, or is none of these."""
        if offset not in self.offsets:
            return False
        bit = 1 << self.offsets.index(offset)
        was_open = bool(self.open & bit)
        self.open &= ~bit
        return was_open


class PopBook:
    """ends[q]: behind the last record of revive queue q that is in here."""

    def __init__(self, ends: list[int]) -> None:
        self.ends = list(ends)
        self._held: list[OrderedDict[Key, Checkpoint]] = [OrderedDict() for _ in ends]  # by position
        self._due: list[tuple[int, int, Key]] = []  # heap of (due_ms, revive queue, key); some are stale

    def __len__(self) -> int:
        return sum(len(held) for held in self._held)

    @property
    def is_full(self) -> bool:
        return len(self) >= OPEN_MAX

    def find(self, key: Key, revive_queue: int) -> Checkpoint | None:
        return self._held[revive_queue].get(key) if revive_queue < len(self._held) else None

    def stored(self, checkpoint: Checkpoint, position: int) -> None:
        """Its record is there, the first one or the next; also while the queue is read again."""
        self.passed(checkpoint.revive_queue, position)
        held = self._held[checkpoint.revive_queue]
        known = held.pop(checkpoint.key, None)
        if known is not None and known is not checkpoint:
            checkpoint.open &= known.open
        checkpoint.position = position
        if checkpoint.open:
            held[checkpoint.key] = checkpoint
            if known is None:
                heapq.heappush(self._due, (checkpoint.due_ms, checkpoint.revive_queue, checkpoint.key))

    def passed(self, revive_queue: int, position: int) -> None:
        """A record of another kind is there."""
        self.ends[revive_queue] = max(self.ends[revive_queue], position + 1)

    def end(self, key: Key, revive_queue: int, offset: int) -> bool:
        """This message is done with. False: it was already, or nobody knows of it (any more)."""
        checkpoint = self.find(key, revive_queue)
        if checkpoint is None or not checkpoint.end(offset):
            return False
        if not checkpoint.open:
            del self._held[revive_queue][key]
            self._drop_stale()
        return True

    def position(self, revive_queue: int) -> int:
        """Who reads from here on misses nothing that counts."""
        for checkpoint in self._held[revive_queue].values():
            return checkpoint.position
        return self.ends[revive_queue]

    def next_due(self, now_ms: int) -> Checkpoint | None:
        """It stays the next one until all of it has ended."""
        while self._due and self._due[0][0] <= now_ms:
            _, revive_queue, key = self._due[0]
            found = self._held[revive_queue].get(key)
            if found is not None:
                return found
            heapq.heappop(self._due)
        return None

    def holding(self, revive_queue: int, records_max: int) -> Checkpoint | None:
        """The checkpoint because of which more than records_max records would be read again."""
        if self.ends[revive_queue] - self.position(revive_queue) <= records_max:
            return None
        return next(iter(self._held[revive_queue].values()))

    def _drop_stale(self) -> None:
        """Most messages are acknowledged long before they are due."""
        if len(self._due) > 64 and len(self._due) > 4 * len(self):
            self._due = [entry for entry in self._due if entry[2] in self._held[entry[1]]]
            heapq.heapify(self._due)

    def check_invariants(self) -> None:
        for queue, held in enumerate(self._held):
            positions = [checkpoint.position for checkpoint in held.values()]
            assert positions == sorted(positions), "checkpoints are held in the order of their records"
            assert self.position(queue) <= self.ends[queue]
            assert all(checkpoint.open for checkpoint in held.values())
            assert {(each.due_ms, queue, each.key) for each in held.values()} <= set(self._due)
