"""Where groups go on, ahead of the table of consumer offsets.

The table (and so every replica) gets an offset when the record that explains it can no longer be lost: a
master that took over would otherwise pass over messages of which no checkpoint is left.
"""

from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from broker.metadata.offsets import ConsumerOffsetTable

Place: TypeAlias = tuple[str, str, int]
"""group, topic, queue id"""


class Progress:
    def __init__(self, table: ConsumerOffsetTable, is_reset: Callable[[str, str, int], bool]) -> None:
        """is_reset: an operator has set the group's offset there, and no pop has seen it."""
        self._table, self._is_reset = table, is_reset
        self._ahead: dict[Place, tuple[int, int]] = {}  # offset, number of its mark
        self._marks: deque[tuple[int, int, Place, int]] = deque()  # end in the log, number, place, offset
        self._void: dict[Place, int] = {}  # marks up to this number do not count any more
        self._number = 0

    def get(self, place: Place) -> int:
        """Below 0: the group has none there."""
        ahead = self._ahead.get(place)
        return self._table.query(*place) if ahead is None else ahead[0]

    def has_room(self, place: Place) -> bool:
        """False: the table of offsets is full, and has no row of this group and topic."""
        table, (group, topic, _) = self._table, place
        return len(table.table.rows) < table.rows_max or bool(table.row(group, topic))

    def set(self, place: Place, offset: int, end: int) -> None:
        """It may be forgotten with a log that is cut before `end`."""
        if self._marks and self._marks[-1][2] == place and self._marks[-1][0] == end:
            self._marks.pop()
        self._number += 1
        self._ahead[place] = (offset, self._number)
        self._marks.append((end, self._number, place, offset))

    def commit(self, place: Place, offset: int) -> None:
        """At once: nothing in the log explains it."""
        if self._marks:
            self._void[place] = self._number
        if self._table.commit(*place, offset):
            self._ahead.pop(place, None)
        else:
            self._ahead[place] = (offset, self._number)

    def settle(self, safe: int) -> None:
        """The log is safe up to there."""
        while self._marks and self._marks[0][0] <= safe:
            _, number, place, offset = self._marks.popleft()
            counts = number > self._void.get(place, 0) and not self._is_reset(*place)
            if counts and not self._table.commit(*place, offset):
                continue  # the table is full: known here as long as this master serves
            if self._ahead.get(place) == (offset, number):
                del self._ahead[place]
        if not self._marks:
            self._void.clear()

    def clear(self) -> None:
        self._ahead.clear()
        self._marks.clear()
        self._void.clear()
