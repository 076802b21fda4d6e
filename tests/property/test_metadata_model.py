"""Promise S3, on the real cores: three replicas, one controller, random changes, crashes, switches and a bad
network. What was acknowledged is at every later master; a deleted topic stays deleted; no lower epoch wins;
equal versions are equal tables. The main protections, switched off, make the checker find a loss (fences and
acknowledgements of other lives are too rare for dice: unit/broker/metadata/test_metadata_table.py).

A row is (epoch, number of the change) as one integer, and so is a tombstone: the state of a key tells which
change made it. Polls, answers, proposals and news travel as messages that are delayed, lost or doubled.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest

from broker.core.sync_state_set import SyncStateSet, SyncStateSetManager
from broker.metadata.core.table import Table, Update, Version
from broker.metadata.core.term import Term

IDS = (1, 2, 3)
KEYS = ("a", "b", "c", "d")
EPOCH = 1_000_000
MAX_LAG_MS = 120
STEPS = 400
SEEDS = 250


class Violation(AssertionError):
    pass


@dataclass(frozen=True)
class Protections:
    join_check: bool = True  # a replica with older metadata does not join
    union: bool = True  # acknowledgements of a set in flight count as well
    persist: bool = True  # before anybody hears of it


class Follower:
    """A slave whose log is always complete: metadata alone decides here."""

    learner = False
    ack_offset = 0

    def caught_up_ms(self, now_ms: int) -> int:
        return now_ms


@dataclass
class Disk:
    version: Version = field(default_factory=Version)
    rows: dict[str, int] = field(default_factory=dict)
    gone: dict[str, int] = field(default_factory=dict)


@dataclass
class Pending:
    """A change that a client waits for."""

    key: str
    state: int
    version: Version
    term: Term


class Broker:
    def __init__(self, world: "World", broker_id: int) -> None:
        self.world, self.id, self.disk = world, broker_id, Disk()
        self.up = True
        self.start()

    def start(self) -> None:
        self.table = Table[int]()
        self.table.load(self.disk.version, self.disk.rows, self.disk.gone)
        self.epoch = 0  # of the last finished role change
        self.master: int | None = None
        self.term: Term | None = None
        self.sync_state_set_manager: SyncStateSetManager | None = None
        self.pending: list[Pending] = []
        self.poll_number = 0  # of the poll that waits for its answer

    def crash(self) -> None:
        self.up = False
        self.term, self.sync_state_set_manager, self.pending = None, None, []

    def restart(self) -> None:
        if not self.up:
            self.up = True
            self.start()

    # -- roles -------------------------------------------------------------------------------------------

    def hear(self, epoch: int, master: int, members: frozenset[int], set_epoch: int) -> None:
        if not self.up or epoch < self.epoch or (epoch == self.epoch and self.master is not None):
            if self.up and epoch == self.epoch and self.sync_state_set_manager is not None:
                self.sync_state_set_manager.adopt(SyncStateSet(members, set_epoch))
            return
        if master == self.id and epoch < self.table.version.state_version:
            return  # begin_term() refuses
        self.epoch, self.master = epoch, master
        self.term, self.sync_state_set_manager, self.pending = None, None, []
        if master != self.id:
            return
        self.table.apply(self.table.plan_term(epoch, {}, now_ms=self.world.now_ms))
        self.term = Term(epoch, {"t": self.table}, now_ms=self.world.now_ms)
        self.sync_state_set_manager = SyncStateSetManager(
            self.id,
            SyncStateSet(members, set_epoch),
            all_ack=True,
            max_lag_ms=MAX_LAG_MS,
            now_ms=self.world.now_ms,
        )
        self.world.check_master(self)

    def persist(self, update: Update[int]) -> None:
        rows, gone = self.table.after(update)
        self.disk = Disk(update.version, rows, gone)

    # -- master ------------------------------------------------------------------------------------------

    def change(self, key: str, delete: bool) -> None:
        if self.term is None:
            return
        state = self.epoch * EPOCH + self.world.next_number()
        rows, gone = ({}, {key: state}) if delete else ({key: state}, {})
        update = self.table.plan(rows, gone, now_ms=self.world.now_ms)
        if self.world.protections.persist or self.world.random.random() < 0.5:
            self.persist(update)
        self.table.apply(update)
        self.term.changed(now_ms=self.world.now_ms)
        self.pending.append(Pending(key, state, update.version, self.term))
        self.answer_clients()

    def links(self) -> Mapping[int, Follower]:
        others = (self.world.brokers[each] for each in IDS if each != self.id)
        return {b.id: Follower() for b in others if b.up and (b.master, b.epoch) == (self.id, self.epoch)}

    def asked(
        self, replica: int, epoch: int, version: Version, answer: Callable[[Update[int] | None], None]
    ) -> None:
        if not self.up or self.term is None or self.epoch != epoch:
            return
        self.term.heard(replica, {"t": version}, now_ms=self.world.now_ms)
        self.answer_clients()
        answer(self.table.since(version))

    def answer_clients(self) -> None:
        manager, term = self.sync_state_set_manager, self.term
        if manager is None or term is None:
            return
        members = manager.others if self.world.protections.union else manager.agreed_others
        for each in list(self.pending):
            if term.everywhere(members, "t", each.version):
                self.pending.remove(each)
                self.world.acknowledged(each.key, each.state)

    def maintain_sync_state_set(self) -> None:
        manager, world, term = self.sync_state_set_manager, self.world, self.term
        if manager is None or term is None:
            return
        now, links = world.now_ms, self.links()
        lags = {each: term.lag_ms(each, now_ms=now) for each in links}
        proposal = manager.next_proposal(
            links,
            confirm_offset=0,
            epoch_start_offset=0,
            now_ms=now,
            metadata_lag_ms=lags if world.protections.join_check else {},
        )
        if proposal is not None:

            def answered(reply: SyncStateSet | None) -> None:
                if self.sync_state_set_manager is manager:
                    manager.answered(reply, now_ms=world.now_ms)
                    self.answer_clients()

            world.propose(self, proposal.members, proposal.base_epoch, answered)
        elif manager.must_read:
            world.read(self, manager)
        self.answer_clients()

    # -- replica -----------------------------------------------------------------------------------------

    def poll(self) -> None:
        if not self.up or self.master in (None, self.id):
            return
        assert self.master is not None
        master, epoch, version, life = (
            self.world.brokers[self.master],
            self.epoch,
            self.table.version,
            self.table,
        )

        self.poll_number = number = self.world.next_number()

        def accept(update: Update[int] | None) -> None:
            """One poll at a time: an answer that nobody waits for any more is dropped by the client."""
            if update is None or not self.up or self.table is not life:
                return
            if self.poll_number != number or (self.epoch, self.master) != (epoch, master.id):
                return
            self.poll_number = 0
            if self.table.refusal(update) is not None:
                return
            if not update.only_version:
                self.persist(update)
            self.table.apply(update)
            self.world.check_equal()

        def send_back(update: Update[int] | None) -> None:
            self.world.send(lambda: accept(update))

        self.world.send(lambda: master.asked(self.id, epoch, version, send_back))


class World:
    def __init__(self, seed: int, protections: Protections) -> None:
        self.random, self.protections = random.Random(seed), protections
        self.now_ms = 1
        self.number = 0
        self.loss = self.random.choice([0.0, 0.1, 0.3])
        self.slow = self.random.choice([0.1, 0.4, 0.8, 0.95])
        self.crashes = self.random.choice([0.02, 0.05, 0.1])
        self.changes = self.random.choice([0.03, 0.2])
        self.messages: list[Callable[[], None]] = []
        self.acked: dict[str, int] = {}
        self.brokers = {each: Broker(self, each) for each in IDS}
        self.epoch, self.master, self.set_epoch = 1, 1, 1
        self.members: frozenset[int] = frozenset({1})
        self.elections = 0

    # -- network -----------------------------------------------------------------------------------------

    def send(self, action: Callable[[], None]) -> None:
        if self.random.random() >= self.loss:
            self.messages.append(action)
            if self.random.random() < 0.05:
                self.messages.append(action)

    def deliver(self) -> None:
        """Any of the messages, so that they overtake each other."""
        while self.messages and self.random.random() >= self.slow:
            self.messages.pop(self.random.randrange(len(self.messages)))()

    # -- the controller ----------------------------------------------------------------------------------

    def propose(
        self,
        broker: Broker,
        members: frozenset[int],
        base: int,
        answered: Callable[[SyncStateSet | None], None],
    ) -> None:
        epoch = broker.epoch
        lost = [True]

        def arrive() -> None:
            if (self.master, self.epoch, self.set_epoch) == (broker.id, epoch, base):
                self.members, self.set_epoch = members, self.set_epoch + 1
                reply = SyncStateSet(self.members, self.set_epoch)
                if self.random.random() >= self.loss:
                    lost[0] = False
                    self.messages.append(lambda: answered(reply))

        self.send(arrive)
        self.messages.append(lambda: answered(None) if lost[0] else None)  # the caller's timeout

    def read(self, broker: Broker, manager: SyncStateSetManager) -> None:
        """As a KeelMQ controller: the set epoch is raised, so that an older proposal is refused."""
        if (self.master, self.epoch) != (broker.id, broker.epoch) or self.random.random() < self.loss:
            return
        if self.set_epoch == manager.agreed.epoch:
            self.set_epoch += 1
        manager.read(SyncStateSet(self.members, self.set_epoch), begun_ms=self.now_ms)

    def elect(self) -> None:
        alive = [each for each in sorted(self.members) if self.brokers[each].up]
        if alive:
            self.master, self.epoch = self.random.choice(alive), self.epoch + 1
            self.members, self.set_epoch = frozenset({self.master}), self.set_epoch + 1
            self.elections += 1

    def tell(self, broker: Broker) -> None:
        """What it says may be old when it arrives, also at a broker that has just restarted."""
        role_update = (self.epoch, self.master, self.members, self.set_epoch)
        self.send(lambda: broker.hear(*role_update))

    # -- the checker -------------------------------------------------------------------------------------

    def next_number(self) -> int:
        self.number += 1
        return self.number

    def acknowledged(self, key: str, state: int) -> None:
        self.acked[key] = max(state, self.acked.get(key, 0))

    def check_master(self, broker: Broker) -> None:
        if (broker.id, broker.epoch) != (self.master, self.epoch):
            return  # it is late: another one was elected meanwhile
        for key, state in self.acked.items():
            table = broker.table
            found = table.rows.get(key) or table.gone.get(key, 0)
            if found < state:
                raise Violation(
                    f"master {broker.id} at {broker.epoch} has {key} of {found}, acknowledged {state}"
                )

    def check_equal(self) -> None:
        seen: dict[Version, tuple[dict[str, int], dict[str, int]]] = {}
        for broker in self.brokers.values():
            table = broker.table
            for version, content in (
                (table.version, (table.rows, table.gone)),
                (broker.disk.version, (broker.disk.rows, broker.disk.gone)),
            ):
                if seen.setdefault(version, content) != content:
                    raise Violation(f"two tables of version {tuple(version)}")

    # -- a history ---------------------------------------------------------------------------------------

    def step(self) -> None:
        self.now_ms += self.random.randint(1, 10)
        broker = self.brokers[self.random.choice(IDS)]
        dice = self.random.random()
        if dice < self.changes:
            master = self.brokers[self.master] if self.random.random() < 0.9 else broker
            if master.up:
                master.change(self.random.choice(KEYS), self.random.random() < 0.3)
        elif dice < 0.55:
            broker.poll()
        elif dice < 0.75:
            broker.maintain_sync_state_set()
        elif dice < 0.75 + self.crashes:
            broker.crash()
        elif dice < 0.86:
            broker.restart()
        elif dice < 0.97:
            self.tell(broker)
        else:
            self.elect()
        self.deliver()

    def settle(self) -> None:
        """Everybody is up, nothing is lost: all tables become the master's."""
        self.loss, self.slow = 0.0, 0.0
        for broker in self.brokers.values():
            broker.restart()
        self.elect()
        for _ in range(40):
            self.now_ms += 10
            for broker in self.brokers.values():
                self.tell(broker)
                broker.poll()
                broker.maintain_sync_state_set()
            self.deliver()
        if self.members != frozenset(IDS):
            raise Violation(f"not everybody came back: {sorted(self.members)}")
        tables = [broker.table for broker in self.brokers.values()]
        if any(table.rows != tables[0].rows for table in tables):
            raise Violation("the tables differ in the end")


def run(seed: int, protections: Protections) -> World:
    world = World(seed, protections)
    for broker in world.brokers.values():
        world.tell(broker)
    for _ in range(STEPS):
        world.step()
    world.settle()
    return world


@pytest.mark.slow
def test_what_was_acknowledged_is_there_after_any_history() -> None:
    acked = elections = 0
    for seed in range(SEEDS):
        try:
            world = run(seed, Protections())
        except Violation as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        acked += len(world.acked)
        elections += world.elections
    assert acked > SEEDS and elections > 3 * SEEDS  # the histories are about something


@pytest.mark.parametrize("off", ["join_check", "union", "persist"])
def test_each_protection_is_needed(off: str) -> None:
    """The checker finds what it is for."""
    without = Protections(**{off: False})
    for seed in range(4 * SEEDS):
        try:
            run(seed, without)
        except Violation:
            return
    raise AssertionError(f"nothing was lost without {off}")
