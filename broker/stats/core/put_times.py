"""How long messages take from their arrival to their answer. Pure.

A message that is answered at once costs one call and one addition. Source: RocketMQ 5.3.3 StoreStatsService
(setPutMessageEntireTimeMax, findPutMessageEntireTimePX).
"""

from bisect import bisect_right
from collections import Counter
from typing import Final

BANDS: Final = (
    "[<=0ms]", "[0~10ms]", "[10~50ms]", "[50~100ms]", "[100~200ms]", "[200~500ms]", "[500ms~1s]",
    "[1~2s]", "[2~3s]", "[3~4s]", "[4~5s]", "[5~10s]", "[10s~]",
)  # fmt: skip
_BAND_STARTS: Final = (1, 10, 50, 100, 200, 500, 1_000, 2_000, 3_000, 4_000, 5_000, 10_000)
PERIOD_MS: Final = 60_000
EXACT_MS: Final = 1_000
"""Longer times are distinguished only by 100 ms, and none above LONG_MS: a bound of the memory."""
LONG_MS: Final = 60_000
"""Times above EXACT_MS are rounded down to 100 ms, and limited to LONG_MS: this bounds the memory."""


class PutTimes:
    """`failed`: messages that the store could not accept. `max_ms`: the longest time since the start."""

    __slots__ = ("_counts", "_finished", "_rotate_ms", "_zeros_before", "bands", "failed", "max_ms")

    def __init__(self) -> None:
        self.bands = [0] * len(BANDS)
        self.failed = self.max_ms = 0
        self._counts, self._finished = Counter[int](), Counter[int]()
        self._rotate_ms = self._zeros_before = 0

    def add(self, elapsed_ms: int, messages: int) -> None:
        """Counts `messages` messages that were answered elapsed_ms after the first of them had arrived."""
        if elapsed_ms < 1:  # nearly always
            self.bands[0] += messages
            return
        self.bands[bisect_right(_BAND_STARTS, elapsed_ms)] += messages
        self.max_ms = max(self.max_ms, elapsed_ms)
        rounded = elapsed_ms if elapsed_ms < EXACT_MS else min(elapsed_ms, LONG_MS) // 100 * 100
        self._counts[rounded] += messages

    def rotate(self, now_ms: int) -> None:
        """Called once a second. At the end of a minute that had messages, that minute replaces the one
        before."""
        if now_ms < self._rotate_ms:
            return
        self._rotate_ms = now_ms + PERIOD_MS
        counts = self._minute()
        if counts:
            self._finished, self._counts, self._zeros_before = counts, Counter(), self.bands[0]

    def percentile(self, share: float) -> int:
        """Returns the time in ms within which this share (0..1) of the messages was answered, in the last
        minute that had any. 0: less than 1 ms, or there never was a message."""
        counts = self._finished or self._minute()
        wanted = share * counts.total()
        for elapsed_ms in sorted(counts):
            wanted -= counts[elapsed_ms]
            if wanted <= 0:
                return elapsed_ms
        return 0

    def _minute(self) -> Counter[int]:
        """Returns the messages of the present minute, by ms."""
        zeros = self.bands[0] - self._zeros_before
        return self._counts + Counter({0: zeros})  # without zero counts

    def text(self) -> str:
        """Returns the distribution as RocketMQ prints it (putMessageDistributeTime)."""
        return " ".join(f"{band}:{count}" for band, count in zip(BANDS, self.bands, strict=True))
