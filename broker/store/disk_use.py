"""The bytes of a store's major files, which a quota of the disk counts: CommitLog, ConsumeQueues, BatchQueues
and index.

A file counts with its whole size, as in RocketMQ, also where it is sparse and the disk has fewer blocks: the
rest may be needed at any time. Files that are prepared for later, metadata and progress files do not count.
The cost grows with the number of queues, not of messages. Source: RocketMQ 5.3.3
DefaultMessageStore.getMajorFileSize, MappedFileQueue.getTotalFileSize.
"""

from typing import NamedTuple

from broker.store.index.message_index import MessageIndex
from broker.store.log.commit_log import CommitLog
from broker.store.queue.queue_table import QueueTable


class FileBytes(NamedTuple):
    """used: sizes of all files. kept: of those that retention never deletes, since they are the last."""

    used: int
    kept: int

    def plus(self, other: "FileBytes") -> "FileBytes":
        """Returns the sums."""
        return FileBytes(self.used + other.used, self.kept + other.kept)


def log_bytes(log: CommitLog) -> FileBytes:
    """Returns the bytes of the CommitLog's files."""
    return _bytes_of(log.file_count, log.file_bytes)


def derived_bytes(queues: QueueTable, index: MessageIndex | None) -> FileBytes:
    """Returns the bytes of the files derived from the log: those of all queues, and of the index if there is
    one."""
    total = _bytes_of(0, 0) if index is None else _bytes_of(index.file_count, index.file_bytes)
    used, kept = total
    for queue in queues.each():
        if count := queue.file_count:
            used += count * queue.file_bytes
            kept += queue.file_bytes
    return FileBytes(used, kept)


def _bytes_of(count: int, file_bytes: int) -> FileBytes:
    return FileBytes(count * file_bytes, min(count, 1) * file_bytes)
