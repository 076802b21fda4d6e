"""Compares consumer offsets with the ends of their queues, in slices that let the event loop serve others.

An offset beyond its queue's end points to a message that is lost (broker-ha pitfall 61). A new master sets it
back to the end, a truncated replica only reports it, because the offsets are its master's. While this broker
is a replica, changed offsets are compared soon, so that a promotion has little left to compare.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from broker.metadata.offsets import CHECKED_MAX, Clamped, ConsumerOffsetTable, Row, beyond_ends
from broker.metadata.ports import LocalQueues
from broker.metadata.truncation_history import TruncationHistory

logger = logging.getLogger(__name__)

PERIOD_MS: Final = 100
"""Pause between two checks of a replica, of CHECKED_MAX offsets each."""
GROUPS_MAX: Final = 100
"""Groups that one line of the log names; the history has all of them."""
TRUNCATIONS_MAX: Final = 4
"""Truncations that wait for their report, each with the rows of that time; older ones are dropped."""


class _Truncation(NamedTuple):
    before: int
    end: int
    rows: dict[str, Row]


class OffsetChecks:
    """Owned by the event loop's thread."""

    def __init__(self, offsets: ConsumerOffsetTable, queues: LocalQueues, history: TruncationHistory) -> None:
        self._offsets, self._queues, self._history = offsets, queues, history
        self._truncations: deque[_Truncation] = deque(maxlen=TRUNCATIONS_MAX)

    def truncated(self, before: int, end: int) -> None:
        """Called when the log, which ended at `before`, ends at `end`. run() reports the affected groups."""
        self._offsets.doubt_all()
        self._truncations.append(_Truncation(before, end, dict(self._offsets.table.rows)))

    async def clamp(self, commit: Callable[[], None]) -> None:
        """Sets all offsets beyond the ends of their queues back to the ends, and reports them. commit():
        called after each slice with such offsets. No message may be stored meanwhile."""
        left, found = self._offsets.doubtful, list[Clamped]()
        while left:
            rows, beyond = self._offsets.check(self._queues.queue_end, left)
            if beyond:
                self._offsets.clamp(beyond)
                commit()
                found += beyond
            left -= rows
            if left:
                await asyncio.sleep(0)
        if found:
            reason = "consumer offsets beyond the ends of their queues were set back"
            self._report(reason, found, clamped=True)

    async def run(self, is_master: Callable[[], bool]) -> None:
        """Reports truncations, and checks while this broker is a replica. Never returns."""
        while True:
            await asyncio.sleep(PERIOD_MS / 1000)
            while self._truncations:
                await self._report_truncation(self._truncations.popleft())
            if not is_master():
                self._offsets.check(self._queues.queue_end)

    async def _report_truncation(self, truncation: _Truncation) -> None:
        """The queues may have grown again since then: their ends are those of the truncated log."""
        ends: dict[tuple[str, int], int] = {}

        def end_of(topic: str, queue_id: int) -> int:
            at = topic, queue_id
            if at not in ends:
                ends[at] = self._queues.queue_end_before(topic, queue_id, truncation.end)
            return ends[at]

        found, compared = list[Clamped](), 0
        for key, row in truncation.rows.items():
            found += beyond_ends(key, row, end_of)
            compared += len(row) + 1
            if compared >= CHECKED_MAX:
                compared = 0
                await asyncio.sleep(0)
        if found:
            reason = f"the log was truncated from {truncation.before} to {truncation.end}"
            self._report(reason, found, clamped=False)

    def _report(self, reason: str, beyond: list[Clamped], *, clamped: bool) -> None:
        groups = sorted({each.group for each in beyond})
        more = f" and {len(groups) - GROUPS_MAX} more" if len(groups) > GROUPS_MAX else ""
        logger.error("%s; affected groups: %s%s", reason, ", ".join(groups[:GROUPS_MAX]), more)
        self._history.add(reason, beyond, clamped=clamped)
