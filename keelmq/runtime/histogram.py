"""Latency histograms with fixed buckets: plain numbers that metrics can read at any time."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

BOUNDS_S = (0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
BOUNDS_COUNT = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024)
BOUNDS_US = (*(digit * 10**power for power in range(7) for digit in (1, 3, 5)), 10_000_000)
"""RocketMQ's buckets for its controller's latencies, in microseconds: 1, 3, 5, 10, 30, 50 and so on."""


class Histogram:
    """counts[i]: observations at most bounds[i] and above bounds[i - 1]; one more count for values above all
    bounds.

    One writer. A reader in another thread sees each number whole, which is enough for metrics.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = BOUNDS_S) -> None:
        self.bounds, self.counts, self.total = bounds, [0] * (len(bounds) + 1), 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Counts a value, `count` times."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count

    def values(self) -> dict[str, Any]:
        """Returns {bounds, counts, sum}, for JSON."""
        return {"bounds": list(self.bounds), "counts": list(self.counts), "sum": self.total}
