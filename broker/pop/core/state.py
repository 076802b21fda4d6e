"""The checkpoints of popped messages, and the offsets to read them again from. Pure.

A checkpoint names messages of a queue that a group has popped; they are delivered again at due_ms unless they
are acknowledged. Checkpoints and acknowledgements are records of a revive queue, so reading that queue from
position() rebuilds this state. A checkpoint that holds the position back for long is written again at the end
of the queue. Source: RocketMQ 5.3.3 PopCheckPoint, PopReviveService.
"""

from collections import OrderedDict
from typing import Final, NamedTuple

import msgspec

from broker.pop.core.due_heap import DueHeap

OPEN_MAX: Final = 200_000
"""Open checkpoints; at this number pops are refused."""
NO_NEXT_OFFSET: Final = -1
OWNED_MAX: Final = 4_096
"""Checkpoints of one owner that are renewed: far more than clients of gRPC hold messages. Further ones are
revived after their first invisible time."""
RENEWED_MS_MAX: Final = 10_800_000
"""3 h: renewals end this long after the pop (renewMaxTimeMillis of RocketMQ's proxy)."""
INVISIBLE_MS_MAX: Final = 43_200_000
"""12 h, the limit of RocketMQ's proxy (maxInvisibleTimeMills): unacknowledged messages use memory until
then."""


class Key(NamedTuple):
    """Identifies a checkpoint in its acknowledgements. topic: the popped one, perhaps a retry topic."""

    group: str
    topic: str
    queue_id: int
    start_offset: int
    pop_ms: int


class Checkpoint(msgspec.Struct):
    """open: bit i is set until offsets[i] is acknowledged or revived. next_offset: the group's next offset in
    the queue; NO_NEXT_OFFSET: an earlier record contains it. position: offset of its newest record in the
    revive queue. is_suspended: the next delivery of its messages is no further attempt. owner: the client for
    which it is renewed; empty: it is not. is_delivered: that client is known to have its messages, and only
    then it is renewed: a proxy may die between the pop and the answer."""

    key: Key
    invisible_ms: int
    offsets: tuple[int, ...]
    next_offset: int
    revive_queue: int
    position: int = -1
    open: int = -1
    is_suspended: bool = False
    owner: str = ""
    is_delivered: bool = False

    def __post_init__(self) -> None:
        if self.open < 0:
            self.open = (1 << len(self.offsets)) - 1

    @property
    def due_ms(self) -> int:
        """When the messages are visible again: pop time plus invisible time."""
        return self.key.pop_ms + self.invisible_ms

    @property
    def open_offsets(self) -> list[int]:
        """The offsets of the messages that are neither acknowledged nor revived, ascending."""
        return [offset for at, offset in enumerate(self.offsets) if self.open >> at & 1]

    def end(self, offset: int) -> bool:
        """Clears the message's bit. False: it was clear, or the offset is not in this checkpoint."""
        if offset not in self.offsets:
            return False
        bit = 1 << self.offsets.index(offset)
        was_open = bool(self.open & bit)
        self.open &= ~bit
        return was_open


def renewed_due_ms(due_ms: int, pop_ms: int, *, now_ms: int, invisible_ms: int) -> int:
    """Returns when popped messages are visible again after a renewal for invisible_ms from now: at due_ms if
    they are visible already, or stay invisible for most of that time without a renewal."""
    if not now_ms < due_ms < now_ms + invisible_ms * 3 // 4:
        return due_ms
    return max(due_ms, min(now_ms + invisible_ms, pop_ms + RENEWED_MS_MAX))


class PopState:
    """ends[q]: the offset behind the last applied record of revive queue q."""

    def __init__(self, ends: list[int]) -> None:
        self.ends = list(ends)
        self._held: list[OrderedDict[Key, Checkpoint]] = [OrderedDict() for _ in ends]  # by position
        self._due: list[DueHeap[Key]] = [DueHeap() for _ in ends]
        self._put_off: list[dict[Key, None]] = [{} for _ in ends]  # of them, with a later time
        self._put_off_due: list[DueHeap[Key]] = [DueHeap() for _ in ends]  # these, with their due_ms
        self._owned: dict[tuple[str, str], dict[tuple[int, Key], None]] = {}  # (group, owner) -> checkpoints

    def __len__(self) -> int:
        return sum(len(held) for held in self._held)

    @property
    def is_full(self) -> bool:
        """Whether no further checkpoint fits."""
        return len(self) >= OPEN_MAX

    def find(self, key: Key, revive_queue: int) -> Checkpoint | None:
        """Returns the open checkpoint with this key; None: there is none."""
        return self._held[revive_queue].get(key) if 0 <= revive_queue < len(self._held) else None

    def stored(self, checkpoint: Checkpoint, position: int) -> None:
        """Adds a checkpoint whose record is at `position`; it may be written again later, also with another
        invisible time."""
        self.passed(checkpoint.revive_queue, position)
        held = self._held[checkpoint.revive_queue]
        known = held.pop(checkpoint.key, None)
        if known is not None:
            self._disown(known)
            checkpoint.open &= known.open
        checkpoint.position = position
        if checkpoint.open:
            held[checkpoint.key] = checkpoint
            self._own(checkpoint)
            if known is None or checkpoint.due_ms < known.due_ms:
                self._due[checkpoint.revive_queue].push(checkpoint.due_ms, checkpoint.key)

    def _own(self, checkpoint: Checkpoint) -> None:
        if checkpoint.owner:
            owned = self._owned.setdefault((checkpoint.key.group, checkpoint.owner), {})
            if len(owned) < OWNED_MAX:
                owned[checkpoint.revive_queue, checkpoint.key] = None

    def owned(self, group: str, owner: str) -> list[Checkpoint]:
        """Returns the open checkpoints that are renewed for this client."""
        return [self._held[queue][key] for queue, key in self._owned.get((group, owner), ())]

    def passed(self, revive_queue: int, position: int) -> None:
        """Counts a record that adds no checkpoint."""
        self.ends[revive_queue] = max(self.ends[revive_queue], position + 1)

    def end(self, key: Key, revive_queue: int, offset: int) -> bool:
        """Acknowledges one message. False: it was acknowledged before, or its checkpoint is not open."""
        checkpoint = self.find(key, revive_queue)
        if checkpoint is None or not checkpoint.end(offset):
            return False
        if not checkpoint.open:
            held, put_off = self._held[revive_queue], self._put_off[revive_queue]
            del held[key]
            self._disown(checkpoint)
            put_off.pop(key, None)
            self._due[revive_queue].drop_stale(held, len(held))
            self._put_off_due[revive_queue].drop_stale(put_off, len(put_off))
        return True

    def _disown(self, checkpoint: Checkpoint) -> None:
        at = (checkpoint.key.group, checkpoint.owner)
        owned = self._owned.get(at)
        if owned is not None:
            owned.pop((checkpoint.revive_queue, checkpoint.key), None)
            if not owned:
                del self._owned[at]

    def position(self, revive_queue: int) -> int:
        """The offset of the oldest open checkpoint: a new master reads the queue from here."""
        for checkpoint in self._held[revive_queue].values():
            return checkpoint.position
        return self.ends[revive_queue]

    def next_due(self, now_ms: int) -> Checkpoint | None:
        """Returns an overdue checkpoint; it stays the next one until all its messages have ended. None: there
        is none."""
        firsts = [(self._first_due(queue, now_ms), held) for queue, held in enumerate(self._held)]
        due = [(first[0], queue) for queue, (first, _) in enumerate(firsts) if first is not None]
        if not due:
            return None
        first, held = firsts[min(due)[1]]
        assert first is not None
        return held[first[1]]

    def _first_due(self, queue: int, now_ms: int) -> tuple[int, Key] | None:
        """A renewed checkpoint has its earlier time in the heap until then."""
        heap, held = self._due[queue], self._held[queue]
        while (first := heap.first(now_ms, held)) is not None:
            due_ms = held[first[1]].due_ms
            if due_ms <= now_ms:
                break
            heap.pop()
            heap.push(due_ms, first[1])
        return first

    def put_off(self, checkpoint: Checkpoint, until_ms: int) -> None:
        """Makes next_due() skip the checkpoint that it returned last until then."""
        queue = checkpoint.revive_queue
        due_ms, key = self._due[queue].pop()
        assert key == checkpoint.key and until_ms > due_ms
        self._due[queue].push(until_ms, key)
        if key not in self._put_off[queue]:
            self._put_off[queue][key] = None
            self._put_off_due[queue].push(checkpoint.due_ms, key)

    def overdue_since(self, now_ms: int) -> dict[int, int]:
        """Returns {revive queue: due_ms of its most overdue checkpoint}, for queues that have one. Reads only
        the first one of each queue."""
        found: dict[int, int] = {}
        for queue in range(len(self._held)):
            put_off = self._put_off_due[queue].first(now_ms, self._put_off[queue])
            each = (self._first_due(queue, now_ms), put_off)
            if due := [first[0] for first in each if first is not None]:
                found[queue] = min(due)
        return found

    def holding(self, revive_queue: int, records_max: int) -> Checkpoint | None:
        """Returns the oldest checkpoint if a new master would read more than records_max records because of
        it. The records of the open ones and one more of each do not count: with many open checkpoints, each
        would be rewritten after every few records."""
        held = self._held[revive_queue]
        if self.ends[revive_queue] - self.position(revive_queue) <= records_max + 2 * len(held):
            return None
        return next(iter(held.values()))

    def check_invariants(self) -> None:
        """Asserts the invariants, which hold between any two calls."""
        for queue, held in enumerate(self._held):
            positions = [checkpoint.position for checkpoint in held.values()]
            assert positions == sorted(positions), "checkpoints are held in the order of their records"
            assert self.position(queue) <= self.ends[queue]
            assert all(checkpoint.open for checkpoint in held.values())
            assert held.keys() <= self._due[queue].keys(), "a checkpoint that is never due"
            assert self._put_off[queue].keys() <= held.keys()
            assert self._put_off[queue].keys() <= self._put_off_due[queue].keys()
        for (group, owner), owned in self._owned.items():
            assert owned, "an owner of nothing"
            for queue, key in owned:
                assert self._held[queue][key].owner == owner and key.group == group
