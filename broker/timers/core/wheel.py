"""Timers in the order of their delivery time, and which of them are delivered. Pure.

The timer queue in the log has the timers. The wheel keeps eight bytes for each undelivered one: its offset in
that queue, in a slot per delivery time. Timers are delivered in phases: the queue is read to its end, then
everything that is due by then is delivered, ordered by (time, offset). So five numbers say what has been
delivered, even in the middle of a phase, and the wheel can be rebuilt from them and the queue.
"""

import heapq
from array import array
from hashlib import sha256
from itertools import islice
from typing import Final

import msgspec

TIMERS_MAX: Final = 20_000_000
NOTHING: Final = -1
_EVERY_OFFSET: Final = 2**63 - 1
_KEY_BYTES_MAX: Final = 64
"""Of a recall's key as it is kept: a client may send one of 32 KB, and it waits until its timer is due."""


class Frontier(msgspec.Struct, frozen=True):
    """Delivered are the timers with time <= read_ms and offset < read_offset, and those with offset <
    phase_offset and (time, offset) <= (slot_ms, slot_offset)."""

    read_ms: int = NOTHING
    read_offset: int = 0
    phase_offset: int = 0
    slot_ms: int = NOTHING
    slot_offset: int = NOTHING

    def has(self, out_ms: int, offset: int) -> bool:
        """Whether this timer is delivered."""
        if out_ms <= self.read_ms and offset < self.read_offset:
            return True
        return offset < self.phase_offset and (out_ms, offset) <= (self.slot_ms, self.slot_offset)


NOTHING_DELIVERED = Frontier()


class TimerWheel:
    """out_ms: delivery time, the key of a slot. Offsets are added in ascending order, between phases only."""

    def __init__(self, frontier: Frontier = NOTHING_DELIVERED, *, start: int = 0) -> None:
        """start: every timer before this offset is delivered."""
        self.read_end = start
        self._frontier = frontier
        self._slots: dict[int, array[int]] = {}
        self._heap: list[int] = []
        self._recalled: dict[int, set[bytes]] = {}
        self._limit_ms: int | None = None  # of the phase; None: between two phases
        self._taken = 0  # delivered timers of the first slot
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def is_full(self) -> bool:
        """Whether no further timer fits."""
        return self._count >= TIMERS_MAX

    @property
    def next_ms(self) -> int | None:
        """The delivery time of the next timer; None: there is none."""
        return self._heap[0] if self._count else None

    @property
    def in_phase(self) -> bool:
        """Whether a phase has begun and not ended: due timers are being delivered."""
        return self._limit_ms is not None

    # -- reading the queue -------------------------------------------------------------------------------

    def add(self, out_ms: int, offset: int) -> bool:
        """Adds a timer. False: it is already delivered."""
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
        """Adds a recall: the timer with this time and key is not delivered. It is ordered like a timer."""
        if self.add(out_ms, offset):
            self._recalled.setdefault(out_ms, set()).add(_kept(key))

    def skip(self, offset: int) -> None:
        """Passes over a unit that is not a timer."""
        self.read_end = offset + 1

    def is_recalled(self, out_ms: int, key: bytes) -> bool:
        """Whether the timer with this delivery time and key was recalled."""
        return out_ms in self._recalled and _kept(key) in self._recalled[out_ms]

    def times(self) -> list[int]:
        """Returns the delivery times of all timers, in any order."""
        return list(self._slots)

    def count_at(self, out_ms: int) -> int:
        """Returns how many timers with this delivery time are not delivered."""
        taken = self._taken if self._heap and self._heap[0] == out_ms else 0
        return len(self._slots.get(out_ms, ())) - taken

    # -- delivering --------------------------------------------------------------------------------------

    def begin_phase(self, limit_ms: int) -> None:
        """Begins to deliver everything with a time of up to limit_ms."""
        assert self._limit_ms is None, "in a phase"
        self._limit_ms = limit_ms

    def next_due(self) -> tuple[int, int] | None:
        """Returns (time, offset) of the next timer, the same until delivered(); None: the phase is over."""
        assert self._limit_ms is not None, "in no phase"
        while self._heap and self._heap[0] <= self._limit_ms:
            slot = self._slots[self._heap[0]]
            if self._taken < len(slot):
                return self._heap[0], slot[self._taken]
            self._drop_slot()
        self._frontier = self._after_phase(self._limit_ms)
        self._limit_ms = None
        return None

    def _after_phase(self, limit_ms: int) -> Frontier:
        """While the clock is behind an earlier phase (it was ahead, or was that of an earlier master), the
        timers of that phase stay delivered, and later ones between the two times are not."""
        known = self._frontier
        if limit_ms >= known.read_ms:
            return Frontier(limit_ms, self.read_end)
        return Frontier(known.read_ms, known.read_offset, self.read_end, limit_ms, _EVERY_OFFSET)

    def delivered(self) -> None:
        """Marks the timer that next_due() returned as delivered."""
        assert self._limit_ms is not None, "in no phase"
        out_ms = self._heap[0]
        offset = self._slots[out_ms][self._taken]
        self._taken += 1
        self._count -= 1
        known = self._frontier
        if (out_ms, offset) > (known.slot_ms, known.slot_offset):  # else an earlier master was further on
            self._frontier = Frontier(known.read_ms, known.read_offset, self.read_end, out_ms, offset)

    def _drop_slot(self) -> None:
        out_ms = heapq.heappop(self._heap)
        del self._slots[out_ms]
        self._recalled.pop(out_ms, None)
        self._taken = 0

    # -- progress ----------------------------------------------------------------------------------------

    @property
    def frontier(self) -> Frontier:
        """Which timers are delivered so far."""
        return self._frontier

    def first_offset(self) -> int:
        """Returns the lowest offset of a timer that is not delivered; read_end: all are. _slots is in the
        order in which slots were made, so in that of their first offsets: two of them decide."""
        starts = []
        for out_ms in islice(self._slots, 2):
            slot, taken = self._slots[out_ms], self._taken if self._heap[0] == out_ms else 0
            if taken < len(slot):
                starts.append(slot[taken])
        return min(starts, default=self.read_end)

    def check_invariants(self) -> None:
        """Asserts what must hold between any two calls."""
        assert sorted(self._heap) == sorted(self._slots), "a slot for each time"
        assert self._count == sum(map(len, self._slots.values())) - self._taken
        assert all(list(slot) == sorted(set(slot)) for slot in self._slots.values()), "in queue order"
        assert self._recalled.keys() <= self._slots.keys()
        left = [slot[self._taken * (out_ms == self._heap[0]) :] for out_ms, slot in self._slots.items()]
        assert self.first_offset() == min((each[0] for each in left if each), default=self.read_end)


def _kept(key: bytes) -> bytes:
    """Returns the key, or the digest of a long one."""
    return key if len(key) <= _KEY_BYTES_MAX else sha256(key).digest()
