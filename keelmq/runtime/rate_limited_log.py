"""Log lines that a peer or a full disk can cause without end: one of a kind in a while, and how many more."""

import logging
from typing import Final

PERIOD_MS: Final = 1_000


class Complaints:
    """Of one kind. Owned by one thread; the clock is the caller's."""

    def __init__(self, logger: logging.Logger, *, period_ms: int = PERIOD_MS, level: int = logging.WARNING):
        self._logger, self._period_ms, self._level = logger, period_ms, level
        self._next_ms = 0
        self._untold = 0

    def tell(self, now_ms: int, text: str, *args: object) -> None:
        """Logged; only counted while the last line is younger than the period, and the next one says so."""
        if now_ms < self._next_ms:
            self._untold += 1
            return
        self._next_ms = now_ms + self._period_ms
        if self._untold:
            text, args = f"{text} (and %d more like it before)", (*args, self._untold)
            self._untold = 0
        self._logger.log(self._level, text, *args)
