"""For how long appends wait until confirmOffset passes them, as counts of log_buckets. Pure.

A batch is the bytes that one iteration of the event loop has appended. Its time is counted once, in the
bucket of the microseconds from the append to the confirmation. The number of waiting batches is bounded:
beyond WAITING_MAX, adjacent ones that were appended at nearly the same time are merged, and the time of a
batch may be too long by up to 4 / WAITING_MAX of the age of the oldest one. It is never too short.

Only a master appends. Invariant: waiting batches ascend strictly in their ends.
"""

import sys
from collections import deque
from typing import Final

from keelmq.runtime.log_buckets import EDGES, STEPS, bucket_of

WAITING_MAX: Final = 4_096
NEVER: Final = sys.maxsize
_SMALL: Final = b"".join(bytes([each]) * (EDGES[each + 1] - EDGES[each]) for each in range(16 * STEPS))
"""The buckets of the times below 65 ms: a look-up costs a tenth of the search."""
_SMALL_US: Final = len(_SMALL)

Histogram = tuple[tuple[int, int], ...]
"""(bucket, count) pairs, by bucket."""


_Batches = tuple[int, int, int, int]
"""Merged batches: the end of the last one, when the first and the last were appended, their number. A plain
tuple: a named one is three times slower."""


class ConfirmTimes:
    """Times are us of one monotonic clock.

    `is_on`: whether the store and the writer call appended(). `next_end`: a confirmOffset below it confirms
    no waiting batch, so confirmed() need not be called.
    """

    __slots__ = ("_counts", "_waiting", "_waiting_max", "is_on", "next_end")

    def __init__(self, waiting_max: int = WAITING_MAX) -> None:
        assert waiting_max >= 8
        self.is_on = False
        self.next_end = NEVER
        self._waiting_max = waiting_max
        self._waiting: deque[_Batches] = deque()
        self._counts: dict[int, int] = {}

    def appended(self, append_us: int, end: int) -> None:
        """Adds a batch that ends at `end` of the log."""
        waiting = self._waiting
        if not waiting:
            self.next_end = end
        waiting.append((end, append_us, append_us, 1))
        if len(waiting) > self._waiting_max:
            self._merge()

    def confirmed(self, now_us: int, confirm_offset: int) -> None:
        """Counts the batches that end at or below confirm_offset."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= confirm_offset:
            _, first_us, _, count = waiting.popleft()
            self.confirmed_at_once(now_us - first_us, count)
        self.next_end = waiting[0][0] if waiting else NEVER

    def confirmed_at_once(self, us: int, count: int = 1) -> None:
        """Counts batches that took `us` and do not wait."""
        bucket = _SMALL[us] if 0 <= us < _SMALL_US else bucket_of(us)
        self._counts[bucket] = self._counts.get(bucket, 0) + count

    def age_us(self, now_us: int) -> int:
        """Returns how long the oldest waiting batch has waited; 0: none waits."""
        return max(0, now_us - self._waiting[0][1]) if self._waiting else 0

    def clear(self) -> None:
        """Forgets the waiting batches: the log may be cut, or confirmed by another broker. Counts stay."""
        self._waiting.clear()
        self.next_end = NEVER

    def take(self) -> Histogram:
        """Returns the counts since the last call, which then start again."""
        counts, self._counts = self._counts, {}
        return tuple(sorted(counts.items()))

    def _merge(self) -> None:
        """Merges adjacent batches whose appends are close together; at most half of the batches remain.

        Of two groups side by side, one alone or both together span more than `near_us`, so there are fewer
        than 2 * age / near_us + 2 groups.
        """
        whole = iter(self._waiting)
        groups = [next(whole)]
        near_us = (self._waiting[-1][1] - groups[0][1]) * 4 // self._waiting_max
        for end, first_us, last_us, count in whole:
            _, group_us, _, before = groups[-1]
            if last_us - group_us <= near_us:
                groups[-1] = (end, group_us, last_us, before + count)
            else:
                groups.append((end, first_us, last_us, count))
        self._waiting = deque(groups)
