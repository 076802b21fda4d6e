"""A whole group in the virtual world: three name servers with controllers, three to five brokers, clients.

One seed is one weather, one row of faults, one verdict. Scenarios (test_promises.py) drive the same world by
hand.
"""

import asyncio
import logging
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, TypeVar, cast
from unittest import mock

from broker.app.broker import Broker
from broker.store.log.commit_log import CommitLog
from broker.store.log.mapped_file import MappedFile
from broker.store.message_store import MessageStore
from keelmq.remoting.operation import Outcome, Unknown
from keelmq.security.signer import Signer
from namesrv.plugins.controller.core.state import BrokerSet
from tests.sim.checkers import Violation
from tests.sim.control.model_log import ModelLog
from tests.sim.control.truth import Truth
from tests.sim.whole.bad_disk import BadDisk
from tests.sim.whole.clients import Administrator, Client, Consumer, Operator, Producer
from tests.sim.whole.disks import Disk, watched_files
from tests.sim.whole.judge import Acked, Judge, LeftOut, LogView
from tests.sim.whole.machines import MachineLoop, Process, virtual_machines
from tests.sim.whole.network import Network
from tests.sim.whole.programs import CONTROLLERS, GROUP, BrokerRun, ControllerRun, small_files

FAULTS_S, HEALING_S = 6.0, 15.0
"""Within HEALING_S after the last fault every replica serves, is in the SyncStateSet and has everything."""
LOOK_S = 0.02
PROMOTIONS = "replicas manager"
"""The task whose deaths count failed promotions."""
END_S, ENDS_MAX = 20.0, 5
"""How long the processes of a world that is over have to stop, and how often they are told."""
SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Conditions:
    """power: machines lose their power, and with it what was not synced; brokers have SYNC_FLUSH then."""

    replicas: int = 3
    loss: float = 0.0
    delay_max_s: float = 0.004
    fault_every_s: float = 1.0
    power: bool = False
    settings: dict[str, object] = field(default_factory=dict)

    @classmethod
    def of(cls, random: Random) -> "Conditions":
        power = random.random() < 0.4
        replicas = random.choice((3, 3, 3, 3, 4, 5))
        settings: dict[str, object] = {"minInSyncReplicas": random.choice((1, 1, 2))}
        if power:
            settings["flushDiskType"] = "SYNC_FLUSH"
        return cls(
            replicas=replicas,
            loss=random.choice((0.0, 0.0, 0.01, 0.05)),
            delay_max_s=random.choice((0.001, 0.004, 0.02)),
            fault_every_s=random.choice((0.3, 0.6, 1.2)),
            power=power,
            settings=settings,
        )


class WholeGroup:
    """`async with` starts everything; then faults, by seed or by hand."""

    run_type: type[BrokerRun] = BrokerRun

    def __init__(
        self, seed: int, loop: MachineLoop, base: Path, conditions: Conditions | None = None
    ) -> None:
        self.seed, self.loop, self.base, self.dice = seed, loop, base, loop.dice
        self.conditions = conditions if conditions is not None else Conditions.of(self.dice)
        self.network = Network(
            loop, Random(seed), loss=self.conditions.loss, delay_max_s=self.conditions.delay_max_s
        )
        self.judge, self.truth = Judge(), Truth()
        self.bad_disk = BadDisk(self, seed)
        self.power_cuts = 0
        self.notes: list[str] = []
        self.faults: Counter[str] = Counter()
        self.failed: Violation | None = None
        self.late_only = False
        self.log = ModelLog(loop, self.dice, self, list(CONTROLLERS), lambda text: self.note("", text))
        self.controllers: dict[str, ControllerRun] = {}
        self.disks = {
            f"b{number}": Disk(base, f"b{number}", self.dice, watched=self.conditions.power)
            for number in range(1, self.conditions.replicas + 1)
        }
        self.hosts = {name: f"10.0.1.{number}" for number, name in enumerate(self.disks, 1)}
        self.hosts |= {name: f"10.0.0.{number}" for number, name in enumerate(CONTROLLERS, 1)}
        self.brokers: dict[str, BrokerRun] = {}
        self.clients: list[Client] = []
        self.ghosts: list[asyncio.Task[Any]] = []
        self.operator: Operator

    # -- what it is made of ------------------------------------------------------------------------------

    def start(self) -> None:
        for name in CONTROLLERS:
            self.start_controller(name)
        self.log.tick()
        for name in self.disks:
            self.start_broker(name)
        self.loop.call_later(LOOK_S, self._look)

    def start_clients(self, *, producers: int = 2, pause_s: float = 0.05, others: bool = True) -> None:
        """others: a consumer and an administrator."""
        self.operator = Operator(self, "operator", "10.0.2.9")
        self.clients = [
            Producer(self, f"p{n}", f"10.0.2.{n}", pause_s=pause_s) for n in range(1, producers + 1)
        ]
        if others:
            self.clients += [Consumer(self, "consumer", "10.0.2.7"), Administrator(self, "admin", "10.0.2.8")]
        self.clients.append(self.operator)

    def start_controller(self, name: str) -> None:
        self.network.names[name] = self.hosts[name]
        self.controllers[name] = ControllerRun(
            self.loop, name, self.hosts[name], self.log, self.truth, self.base, self.controller_settings(name)
        )

    def controller_settings(self, name: str) -> dict[str, object]:
        """What the name server of that controller has besides what all worlds have."""
        return {}

    def signer_of(self, client: str) -> Signer | None:
        """What signs the requests of that client; None: they are not signed."""
        return None

    def start_broker(self, name: str, **settings: object) -> BrokerRun:
        run = self.brokers[name] = self.run_type(
            self.loop, name, self.hosts[name], self.disks[name], {**self.conditions.settings, **settings}
        )
        return run

    def connected(self, one: str, other: str) -> bool:
        """For the controllers' log: both can talk to each other, and both run."""
        here, there = self.hosts[one], self.hosts[other]
        up = not any(self.controllers[each].process.is_paused for each in (one, other))
        return up and self.network.reaches(here, there) and self.network.reaches(there, here)

    def addresses(self) -> list[str]:
        return [run.address for run in self.brokers.values()]

    @property
    def producer(self) -> Producer:
        return next(each for each in self.clients if isinstance(each, Producer))

    @property
    def group(self) -> BrokerSet | None:
        """What the controllers have agreed upon."""
        return self.truth.states[-1].brokers.get(GROUP)

    @property
    def master(self) -> BrokerRun | None:
        """Who serves as the master that the controllers have elected."""
        group = self.group
        for run in self.brokers.values():
            broker = run.serving
            if broker is not None and group is not None and broker.controlled is not None and run.is_master:
                role = broker.controlled.role
                if (role.broker_id, role.epoch) == (group.master_broker_id, group.master_epoch):
                    return run
        return None

    def process_of(self, name: str) -> Process:
        return self.controllers[name].process if name in self.controllers else self.brokers[name].process

    # -- deaths ------------------------------------------------------------------------------------------

    def note(self, what: str, text: str = "") -> None:
        if what:
            self.faults[what] += 1
        self.notes.append(f"{self.loop.time() - 1_000:9.4f} {what} {text}".rstrip())

    def _end(self, process: Process, *, power: bool) -> None:
        process.alive = False
        process.resume()
        self.network.died(process, power=power)
        if process.main is not None:
            process.main.cancel()
            self.ghosts.append(process.main)

    def kill(self, name: str, *, power: bool = False) -> None:
        """kill -9, or no power any more. Its disk is what survives."""
        run = self.brokers[name]
        if run.process.alive:
            self.note("power cut" if power else "kill", name)
            if power:  # consumer offsets are journaled, not synced: docs/durability.md
                self.judge.offsets.clear()
                self.power_cuts += 1
            self.disks[name].crash(power=power)
            self._end(run.process, power=power)

    def kill_controller(self, name: str) -> None:
        run = self.controllers[name]
        if run.process.alive:
            self.note("kill", name)
            self._end(run.process, power=False)
            run.end()

    async def stop_broker(self, name: str) -> None:
        """SIGTERM: it hands over, and stops in order."""
        run = self.brokers[name]
        run.is_stopping = True  # the second SIGTERM of a process would not let it finish
        self.note("stop", name)
        broker, main = run.serving, run.process.main
        if broker is not None:
            leaving = self.loop.create_task(broker.leave(), context=run.process.context)
            await asyncio.wait((leaving,))
        if run.process.alive and main is not None:
            main.cancel()
            await asyncio.wait((main,))
            run.process.alive = False
            self.network.died(run.process, power=False)

    def revive(self, name: str) -> None:
        if name in self.controllers:
            if not self.controllers[name].process.alive:
                self.note("", f"start {name}")
                self.start_controller(name)
        elif not self.brokers[name].process.alive:
            self.note("", f"start {name}")
            self.start_broker(name)

    # -- judgement ---------------------------------------------------------------------------------------

    def acknowledged(self, acked: Acked, by: str) -> None:
        """by: the broker that was asked. `late_only`: what the present master says may be lost with it."""
        if not self.late_only or (self.group is not None and by != self.group.master_address):
            self.judge.acked.append(acked)

    def _look(self) -> None:
        try:
            for run in self.brokers.values():
                if run.serving is not None:
                    self.look_at(run, run.serving)
        except Violation as violation:
            self.failed = self.failed or violation
        self.loop.call_later(LOOK_S, self._look)

    def look_at(self, run: BrokerRun, broker: Broker) -> None:
        """What it confirms, and whether a term of it has begun."""
        # whole messages: replicas acknowledge bytes, so confirmOffset may lie within a record
        log, confirmed = self.log_of(run.name, broker), broker.store.dispatch_offset
        if confirmed > run.judged:
            self.judge.confirmed(run.name, log, run.judged, confirmed)
            run.judged = confirmed
        assert broker.controlled is not None
        role = broker.controlled.role
        if run.is_master and role.is_master and role.epoch > run.begun_epoch:
            run.begun_epoch = role.epoch
            self.note("", f"{run.name} is master of epoch {role.epoch}")
            self.truth.term_begun(GROUP, role.epoch)
            is_newest = self.group is not None and role.epoch >= self.group.master_epoch
            self.judge.began(run.name, role.epoch, log, is_newest=is_newest)
            if is_newest:
                self.look_at_metadata(run, broker)

    def log_of(self, name: str, broker: Broker) -> LogView:
        """The log of a replica, as it was before a bad disk damaged it."""
        return self.bad_disk.log_of(name, cast(LogView, broker.store.commit_log))

    def look_at_metadata(self, run: BrokerRun, broker: Broker) -> None:
        tables = broker.metadata
        topics = {name: topic.write_queue_nums for name, topic in broker.topics.topics.items()}
        groups = {name for name in self.judge.groups if tables.groups.find(name) is not None}
        offsets = {key: tables.offsets.query(key[0], key[1], key[2]) for key in self.judge.offsets}
        self.judge.has_metadata(run.name, topics, groups, offsets)

    def raise_problem(self) -> None:
        if self.failed is not None:
            raise self.failed
        if self.truth.violations:
            raise Violation("; ".join(self.truth.violations[:3]))
        if self.loop.problems:
            raise Violation(f"an error that nobody handles: {self.loop.problems[0]}")
        for client in self.clients:
            if client.process.main is not None and client.process.main.done():
                client.process.main.result()
        for run in self.brokers.values():
            if run.process.alive and run.failure is not None and run.name not in self.bad_disk.refused:
                raise Violation(f"{run.name} does not run: {run.failure!r}")
            deaths = dict(run.serving.status.task_deaths) if run.serving is not None else {}
            if self.bad_disk.struck:  # a promotion that damage prevents is tried again, and counted
                deaths.pop(PROMOTIONS, None)
            if deaths:
                raise Violation(f"{run.name}: background tasks died: {deaths}")

    @property
    def members(self) -> list[str]:
        """Names of the SyncStateSet."""
        group = self.group
        ids = group.sync_state_set if group is not None else frozenset()
        return [name for name, run in self.brokers.items() if run.broker_id in ids]

    async def whole(self) -> BrokerRun:
        """The master, once every replica is in the SyncStateSet."""
        await self.until(lambda: self.master is not None and len(self.members) == len(self.disks), 10.0)
        assert self.master is not None
        return self.master

    def others(self, name: str) -> list[str]:
        return [each for each in self.disks if each != name]

    def cut(self, sources: Iterable[str], targets: Iterable[str], *, both: bool = False) -> None:
        """By names; one way: what the sources say does not arrive."""
        for source in sources:
            for target in targets:
                self.network.cut(self.hosts[source], self.hosts[target], both=both)

    def is_final(self, outcome: Outcome[Any]) -> bool:
        """Whether a request with this outcome has been carried out, or never will be."""
        return not isinstance(outcome, Unknown)

    def do(self, client: Client, what: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """In that client's process."""
        return self.loop.create_task(what, context=client.process.context)

    async def until(self, condition: Callable[[], bool], within_s: float, what: str = "") -> float:
        """The virtual time that it took. Violation: it did not come."""
        begun = self.loop.time()
        while not condition():
            self.raise_problem()
            if self.loop.time() - begun > within_s:
                problem = what or "; ".join(self.problems()) or "not settled"
                raise Violation(f"not within {within_s} s: {problem}")
            await asyncio.sleep(0.005)
        return self.loop.time() - begun

    def problems(self) -> list[str]:
        """Why the group is not whole."""
        group, master = self.group, self.master
        if group is None or master is None or master.serving is None:
            return [f"no master serves: {group}"]
        end, found = master.serving.store.commit_log.max_offset, []
        waiting = sum(waits_for_an_operator(run.serving) for run in self.brokers.values())
        if len(group.sync_state_set) < len(self.disks) - waiting:
            found.append(f"SyncStateSet {sorted(group.sync_state_set)}")
        for run in self.brokers.values():
            broker = run.serving
            if waits_for_an_operator(broker):
                continue
            if broker is None:
                found.append(f"{run.name} does not serve")
            elif broker.store.confirm_offset != end or broker.store.dispatch_offset != end:
                found.append(f"{run.name} has confirmed {broker.store.confirm_offset} of {end}")
            elif fault := broker.store.damage.describe():
                found.append(f"{run.name}: {fault}")
        return found + self.bad_disk.unhealed()

    async def settled(self, within_s: float = HEALING_S) -> None:
        await self.until(lambda: not self.problems(), within_s)

    async def conclude(self) -> None:
        """Clients stop, everything heals, and the group is judged as a whole."""
        self.network.mend()
        self.network.loss = 0.0
        self.loop.executor_s = (0.0002, 0.004)
        for name in (*CONTROLLERS, *self.disks):
            process = self.process_of(name)
            process.resume()
            process.on_disk = None
            self.revive(name)
        self.note("", "healed")
        await asyncio.sleep(1.0)
        self.bad_disk.restore_epochs()
        for client in self.clients:
            client.stopping = True
        await self.settled()
        self.judge_whole()

    async def serves(self) -> None:
        """Ends when a message was acknowledged: with many faults and minInSyncReplicas, the first one may be
        sent after the group has settled. A group that waits for an operator is left as it is. Raises
        Violation."""
        if any(waits_for_an_operator(run.serving) for run in self.brokers.values()):
            return
        for client in self.clients:
            client.stopping = bool(self.judge.acked)
        await self.until(lambda: bool(self.judge.acked), 10.0, "nothing was ever acknowledged")

    def judge_whole(self) -> None:
        self.raise_problem()
        master = self.master
        assert master is not None and master.serving is not None
        end = master.serving.store.commit_log.max_offset
        self.judge.has_all(master.name, self.log_of(master.name, master.serving))
        for run in self.brokers.values():
            broker = run.serving
            assert broker is not None
            if waits_for_an_operator(broker):
                continue
            log = self.log_of(run.name, broker)
            self.judge.equal(run.name, log, end)
            counts = self.judge.queue_offsets(run.name, log, end)
            for (topic, queue_id), count in counts.items():
                if broker.store.max_queue_offset(topic, queue_id) != count:
                    found = broker.store.max_queue_offset(topic, queue_id)
                    raise Violation(f"{run.name}: queue {topic}/{queue_id} ends at {found}, not {count}")
            self.look_at_metadata(run, broker)

    def close(self) -> None:
        runs: list[BrokerRun | ControllerRun] = [*self.brokers.values(), *self.controllers.values()]
        processes = [each.process for each in runs]
        for process in [*processes, *(client.process for client in self.clients)]:
            if process.alive:
                self._end(process, power=False)
        for _ in range(ENDS_MAX):
            tasks = asyncio.all_tasks(self.loop)
            if not tasks:
                return
            for task in tasks:
                if task not in self.ghosts:
                    task.cancel()
            self.ghosts.clear()  # cancelled once; again only if they do not end
            self.loop.run_until_complete(asyncio.wait(tasks, timeout=END_S))


def waits_for_an_operator(broker: Broker | None) -> bool:
    """Its log has no epoch in common with the master's, and nothing of it was ever confirmed: a master that
    died before anybody had heard of its first messages. It says so and stops, as RIP-44 wants it."""
    if broker is None or broker.controlled is None or broker.store.confirm_offset:
        return False
    return "no common epoch" in (broker.controlled.ha.fault or "")


@contextmanager
def watched_retention(judge: Judge) -> Iterator[None]:
    """Inside, the judge is told what files go: a log may begin there, and not later."""
    real = CommitLog.take_oldest

    def take_oldest(log: CommitLog) -> MappedFile:
        file = real(log)
        judge.deleted = max(judge.deleted, log.min_offset)
        return file

    with mock.patch.object(CommitLog, "take_oldest", take_oldest):
        yield


@contextmanager
def watched_promotions(judge: Judge) -> Iterator[None]:
    """Inside, the judge is told which queue offsets a promotion leaves out."""
    real = MessageStore.become_master

    def become_master(store: MessageStore) -> None:
        real(store)
        log, ranges = store.commit_log, store.unread.ranges()
        if ranges:
            unread = tuple((begin, end, bytes(log.view(begin, end - begin))) for begin, end in ranges)
            judge.left_out.append(LeftOut(log.max_offset, unread, store.queues.moved_on))

    with mock.patch.object(MessageStore, "become_master", become_master):
        yield


World = TypeVar("World", bound=WholeGroup)


async def seconds(count: float) -> None:
    """Of virtual time."""
    await asyncio.sleep(count)


def play(
    seed: int,
    story: Callable[[World], Any],
    conditions: Conditions | None = None,
    *,
    log_level: int = logging.CRITICAL,
    world_type: Callable[..., World] = WholeGroup,  # type: ignore[assignment]
) -> World:
    """Runs the story (a coroutine function) in a world of its own. Violation, with what happened; also if a
    callback needs more CPU time than CallbackBudget allows, and does so again when the seed is repeated: a
    machine may be slow for a moment."""

    def once() -> World:
        return _played(seed, story, conditions, log_level=log_level, world_type=world_type)

    world = once()
    if exceeded := world.loop.budget.exceeded:
        again = once().loop.budget.exceeded
        if both := [
            f"{min(used_s, again[name]) * 1000:.0f} ms: {name}"
            for name, used_s in exceeded.items()
            if name in again
        ]:
            raise Violation(
                f"seed {seed} {world.conditions}: a callback keeps the event loop waiting: {both}"
            )
    return world


def _played(
    seed: int,
    story: Callable[[World], Any],
    conditions: Conditions | None,
    *,
    log_level: int,
    world_type: Callable[..., World],
) -> World:
    loop = MachineLoop(Random(seed))
    level = logging.root.manager.disable
    logging.disable(log_level)
    base = Path(tempfile.mkdtemp(prefix="keelmq-sim-", dir=SHARED_MEMORY if SHARED_MEMORY.is_dir() else None))
    world: World | None = None
    try:
        with ExitStack() as stack:
            stack.enter_context(virtual_machines(loop, seed))
            stack.enter_context(watched_files())
            stack.enter_context(small_files())
            world = world_type(seed, loop, base, conditions)
            stack.enter_context(watched_retention(world.judge))
            stack.enter_context(watched_promotions(world.judge))
            try:
                loop.run_until_complete(story(world))
            except Violation as violation:
                notes = "\n".join(world.notes[-60:])
                raise Violation(f"seed {seed} {world.conditions}: {violation}\n{notes}") from None
            finally:
                world.close()
        return world
    finally:
        logging.disable(level)
        loop.close()
        shutil.rmtree(base, ignore_errors=True)
