"""WholeRanges: which parts of the log are known to be whole since they were written or read. Pure.

Invariant: the ranges ascend, and do not overlap or touch.
"""

from bisect import bisect_right
from typing import Final

RANGES_MAX: Final = 64
"""With more, the shortest one is forgotten: it is only checked once more."""


class WholeRanges:
    """Ranges of CommitLog offsets, ends exclusive."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __iter__(self) -> "zip[tuple[int, int]]":
        return zip(self._starts, self._ends, strict=True)

    def add(self, start: int, end: int) -> None:
        """Adds a range; it may overlap others."""
        if start >= end:
            return
        first = bisect_right(self._ends, start - 1)  # ends at or behind start: touches or overlaps
        last = bisect_right(self._starts, end)
        if first < last:
            start, end = min(start, self._starts[first]), max(end, self._ends[last - 1])
        self._starts[first:last], self._ends[first:last] = [start], [end]
        if len(self._starts) > RANGES_MAX:
            lengths = [high - low for low, high in self]
            shortest = lengths.index(min(lengths))
            del self._starts[shortest], self._ends[shortest]

    def remove_above(self, offset: int) -> None:
        """Forgets everything from `offset` on."""
        while self._ends and self._ends[-1] > offset:
            if self._starts[-1] < offset:
                self._ends[-1] = offset
            else:
                del self._starts[-1], self._ends[-1]

    def end_of(self, offset: int) -> int:
        """Returns the end of the range with the byte at `offset`; `offset` itself if there is none."""
        at = bisect_right(self._starts, offset) - 1
        return max(self._ends[at], offset) if at >= 0 else offset
