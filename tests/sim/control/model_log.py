"""A model of the replicated log: what raft/api.py promises, and every liberty that it takes.

One order of events; the active member has applied all of it. What it does not promise happens: a member that
was deposed believes for a while that it leads; an append may be lost, or take effect after its proposer was
told that nobody knows; followers lag; a member starts from a snapshot or from the beginning.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

from keelmq.remoting.operation import Unknown
from namesrv.plugins.controller.raft.api import (
    AppendOutcome,
    ChangeOutcome,
    ChangeRefused,
    Committed,
    NotActive,
    StateMachine,
)

TICK_S = 0.02
APPEND_DEADLINE_S = 1.0
FIXED = "the members of the model do not change"
LEASE_S = 0.8
"""After so long without a majority a member knows that it does not lead."""


class Links(Protocol):
    def connected(self, one: str, other: str) -> bool: ...


@dataclass(eq=False)
class Item:
    event: bytes
    done: asyncio.Future[AppendOutcome]


@dataclass
class ModelLog:
    loop: asyncio.AbstractEventLoop
    random: Random
    links: Links
    names: list[str]
    note: Callable[[str], None]
    entries: list[bytes] = field(default_factory=list)
    members: dict[str, "ModelReplicator"] = field(default_factory=dict)
    snapshots: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    leader: "ModelReplicator | None" = None
    epoch: int = 0
    elect_at: float | None = None

    def has_majority(self, name: str) -> bool:
        reached = [each for each in self.members if each == name or self.links.connected(name, each)]
        return name in self.members and 2 * len(reached) > len(self.names)

    def tick(self) -> None:
        leader, now = self.leader, self.loop.time()
        if leader is not None and self.has_majority(leader.self_id):
            self.elect_at = None
            leader.commit()
        elif self.elect_at is None:
            self.elect_at = now + self.random.uniform(0.12, 0.8)
        elif now >= self.elect_at:
            self._elect()
        for name in sorted(self.members):
            member = self.members[name]
            follows = leader is not None and self.links.connected(name, leader.self_id)
            if member is not leader and follows and self.random.random() < 0.7:
                member.catch_up(self.random.choice((1, 4, 1_000)))
        self.loop.call_later(TICK_S, self.tick)

    def _elect(self) -> None:
        able = [name for name in sorted(self.members) if self.has_majority(name)]
        self.elect_at = None
        if not able:
            return
        old, new = self.leader, self.members[self.random.choice(able)]
        if old is not None:
            survivors = self.random.randint(0, len(old.items)) if self.random.random() < 0.4 else 0
            self.entries += [item.event for item in old.items[:survivors]]
            old.items.clear()
            if old is not new:
                self.loop.call_later(self.random.uniform(0, LEASE_S), old.deposed)
        new.catch_up(len(self.entries))
        self.epoch += 1
        self.leader = new
        self.note(f"{new.self_id} leads, epoch {self.epoch}, {len(self.entries)} events")
        new.activate(self.epoch)

    def died(self, member: "ModelReplicator") -> None:
        """It leaves a snapshot of some moment, or only its journal."""
        if self.members.get(member.self_id) is member:
            del self.members[member.self_id]
        if self.random.random() < 0.5:
            self.snapshots[member.self_id] = (member.applied, member.machine.snapshot())
        if self.leader is member:
            survivors = self.random.randint(0, len(member.items))
            self.entries += [item.event for item in member.items[:survivors]]
            member.items.clear()
            self.leader = None


class ModelReplicator:
    """Implements Replicator."""

    def __init__(self, log: ModelLog, name: str, machine: StateMachine) -> None:
        self.log, self.self_id, self.machine = log, name, machine
        self.applied = 0
        self.epoch: int | None = None
        self.items: list[Item] = []
        self._callbacks: list[Callable[[bool], None]] = []

    def begin(self) -> None:
        if self.self_id in self.log.snapshots:
            self.applied, data = self.log.snapshots[self.self_id]
            self.machine.restore(data)
        self.log.members[self.self_id] = self

    def catch_up(self, count: int) -> None:
        for event in self.log.entries[self.applied : self.applied + count]:
            self.machine.apply(event)
            self.applied += 1

    def activate(self, epoch: int) -> None:
        was_active, self.epoch = self.is_active, epoch
        for callback in self._callbacks:
            if was_active:
                callback(False)
            callback(True)

    def deposed(self) -> None:
        if self.log.leader is not self and self.is_active:
            self.epoch = None
            for callback in self._callbacks:
                callback(False)

    def commit(self) -> None:
        items, self.items = self.items, []
        for item in items:
            self.log.entries.append(item.event)
            self.applied += 1
            result = self.machine.apply(item.event)
            if not item.done.done():
                item.done.set_result(Committed(result))

    # ---- Replicator ----

    @property
    def is_active(self) -> bool:
        return self.epoch is not None

    @property
    def leader_id(self) -> str | None:
        return self.self_id if self.is_active else None

    async def start(self) -> None: ...
    async def stop(self) -> None: ...

    async def append(self, event: bytes) -> AppendOutcome:
        if not self.is_active:
            return NotActive(None)
        item = Item(event, self.log.loop.create_future())
        if self.log.leader is self:  # one that only believes it appends to a log that nobody will follow
            self.items.append(item)
            self.log.loop.call_later(self.log.random.uniform(0.001, 0.02), self._try)
        await asyncio.wait({item.done}, timeout=APPEND_DEADLINE_S)
        return item.done.result() if item.done.done() else Unknown("not committed in time")

    def _try(self) -> None:
        if self.log.leader is self and self.log.has_majority(self.self_id):
            self.commit()

    async def barrier(self) -> AppendOutcome:
        deadline = self.log.loop.time() + APPEND_DEADLINE_S
        while self.is_active and self.log.loop.time() < deadline:
            await asyncio.sleep(self.log.random.uniform(0.001, 0.02))
            if self.log.leader is self and self.log.has_majority(self.self_id):
                return Committed(None)
        return Unknown("no majority answers") if self.is_active else NotActive(None)

    @property
    def request_addresses(self) -> dict[str, tuple[str, int]]:
        return {name: (name, 1) for name in self.log.members}

    @property
    def added(self) -> dict[str, tuple[str, int]]:
        return {}

    async def add_member(
        self, member_id: str, address: tuple[str, int], request_address: tuple[str, int] | None = None
    ) -> ChangeOutcome:
        return ChangeRefused(FIXED)

    async def remove_member(self, member_id: str, *, dry_run: bool = False) -> ChangeOutcome:
        return ChangeRefused(FIXED)

    async def transfer_leadership(self, member_id: str) -> ChangeOutcome:
        return ChangeRefused(FIXED)

    def on_active_changed(self, callback: Callable[[bool], None]) -> None:
        self._callbacks.append(callback)

    def call_in_loop(self, action: Callable[[], object]) -> None:
        self.log.loop.call_soon(self._run, action)

    def _run(self, action: Callable[[], object]) -> None:
        if self.log.members.get(self.self_id) is self:  # it was not killed meanwhile
            action()

    def status(self) -> dict[str, Any]:
        return {}
