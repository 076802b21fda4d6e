"""The next offsets of popping groups, ahead of the table of consumer offsets.

An offset moves to the table, and so to every replica, when the checkpoint that it depends on can no longer be
lost. Otherwise a new master could skip messages that no checkpoint names. An offset that another request
writes to the table meanwhile (a commit, a clone, the deletion of the group or the topic) is kept.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from broker.metadata.offsets import ConsumerOffsetTable
from broker.pop.core.order import QueueOfGroup


class Ahead(NamedTuple):
    """number: of the offset's mark. in_table: the table's value when it was last written here."""

    offset: int
    number: int
    in_table: int


class GroupOffsets:
    def __init__(self, table: ConsumerOffsetTable, is_reset: Callable[[str, str, int], bool]) -> None:
        """is_reset: whether an operator has reset the group's offset there, and no pop has applied it yet."""
        self._table, self._is_reset = table, is_reset
        self._ahead: dict[QueueOfGroup, Ahead] = {}
        self._marks: deque[tuple[int, int, QueueOfGroup, int]] = (
            deque()
        )  # end in the log, number, queue, offset
        self._void: dict[QueueOfGroup, int] = {}  # marks up to this number are void
        self._number = 0

    def get(self, place: QueueOfGroup) -> int:
        """Returns the next offset of the group; below 0: it has none in this queue."""
        in_table, ahead = self._table.query(*place), self._ahead.get(place)
        if ahead is None:
            return in_table
        if ahead.in_table != in_table:
            self._drop(place)
            return in_table
        return ahead.offset

    def _drop(self, place: QueueOfGroup) -> None:
        """Forgets the offsets that are ahead of the table here."""
        self._ahead.pop(place, None)
        if self._marks:
            self._void[place] = self._number

    def has_room(self, place: QueueOfGroup) -> bool:
        """Returns False if the table of offsets is full and has no row for this group and topic."""
        table, (group, topic, _) = self._table, place
        return len(table.table.rows) < table.rows_max or bool(table.row(group, topic))

    def set(self, place: QueueOfGroup, offset: int, end: int) -> None:
        """Sets the next offset. It goes into the table when the log is safe up to `end`."""
        if self._marks and self._marks[-1][2] == place and self._marks[-1][0] == end:
            self._marks.pop()
        self.get(place)  # voids the earlier marks if another request has written the offset
        self._number += 1
        self._ahead[place] = Ahead(offset, self._number, self._table.query(*place))
        self._marks.append((end, self._number, place, offset))

    def commit(self, place: QueueOfGroup, offset: int) -> None:
        """Sets the next offset and puts it into the table at once: no record of the log has to be safe
        first."""
        self._drop(place)
        if not self._table.commit(*place, offset):
            self._ahead[place] = Ahead(offset, self._number, self._table.query(*place))

    def settle(self, safe: int) -> None:
        """Moves offsets to the table: those whose `end` in the log is at or below `safe`."""
        while self._marks and self._marks[0][0] <= safe:
            _, number, place, offset = self._marks[0]
            self.get(place)  # voids the mark if another request has written the offset
            self._marks.popleft()
            counts = number > self._void.get(place, 0) and not self._is_reset(*place)
            if counts and not self._table.commit(*place, offset):
                continue  # the table is full: the offset stays here for this term
            ahead = self._ahead.get(place)
            if ahead is not None and ahead.number == number:
                del self._ahead[place]
            elif ahead is not None and counts:
                self._ahead[place] = ahead._replace(in_table=offset)
        if not self._marks:
            self._void.clear()

    def clear(self) -> None:
        """Drops all offsets that are not in the table: a new term starts over."""
        self._ahead.clear()
        self._marks.clear()
        self._void.clear()
