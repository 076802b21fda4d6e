"""Counters with a history: how much each grew within the last minute, hour and day. Pure.

Counting costs nothing here: every 10 s the present values are copied into one array, and a window is the
difference of two such copies. Source: RocketMQ 5.3.3 StatsItem, StatsItemSet (csListMinute, csListHour,
csListDay).
"""

from array import array
from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Final, NamedTuple

import msgspec

SAMPLE_MS: Final = 10_000
"""Time between two calls of sample()."""
KEYS_MAX: Final = 10_000
"""Counters of one kind; further ones have no history and always grow by 0."""
MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS


class Reading(NamedTuple):
    """The present value of a counter. times: how often it was incremented; value / times is the mean
    increment."""

    key: str
    value: int
    times: int


class StatsSnapshot(msgspec.Struct, frozen=True):
    """Growth within a window: sum in all, tps per second, per_time per increment."""

    sum: int = 0
    tps: float = 0.0
    per_time: float = 0.0


class _Sample(msgspec.Struct, frozen=True):
    at_ms: int
    numbers: "array[int]"  # value and times of each column


class StatsItemSet:
    """The counters of one kind, by key. A key that a sample lacks is dropped with its history."""

    def __init__(self) -> None:
        self._columns: dict[str, int] = {}
        self._free: list[int] = []
        self._rings: dict[int, deque[_Sample]] = {
            MINUTE_MS: deque(maxlen=MINUTE_MS // SAMPLE_MS + 1),
            HOUR_MS: deque(maxlen=7),
            DAY_MS: deque(maxlen=25),
        }

    def sample(self, readings: Iterable[Reading], now_ms: int) -> None:
        """Stores the first KEYS_MAX readings; the event loop waits for it."""
        found = list(islice(readings, KEYS_MAX))
        gone = self._columns.keys() - {reading.key for reading in found}
        for key in gone:
            self._forget(key)
        columns = [self._column(reading.key) for reading in found]
        numbers = array("q", bytes(16 * (len(self._columns) + len(self._free))))
        for column, (_, value, times) in zip(columns, found, strict=True):
            numbers[2 * column], numbers[2 * column + 1] = value, times
        sample = _Sample(now_ms, numbers)
        for length_ms, ring in self._rings.items():
            period_ms = length_ms // ((ring.maxlen or 2) - 1)
            if not ring or now_ms - ring[-1].at_ms >= period_ms:
                ring.append(sample)

    def _column(self, key: str) -> int:
        column = self._columns.get(key)
        if column is None:
            column = self._columns[key] = self._free.pop() if self._free else len(self._columns)
        return column

    def _forget(self, key: str) -> None:
        """The column may become another key's, which has no history."""
        column = self._columns.pop(key)
        self._free.append(column)
        for ring in self._rings.values():
            for sample in ring:
                if len(sample.numbers) > 2 * column + 1:
                    sample.numbers[2 * column] = sample.numbers[2 * column + 1] = 0

    def snapshot(self, reading: Reading, window_ms: int, now_ms: int) -> StatsSnapshot:
        """Returns the growth from the beginning of the window, or from the first sample if that is later,
        until now."""
        ring, begin = self._rings[window_ms], None
        for sample in reversed(ring):
            begin = sample
            if now_ms - sample.at_ms >= window_ms:
                break
        if begin is None:
            return StatsSnapshot()
        if reading.key not in self._columns and len(self._columns) >= KEYS_MAX:
            return StatsSnapshot()
        value, times = self._numbers(begin, reading.key)
        grown, counted = max(reading.value - value, 0), max(reading.times - times, 0)
        span_ms = max(now_ms - begin.at_ms, 1)
        return StatsSnapshot(grown, grown * 1000 / span_ms, grown / counted if counted else 0.0)

    def _numbers(self, sample: _Sample, key: str) -> tuple[int, int]:
        """Returns value and times; 0 if the key did not exist then."""
        column = self._columns.get(key)
        if column is None or len(sample.numbers) <= 2 * column + 1:
            return 0, 0
        return sample.numbers[2 * column], sample.numbers[2 * column + 1]


class Rates:
    """Totals of the whole broker, once a second for ten minutes, and their growth rates."""

    SECONDS: Final = 600

    def __init__(self) -> None:
        self._ring: deque[tuple[int, tuple[int, ...]]] = deque(maxlen=self.SECONDS + 1)

    def sample(self, totals: tuple[int, ...], now_ms: int) -> None:
        """Stores the present totals; always the same number of them."""
        self._ring.append((now_ms, totals))

    def per_second(self, number: int, seconds: int) -> float:
        """Returns the rate of the total with that index over the last `seconds`, or over the known time."""
        if len(self._ring) < 2:
            return 0.0
        begin_ms, begin = self._ring[-min(seconds + 1, len(self._ring))]
        end_ms, end = self._ring[-1]
        return max(end[number] - begin[number], 0) * 1000 / max(end_ms - begin_ms, 1)
