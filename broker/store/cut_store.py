"""Truncation of the MessageStore in three steps: in memory, on disk in any thread, then writable again.

Invariant: the checkpoint on disk never counts records that a cut removes; it is lowered before the log is
cut.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence, Set
from functools import partial
from pathlib import Path
from typing import NamedTuple

from broker.store.damage import DamagedRanges
from broker.store.index.message_index import MessageIndex
from broker.store.last_exit import mark_running
from broker.store.log.commit_log import CommitLog
from broker.store.log.disk_jobs import DiskJobs
from broker.store.log_check import LogCheck
from broker.store.queue.batch_check import correct_ends
from broker.store.queue.consume_queue import ConsumeQueue
from broker.store.queue.queue_ends import remove_ends
from broker.store.queue.queue_table import QueueTable
from broker.store.recovery import RECORDS_AT_ONCE, boundary_at, queued_end
from broker.store.store_flusher import StoreFlusher
from keelmq.runtime.slices import Slices


class CutPlan(NamedTuple):
    """The queues that a cut of the log at log_offset changes. newest: of the others, the one with the newest
    record. changed: those that have changed since the plan began."""

    log_offset: int
    queues: Sequence[ConsumeQueue]
    newest: ConsumeQueue | None
    changed: Set[ConsumeQueue]


class CuttableStore(ABC):
    """The part of MessageStore that cuts it, and the attributes that this part uses. The flusher runs the
    jobs."""

    root: Path
    commit_log: CommitLog
    damage: DamagedRanges
    log_check: LogCheck
    queues: QueueTable
    index: MessageIndex | None
    confirm_offset: int
    dispatch_offset: int
    is_master: bool
    is_cutting: bool
    cut_count: int
    _next_ends_ms: int  # when a checkpoint writes them
    _changed: set[ConsumeQueue] | None = None  # since the present plan of a cut began
    _jobs: DiskJobs
    _flusher: StoreFlusher

    @abstractmethod
    def _forget_queued(self) -> None: ...

    @abstractmethod
    def _scan_again(self) -> None: ...

    @property
    @abstractmethod
    def scanned_offset(self) -> int: ...

    @abstractmethod
    def scan(self, records_max: int) -> bool: ...

    def truncate(self, offset: int) -> None:
        """Removes all records that end behind `offset` from log, queues and index, and lowers queue offsets
        and confirmOffset; durable when it returns. Blocks: the event loop calls the three steps itself."""
        self.begin_cut(offset)
        self.write_cut()
        self.end_cut()

    def plan_cut(self, offset: int) -> Slices[CutPlan]:
        """Looks at every queue, in slices, for begin_cut(). It changes nothing, so it may be given up, and
        records may be dispatched and scanned meanwhile: the store notes whose queues they change."""
        changed, end = set[ConsumeQueue](), min(offset, self.commit_log.max_offset)
        self._changed = changed
        try:
            queues, newest = yield from self.queues.to_cut(end)
        except GeneratorExit:
            if self._changed is changed:
                self._changed = None
            raise
        return CutPlan(end, queues, newest, changed)

    def _planned(self, plan: CutPlan | None) -> tuple[list[ConsumeQueue], list[ConsumeQueue]]:
        """Returns the queues to cut, and those of which one has the newest record then. All of them, if the
        plan is for another cut, or another cut or a promotion came after it."""
        changed, self._changed = self._changed, None
        if plan is None or plan.changed is not changed or plan.log_offset != self.commit_log.max_offset:
            return (every := self.queues.each()), every
        queues = [*{*plan.queues, *changed}]
        return queues, queues if plan.newest is None else [*queues, plan.newest]

    def begin_cut(self, offset: int, plan: CutPlan | None = None) -> None:
        """The first step of truncate(), in the event loop's thread: readers find the new end. Nothing may be
        stored or dispatched until write_cut() has returned and end_cut() was called. plan: of this cut;
        without one, all queues are looked at in this step. Readers must not see units of records that are
        gone, so the queues end in the same step as the log."""
        assert not self.is_master, "a cut of a master's log"
        self.is_cutting, log = True, self.commit_log
        self.cut_count += 1
        if offset < self.dispatch_offset:
            self._forget_boot()
        self._forget_ends()
        if offset < log.max_offset:  # the checkpoint first: a start must not trust removed records
            self._jobs.add(
                [partial(self._lower_checkpoint, offset, boundary_at(log, offset)), *log.cut(offset)]
            )
        self.damage.remove_above(log.max_offset)
        self._jobs.add([self.damage.save])  # before other bytes are there
        self.log_check.cut(log.max_offset)
        queues, newest = self._planned(plan)
        self._forget_queued()
        if self.index is not None:
            self._jobs.add([*self.index.cut(log.max_offset), self.index.flush])
        self.confirm_offset = min(self.confirm_offset, log.max_offset)
        self._jobs.add(self.queues.cut(log.max_offset, queues))
        correct_ends(log, queues)
        if self.dispatch_offset > log.max_offset:
            self.dispatch_offset = queued_end(log, newest)  # a record boundary

    def _forget_boot(self) -> None:
        """Queue entries will be there without their records for a moment, which is no damage."""
        self._jobs.add([partial(mark_running, self.root, with_boot=False)])

    def _forget_ends(self) -> None:
        self._jobs.add([partial(remove_ends, self.root)])  # before a queue ends earlier
        self._next_ends_ms = 0

    def write_cut(self) -> None:
        """The second step: cuts the files, durably; any thread. OSError: not all of it is done, and the
        caller must try again."""
        self._flusher.run(self._jobs)

    def end_cut(self) -> None:
        """The last step, in the event loop's thread: the store may be written to again."""
        assert not len(self._jobs), "the cut is not on disk"
        self.is_cutting = False
        self._scan_again()

    def _lower_checkpoint(self, offset: int, boundary: int) -> None:
        if offset < self._flusher.checkpoint.confirm_offset:
            self._flusher.write_checkpoint(boundary)

    def truncate_half_message(self) -> int:
        """Truncates an incomplete record at the log's end, after a cut that was interrupted. Returns
        max_offset. Blocks: the event loop takes the steps of ha/log_truncation.py."""
        while True:
            if self.is_cutting:
                self.write_cut()
                self.end_cut()
            while self.scan(RECORDS_AT_ONCE):
                pass
            if self.scanned_offset == self.commit_log.max_offset:
                return self.commit_log.max_offset
            self.begin_cut(self.scanned_offset)

    def begin_reset(self, offset: int) -> None:
        """The first step of reset_to(), as begin_cut() is of truncate()."""
        assert not self.is_master, "a cut of a master's log"
        self.is_cutting = True
        self.cut_count += 1
        self._forget_boot()
        self._forget_ends()
        self._jobs.add(self.commit_log.cut_all(offset))
        self.damage.healed(0, sys.maxsize)
        self._jobs.add([self.damage.save])
        self.log_check.reset(offset)
        self._forget_queued()
        self._jobs.add(self.queues.cut_all())
        if self.index is not None:
            self._jobs.add(self.index.cut_all(offset))
        self.confirm_offset = self.dispatch_offset = offset

    def reset_to(self, offset: int) -> None:
        """Removes all messages; the log begins at `offset`. Durable when it returns."""
        self.begin_reset(offset)
        self.write_cut()
        self.end_cut()
