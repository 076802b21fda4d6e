"""PauseDetector: since when bytes that are read now may have waited, because this process was stopped. Pure.

After SIGSTOP and SIGCONT, or when a virtual machine resumes, the kernel still has the bytes that peers sent
before and during the stop. They are read now, but prove nothing about now: a slave that reported may have
been elected since then. A timer that is late shows the stop. From the stop on, and until the timer was on
time again (one whole turn of the event loop has read everything that waited), bytes that are read count as of
the last tick before the stop.
"""

from typing import Final

PAUSE_MS: Final = 300
"""A tick that is later than this indicates a stop. Shorter stops are not detected: this is the error of
times."""


class PauseDetector:
    """tick() is called by a timer, several times in PAUSE_MS. Times in ms of one monotonic clock."""

    __slots__ = ("_stopped_ms", "_ticked_ms")

    def __init__(self, now_ms: int) -> None:
        self._ticked_ms = now_ms
        self._stopped_ms: int | None = None  # the last tick before the stop, while bytes of then may wait

    def tick(self, now_ms: int) -> bool:
        """Returns whether this process was stopped since the tick before."""
        was_stopped = now_ms - self._ticked_ms > PAUSE_MS
        self._stopped_ms = self._last_sure_ms if was_stopped else None
        self._ticked_ms = now_ms
        return was_stopped

    def sent_ms(self, now_ms: int) -> int:
        """Returns the time that bytes which are read now count as sent: now, or before the stop."""
        if self._stopped_ms is None and now_ms - self._ticked_ms <= PAUSE_MS:
            return now_ms
        return self._last_sure_ms

    @property
    def _last_sure_ms(self) -> int:
        return self._ticked_ms if self._stopped_ms is None else self._stopped_ms
