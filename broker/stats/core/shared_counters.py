"""Counters of which only a limited number has separate series, while all others share one. Pure.

The shared value never goes down, or Prometheus would treat that as a restart and count all of it again: it
keeps the counts of a key that is deleted, or that gets the series of a deleted one.
"""

from collections.abc import Generator, Hashable, Mapping
from itertools import islice
from typing import Any, Final, TypeVar

Counts = tuple[int, ...]
SLICE_KEYS: Final = 1_000
"""Counters between two yields of split(): 1 ms."""
K = TypeVar("K", bound=Hashable)


class SharedCounters:
    """One metric, or several with the same keys."""

    def __init__(self) -> None:
        self._last: dict[Any, Counts] = {}
        self._shared: list[int] = []

    def split(
        self, counts: Mapping[K, Counts], limit: int
    ) -> Generator[None, None, tuple[dict[K, Counts], Counts]]:
        """Returns the first `limit` counters, and the value of the others, () as long as there were none. It
        is made in slices; no other call may begin meanwhile.

        `counts`: their present values, in an order that changes only by deletions; each has the same length.
        """
        for number, (key, values) in enumerate(islice(counts.items(), limit, None), 1):
            if number % SLICE_KEYS == 0:
                yield
            before = self._last.get(key, (0,) * len(values))
            grown = [max(new - old, 0) for new, old in zip(values, before, strict=True)]
            self._shared = [a + b for a, b in zip(self._shared or [0] * len(values), grown, strict=True)]
        self._last = dict(counts)
        return dict(islice(counts.items(), limit)), tuple(self._shared)
