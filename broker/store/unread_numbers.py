"""UnreadNumbers: parts of the log whose records may have had queue offsets that this store does not know.

Dispatch and scan skip a record with a damaged header, so its queue ends in front of it here, while consumers
may have received its message from another broker. A new master must not give its queue offset to another
message (design S4). So it skips as many as the damaged bytes can have contained, in each queue whose last
known record lies in front of them; consumers skip the gap. The offsets of records that are healed by then are
known.

Owned by the event loop's thread. Invariant: other replicas use the offsets that follow the gap, because they
count the same way (dispatching.may_have()).
"""

import logging
from collections.abc import Callable
from typing import Final

from broker.message.inner_batch import MESSAGES_MAX
from broker.message.record import HEADER_BYTES, Parsed, parse
from broker.store.damage import DamagedRange, DamagedRanges
from broker.store.log.commit_log import CommitLog
from broker.store.queue.batch_queue import BatchQueue
from broker.store.queue.consume_queue import ConsumeQueue
from broker.store.queue.queue_table import QueueTable

logger = logging.getLogger(__name__)

PARSED_BYTES_MAX: Final = 4 << 20
"""A longer range counts as unread as a whole."""
HasItsNumber = Callable[[ConsumeQueue, Parsed, int], bool]
"""Whether the queue offset of a record at this CommitLog offset can be right."""


class UnreadNumbers:
    """Of one store."""

    def __init__(
        self, log: CommitLog, damage: DamagedRanges, queues: QueueTable, has_its_number: HasItsNumber
    ) -> None:
        self._log, self._damage, self._queues, self._has_its_number = log, damage, queues, has_its_number
        self._skipped: dict[tuple[str, int], tuple[int, int, int]] = {}
        """By (topic, queueId): next_offset in front of the gap and behind it, and where the last known record
        ended."""

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
        return queue is not None and self._has_its_number(queue, parsed, offset)

    def skip(self) -> None:
        """Makes each queue skip the queue offsets that it may have assigned; at a new master, whose log was
        scanned to its end. Several promotions skip as many as one."""
        ranges, moved = self.ranges(), dict[tuple[str, int], int]()
        before = self._queues.moved_on
        self._queues.moved_on, self._queues.first_offset = moved, 0
        if not ranges:
            return
        for queue in self._queues.each():
            known = max(queue.seen_to, queue.log_end_offset())
            lost_bytes = sum(end - max(start, known) for start, end in ranges if end > known)
            if records := lost_bytes // HEADER_BYTES:
                key, base = (queue.topic, queue.queue_id), queue.next_offset
                made_behind = (0, before.get(key, -1), 0)  # a new queue: it began behind the gap
                first, after, end = self._skipped.get(key, made_behind)
                if (after, end) == (base, known):
                    base = first  # the gap of an earlier promotion: no record has come behind it
                queue.next_offset = base + records * (MESSAGES_MAX if isinstance(queue, BatchQueue) else 1)
                moved[key] = queue.next_offset
                self._skipped[key] = base, queue.next_offset, known
        most = sum(end - start for start, end in ranges) // HEADER_BYTES
        self._queues.first_offset = most
        logger.error(
            "no header can be read in %d damaged ranges of the log, from %d on: %d queues, and new ones,"
            " leave out up to %d queue offsets, which messages there may have had",
            len(ranges), ranges[0][0], len(moved), most,
        )  # fmt: skip
