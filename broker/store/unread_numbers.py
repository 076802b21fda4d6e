"""UnreadNumbers: parts of the log whose records may have had queue offsets that this store does not know.

Dispatch and scan skip a record with a damaged header, so its queue ends in front of it here, while consumers
may have received its message from another broker. A new master must not give its queue offset to another
message (design S4). So it skips as many as the damaged bytes can have contained, in each queue whose last
known record lies in front of them; consumers skip the gap. The offsets of records that are healed by then are
known.

Owned by the event loop's thread. Invariant: other replicas use the offsets that follow the gap, because they
count the same way (NumberCheck).
"""

import logging
from typing import Final

from broker.message.record import HEADER_BYTES, Parsed, parse
from broker.store.damage import DamagedRange, DamagedRanges
from broker.store.log.commit_log import CommitLog
from broker.store.number_check import NumberCheck, numbers_per_record
from broker.store.queue.queue_table import QueueTable

logger = logging.getLogger(__name__)

PARSED_BYTES_MAX: Final = 4 << 20
"""A longer range counts as unread as a whole."""


class UnreadNumbers:
    """Of one store."""

    def __init__(
        self, log: CommitLog, damage: DamagedRanges, queues: QueueTable, numbers: NumberCheck
    ) -> None:
        self._log, self._damage, self._queues, self._numbers = log, damage, queues, numbers

    def ranges(self) -> list[tuple[int, int]]:
        """Returns the ranges that dispatch or scan has skipped and that have bytes without a readable header,
        ascending."""
        found = [each for each in self._damage.ranges if each.is_unread and not self._is_read(each)]
        return [(each.start, each.end) for each in found]

    def _is_read(self, damaged: DamagedRange) -> bool:
        """Whether each byte of the range belongs to a record with a plausible header: only the bodies are
        damaged. Their queue offsets are used, as those of sound records are."""
        view = self._log.view(damaged.start, min(damaged.end - damaged.start, PARSED_BYTES_MAX))
        pos = 0
        while pos < len(view):
            parsed = parse(view, pos, len(view), offset=damaged.start + pos)
            if parsed is None or not self._is_known(parsed, damaged.start + pos):
                return False
            pos += parsed[0]
        return damaged.start + pos >= damaged.end

    def _is_known(self, parsed: Parsed, offset: int) -> bool:
        queue = self._queues.find(parsed[1].decode("utf-8", "replace"), parsed[2]) if parsed[1] else None
        return queue is not None and self._numbers.has_its_number(queue, parsed, offset)

    def skip(self) -> None:
        """Makes each queue skip the queue offsets that it may have assigned; at a new master, whose log was
        scanned to its end. Several promotions skip as many as one: no bytes count twice."""
        ranges, queues, end = self.ranges(), self._queues, self._log.max_offset
        most = sum(stop - start for start, stop in ranges) // HEADER_BYTES
        moved = {key: after for key, after in queues.moved_on.items() if queues.next_offset(*key) == after}
        queues.moved_on, queues.first_offset, queues.skipped_to = moved, most, end
        if not ranges:
            return
        for queue in queues.each():
            known = max(queue.seen_to, queue.skipped_to, queue.log_end_offset())
            lost_bytes = sum(stop - max(start, known) for start, stop in ranges if stop > known)
            if records := lost_bytes // HEADER_BYTES:
                queue.next_offset += records * numbers_per_record(queue)
                queue.skipped_to = end
                moved[queue.topic, queue.queue_id] = queue.next_offset
        logger.error(
            "no header can be read in %d damaged ranges of the log, from %d on: %d queues, and new ones,"
            " leave out up to %d queue offsets, which messages there may have had",
            len(ranges), ranges[0][0], len(moved), most,
        )  # fmt: skip
