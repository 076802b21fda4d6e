"""Rate-limited logging of events that a peer or a full disk can cause without end.

One line of a kind per period, with the number of lines that were left out.
"""

import logging
from collections import Counter
from collections.abc import Callable
from typing import Final

from keelmq.runtime import clock

PERIOD_MS: Final = 1_000


class RateLimitedLogger:
    """Logs lines of one kind. Used by one thread; the caller passes the time."""

    def __init__(self, logger: logging.Logger, *, period_ms: int = PERIOD_MS, level: int = logging.WARNING):
        self._logger, self._period_ms, self._level = logger, period_ms, level
        self._next_ms = 0
        self._untold = 0

    def tell(self, now_ms: int, text: str, *args: object, exc_info: BaseException | None = None) -> None:
        """Logs a line, or counts it if the previous one is younger than the period; the next line has the
        count."""
        if now_ms < self._next_ms:
            self._untold += 1
            return
        self._next_ms = now_ms + self._period_ms
        if self._untold:
            text, args = f"{text} (and %d more like it before)", (*args, self._untold)
            self._untold = 0
        self._logger.log(self._level, text, *args, exc_info=exc_info)


class RateLimitedFilter(logging.Filter):
    """Lets one warning of each text pass in a period, and adds the number of those that were left out. For a
    library's logger, whose texts are few. Other levels pass."""

    def __init__(self, *, period_ms: int = PERIOD_MS, now_ms: Callable[[], int] = clock.now_ms) -> None:
        """now_ms: monotonic."""
        super().__init__()
        self._period_ms, self._now_ms = period_ms, now_ms
        self._next_ms: dict[str, int] = {}
        self._untold: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns whether the line is written (logging callback)."""
        if record.levelno != logging.WARNING:
            return True
        text, now_ms = str(record.msg), self._now_ms()
        if now_ms < self._next_ms.get(text, now_ms):
            self._untold[text] += 1
            return False
        self._next_ms[text] = now_ms + self._period_ms
        if untold := self._untold.pop(text, 0):
            record.msg = f"{text} (and {untold} more like it before)"
        return True
