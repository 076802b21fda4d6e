"""queueEnds: where the queues ended when the store was closed, or some seconds ago, so that a start finds the
entries that a disk has lost at the end of one. Without it their numbers would be assigned again.

A line of JSON behind its CRC-32 in hex and a blank: {"offset": CommitLog offset up to which all records had
their entries, "ends": [[topic, queueId, end], ...]}. All of these entries were durable when it was written.
It is deleted before a queue is cut, and at the end of a start; a checkpoint writes it anew. A damaged file
counts as missing. Earlier releases wrote the ends alone, at a clean stop.

Lines behind the first one, each with its checksum, are lists of [topic, queueId] of queues that got their
first entry since. A checkpoint appends one before it counts these entries as durable, so the loss of a new
queue is found.
"""

import logging
import os
import sys
import zlib
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from broker.store.log.commit_log import CommitLog
from broker.store.log.mapped_file import sync_directory
from broker.store.queue.consume_queue import ConsumeQueue
from keelmq.runtime.durable_file import replace_file

logger = logging.getLogger(__name__)

FILE_NAME: Final = "queueEnds"
NO_OFFSET: Final = sys.maxsize
ZEROS_AT_END: Final = 4_096
"""With this many zero bytes, the log was not written there; a header has some as well."""
Row = tuple[str, int, int]
"""Topic, queueId, end."""


class QueueEnds(msgspec.Struct, frozen=True):
    """offset: all records in front of it have their entries; NO_OFFSET: all records have. new: queues whose
    first record is behind it."""

    offset: int
    ends: list[Row]
    new: list[tuple[str, int]] = []


_decode = msgspec.json.Decoder(QueueEnds | list[Row]).decode
_decode_new = msgspec.json.Decoder(list[tuple[str, int]]).decode


def write_ends(root: Path, ends: QueueEnds) -> None:
    """Writes the file durably. A failure is logged, and then there is no file."""
    body = msgspec.json.encode(ends)
    try:
        replace_file(root / FILE_NAME, b"%08x " % zlib.crc32(body) + body, keep_backup=False)
    except OSError as error:
        logger.warning("%s cannot be written: %s", root / FILE_NAME, error)
        (root / FILE_NAME).unlink(missing_ok=True)


def add_new(root: Path, queues: Iterable[tuple[str, int]]) -> None:
    """Appends queues that got their first entry since write_ends(), durably. They are missing if there is no
    file, or if it cannot be written."""
    body = msgspec.json.encode(list(queues))
    try:
        file = os.open(root / FILE_NAME, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.write(file, b"\n%08x " % zlib.crc32(body) + body)
        os.fdatasync(file)
    except OSError as error:
        logger.warning("%s cannot be written: %s", root / FILE_NAME, error)
    finally:
        os.close(file)


def remove_ends(root: Path) -> None:
    """Deletes the file durably: queues will be cut, and end earlier. OSError: it may still be there."""
    (root / FILE_NAME).unlink(missing_ok=True)
    sync_directory(root)


def read_ends(root: Path) -> QueueEnds | None:
    """Returns the content; None: there is no good file."""
    try:
        first, *lines = (root / FILE_NAME).read_bytes().split(b"\n")
    except FileNotFoundError:
        return None
    body = _body_of(first)
    if body is None:
        logger.warning("%s is damaged, and not used", root / FILE_NAME)
        return None
    decoded = _decode(body)
    found = QueueEnds(NO_OFFSET, decoded) if isinstance(decoded, list) else decoded
    for line in lines:
        if (body := _body_of(line)) is None:
            logger.warning("%s is damaged, or its last line was not written as a whole", root / FILE_NAME)
            break
        found.new.extend(_decode_new(body))
    return found


def _body_of(line: bytes) -> bytes | None:
    crc, _, body = line.partition(b" ")
    return body if crc == b"%08x" % zlib.crc32(body) else None


def rebuild_from(
    log: CommitLog, queues: Collection[ConsumeQueue], found: QueueEnds | None, *, crashed: bool
) -> int:
    """Returns the CommitLog offset from which entries have to be made again, and cuts off last entries that
    name bytes behind the log; the log's end: none is lost. found: None if it is not known where the queues
    ended. crashed: entries were added since."""
    if found is None:
        starts = [_end_of_last(log, queue) for queue in queues if queue.is_end_lost]
    else:
        starts = [*_lost_since(log, queues, found, crashed=crashed)]
    return min([log.max_offset, *starts])


def _lost_since(
    log: CommitLog, queues: Collection[ConsumeQueue], found: QueueEnds, *, crashed: bool
) -> Iterator[int]:
    ends = {(topic, queue_id): end for topic, queue_id, end in found.ends}
    for queue in queues:
        end = ends.pop((queue.topic, queue.queue_id), 0)
        if end and queue.log_end_offset() > log.max_offset:
            queue.truncate(log.max_offset)
        if queue.max_offset < end:
            where = f"{queue.topic}/{queue.queue_id}"
            text = "the ConsumeQueue %s ends at %d instead of %d: its entries are made again from the log"
            logger.error(text, where, queue.max_offset, end)
            yield _end_of_last(log, queue)
        elif crashed and queue.may_have_lost_end():
            yield max(found.offset, log.min_offset)
    for (topic, queue_id), end in ends.items():
        if end:
            logger.error("the ConsumeQueue %s/%d is lost: it is made again from the log", topic, queue_id)
            yield log.min_offset
    there = {(queue.topic, queue.queue_id) for queue in queues if queue.max_offset}
    for topic, queue_id in found.new:
        if (topic, queue_id) not in there:
            logger.error("the new ConsumeQueue %s/%d is lost: it is made again from the log", topic, queue_id)
            yield max(found.offset, log.min_offset)


def _end_of_last(log: CommitLog, queue: ConsumeQueue) -> int:
    """Returns where the record of its last entry ends, behind which the records of its lost ones are. If that
    entry is damaged as well, no record need begin there: then the log's min_offset."""
    end = queue.log_end_offset()
    is_boundary = log.min_offset <= end <= log.max_offset and (
        log.is_record_start(end) or not any(log.view(end, ZEROS_AT_END))
    )
    return end if is_boundary else log.min_offset
