"""Compares units of a BatchQueue with their records: a unit has no checksum, and its place does not determine
its queue offset. A record of a batch has its queue offset twice, as QUEUEOFFSET and as INNER_BASE; it is
damaged if they differ.
"""

import logging
import struct
from collections.abc import Iterable
from typing import Final

from broker.message.inner_batch import INNER_BASE, message_count
from broker.message.record import HEADER_BYTES, Parsed, parse, property_value
from broker.store.log.commit_log import CommitLog
from broker.store.queue.batch_queue import BatchQueue, BatchUnit
from broker.store.queue.consume_queue import FILLER_SIZE, ConsumeQueue

logger = logging.getLogger(__name__)

_NUMBER: Final = struct.Struct(">20xq")  # QUEUEOFFSET


def has_two_bases(parsed: Parsed) -> bool:
    """Whether a record has contradictory queue offsets of its first message."""
    text = property_value(parsed[6], INNER_BASE)
    return text is not None and text.isdigit() and int(text[:20]) != parsed[3]


def unit_of(log: CommitLog, offset: int) -> BatchUnit | None:
    """Returns the unit of the record that begins at this CommitLog offset; None: no record can be read there.
    base_offset -1: the record does not contain it."""
    view = log.view(offset, log.file_bytes)
    parsed = parse(view, 0, len(view), offset=offset)
    if parsed is None or not parsed[1]:
        return None
    size, _, _, base, code, stored, properties = parsed
    return BatchUnit(
        offset, size, code, stored, -1 if has_two_bases(parsed) else base, message_count(properties)
    )


def is_right(log: CommitLog, unit: BatchUnit) -> bool:
    """Whether the record, if it can be read, has the messages of the unit."""
    if unit.size == FILLER_SIZE or not log.min_offset <= unit.log_offset < log.max_offset:
        return True
    expected = unit_of(log, unit.log_offset)
    return expected is None or (expected.size, *expected[4:]) == (unit.size, *unit[4:])


def names_its_record(log: CommitLog, unit: BatchUnit) -> bool:
    """As is_right(), usually by reading QUEUEOFFSET alone."""
    header = log.view(unit.log_offset, HEADER_BYTES)
    if len(header) == HEADER_BYTES and _NUMBER.unpack_from(header)[0] == unit.base_offset:
        return True
    return is_right(log, unit)


def correct_ends(log: CommitLog, queues: Iterable[ConsumeQueue]) -> None:
    """Rewrites the last unit of each BatchQueue if its record proves that it is wrong: the queue offset of
    the next message follows from it. OSError: no room."""
    for queue in queues:
        if isinstance(queue, BatchQueue):
            _correct_end(log, queue)


def _correct_end(log: CommitLog, queue: BatchQueue) -> None:
    last = queue.last_units()
    if not last or is_right(log, last[-1]):
        return
    expected = unit_of(log, last[-1].log_offset)
    if expected is None or expected.base_offset < 0 or expected.size != last[-1].size:
        return
    if len(last) > 1 and expected.base_offset < last[0].end_offset and is_right(log, last[0]):
        return  # the QUEUEOFFSET of the record is wrong
    text = "the last entry of the ConsumeQueue %s/%d was damaged: %s instead of %s; it is rewritten"
    logger.error(text, queue.topic, queue.queue_id, tuple(last[-1]), tuple(expected))
    queue.correct_end(expected._replace(tags_code=last[-1].tags_code))
