"""Proposals: the queue, batches and deadlines of appends to the log. Event loop only; no sockets, no disks.

Appends of one iteration of the event loop share a raft entry, which determines the throughput. At most
IN_FLIGHT_MAX entries wait for their outcome. Each gets one by its deadline, even if the library never calls
back.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Literal

import msgspec

from keelmq.remoting.operation import LocalProtocolError, Unknown
from keelmq.runtime.histogram import BOUNDS_COUNT, Histogram
from namesrv.plugins.controller.raft.api import AppendOutcome, Busy, Committed, NotActive
from namesrv.plugins.controller.raft.fenced_state_machine import Batch, Item, encode_batch
from namesrv.plugins.controller.raft.raft_library import Callback

QUEUED_MAX = 5_000  # appends in the queue; more are Busy
BATCH_MAX = 1_024  # appends in one raft entry
BATCH_BYTES_MAX = 512 * 1024
EVENT_BYTES_MAX = 256 * 1024  # so that an entry stays below the library's limit for one message (1 MiB)
IN_FLIGHT_MAX = 2
LOST_GRACE_S = 0.5  # entries in flight get an outcome within this time after leadership is lost

SUCCESS = 0  # pysyncobj.FAIL_REASON numbers
NEVER_APPLIED = frozenset((1, 2, 3, 4))  # queue full, no leader, discarded, not the leader
NO_ANSWER = -1

Verified = Callable[[bool | None], None]  # read_index.Done

_COUNTED_AS: dict[type[AppendOutcome], str] = {
    Committed: "applied",
    NotActive: "notActive",
    Unknown: "unknown",
    Busy: "busy",
}


class _Proposal(msgspec.Struct, eq=False):
    event: bytes | None  # None: a read through the log
    expires_at: float
    future: "asyncio.Future[AppendOutcome]"


class _InFlightBatch(msgspec.Struct, eq=False):
    proposals: list[_Proposal]
    began_at: float
    timer: asyncio.TimerHandle | None = None
    completed: bool = False


class Proposals:
    """`submit(data, callback)` passes one entry to the raft thread, which runs the callback.
    `verify(term, done)` has it confirm that this member leads in that term (read_index.py)."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        submit: Callable[[bytes, Callback], None],
        verify: Callable[[int, Verified], None],
        leader: Callable[[], str | None],
        *,
        self_id: str,
        deadline_s: float,
    ) -> None:
        self._loop, self._submit, self._verify, self._leader = loop, submit, verify, leader
        self._self_id, self._deadline_s = self_id, deadline_s
        self._epoch: int | None = None
        self._queue: deque[_Proposal] = deque()
        self._in_flight: dict[_InFlightBatch, None] = {}  # in the order of submission
        self._next_read: asyncio.Future[AppendOutcome] | None = None  # of all reads of this turn of the loop
        self._reads: dict[asyncio.Future[AppendOutcome], None] = {}  # begun, oldest first
        self._readers = 0
        self._pump_due = self._paused = False
        self.outcomes = dict.fromkeys(_COUNTED_AS.values(), 0)
        self.commit_seconds, self.batch_sizes = Histogram(), Histogram(BOUNDS_COUNT)

    @property
    def waiting(self) -> int:
        """Number of appends in the queue."""
        return len(self._queue)

    def open(self, epoch: int) -> None:
        """Called when this member becomes active: from now on entries contain `epoch`."""
        self._epoch = epoch

    def close(self) -> None:
        """Called when this member is no longer active. Queued appends are NotActive; others may commit."""
        self._epoch = None
        queue, self._queue = self._queue, deque()
        for proposal in queue:
            self._resolve(proposal, NotActive(self._leader()))
        for read in [each for each in self._reads if not each.done()]:
            read.set_result(NotActive(self._leader()))
        for batch in self._in_flight:
            if batch.timer is not None and batch.timer.when() > self._loop.time() + LOST_GRACE_S:
                batch.timer.cancel()
                batch.timer = self._loop.call_later(LOST_GRACE_S, self._complete, batch, None, NO_ANSWER)

    def stop(self) -> None:
        """Ends every append: the library will not call back again."""
        self.close()
        for batch in list(self._in_flight):
            self._complete(batch, None, NO_ANSWER)

    async def append(self, event: bytes) -> AppendOutcome:
        """Implements Replicator.append(). Takes at most two deadlines, one of them in the queue."""
        if len(event) > EVENT_BYTES_MAX:
            raise LocalProtocolError(f"event of {len(event)} bytes, limit {EVENT_BYTES_MAX}")
        if self._epoch is None:
            self.outcomes["notActive"] += 1
            return NotActive(self._leader())
        if len(self._queue) >= QUEUED_MAX:
            self.outcomes["busy"] += 1
            return Busy()
        future: asyncio.Future[AppendOutcome] = self._loop.create_future()
        self._enqueue(event, future)
        return await future

    def _enqueue(self, event: bytes | None, future: "asyncio.Future[AppendOutcome]") -> None:
        self._queue.append(_Proposal(event, self._loop.time() + self._deadline_s, future))
        if not self._pump_due:
            self._pump_due = True
            self._loop.call_soon(self._pump)

    async def read(self) -> AppendOutcome:
        """Implements Replicator.barrier(). Reads of one iteration of the event loop share a check."""
        if self._epoch is None:
            return NotActive(self._leader())
        if self._readers >= QUEUED_MAX:
            return Busy()
        if self._next_read is None:
            self._next_read = self._loop.create_future()
            self._loop.call_soon(self._begin_read, self._next_read, self._epoch)
        self._readers += 1
        try:
            return await asyncio.shield(self._next_read)
        finally:
            self._readers -= 1

    def _begin_read(self, read: "asyncio.Future[AppendOutcome]", term: int) -> None:
        self._next_read = None
        self._reads[read] = None
        late = Unknown("no majority confirmed in time that this member leads")
        timer = self._loop.call_later(self._deadline_s, self._end_read, read, late)

        def ended(_: object) -> None:
            timer.cancel()
            self._reads.pop(read, None)

        def done(verified: bool | None) -> None:
            if verified is None:
                self._call_in_loop(lambda: self._enqueue(None, read))  # in the log
            else:
                outcome = Committed(None) if verified else NotActive(self._leader())
                self._call_in_loop(lambda: self._end_read(read, outcome))

        read.add_done_callback(ended)
        if self._epoch == term:
            self._verify(term, done)
        else:
            self._end_read(read, NotActive(self._leader()))

    def _end_read(self, read: "asyncio.Future[AppendOutcome]", outcome: AppendOutcome) -> None:
        if not read.done():
            read.set_result(outcome)

    @property
    def in_flight(self) -> int:
        """Number of log entries whose outcome is awaited."""
        return len(self._in_flight)

    def pause(self) -> None:
        """Keeps new appends in the queue; entries in flight are not affected."""
        self._paused = True

    def resume(self) -> None:
        """Submits the queued appends again, after pause()."""
        self._paused = False
        self._pump()

    async def propose(self, kind: Literal["members"], items: tuple[Item, ...]) -> AppendOutcome:
        """Appends one entry, ahead of the queue."""
        if self._epoch is None:
            return NotActive(self._leader())
        answered: asyncio.Future[tuple[object, int]] = self._loop.create_future()

        def callback(result: object, reason: int) -> None:
            self._call_in_loop(lambda: None if answered.done() else answered.set_result((result, reason)))

        self._submit(encode_batch(Batch(kind, self._epoch, self._self_id, items)), callback)
        done, _ = await asyncio.wait([answered], timeout=self._deadline_s)
        result, reason = answered.result() if done else (None, NO_ANSWER)
        answered.cancel()
        if reason == SUCCESS and isinstance(result, list):
            return Committed(None)
        if reason == SUCCESS or reason in NEVER_APPLIED:
            return NotActive(self._leader())
        return Unknown("no majority answered in time; it may still be applied")

    async def claim(self, term: int, deadline_s: float) -> None:
        """Proposes the claim of `term`. Returns when the outcome is known, or after the deadline."""
        answered = self._loop.create_future()

        def callback(_result: object, _reason: int) -> None:
            self._call_in_loop(lambda: None if answered.done() else answered.set_result(None))

        self._submit(encode_batch(Batch("claim", term, self._self_id)), callback)
        await asyncio.wait([answered], timeout=deadline_s)
        answered.cancel()

    def _pump(self) -> None:
        self._pump_due = False
        while (
            self._queue
            and not self._paused
            and len(self._in_flight) < IN_FLIGHT_MAX
            and self._epoch is not None
        ):
            proposals = self._next_batch()
            if proposals:
                self._submit_batch(proposals, self._epoch)

    def _next_batch(self) -> list[_Proposal]:
        now, size, batch = self._loop.time(), 0, list[_Proposal]()
        while self._queue and len(batch) < BATCH_MAX:
            event_bytes = len(self._queue[0].event or b"")
            if batch and size + event_bytes > BATCH_BYTES_MAX:
                break
            proposal = self._queue.popleft()
            if proposal.future.done():  # the caller was cancelled
                continue
            if proposal.expires_at < now:
                self._resolve(proposal, Busy())
                continue
            size += event_bytes
            batch.append(proposal)
        return batch

    def _submit_batch(self, proposals: list[_Proposal], epoch: int) -> None:
        batch = _InFlightBatch(proposals, self._loop.time())
        self.batch_sizes.observe(len(proposals))
        batch.timer = self._loop.call_later(self._deadline_s, self._complete, batch, None, NO_ANSWER)
        self._in_flight[batch] = None

        def callback(result: object, reason: int) -> None:
            self._call_in_loop(lambda: self._complete(batch, result, reason))

        items = tuple((None, proposal.event) for proposal in proposals)
        self._submit(encode_batch(Batch("events", epoch, self._self_id, items)), callback)

    def _call_in_loop(self, action: Callable[[], object]) -> None:
        """Runs `action` in the event loop. Never raises: the library would apply the entry twice."""
        try:
            self._loop.call_soon_threadsafe(action)
        except RuntimeError:
            pass  # the event loop is closed

    def _complete(self, batch: _InFlightBatch, result: object, reason: int) -> None:
        if batch.completed:
            return  # the deadline has passed: the outcome was Unknown
        batch.completed = True
        self._in_flight.pop(batch, None)
        if batch.timer is not None:
            batch.timer.cancel()
        if reason == SUCCESS and isinstance(result, list):
            self.commit_seconds.observe(self._loop.time() - batch.began_at)
            for proposal, value in zip(batch.proposals, result, strict=True):
                self._resolve(proposal, Committed(value))
        elif reason == SUCCESS or reason in NEVER_APPLIED:  # SUCCESS without results: fenced as a whole
            for proposal in batch.proposals:
                self._resolve(proposal, NotActive(self._leader()))
        else:
            for proposal in batch.proposals:
                self._resolve(proposal, Unknown("no majority answered in time; it may still be applied"))
        self._pump()

    def _resolve(self, proposal: _Proposal, outcome: AppendOutcome) -> None:
        self.outcomes[_COUNTED_AS[type(outcome)]] += 1
        if not proposal.future.done():
            proposal.future.set_result(outcome)
