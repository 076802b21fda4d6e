"""Counters of which only a limited number has a series of its own, while all others share one. Pure.

The shared value never goes down, or Prometheus would take it for a restart and count all of it once more: it
keeps what was counted under a key that is deleted, or that gets the series of a deleted one.
"""

from collections.abc import Hashable, Mapping
from itertools import islice
from typing import Any, TypeVar

Counts = tuple[int, ...]
K = TypeVar("K", bound=Hashable)


class SharedCounters:
    """One metric, or several with the same keys."""

    def __init__(self) -> None:
        self._last: dict[Any, Counts] = {}
        self._shared: list[int] = []

    def split(self, counts: Mapping[K, Counts], limit: int) -> tuple[dict[K, Counts], Counts]:
        """Returns the first `limit` counters, and the value of the others, () as long as there were none.

        `counts`: their present values, in an order that changes only by deletions; each has the same length.
        """
        for key, values in islice(counts.items(), limit, None):
            before = self._last.get(key, (0,) * len(values))
            grown = [max(new - old, 0) for new, old in zip(values, before, strict=True)]
            self._shared = [a + b for a, b in zip(self._shared or [0] * len(values), grown, strict=True)]
        self._last = dict(counts)
        return dict(islice(counts.items(), limit)), tuple(self._shared)
