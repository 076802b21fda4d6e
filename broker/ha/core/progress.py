"""The rate of a replica's catch-up, and the time until it has the whole log: from readings of two offsets.

Times are of one monotonic clock. The window is short, so that a catch-up that slows down is seen soon. Pure.
"""

from collections import deque

WINDOW_MS = 10_000
STEP_MS = 500


class ReplicationProgress:
    """The progress of one link. Readings that go back (the log was truncated or deleted) restart it."""

    __slots__ = ("_readings",)

    def __init__(self) -> None:
        self._readings: deque[tuple[int, int, int]] = deque()  # (ms, has, of)

    def read(self, now_ms: int, *, has: int, of: int) -> None:
        """Adds a reading: the replica has the bytes below `has`, and the log ends at `of`. May be called at
        any rate."""
        readings = self._readings
        if readings and has < readings[-1][1]:
            readings.clear()
        if len(readings) > 1 and now_ms - readings[-2][0] < STEP_MS:
            readings[-1] = (now_ms, has, of)
        else:
            readings.append((now_ms, has, of))
        while len(readings) > 2 and now_ms - readings[1][0] >= WINDOW_MS:
            readings.popleft()

    @property
    def bytes_behind(self) -> int:
        """Bytes that the replica lacks, by the last reading."""
        if not self._readings:
            return 0
        _, has, of = self._readings[-1]
        return max(of - has, 0)

    @property
    def bytes_per_second(self) -> int:
        """Bytes of the log per second that the replica received within the window."""
        if len(self._readings) < 2:
            return 0
        (began_ms, began, _), (now_ms, has, _) = self._readings[0], self._readings[-1]
        return (has - began) * 1000 // max(now_ms - began_ms, 1)

    @property
    def eta_ms(self) -> int | None:
        """Time until the replica has the whole log, at the rates of the window, in which the log may have
        grown; 0: it has the whole log; None: it does not catch up."""
        if not self.bytes_behind:
            return 0
        if len(self._readings) < 2:
            return None
        (began_ms, began, began_of), (now_ms, has, of) = self._readings[0], self._readings[-1]
        gained = (began_of - began) - (of - has)
        if gained <= 0 or now_ms <= began_ms:
            return None
        return self.bytes_behind * (now_ms - began_ms) // gained


class RateMeter:
    """The growth of a counter per second, as a moving average that follows within a few readings."""

    __slots__ = ("_ms", "_offset", "_rate")

    def __init__(self) -> None:
        self._ms, self._offset, self._rate = 0, -1, 0

    def read(self, now_ms: int, offset: int) -> int:
        """Adds a reading and returns the rate. Called several times a second. A counter that went back
        restarts at 0."""
        if self._offset < 0 or offset < self._offset:  # the first reading, or a log that was truncated
            self._ms, self._offset, self._rate = now_ms, offset, 0
        elif now_ms > self._ms:
            rate = (offset - self._offset) * 1000 // (now_ms - self._ms)
            self._rate = (self._rate + rate) // 2
            self._ms, self._offset = now_ms, offset
        return self._rate
