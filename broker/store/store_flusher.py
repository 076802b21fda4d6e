"""Makes the CommitLog, the ConsumeQueues and the index durable, and writes the checkpoint.

flush(), flush_checkpoint(), write_checkpoint() and run() may be called in any thread; `lock` lets one of them
run at a time. Invariant: everything that the checkpoint counts as durable was flushed before. Source:
RocketMQ 5.3.3 FlushConsumeQueueService, StoreCheckpoint.
"""

import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from broker.store.index.message_index import MessageIndex
from broker.store.log.checkpoint import StoreCheckpoint, read_checkpoint, write_checkpoint
from broker.store.log.commit_log import CommitLog
from broker.store.log.disk_jobs import DiskJobs
from broker.store.queue.consume_queue import ConsumeQueue

CHECKPOINTS_PER_INDEX_FLUSH: Final = 10


class StoreFlusher:
    """`dirty` has the queues that got a unit since the last flush; the store adds to it. `checkpoint` is what
    was read or written last."""

    def __init__(
        self,
        root: Path,
        commit_log: CommitLog,
        index: MessageIndex | None,
        *,
        dispatched: Callable[[], tuple[int, int]],
    ) -> None:
        """dispatched: the dispatch offset, and the timestamp (ms) of the newest record."""
        self.lock = threading.Lock()
        self.dirty: set[ConsumeQueue] = set()
        self._path, self._commit_log, self._index = root / "checkpoint", commit_log, index
        self._dispatched = dispatched
        self.checkpoint = StoreCheckpoint()
        self.next_ends_ms = 0  # when a checkpoint writes the ends of all queues again
        self._count = 0  # of checkpoints
        self._unlisted: set[ConsumeQueue] = set()  # got their first unit since the file of ends was written

    def load(self) -> None:
        """Reads the checkpoint."""
        self.checkpoint = read_checkpoint(self._path)

    def flush(self) -> int:
        """Makes log and queues durable. Returns the log offset up to which the log is durable."""
        with self.lock, self._commit_log.sync_fault.latching():
            return self._flush()

    def _flush(self) -> int:
        dirty, self.dirty = self.dirty, set()
        try:
            durable = self._commit_log.sync()
            for queue in dirty:
                queue.sync()
                if not queue.is_listed:
                    self._unlisted.add(queue)
        except OSError:
            self.dirty.update(dirty)
            raise
        return durable

    def flush_checkpoint(
        self,
        *,
        index_too: bool = False,
        flushed: Callable[[Collection[ConsumeQueue]], None] = lambda unlisted: None,
    ) -> None:
        """Flushes, calls flushed() with the queues that are not in the file of ends, then writes how far log
        and queues are durable (confirmPhyOffset). The index is flushed only with every tenth call, because
        its slots are scattered over a file; it can be rebuilt from the log."""
        with self.lock, self._commit_log.sync_fault.latching():
            dispatch_offset, timestamp = self._dispatched()  # before the flush
            self._flush()
            unlisted = [queue for queue in self._unlisted if not queue.is_listed]
            self._unlisted = set()
            flushed(unlisted)
            checkpoint = self.checkpoint
            checkpoint.physic_msg_timestamp = max(timestamp, checkpoint.physic_msg_timestamp)
            checkpoint.logics_msg_timestamp = checkpoint.physic_msg_timestamp
            if self._index is not None and (index_too or not self._count % CHECKPOINTS_PER_INDEX_FLUSH):
                checkpoint.index_msg_timestamp = self._index.flush()
            self._count += 1
            self.write_checkpoint(dispatch_offset)

    def write_checkpoint(self, confirm_offset: int) -> None:
        """Writes the checkpoint with this confirmOffset; the caller holds the lock, or nothing else runs."""
        self.checkpoint.confirm_offset = confirm_offset
        write_checkpoint(self._path, self.checkpoint)

    def run(self, jobs: DiskJobs) -> None:
        """Does the disk work of a cut, flushes, and writes the checkpoint. OSError: it is not complete, and
        may be tried again."""
        with self.lock, self._commit_log.sync_fault.latching():
            jobs.run()
            self._flush()  # bytes that the checkpoint counts as durable must be durable
            self.write_checkpoint(self._dispatched()[0])
