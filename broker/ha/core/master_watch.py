"""MasterWatch: whether this slave's master has fallen silent, for its controllers. Pure.

Only a link that is open and copies the log can be silent: a closed link means something else (the process may
be dead), and while this slave does not read, or was stopped itself, the silence is not the master's.
"""

from collections.abc import Callable
from typing import Final

from broker.core.pauses import PauseDetector
from keelmq.health.silence import Silence

SILENT_MIN_MS: Final = 600
"""Above a pause of 400 ms and a lost packet, which is sent again after 200 ms."""


class MasterWatch:
    """Kept across links, since the gaps of the last minute are those of these machines. Times in ms of
    one monotonic clock."""

    def __init__(self, now_ms: int, on_change: Callable[[], None]) -> None:
        """on_change(): is_silent has changed."""
        self.is_silent = False
        self._on_change = on_change
        self._pauses = PauseDetector(now_ms)
        self._silence = Silence(SILENT_MIN_MS, now_ms)

    def tick(self, now_ms: int, read_ms: int | None) -> None:
        """Called every 100 ms while there is a master, and when the link ends. read_ms: when the last byte of
        the link was read; None: it is not open, or is not read."""
        before = self.is_silent
        if self._pauses.tick(now_ms) or read_ms is None:
            self._silence.begin(now_ms)
        elif read_ms > self._silence.heard_ms:
            self._silence.heard(read_ms)
        self.is_silent = self._silence.is_silent(now_ms)
        if self.is_silent is not before:
            self._on_change()
