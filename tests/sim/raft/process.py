"""One run of one member: the production replica without its thread; ticks on input and on time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from namesrv.plugins.controller.raft.fenced_state_machine import decode_batch
from namesrv.plugins.controller.raft.replica import FatalRaftError
from namesrv.plugins.controller.replicator import RaftReplicator, RaftSettings
from tests.sim.raft.checkers import Checker
from tests.sim.raft.network import Connection, SimLinks

if TYPE_CHECKING:
    from tests.sim.raft.cluster import World

TICK_S = 0.0005  # what a tick costs at least


class CheckedMachine:
    """A list of events; every application and every restored state is compared with the others'."""

    def __init__(self, name: str, checker: Checker) -> None:
        self._name, self._checker = name, checker
        self.events: list[str] = []
        self.claimed = 0  # epoch of the last claim applied; 0: not seen since the start or a snapshot

    def apply(self, event: bytes) -> object:
        self.events.append(event.decode())
        self._checker.applied(self._name, self.events)
        return len(self.events)

    def snapshot(self) -> bytes:
        return msgspec.msgpack.encode(self.events)

    def restore(self, data: bytes) -> None:
        self.events = msgspec.msgpack.decode(data, type=list[str])
        self.claimed = 0
        self._checker.restored(self._name, self.events)


class SimReplicator(RaftReplicator):
    process: SimProcess

    def open_links(self, core: Any, member: Any) -> Any:
        self.process.member = member
        return SimLinks(self.process.world.network, self.process, frozenset(self.settings.members))

    def begin(self, loop: asyncio.AbstractEventLoop) -> Any:
        """start() without a thread."""
        core: Any = self._open()
        self._attach(core, loop)
        return core


class SimProcess:
    """`rate`, `offset`: of its monotonic clock."""

    member: Any
    core: Any

    def __init__(self, name: str, world: World, settings: RaftSettings) -> None:
        self.name, self.world = name, world
        self.alive, self.paused = True, False
        self.rate, self.offset = world.random.choice((0.97, 1.0, 1.03)), world.random.uniform(0, 1e6)
        self.gone: asyncio.Future[None] = world.loop.create_future()
        self.machine = CheckedMachine(name, world.checker)
        self.replicator = SimReplicator(self.machine, settings)
        self.replicator.process = self
        self.replicator.on_active_changed(self._active_changed)
        self._inbox: deque[tuple[Connection | None, bytes | None, str]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._ticked_at = 0.0

    def start(self) -> None:
        self._in_own_time(self._start)
        self.world.network.running[self.name] = self
        self._schedule(TICK_S)

    def _start(self) -> None:
        core = self.core = self.replicator.begin(self.world.loop)
        core._poller.wake, core._poller.deliver = self.wake, self._deliver
        now = core.now
        core.now = lambda: self._in_own_time(now)  # changes of the group ask from outside of a tick
        apply = self.replicator.state_machine.apply

        def checked(data: bytes) -> Any:
            self.world.checker.batch(self.name, core.last_applied + 1, data)
            results, batch = apply(data), decode_batch(data)
            if batch.kind == "claim" and results is not None:
                self.machine.claimed = batch.term
            elif batch.kind == "events" and results is not None and self.machine.claimed:
                self.world.checker.took_effect(self.name, epoch=batch.term, claimed=self.machine.claimed)
            return results

        self.replicator.state_machine.apply = checked  # type: ignore[method-assign]

    def end(self, *, silently: bool) -> None:
        """kill -9, or with `silently` the power of this machine."""
        self.alive = False
        if self._timer is not None:
            self._timer.cancel()
        if self.replicator._claiming is not None:
            self.replicator._claiming.cancel()
        self.world.network.running.pop(self.name, None)
        self.world.network.ended(self, silently=silently)
        self.world.disks.close_all(self.world.disk_of[self.name])
        if not self.gone.done():
            self.gone.set_result(None)

    # ------------------------------------------------------------------ time
    def wake(self) -> None:
        self._schedule(0.0)

    def resume(self) -> None:
        self.paused = False
        self.wake()

    def _schedule(self, delay_s: float) -> None:
        if not self.alive:
            return
        at = max(self.world.loop.time() + delay_s, self._ticked_at + TICK_S)
        if self._timer is not None and not self._timer.cancelled() and self._timer.when() <= at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.world.loop.call_at(at, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if not self.alive or self.paused:
            return
        self._ticked_at = self.world.loop.time()
        had_input = bool(self._inbox)
        try:
            self._in_own_time(lambda: self.core.doTick(0.0))
        except FatalRaftError:
            self.world.died(self)  # where it was reported, it was noted
            return
        if self.core.leads:
            self.world.checker.leads(self.name, self.core.term)
        if self.alive:
            self._schedule(0.0 if had_input else self._in_own_time(self.member.wait_s) / self.rate)

    def _in_own_time(self, action: Callable[[], Any]) -> Any:
        clock = self.world.clock
        before = clock.rate, clock.offset
        clock.rate, clock.offset = self.rate, self.offset
        try:
            return action()
        finally:
            clock.rate, clock.offset = before

    # ------------------------------------------------------------------ input
    def arrived(self, connection: Connection | None, frame: bytes | None, sender: str | None = None) -> None:
        if self.alive:
            if sender is None and connection is not None:
                sender = connection.other(self).name
            self._inbox.append((connection, frame, sender or ""))
            self.wake()

    def _deliver(self) -> None:
        while self._inbox and self.alive:
            self.member.links.received(*self._inbox.popleft())

    def _active_changed(self, active: bool) -> None:
        if active and self.alive:
            self.world.note(f"{self.name} is active, epoch {self.replicator.epoch}")
            epoch, seen = self.replicator.epoch or 0, len(self.machine.events)
            self.world.checker.active(self.name, epoch, seen)
