"""Appends on their way into the log: queue, batches, deadlines. Event loop only; no sockets, no disks.

Appends of one loop turn share a raft entry; that, not the disk, is the throughput. At most IN_FLIGHT_MAX
entries wait for an answer, and every one of them gets one, although the log may never call back.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from namesrv.plugins.controller.raft.api import AppendOutcome, Applied, Busy, NotActive
from namesrv.plugins.controller.raft.ledger import Batch, Item, encode_batch
from remoting.histogram import BOUNDS_COUNT, Histogram
from remoting.operation import LocalProtocolError, Unknown

QUEUED_MAX = 5_000  # appends that wait for their turn; more are Busy
BATCH_MAX = 1_024  # appends in one raft entry
BATCH_BYTES_MAX = 512 * 1024
EVENT_BYTES_MAX = 256 * 1024  # so that an entry stays below the library's limit for one message (1 MiB)
IN_FLIGHT_MAX = 2
LOST_GRACE_S = 0.5  # after leadership is lost, entries in flight are answered no later than this

SUCCESS = 0  # pysyncobj.FAIL_REASON numbers
NEVER_APPLIED = frozenset((1, 2, 3, 4))  # queue full, no leader, discarded, not the leader
NO_ANSWER = -1

Callback = Callable[[object, int], None]  # (result, reason)

_COUNTED_AS: dict[type[AppendOutcome], str] = {
    Applied: "applied",
    NotActive: "notActive",
    Unknown: "unknown",
    Busy: "busy",
}


@dataclass(slots=True, eq=False)
class _Proposal:
    item: Item
    expires_at: float
    future: "asyncio.Future[AppendOutcome]"


@dataclass(slots=True, eq=False)
class _Flight:
    proposals: list[_Proposal]
    began_at: float
    timer: asyncio.TimerHandle | None = None
    landed: bool = False


class Proposals:
    """`submit(data, callback)` gives one entry to the raft thread, which calls back from there."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        submit: Callable[[bytes, Callback], None],
        leader: Callable[[], str | None],
        *,
        self_id: str,
        deadline_s: float,
    ) -> None:
        self._loop, self._submit, self._leader = loop, submit, leader
        self._self_id, self._deadline_s = self_id, deadline_s
        self._epoch: int | None = None
        self._queue: deque[_Proposal] = deque()
        self._flights: dict[_Flight, None] = {}  # in the order of take-off
        self._pump_due = self._paused = False
        self.outcomes = dict.fromkeys(_COUNTED_AS.values(), 0)
        self.commit_seconds, self.batch_sizes = Histogram(), Histogram(BOUNDS_COUNT)

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def open(self, epoch: int) -> None:
        """This member is active: entries carry `epoch` from now on."""
        self._epoch = epoch

    def close(self) -> None:
        """Not active any more: what was not handed over never will be; what was may still be applied."""
        self._epoch = None
        queue, self._queue = self._queue, deque()
        for proposal in queue:
            self._settle(proposal, NotActive(self._leader()))
        for flight in self._flights:
            if flight.timer is not None and flight.timer.when() > self._loop.time() + LOST_GRACE_S:
                flight.timer.cancel()
                flight.timer = self._loop.call_later(LOST_GRACE_S, self._land, flight, None, NO_ANSWER)

    def stop(self) -> None:
        """Nobody will call back any more."""
        self.close()
        for flight in list(self._flights):
            self._land(flight, None, NO_ANSWER)

    async def append(self, request_id: str | None, event: bytes | None) -> AppendOutcome:
        """One of the four outcomes, at the latest when two deadlines have passed (one in the queue)."""
        if event is not None and len(event) > EVENT_BYTES_MAX:
            raise LocalProtocolError(f"event of {len(event)} bytes, limit {EVENT_BYTES_MAX}")
        if self._epoch is None:
            self.outcomes["notActive"] += 1
            return NotActive(self._leader())
        if len(self._queue) >= QUEUED_MAX:
            self.outcomes["busy"] += 1
            return Busy()
        future: asyncio.Future[AppendOutcome] = self._loop.create_future()
        expires_at = self._loop.time() + self._deadline_s
        self._queue.append(_Proposal((request_id, event), expires_at, future))
        if not self._pump_due:
            self._pump_due = True
            self._loop.call_soon(self._pump)
        return await future

    @property
    def in_flight(self) -> int:
        return len(self._flights)

    def pause(self) -> None:
        """What is appended waits; what is in flight goes on."""
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._pump()

    async def propose(self, kind: Literal["members"], items: tuple[Item, ...]) -> AppendOutcome:
        """An entry of its own, past the queue."""
        if self._epoch is None:
            return NotActive(self._leader())
        answered: asyncio.Future[tuple[object, int]] = self._loop.create_future()

        def callback(result: object, reason: int) -> None:
            self._hop(lambda: None if answered.done() else answered.set_result((result, reason)))

        self._submit(encode_batch(Batch(kind, self._epoch, self._self_id, items)), callback)
        done, _ = await asyncio.wait([answered], timeout=self._deadline_s)
        result, reason = answered.result() if done else (None, NO_ANSWER)
        answered.cancel()
        if reason == SUCCESS and isinstance(result, list):
            return Applied(None)
        if reason == SUCCESS or reason in NEVER_APPLIED:
            return NotActive(self._leader())
        return Unknown("no majority answered in time; it may still be applied")

    async def claim(self, term: int, deadline_s: float) -> None:
        """Propose that `term` begins. Ends when it was answered or the deadline has passed."""
        answered = self._loop.create_future()

        def callback(_result: object, _reason: int) -> None:
            self._hop(lambda: None if answered.done() else answered.set_result(None))

        self._submit(encode_batch(Batch("claim", term, self._self_id)), callback)
        await asyncio.wait([answered], timeout=deadline_s)
        answered.cancel()

    def _pump(self) -> None:
        self._pump_due = False
        while (
            self._queue
            and not self._paused
            and len(self._flights) < IN_FLIGHT_MAX
            and self._epoch is not None
        ):
            proposals = self._next_batch()
            if proposals:
                self._fly(proposals, self._epoch)

    def _next_batch(self) -> list[_Proposal]:
        now, size, batch = self._loop.time(), 0, list[_Proposal]()
        while self._queue and len(batch) < BATCH_MAX:
            event_bytes = len(self._queue[0].item[1] or b"")
            if batch and size + event_bytes > BATCH_BYTES_MAX:
                break
            proposal = self._queue.popleft()
            if proposal.future.done():  # its caller was cancelled
                continue
            if proposal.expires_at < now:
                self._settle(proposal, Busy())
                continue
            size += event_bytes
            batch.append(proposal)
        return batch

    def _fly(self, proposals: list[_Proposal], epoch: int) -> None:
        flight = _Flight(proposals, self._loop.time())
        self.batch_sizes.observe(len(proposals))
        flight.timer = self._loop.call_later(self._deadline_s, self._land, flight, None, NO_ANSWER)
        self._flights[flight] = None

        def callback(result: object, reason: int) -> None:
            self._hop(lambda: self._land(flight, result, reason))

        items = tuple(proposal.item for proposal in proposals)
        self._submit(encode_batch(Batch("events", epoch, self._self_id, items)), callback)

    def _hop(self, action: Callable[[], object]) -> None:
        """From the raft thread to the loop; it must not raise there, or the entry is applied twice."""
        try:
            self._loop.call_soon_threadsafe(action)
        except RuntimeError:
            pass  # the loop is closed: nobody waits

    def _land(self, flight: _Flight, result: object, reason: int) -> None:
        if flight.landed:
            return  # an answer after the deadline: Unknown was said already
        flight.landed = True
        self._flights.pop(flight, None)
        if flight.timer is not None:
            flight.timer.cancel()
        if reason == SUCCESS and isinstance(result, list):
            self.commit_seconds.observe(self._loop.time() - flight.began_at)
            for proposal, value in zip(flight.proposals, result, strict=True):
                self._settle(proposal, Applied(value))
        elif reason == SUCCESS or reason in NEVER_APPLIED:  # SUCCESS without results: fenced as a whole
            for proposal in flight.proposals:
                self._settle(proposal, NotActive(self._leader()))
        else:
            for proposal in flight.proposals:
                self._settle(proposal, Unknown("no majority answered in time; it may still be applied"))
        self._pump()

    def _settle(self, proposal: _Proposal, outcome: AppendOutcome) -> None:
        self.outcomes[_COUNTED_AS[type(outcome)]] += 1
        if not proposal.future.done():
            proposal.future.set_result(outcome)
