"""How fast a replica comes nearer to its master, and when it will be there: from readings of two offsets.

Times are of one monotonic clock. The window is short: a catch-up that slows down must show it soon.
"""

from collections import deque

WINDOW_MS = 10_000
STEP_MS = 500


class Progress:
    """Of one link. Readings that go back (a cut, a log that begins anew) start it again."""

    __slots__ = ("_readings",)

    def __init__(self) -> None:
        self._readings: deque[tuple[int, int, int]] = deque()  # (ms, has, of)

    def read(self, now_ms: int, *, has: int, of: int) -> None:
        """The replica has the bytes below `has`, of those below `of`. As often as one likes."""
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
        if not self._readings:
            return 0
        _, has, of = self._readings[-1]
        return max(of - has, 0)

    @property
    def bytes_per_second(self) -> int:
        """Of the log that arrived in the window."""
        if len(self._readings) < 2:
            return 0
        (began_ms, began, _), (now_ms, has, _) = self._readings[0], self._readings[-1]
        return (has - began) * 1000 // max(now_ms - began_ms, 1)

    @property
    def eta_ms(self) -> int | None:
        """Until nothing is missing, at the pace of the window, in which the log grew as well. 0: nothing is.
        None: it does not come nearer."""
        if not self.bytes_behind:
            return 0
        if len(self._readings) < 2:
            return None
        (began_ms, began, began_of), (now_ms, has, of) = self._readings[0], self._readings[-1]
        gained = (began_of - began) - (of - has)
        if gained <= 0 or now_ms <= began_ms:
            return None
        return self.bytes_behind * (now_ms - began_ms) // gained


class Growth:
    """Bytes per second that a log has gained lately; a pause of the producers shows at once, a burst soon."""

    __slots__ = ("_ms", "_offset", "_rate")

    def __init__(self) -> None:
        self._ms, self._offset, self._rate = 0, -1, 0

    def read(self, now_ms: int, offset: int) -> int:
        """Several times a second."""
        if self._offset < 0 or offset < self._offset:  # the first, or a log that was cut
            self._ms, self._offset, self._rate = now_ms, offset, 0
        elif now_ms > self._ms:
            rate = (offset - self._offset) * 1000 // (now_ms - self._ms)
            self._rate = (self._rate + rate) // 2
            self._ms, self._offset = now_ms, offset
        return self._rate
