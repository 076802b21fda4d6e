"""Timers in the order of their delivery time, and how far they are delivered. Pure.

The truth is the timer queue in the log. The wheel keeps eight bytes for each timer that is still to come: its
offset in that queue, in a slot per delivery time. Timers are delivered in phases: first the queue is read to
its end, then everything that is due by then goes out, by (time, offset). So five numbers say what has been
delivered, even in the middle of a phase, and a new wheel is made of the queue and of them.
"""

import heapq
from array import array
from dataclasses import dataclass
from typing import Final

TIMERS_MAX: Final = 20_000_000
NOTHING: Final = -1


@dataclass(frozen=True, slots=True)
class Frontier:
    """Delivered: timers of up to read_ms below read_offset; and of those below phase_offset everything up to
    (slot_ms, slot_offset)."""

    read_ms: int = NOTHING
    read_offset: int = 0
    phase_offset: int = 0
    slot_ms: int = NOTHING
    slot_offset: int = NOTHING

    def has(self, out_ms: int, offset: int) -> bool:
        if out_ms <= self.read_ms and offset < self.read_offset:
            return True
        return offset < self.phase_offset and (out_ms, offset) <= (self.slot_ms, self.slot_offset)


class TimerWheel:
    """out_ms: delivery time, the slot's name. Offsets are added in their order, between phases only."""

    def __init__(self, frontier: Frontier = Frontier(), *, start: int = 0) -> None:
        """start: nothing before this offset is still to come."""
        self.read_end = start
        self._frontier = frontier
        self._slots: dict[int, array[int]] = {}
        self._heap: list[int] = []
        self._recalled: dict[int, set[bytes]] = {}
        self._limit_ms: int | None = None  # of the phase
        self._taken = 0  # of the first slot
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def is_full(self) -> bool:
        return self._count >= TIMERS_MAX

    @property
    def next_ms(self) -> int | None:
        """The time of the next timer; None: there is none."""
        return self._heap[0] if self._count else None

    @property
    def in_phase(self) -> bool:
        return self._limit_ms is not None

    # -- reading the queue -------------------------------------------------------------------------------

    def add(self, out_ms: int, offset: int) -> bool:
        """False: it is delivered already."""
        assert self._limit_ms is None, "in a phase"
        self.read_end = offset + 1
        if self._frontier.has(out_ms, offset):
            return False
        slot = self._slots.get(out_ms)
        if slot is None:
            slot = self._slots[out_ms] = array("q")
            heapq.heappush(self._heap, out_ms)
        slot.append(offset)
        self._count += 1
        return True

    def recall(self, out_ms: int, offset: int, key: bytes) -> None:
        """The timer of this time with this key is not to be delivered. Takes its place in the order, too."""
        if self.add(out_ms, offset):
            self._recalled.setdefault(out_ms, set()).add(key)

    def skip(self, offset: int) -> None:
        """What is there is no timer."""
        self.read_end = offset + 1

    def is_recalled(self, out_ms: int, key: bytes) -> bool:
        return key in self._recalled.get(out_ms, ())

    # -- delivering --------------------------------------------------------------------------------------

    def begin_phase(self, limit_ms: int) -> None:
        """Everything of up to limit_ms goes out next."""
        assert self._limit_ms is None, "in a phase"
        self._limit_ms = max(limit_ms, self._frontier.read_ms)

    def next_due(self) -> tuple[int, int] | None:
        """(time, offset), until delivered() is called; None: the phase is over."""
        assert self._limit_ms is not None, "in no phase"
        while self._heap and self._heap[0] <= self._limit_ms:
            slot = self._slots[self._heap[0]]
            if self._taken < len(slot):
                return self._heap[0], slot[self._taken]
            self._drop_slot()
        self._frontier = Frontier(self._limit_ms, self.read_end)
        self._limit_ms = None
        return None

    def delivered(self) -> None:
        """What next_due() gave."""
        assert self._limit_ms is not None, "in no phase"
        out_ms = self._heap[0]
        offset = self._slots[out_ms][self._taken]
        self._taken += 1
        self._count -= 1
        known = self._frontier
        if (out_ms, offset) > (known.slot_ms, known.slot_offset):  # else an earlier master had got further
            self._frontier = Frontier(known.read_ms, known.read_offset, self.read_end, out_ms, offset)

    def _drop_slot(self) -> None:
        out_ms = heapq.heappop(self._heap)
        del self._slots[out_ms]
        self._recalled.pop(out_ms, None)
        self._taken = 0

    # -- where to begin again ----------------------------------------------------------------------------

    @property
    def frontier(self) -> Frontier:
        return self._frontier

    def first_offset(self) -> int:
        """Nothing before it is still to come. Looks at every slot."""
        first = self._heap[0] if self._heap else None
        starts = [
            slot[self._taken if out_ms == first else 0]
            for out_ms, slot in self._slots.items()
            if out_ms != first or self._taken < len(slot)
        ]
        return min(starts, default=self.read_end)

    def check_invariants(self) -> None:
        assert sorted(self._heap) == sorted(self._slots), "a slot for each time"
        assert self._count == sum(map(len, self._slots.values())) - self._taken
        assert all(list(slot) == sorted(set(slot)) for slot in self._slots.values()), "in queue order"
        assert self._recalled.keys() <= self._slots.keys()
        assert self.first_offset() <= self.read_end
