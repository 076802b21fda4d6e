"""Timers in the order of their delivery time, and which of them are delivered. Pure.

The timers are in the timer queue of the log. The wheel keeps eight bytes for each undelivered one: its offset
in that queue, in a slot per delivery time. Timers are delivered in phases: the queue is read to its end, then
everything that is due by then is delivered, ordered by (time, offset). So five numbers define the delivered
timers, even in the middle of a phase, and the wheel can be rebuilt from them and the queue.

Timers whose records retention is about to delete are rolled: written to the end of the queue again. All
timers in front of an offset are rolled, so that a new master can begin reading there.
"""

import heapq
from array import array
from bisect import bisect_left
from hashlib import sha256
from itertools import islice
from typing import Final

import msgspec

TIMERS_MAX: Final = 20_000_000
NOTHING: Final = -1
_EVERY_OFFSET: Final = 2**63 - 1
_KEY_BYTES_MAX: Final = 64
"""Limit of a stored recall key: a client may send one of 32 KB, and it is kept until its timer is due."""


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
        self._rests: dict[int, array[int]] = {}  # slots whose first timers were rolled
        self._rest_starts: list[
            tuple[int, int]
        ] = []  # heap: (first offset, time); also of slots that are gone
        self._stale: set[int] = set()  # times in the heap whose slots were rolled
        self._rolling: tuple[int, array[int]] | None = None  # timers of one slot that are being rolled
        self._rolled = 0  # timers of it that are rolled

    def __len__(self) -> int:
        return self._count

    @property
    def is_full(self) -> bool:
        """Whether no further timer fits."""
        return self._count >= TIMERS_MAX

    @property
    def next_ms(self) -> int | None:
        """The delivery time of the next timer; None: there is none."""
        self._drop_stale()
        return self._heap[0] if self._count and self._heap else None

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
        slot = self._slot(out_ms)
        if slot is None:
            slot = self._slots[out_ms] = array("q")
            if out_ms in self._stale:
                self._stale.remove(out_ms)
            else:
                heapq.heappush(self._heap, out_ms)
        slot.append(offset)
        self._count += 1
        return True

    def recall(self, out_ms: int, offset: int, key: bytes) -> None:
        """Adds a recall: the timer with this time and key is not delivered. It is ordered like a timer."""
        if self.add(out_ms, offset):
            self._recalled.setdefault(out_ms, set()).add(_kept(key))

    def _slot(self, out_ms: int) -> "array[int] | None":
        slot = self._slots.get(out_ms)
        return self._rests.get(out_ms) if slot is None else slot

    def skip(self, offset: int) -> None:
        """Skips a unit that is not a timer."""
        self.read_end = offset + 1

    def is_recalled(self, out_ms: int, key: bytes) -> bool:
        """Whether the timer with this delivery time and key was recalled."""
        return out_ms in self._recalled and _kept(key) in self._recalled[out_ms]

    def times(self) -> list[int]:
        """Returns the delivery times of all timers, in any order."""
        return [*self._slots, *self._rests]

    def count_at(self, out_ms: int) -> int:
        """Returns how many timers with this delivery time are not delivered."""
        taken = self._taken if self._heap and self._heap[0] == out_ms else 0
        rolling = 0
        if self._rolling is not None and self._rolling[0] == out_ms:
            rolling = len(self._rolling[1]) - self._rolled
        return len(self._slot(out_ms) or ()) - taken + rolling

    # -- delivering --------------------------------------------------------------------------------------

    def begin_phase(self, limit_ms: int) -> None:
        """Begins delivering all timers with a time of up to limit_ms."""
        assert self._limit_ms is None, "in a phase"
        self._limit_ms = limit_ms

    def next_due(self) -> tuple[int, int] | None:
        """Returns (time, offset) of the next timer, the same until delivered(); None: the phase is over."""
        assert self._limit_ms is not None, "in no phase"
        self._drop_stale()
        while self._heap and self._heap[0] <= self._limit_ms:
            slot = self._slot(self._heap[0])
            assert slot is not None
            if self._taken < len(slot):
                return self._heap[0], slot[self._taken]
            self._drop_slot()
            self._drop_stale()
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
        slot = self._slot(out_ms)
        assert slot is not None
        offset = slot[self._taken]
        self._taken += 1
        self._count -= 1
        known = self._frontier
        if (out_ms, offset) > (known.slot_ms, known.slot_offset):  # else an earlier master was ahead
            self._frontier = Frontier(known.read_ms, known.read_offset, self.read_end, out_ms, offset)

    def _drop_slot(self) -> None:
        out_ms = heapq.heappop(self._heap)
        if self._slots.pop(out_ms, None) is None:
            del self._rests[out_ms]
        self._forget_recalls(out_ms)
        self._taken = 0

    def _drop_stale(self) -> None:
        while self._heap and self._heap[0] in self._stale:
            out_ms = heapq.heappop(self._heap)
            self._stale.remove(out_ms)
            self._forget_recalls(out_ms)

    def _forget_recalls(self, out_ms: int) -> None:
        """Forgets the recalls of a slot that is gone, unless some of its timers are still to be rolled."""
        if self._rolling is None or self._rolling[0] != out_ms:
            self._recalled.pop(out_ms, None)

    # -- rolling -----------------------------------------------------------------------------------------

    def next_to_roll(self, before: int) -> tuple[int, int] | None:
        """Returns (time, offset) of the next timer to write again, the same until rolled(); None: none that
        was read is in front of this offset. Between phases only."""
        assert self._limit_ms is None, "in a phase"
        if self._rolling is None:
            out_ms = self._first_slot(before)
            if out_ms is None:
                return None
            slot = self._slots.pop(out_ms, None)
            if slot is None:
                slot = self._rests.pop(out_ms)
            count = bisect_left(slot, before)
            self._rolling, self._rolled = (out_ms, slot[:count]), 0
            if count < len(slot):
                self._rests[out_ms] = slot[count:]
                heapq.heappush(self._rest_starts, (slot[count], out_ms))
            else:
                self._stale.add(out_ms)
        out_ms, timers = self._rolling
        return out_ms, timers[self._rolled]

    def _first_slot(self, before: int) -> int | None:
        """Returns the time of a slot that begins in front of this offset."""
        out_ms = next(iter(self._slots), None)
        if out_ms is not None and self._slots[out_ms][0] < before:
            return out_ms
        rest = self._first_rest()
        return None if rest is None or rest[0] >= before else rest[1]

    def _first_rest(self) -> tuple[int, int] | None:
        """Returns (offset, time) of the rest of a slot that begins first."""
        starts = self._rest_starts
        while starts:
            offset, out_ms = starts[0]
            if out_ms in self._rests and self._rests[out_ms][0] == offset:
                return starts[0]
            heapq.heappop(starts)
        return None

    def rolled(self) -> None:
        """Removes the timer that next_to_roll() returned from the wheel: it is read again as a new one."""
        assert self._rolling is not None, "nothing is rolled"
        self._rolled += 1
        self._count -= 1
        out_ms, slot = self._rolling
        if self._rolled == len(slot):
            self._rolling = None
            if self._slot(out_ms) is None and out_ms not in self._stale:
                self._forget_recalls(out_ms)

    # -- progress ----------------------------------------------------------------------------------------

    @property
    def frontier(self) -> Frontier:
        """Which timers are delivered so far."""
        return self._frontier

    def first_offset(self) -> int:
        """Returns the lowest offset of a timer that is not delivered; read_end: all are. _slots is in the
        order in which slots were made, so in that of their first offsets: two of them decide. While the rest
        of a slot is being delivered, it may be lower than that."""
        starts = [] if self._rolling is None else [self._rolling[1][self._rolled]]
        if (rest := self._first_rest()) is not None:
            starts.append(rest[0])
        for out_ms in islice(self._slots, 2):
            slot, taken = self._slots[out_ms], self._taken if self._heap[0] == out_ms else 0
            if taken < len(slot):
                starts.append(slot[taken])
        return min(starts, default=self.read_end)

    def check_invariants(self) -> None:
        """Asserts the invariants, which hold between any two calls."""
        assert sorted(self._heap) == sorted([*self._slots, *self._rests, *self._stale]), (
            "a slot for each time"
        )
        rolling = [] if self._rolling is None else list(self._rolling[1][self._rolled :])
        slots = self._slots | self._rests
        assert len(slots) == len(self._slots) + len(self._rests)
        assert self._count == sum(map(len, slots.values())) - self._taken + len(rolling)
        assert all(list(slot) == sorted(set(slot)) for slot in slots.values()), "in queue order"
        times = {*slots, *self._stale, *([] if self._rolling is None else [self._rolling[0]])}
        assert self._recalled.keys() <= times
        left = [slot[self._taken * (out_ms == self._heap[0]) :] for out_ms, slot in slots.items()]
        firsts = [each[0] for each in (*left, rolling) if each]
        first = min(firsts, default=self.read_end)
        assert self.first_offset() == first or (self._rests and self.first_offset() < first)


def _kept(key: bytes) -> bytes:
    """Returns the key, or the digest of a long one."""
    return key if len(key) <= _KEY_BYTES_MAX else sha256(key).digest()
