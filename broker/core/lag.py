"""The age of the oldest unconfirmed byte of the log, from readings of two offsets. Pure.

A point (ts, offset) says: the bytes below `offset`, and not below the point before, were first seen at `ts`.
Only points above confirmOffset are kept, so the first one is the oldest unconfirmed byte. The number of
points is bounded: when a lag grows long, adjacent points are merged, and a byte may seem older than it is by
up to 1/POINTS_MAX of that lag. It never seems younger than the first reading that saw it.
"""

from collections import deque

import msgspec

POINTS_MAX = 1_024


class Lag(msgspec.Struct, frozen=True):
    """`ms`: the lag now. `ms_max`, `bytes_max`: the largest since the reading before."""

    ms: int
    ms_max: int
    bytes_max: int


class LagMeter:
    """Times are of one monotonic clock. Invariant: points ascend strictly in ts and in offset."""

    def __init__(self, points_max: int = POINTS_MAX) -> None:
        assert points_max >= 2
        self._points_max = points_max
        self._points: deque[tuple[int, int]] = deque()
        self._ms_max = self._bytes_max = 0

    def tick(self, now_ms: int, *, max_offset: int, confirm_offset: int) -> int:
        """Records offsets and returns the lag in ms. Called several times between two readings."""
        points = self._points
        self._cut(max_offset)
        while points and points[0][1] <= confirm_offset:
            points.popleft()
        if max_offset > (points[-1][1] if points else confirm_offset):
            self._add(now_ms, max_offset)
        if not points:
            return 0
        lag_ms = now_ms - points[0][0]
        self._ms_max = max(self._ms_max, lag_ms)
        self._bytes_max = max(self._bytes_max, max_offset - confirm_offset)
        return lag_ms

    def read(self, now_ms: int, *, max_offset: int, confirm_offset: int) -> Lag:
        """Like tick(), and returns the largest values since the last read(), which then start again."""
        lag_ms = self.tick(now_ms, max_offset=max_offset, confirm_offset=confirm_offset)
        lag = Lag(lag_ms, self._ms_max, self._bytes_max)
        self._ms_max = self._bytes_max = 0
        return lag

    def _cut(self, max_offset: int) -> None:
        """The log may have been truncated: points behind its end are dropped."""
        points = self._points
        while points and points[-1][1] > max_offset:
            seen_ms, _ = points.pop()
            if not points or points[-1][1] < max_offset:
                points.append((seen_ms, max_offset))

    def _add(self, now_ms: int, max_offset: int) -> None:
        points = self._points
        if points and now_ms - points[-1][0] <= (now_ms - points[0][0]) // self._points_max:
            points[-1] = (points[-1][0], max_offset)  # fine enough for a lag of this length
            return
        points.append((now_ms, max_offset))
        if len(points) > self._points_max:
            self._points = deque(
                (points[i][0], points[min(i + 1, len(points) - 1)][1]) for i in range(0, len(points), 2)
            )
