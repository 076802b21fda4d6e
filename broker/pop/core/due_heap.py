"""DueHeap: keys by the time at which they are due, most of which end before. Pure.

An ended key stays in the heap until it is on top. If most have ended, the heap is rebuilt, a few entries with
each further end: without its last entry, a heap is still a heap. So the cost of no step is proportional to
the size of the heap.
"""

import heapq
from collections.abc import Container
from typing import Final, Generic, TypeVar

STALE_MIN: Final = 64
"""A heap with fewer entries is not rebuilt."""
STALE_FACTOR: Final = 4
"""A heap is rebuilt if it has more than this many entries for each key that has not ended."""
MOVED_AT_ONCE: Final = 16

K = TypeVar("K")


class DueHeap(Generic[K]):
    """Entries (due_ms, key), by due_ms, of equal ones by key."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, K]] = []
        self._old: list[tuple[int, K]] = []  # a heap, too, of which entries move to the other one

    def __len__(self) -> int:
        return len(self._heap) + len(self._old)

    def keys(self) -> set[K]:
        """Returns the keys of all entries, for invariants."""
        return {key for heap in (self._heap, self._old) for _, key in heap}

    def push(self, due_ms: int, key: K) -> None:
        """Adds an entry."""
        heapq.heappush(self._heap, (due_ms, key))

    def first(self, now_ms: int, live: Container[K]) -> tuple[int, K] | None:
        """Returns the first entry that is due and whose key is in `live`; it stays. None: there is none."""
        while (heap := self._with_first()) and heap[0][0] <= now_ms:
            if heap[0][1] in live:
                return heap[0]
            heapq.heappop(heap)
        return None

    def pop(self) -> tuple[int, K]:
        """Removes the first entry."""
        return heapq.heappop(self._with_first())

    def _with_first(self) -> list[tuple[int, K]]:
        heap, old = self._heap, self._old
        return old if old and (not heap or old[0] < heap[0]) else heap

    def drop_stale(self, live: Container[K], live_count: int) -> None:
        """To be called when a key has ended: continues rebuilding the heap if most of it is stale.
        live_count: number of keys in `live`."""
        if not self._old:
            if len(self._heap) <= max(STALE_MIN, STALE_FACTOR * live_count):
                return
            self._heap, self._old = [], self._heap
        for _ in range(min(MOVED_AT_ONCE, len(self._old))):
            entry = self._old.pop()
            if entry[1] in live:
                heapq.heappush(self._heap, entry)
