"""Deadlines of thousands of waiters: adding, removing and expiring one costs the same however many others
wait. Pure.

Waiters are kept by the period in which their deadline lies, so expired() checks those that are due and those
of one more period.
"""

from collections import OrderedDict
from collections.abc import Hashable
from itertools import islice
from typing import Final, Generic, Protocol, TypeVar

PERIOD_MS: Final = 1_000


class HasDeadline(Hashable, Protocol):
    """Compared by identity. deadline_ms does not change while the waiter is in Deadlines."""

    deadline_ms: int


W = TypeVar("W", bound=HasDeadline)


class Deadlines(Generic[W]):
    """The waiters of one kind."""

    def __init__(self) -> None:
        self._all: OrderedDict[W, None] = OrderedDict()
        self._by_period: dict[int, dict[W, None]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def add(self, waiter: W) -> None:
        """Adds a waiter. It must not be here already."""
        self._all[waiter] = None
        self._by_period.setdefault(waiter.deadline_ms // PERIOD_MS, {})[waiter] = None

    def discard(self, waiter: W) -> bool:
        """Removes a waiter. Returns False if it was not here."""
        if waiter not in self._all:
            return False
        del self._all[waiter]
        period = waiter.deadline_ms // PERIOD_MS
        waiters = self._by_period[period]
        del waiters[waiter]
        if not waiters:
            del self._by_period[period]
        return True

    def expired(self, now_ms: int) -> list[W]:
        """Returns the waiters whose deadline has passed, the earliest first. They stay until they are
        discarded."""
        periods = sorted(period for period in self._by_period if period * PERIOD_MS <= now_ms)
        found = [
            waiter for period in periods for waiter in self._by_period[period] if waiter.deadline_ms <= now_ms
        ]
        found.sort(key=lambda waiter: waiter.deadline_ms)
        return found

    def every(self) -> list[W]:
        """Returns all waiters, the oldest first."""
        return list(self._all)

    def sample(self, count: int) -> list[W]:
        """Returns up to `count` waiters, different ones with each call until every waiter was returned."""
        found = list(islice(self._all, count))
        for waiter in found:
            self._all.move_to_end(waiter)
        return found
