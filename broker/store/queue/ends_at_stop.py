"""queueEnds: where the queues ended when the store was closed, so that a start finds the entries that a disk
has lost at the end of one. Without it their numbers would be given again.

A line of JSON behind its CRC-32 in hex and a blank: [[topic, queueId, end], ...]. It is there from a clean
stop to the end of the next start that succeeds. A damaged one is as good as none.
"""

import logging
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from broker.store.log.commit_log import CommitLog
from broker.store.queue.consume_queue import ConsumeQueue
from keelmq.runtime.durable_file import replace_file

logger = logging.getLogger(__name__)

FILE_NAME: Final = "queueEnds"
_decode = msgspec.json.Decoder(list[tuple[str, int, int]]).decode


def write_ends(root: Path, queues: Iterable[ConsumeQueue]) -> None:
    """Writes the file durably. If that fails, the log says so, and there is none."""
    body = msgspec.json.encode([(each.topic, each.queue_id, each.max_offset) for each in queues])
    try:
        replace_file(root / FILE_NAME, b"%08x " % zlib.crc32(body) + body, keep_backup=False)
    except OSError as error:
        logger.warning("%s cannot be written: %s", root / FILE_NAME, error)
        (root / FILE_NAME).unlink(missing_ok=True)


def read_ends(root: Path) -> dict[tuple[str, int], int]:
    """Returns (topic, queueId) -> end; empty if there is no good file."""
    try:
        crc, _, body = (root / FILE_NAME).read_bytes().partition(b" ")
    except FileNotFoundError:
        return {}
    if crc != b"%08x" % zlib.crc32(body):
        logger.warning("%s is damaged, and not used", root / FILE_NAME)
        return {}
    return {(topic, queue_id): end for topic, queue_id, end in _decode(body)}


def rebuild_from(log: CommitLog, queues: Iterable[ConsumeQueue], ends: dict[tuple[str, int], int]) -> int:
    """Returns the CommitLog offset from which entries have to be made again, and cuts off last entries that
    name bytes behind the log; the log's end: none is lost."""
    start = log.max_offset
    for queue in queues:
        end = ends.pop((queue.topic, queue.queue_id), 0)
        if end and queue.log_end_offset() > log.max_offset:
            queue.truncate(log.max_offset)
        if queue.max_offset < end:
            where = f"{queue.topic}/{queue.queue_id}"
            text = "the ConsumeQueue %s ends at %d instead of %d: its entries are made again from the log"
            logger.error(text, where, queue.max_offset, end)
            start = min(start, max(queue.log_end_offset(), log.min_offset))
    for (topic, queue_id), end in ends.items():
        if end:
            logger.error("the ConsumeQueue %s/%d is lost: it is made again from the log", topic, queue_id)
            start = log.min_offset
    return start
