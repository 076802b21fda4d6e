"""StoreCutter: truncates a store in three steps: in memory, on disk in any thread, then writable again.

Invariant: the checkpoint on disk never counts records that a cut removes; it is lowered before the log is
cut.
"""

import sys
from collections.abc import Sequence, Set
from functools import partial
from pathlib import Path
from typing import NamedTuple

from broker.store.dispatching import RecordDispatcher
from broker.store.last_exit import mark_running
from broker.store.log.disk_jobs import DiskJobs
from broker.store.log_check import LogCheck
from broker.store.queue.batch_check import correct_ends
from broker.store.queue.consume_queue import ConsumeQueue
from broker.store.queue.queue_ends import remove_ends
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


class StoreCutter:
    """Of one store. `cut_count`: since the start; a copy of the log is void if it changes."""

    def __init__(
        self,
        root: Path,
        log_check: LogCheck,
        dispatcher: RecordDispatcher,
        flusher: StoreFlusher,
    ) -> None:
        self._root, self._log_check, self._dispatcher, self._flusher = root, log_check, dispatcher, flusher
        self._commit_log, self._damage = dispatcher.commit_log, dispatcher.damage
        self._queues, self._index = dispatcher.queues, dispatcher.index
        self._jobs = DiskJobs()  # run under the flush lock
        self.cut_count = 0

    @property
    def is_cutting(self) -> bool:
        """Whether begin_cut() or begin_reset() was called, and end_cut() not yet."""
        return self._dispatcher.is_paused

    def truncate(self, offset: int) -> None:
        """Removes all records that end behind `offset` from log, queues and index, and lowers queue offsets
        and confirmOffset; durable when it returns. Blocks: the event loop calls the three steps itself."""
        self.begin_cut(offset)
        self.write_cut()
        self.end_cut()

    def plan_cut(self, offset: int) -> Slices[CutPlan]:
        """Checks every queue, in slices, for begin_cut(). It changes nothing, so it may be abandoned, and
        records may be dispatched and scanned meanwhile: the store records the queues that they change."""
        dispatcher, end = self._dispatcher, min(offset, self._commit_log.max_offset)
        dispatcher.changed = changed = set[ConsumeQueue]()
        try:
            queues, newest = yield from self._queues.to_cut(end)
        except GeneratorExit:
            if dispatcher.changed is changed:
                dispatcher.changed = None
            raise
        return CutPlan(end, queues, newest, changed)

    def _planned(self, plan: CutPlan | None) -> tuple[list[ConsumeQueue], list[ConsumeQueue]]:
        """Returns the queues to cut, and candidates for the queue with the newest record afterwards. All of
        them, if the plan is for another cut, or another cut or a promotion came after it."""
        changed, self._dispatcher.changed = self._dispatcher.changed, None
        if plan is None or plan.changed is not changed or plan.log_offset != self._commit_log.max_offset:
            return (every := self._queues.each()), every
        queues = [*{*plan.queues, *changed}]
        return queues, queues if plan.newest is None else [*queues, plan.newest]

    def begin_cut(self, offset: int, plan: CutPlan | None = None) -> None:
        """The first step of truncate(), in the event loop's thread: readers find the new end. No record may
        be stored or dispatched until write_cut() has returned and end_cut() was called. plan: of this cut;
        without one, all queues are checked in this step. Readers must not see units of removed records, so
        the queues end in the same step as the log."""
        dispatcher, log = self._dispatcher, self._commit_log
        assert not dispatcher.is_master, "a cut of a master's log"
        dispatcher.is_paused = True
        self.cut_count += 1
        if offset < dispatcher.dispatch_offset:
            self._forget_boot()
        self._forget_ends()
        if offset < log.max_offset:  # the checkpoint first: a start must not trust removed records
            self._jobs.add(
                [partial(self._lower_checkpoint, offset, boundary_at(log, offset)), *log.cut(offset)]
            )
        self._damage.remove_above(log.max_offset)
        self._jobs.add([self._damage.save])  # before other bytes are there
        self._log_check.cut(log.max_offset)
        queues, newest = self._planned(plan)
        dispatcher.forget_queued()
        if self._index is not None:
            self._jobs.add([*self._index.cut(log.max_offset), self._index.flush])
        dispatcher.confirm_offset = min(dispatcher.confirm_offset, log.max_offset)
        self._jobs.add(self._queues.cut(log.max_offset, queues))
        correct_ends(log, queues)
        if dispatcher.dispatch_offset > log.max_offset:
            dispatcher.dispatch_offset = queued_end(log, newest)  # a record boundary

    def _forget_boot(self) -> None:
        """For a moment, queue entries will exist without their records, which is no damage."""
        self._jobs.add([partial(mark_running, self._root, with_boot=False)])

    def _forget_ends(self) -> None:
        self._jobs.add([partial(remove_ends, self._root)])  # before a queue ends earlier
        self._flusher.next_ends_ms = 0

    def write_cut(self) -> None:
        """The second step: cuts the files, durably; any thread. OSError: not all of it is done, and the
        caller must try again."""
        self._flusher.run(self._jobs)

    def end_cut(self) -> None:
        """The last step, in the event loop's thread: the store may be written to again."""
        assert not len(self._jobs), "the cut is not on disk"
        self._dispatcher.is_paused = False
        self._dispatcher.scan_again()

    def _lower_checkpoint(self, offset: int, boundary: int) -> None:
        if offset < self._flusher.checkpoint.confirm_offset:
            self._flusher.write_checkpoint(boundary)

    def truncate_half_message(self) -> int:
        """Truncates an incomplete record at the log's end, after a cut that was interrupted. Returns
        max_offset. Blocks: the event loop uses the steps of ha/log_truncation.py."""
        while True:
            if self.is_cutting:
                self.write_cut()
                self.end_cut()
            while self._dispatcher.scan(RECORDS_AT_ONCE):
                pass
            end = self._dispatcher.scanned_offset
            if end == self._commit_log.max_offset:
                return end
            self.begin_cut(end)

    def begin_reset(self, offset: int) -> None:
        """The first step of reset_to(), as begin_cut() is of truncate()."""
        assert not self._dispatcher.is_master, "a cut of a master's log"
        self._dispatcher.is_paused = True
        self.cut_count += 1
        self._forget_boot()
        self._forget_ends()
        self._jobs.add(self._commit_log.cut_all(offset))
        self._damage.healed(0, sys.maxsize)
        self._jobs.add([self._damage.save])
        self._log_check.reset(offset)
        self._dispatcher.forget_queued()
        self._jobs.add(self._queues.cut_all())
        if self._index is not None:
            self._jobs.add(self._index.cut_all(offset))
        self._dispatcher.confirm_offset = self._dispatcher.dispatch_offset = offset

    def reset_to(self, offset: int) -> None:
        """Removes all messages; the log begins at `offset`. Durable when it returns."""
        self.begin_reset(offset)
        self.write_cut()
        self.end_cut()
