"""A cluster of whole controllers in the virtual world: one seed, one weather, one row of faults, one verdict.

`ModelWorld` has a model of the log under the controllers; raft_world.py the real library.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from keelmq.runtime.tasks import cancel_all
from tests.sim.checkers import Violation
from tests.sim.control.clients import Air, Broker, Client, Copy, Disk, Operator
from tests.sim.control.model_log import ModelLog, ModelReplicator
from tests.sim.control.node import Node
from tests.sim.control.truth import Truth
from tests.sim.raft.virtual import VirtualLoop

FAULTS_S, HEALING_S = 20.0, 20.0
"""Within HEALING_S after the last fault every group has its master again, and all controllers agree."""


@dataclass(frozen=True)
class Conditions:
    members: int
    groups: int
    replicas: int
    loss: float
    duplicates: float
    delay_max_s: float
    fault_every_s: float
    quiet_brokers: (
        bool  # faults hit controllers only, and nobody asks for changes: no group changes its master
    )

    @classmethod
    def of(cls, random: Random) -> Conditions:
        quiet = random.random() < 0.15
        return cls(
            members=random.choice((3, 3, 3, 5)),
            groups=random.choice((1, 2, 3)),
            replicas=random.choice((2, 3)),
            loss=0.0 if quiet else random.choice((0.0, 0.0, 0.02, 0.15)),
            duplicates=random.choice((0.0, 0.02, 0.2)),
            delay_max_s=random.choice((0.003, 0.02, 0.06)),
            fault_every_s=random.choice((0.3, 0.7, 1.5)),
            quiet_brokers=quiet,
        )


class ControlWorld:
    """What both kinds have in common: clients, their faults, the end. A subclass runs the controllers."""

    def __init__(self, seed: int, loop: VirtualLoop, **changes: Any) -> None:
        self.seed, self.loop, self.random = seed, loop, Random(seed)
        self.conditions = replace(Conditions.of(self.random), **changes)
        self.truth = Truth()
        self.nodes: dict[str, Node] = {}
        self.names = [f"n{number}" for number in range(self.conditions.members)]
        self.notes: list[str] = []
        self.faults: Counter[str] = Counter()
        conditions = self.conditions
        self.air = Air(
            loop,
            self.random,
            self.nodes,
            self.truth,
            conditions.loss,
            conditions.duplicates,
            conditions.delay_max_s,
        )
        self.groups = [f"g{number}" for number in range(conditions.groups)]
        self.disks = {
            f"{group}-b{number}": (group, Disk())
            for group in self.groups
            for number in range(conditions.replicas)
        }
        self.brokers: dict[str, Broker] = {}
        self.copies: list[Copy] = []
        self.operators: list[Client] = []

    # ---- a subclass knows ----

    def start_controllers(self) -> None:
        raise NotImplementedError

    def controller_fault(self) -> None:
        """One of its kind, and when it ends."""
        raise NotImplementedError

    def heal_controllers(self) -> None:
        """All of them work, and reach each other."""
        raise NotImplementedError

    def agree(self) -> bool:
        """One is active, and every one has everything."""
        nodes = self.nodes.values()
        counts = {node.plugin.machine.state.event_count for node in nodes}
        return counts == {len(self.truth.history)} and sum(node.is_active for node in nodes) == 1

    # ---- brokers ----

    def start_broker(self, name: str) -> None:
        group, disk = self.disks[name]
        self.brokers[name] = Broker(name, group, self.air, disk)

    def kill_broker(self) -> None:
        up = [name for name, broker in sorted(self.brokers.items()) if broker.alive]
        if not up:
            return
        name = self.random.choice(up)
        wiped = self.random.random() < 0.15
        self.note("wipe" if wiped else "kill", name)
        self.brokers[name].end()
        if wiped:
            self.disks[name] = (self.disks[name][0], Disk())
        self.loop.call_later(self.random.uniform(0.01, 4.0), self._revive, name)

    def _revive(self, name: str) -> None:
        if not self.brokers[name].alive:
            self.start_broker(name)

    def copy_broker(self) -> None:
        """Its disk is copied, and a second process is started over the copy for a while."""
        registered = [name for name, broker in sorted(self.brokers.items()) if broker.is_registered]
        if not registered:
            return
        name = self.random.choice(registered)
        self.note("copy", name)
        copy = Copy(f"{name}-copy{len(self.copies)}", self.brokers[name])
        self.copies.append(copy)
        self.loop.call_later(self.random.uniform(0.2, 3.0), copy.end)

    def cut_broker(self) -> None:
        name = self.random.choice(sorted(self.disks))
        nodes = self.names if self.random.random() < 0.5 else [self.random.choice(self.names)]
        self.note("cut", f"{name} from {' '.join(nodes)}")
        self.air.cut |= {frozenset((name, node)) for node in nodes}
        self.loop.call_later(self.random.uniform(0.1, 4.0), self._mend, name)

    def _mend(self, name: str) -> None:
        self.air.cut = {pair for pair in self.air.cut if name not in pair}

    # ---- the run ----

    def note(self, what: str, text: str = "") -> None:
        self.faults[what] += 1
        self.notes.append(f"{self.loop.time() - 1_000:9.4f} {what} {text}")

    async def run(self) -> None:
        """Faults, then healing, then every promise is checked. Raises Violation."""
        self.start_controllers()
        for name in self.disks:
            self.start_broker(name)
        quiet = self.conditions.quiet_brokers
        self.operators.append(Operator("operator", self.air, self.groups, changes=not quiet))
        if quiet:
            await self._until(self._settled)
        before = dict(self.truth.elections)
        end = self.loop.time() + FAULTS_S
        while self.loop.time() < end:
            await asyncio.sleep(self.random.uniform(0.05, 2 * self.conditions.fault_every_s))
            self._fault()
            self.raise_violation()
        await self._heal()
        if quiet and before != self.truth.elections:
            raise Violation(f"a group changed its master because a controller died: {self.truth.elections}")
        if not self.truth.acknowledged:
            raise Violation("nothing was ever acknowledged")

    def _fault(self) -> None:
        choices: list[Callable[[], None]] = [self.controller_fault] * 2
        if not self.conditions.quiet_brokers:
            choices += [self.kill_broker, self.cut_broker, self.copy_broker]
        self.random.choice(choices)()

    async def _heal(self) -> None:
        for client in [*self.operators, *self.copies]:
            client.end()
        self.air.cut.clear()
        self.air.loss = self.air.duplicates = 0.0
        self.heal_controllers()
        for name in sorted(self.brokers):
            self._revive(name)
        self.notes.append(f"{self.loop.time() - 1_000:9.4f} healed")
        await self._until(self._settled)
        self.truth.final({name: node.plugin.machine.state for name, node in self.nodes.items()})
        self.raise_violation()

    async def _until(self, condition: Callable[[], bool]) -> None:
        deadline = self.loop.time() + HEALING_S
        while not condition():
            self.raise_violation()
            if self.loop.time() > deadline:
                raise Violation(f"not healed within {HEALING_S} s: {'; '.join(self.problems())}")
            await asyncio.sleep(0.1)

    def _settled(self) -> bool:
        return not self.problems()

    def problems(self) -> list[str]:
        found = [] if self.agree() else [f"the controllers do not agree: {self.members_text()}"]
        for broker in self.brokers.values():
            if not broker.is_registered:
                found.append(f"{broker.name} is not registered: {broker.registration}")
        for group in self.groups:
            members = [each for each in self.brokers.values() if each.group == group and each.is_registered]
            problem = self.truth.healed(
                group, [each.broker_id for each in members if each.broker_id is not None]
            )
            if problem is not None:
                found.append(problem)
            state = self.truth.states[-1].brokers.get(group)
            if state is not None and state.master_broker_id is not None:
                late = [each.name for each in members if each.info.master_epoch != state.master_epoch]
                found += [f"{name} does not know masterEpoch {state.master_epoch}" for name in late]
        return found

    def members_text(self) -> str:
        return ", ".join(
            f"{name} active {node.is_active} events {node.plugin.machine.state.event_count}"
            for name, node in sorted(self.nodes.items())
        )

    def raise_violation(self) -> None:
        tasks = [task for each in self._clients() for task in each.finished()]
        for task in tasks:
            task.result()  # a bug of the simulator shows here
        if self.truth.violations:
            raise Violation("; ".join(self.truth.violations[:3]))

    def _clients(self) -> list[Client]:
        return [*self.brokers.values(), *self.copies, *self.operators]

    def close(self) -> None:
        for client in self._clients():
            client.end()
        for node in self.nodes.values():
            node.end()


class ModelWorld(ControlWorld):
    """Controllers over ModelLog."""

    def __init__(self, seed: int, loop: VirtualLoop, **changes: Any) -> None:
        super().__init__(seed, loop, **changes)
        self.log = ModelLog(loop, self.random, self.air, self.names, lambda text: self.note("lead", text))

    def start_controllers(self) -> None:
        for name in self.names:
            self._start(name)
        self.log.tick()

    def _start(self, name: str) -> None:
        made: list[ModelReplicator] = []

        def replicator(machine: object) -> ModelReplicator:
            made.append(ModelReplicator(self.log, name, machine))  # type: ignore[arg-type]
            return made[0]

        self.nodes[name] = Node(name, self.names, self.truth, replicator)
        made[0].begin()

    def controller_fault(self) -> None:
        name = self.random.choice(self.names)
        if self.log.leader is not None and self.random.random() < 0.5:
            name = self.log.leader.self_id
        if self.random.random() < 0.5:
            self._kill(name)
            return
        others = [each for each in self.names if each != name]
        others = others if self.random.random() < 0.6 else [self.random.choice(others)]
        self.note("partition", f"{name} from {' '.join(others)}")
        self.air.cut |= {frozenset((name, other)) for other in others}
        self.loop.call_later(self.random.uniform(0.1, 4.0), self._mend, name)

    def _kill(self, name: str) -> None:
        node = self.nodes[name]
        if node.alive:
            self.note("crash", name)
            node.end()
            replicator = node.plugin.replicator
            assert isinstance(replicator, ModelReplicator)
            self.log.died(replicator)
            self.loop.call_later(self.random.uniform(0.02, 3.0), self._restart, name)

    def _restart(self, name: str) -> None:
        if not self.nodes[name].alive:
            self.note("restart", name)
            self._start(name)

    def heal_controllers(self) -> None:
        for name in self.names:
            self._restart(name)


def run_seed(seed: int, **changes: Any) -> ModelWorld:
    """Raises Violation, with the story of the run. `changes`: fields of Conditions."""
    loop = VirtualLoop()
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        world = ModelWorld(seed, loop, **changes)
        judge(world)
        return world
    finally:
        logging.disable(level)
        loop.close()


def judge(world: ControlWorld) -> None:
    """Runs it to its end; a Violation gets the seed and the story."""
    try:
        world.loop.run_until_complete(world.run())
    except Violation as violation:
        story = "\n".join(world.notes[-60:])
        raise Violation(f"seed {world.seed} {world.conditions}: {violation}\n{story}") from None
    finally:
        world.close()
        world.loop.run_until_complete(cancel_all(asyncio.all_tasks(world.loop)))
