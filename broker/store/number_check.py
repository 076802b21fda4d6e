"""NumberCheck: whether the QUEUEOFFSET of a record of the log can be right. No checksum covers it (ADR 62).

The records of the queue offsets that a queue lacks have bytes in the log behind its last one. The first
record of a queue in a masterEpoch may be further ahead: a new master leaves out as many queue offsets as its
damaged bytes can have had (UnreadNumbers), and another replica may have these bytes whole.
"""

import sys
from collections.abc import Callable
from typing import Final

from broker.message.inner_batch import MESSAGES_MAX
from broker.message.record import HEADER_BYTES, Parsed
from broker.store.log_check import RECORD_BYTES_MAX
from broker.store.queue.batch_check import has_two_bases
from broker.store.queue.batch_queue import BatchQueue
from broker.store.queue.consume_queue import ConsumeQueue

NUMBER_MAX: Final = 1 << 44
"""Above the number of messages that a queue ever gets."""
GAP_MAX: Final = 8 * RECORD_BYTES_MAX // HEADER_BYTES
"""Queue offsets that new masters may have left out in front of a record: eight, each of which has a damaged
record of the largest size, while the queue gets no record. Fillers for them take 32 MB."""

TermOf = Callable[[int], tuple[int, int]]
"""Returns where the masterEpoch of the byte at a CommitLog offset begins and ends; the beginning is -1 if it
is not known."""


class NumberCheck:
    """Of one store. term_of: knows no term without controllers, where there are no masterEpochs."""

    def __init__(self) -> None:
        self.term_of: TermOf = _unknown

    def has_its_number(self, queue: ConsumeQueue, parsed: Parsed, offset: int) -> bool:
        """Whether the QUEUEOFFSET of a record that begins at `offset` can be right."""
        if isinstance(queue, BatchQueue) and has_two_bases(parsed):
            return False
        number = parsed[3]
        return may_have(queue, number, offset) or self._is_behind_gap(queue, number, offset)

    def _is_behind_gap(self, queue: ConsumeQueue, number: int, offset: int) -> bool:
        is_first = max(queue.seen_to, queue.log_end_offset()) <= self.term_of(offset)[0]
        return is_first and _missing(queue, number) <= GAP_MAX * numbers_per_record(queue)


def _unknown(offset: int) -> tuple[int, int]:
    return -1, sys.maxsize


def may_have(queue: ConsumeQueue, number: int, offset: int) -> bool:
    """Whether a record that begins at `offset` or in front of it can have this QUEUEOFFSET, if no master has
    left out any. A queue without an entry may begin anywhere below NUMBER_MAX: its messages may have been
    deleted, here or at another broker."""
    missing = _missing(queue, number)
    if missing <= 0:
        return True
    if not max(queue.max_offset, queue.next_offset):
        return number < NUMBER_MAX
    return missing <= (offset - queue.log_end_offset()) // HEADER_BYTES * numbers_per_record(queue)


def _missing(queue: ConsumeQueue, number: int) -> int:
    return number - max(queue.max_offset, queue.next_offset)


def numbers_per_record(queue: ConsumeQueue) -> int:
    """Returns how many queue offsets a record of the queue has at most."""
    return MESSAGES_MAX if isinstance(queue, BatchQueue) else 1
