"""A group of members on virtual time, clients that repeat, a nemesis, checks at the end. A seed is a run."""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from keelmq.runtime.config import ConfigError
from keelmq.runtime.tasks import cancel_all
from namesrv.plugins.controller.raft import proposals
from namesrv.plugins.controller.raft.api import AppendOutcome, Busy, Committed, NotActive, RaftSettings
from tests.sim.raft.checkers import Checker, Violation
from tests.sim.raft.disk import Disks
from tests.sim.raft.network import Network
from tests.sim.raft.process import SimProcess
from tests.sim.raft.virtual import Clock, VirtualLoop, virtual_library

FAULTS_S, HEALING_S = 12.0, 25.0
FAST_DIRECTORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
UNTOLD = object()  # the process died before it answered


@dataclass(frozen=True)
class Conditions:
    """What a seed has to bear. Rates are relative weights of the nemesis's choices."""

    members: int = 3
    delay_max_s: float = 0.02
    compaction_entries: int = 5_000
    append_bytes: int = 1024 * 1024
    duplicates: float = 0.0
    in_flight: int = 2  # entries; above 2 each holds one event, so that logs differ by more than a batch
    clients: int = 4
    faults_s: float = FAULTS_S
    fault_every_s: float = 0.7
    resets: int = 2
    cuts: int = 3
    one_way: int = 2
    kills: int = 2
    power_cuts: int = 2
    blackouts: int = 1  # power cut of all at once
    pauses: int = 1
    wipes: int = 1  # a disk is lost; never of so many that no majority of disks is whole


def conditions_of(random: Random) -> Conditions:
    return Conditions(
        members=random.choice((3, 3, 3, 5)),
        delay_max_s=random.choice((0.003, 0.02, 0.06)),
        compaction_entries=random.choice((12, 30, 5_000)),
        append_bytes=random.choice((300, 2_000, 1024 * 1024)),
        duplicates=random.choice((0.0, 0.0, 0.03)),
        **random.choice(({}, {"in_flight": 24, "clients": 16})),
        fault_every_s=random.choice((0.3, 0.7, 1.5)),
    )


class World:
    def __init__(self, seed: int, loop: VirtualLoop, directory: Path, **changes: Any) -> None:
        self.seed, self.loop, self.random = seed, loop, Random(seed)
        self.conditions = replace(conditions_of(self.random), **changes)
        self.clock, self.disks, self.checker = Clock(loop), Disks(), Checker()
        self.network = Network(
            loop,
            self.random,
            delay_max_s=self.conditions.delay_max_s,
            duplicates=self.conditions.duplicates,
        )
        self.directory = directory
        names = [f"n{index}" for index in range(self.conditions.members)]
        self.addresses = {name: (name, 1) for name in names}
        self.disk_of = {name: self.disks.add(directory / name) for name in names}
        self.files: dict[str, dict[str, tuple[str, int]]] = {}
        self.processes: dict[str, SimProcess] = {}
        self.notes: list[str] = []
        self.fatal: list[str] = []
        self.wiped_at = 0.0
        self._event = 0

    # ------------------------------------------------------------------ members
    def join(self, name: str) -> None:
        """A newcomer, or one that was removed before: with an empty disk, and a list of all there are."""
        if name not in self.disk_of:
            self.disk_of[name] = self.disks.add(self.directory / name)
        self.disk_of[name].wipe()
        self.files.pop(name, None)
        self.start(name)

    def leave(self, name: str) -> None:
        """It was removed: nobody starts it again."""
        process = self.processes.pop(name)
        if process.alive:
            process.end(silently=False)

    def settings(self, name: str) -> RaftSettings:
        """A member's file lists the members of its first start: nobody edits it before a change is in the
        log."""
        all_there_are = {each: (each, 1) for each in sorted({*self.processes, *self.addresses, name})}
        return RaftSettings(
            self_id=name,
            members=self.files.setdefault(name, all_there_are),
            directory=self.disk_of[name].root,
            cluster_id="sim",
            secret=bytes(32),
            compaction_entries=self.conditions.compaction_entries,
            append_deadline_s=1.5,
            on_fatal=lambda code, text: self._fatal(name, code, text),
        )

    def start(self, name: str) -> None:
        process = self.processes[name] = SimProcess(name, self, self.settings(name))
        try:
            process.start()
        except ConfigError as error:
            self.checker.violated(f"{name} does not start: {error}")

    def _fatal(self, name: str, code: int, text: str) -> None:
        self.note(f"{name} ends with {code}: {text}")
        self.checker.violated(f"{name} ends with {code}: {text}")

    def died(self, process: SimProcess) -> None:
        process.end(silently=False)

    def note(self, text: str) -> None:
        self.notes.append(f"{self.loop.time() - 1000:9.4f} {text}")

    # ------------------------------------------------------------------ clients
    async def ask(self, process: SimProcess, asked: Any) -> Any:
        task = self.loop.create_task(asked)
        await asyncio.wait({task, process.gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        task.cancel()
        return UNTOLD

    def someone(self) -> SimProcess | None:
        running = [each for each in self.processes.values() if each.alive]
        active = [each for each in running if each.replicator.is_active]
        if active and self.random.random() < 0.9:
            return self.random.choice(active)
        return self.random.choice(running) if running else None

    async def client(self, name: str, end: float) -> None:
        while self.loop.time() < end:
            await asyncio.sleep(self.random.uniform(0.001, 0.12))
            process = self.someone()
            if process is None:
                continue
            if self.random.random() < 0.2:
                await self.read(process)
            else:
                self._event += 1
                await self.append(process, f"{name}-{self._event}")

    async def append(self, process: SimProcess, event: str) -> bool:
        began = self.loop.time()
        outcome = await self.ask(process, process.replicator.append(event.encode()))
        if isinstance(outcome, Committed):
            self.checker.acknowledge(event, outcome.result)
        elif isinstance(outcome, NotActive | Busy):
            self.checker.refuse(event)
        else:
            self.settle(outcome, began)
        return isinstance(outcome, Committed)

    async def read(self, process: SimProcess) -> None:
        began, floor = self.loop.time(), self.checker.floor()
        outcome = await self.ask(process, process.replicator.barrier())
        if isinstance(outcome, Committed):
            self.checker.read(process.name, floor, process.machine.events)
        else:
            self.settle(outcome, began)

    def settle(self, outcome: AppendOutcome | object, began: float) -> None:
        if outcome is not UNTOLD and not isinstance(outcome, NotActive | Busy):
            self.checker.unknown(began, self.loop.time())

    # ------------------------------------------------------------------ faults
    async def nemesis(self, end: float) -> None:
        conditions, choices = self.conditions, list[Callable[[], float]]()
        choices += [self.reset_one] * conditions.resets + [self.cut_some] * conditions.cuts
        choices += [self.cut_one_way] * conditions.one_way + [self.kill_one] * conditions.kills
        choices += [self.power_cut_one] * conditions.power_cuts + [self.blackout] * conditions.blackouts
        choices += [self.pause_one] * conditions.pauses + [self.wipe_one] * conditions.wipes
        while self.loop.time() < end and choices:
            await asyncio.sleep(self.random.uniform(0.05, 2 * conditions.fault_every_s))
            now = self.loop.time()
            self.checker.trouble(now, now + self.random.choice(choices)())
            if self.random.random() < 0.4:
                self.network.heal()

    def pick(self, count: int) -> list[str]:
        """The first is an active member half of the time: that is where it hurts."""
        names = self.random.sample(sorted(self.processes), len(self.processes))
        if self.random.random() < 0.5:
            names.sort(key=lambda name: not self.processes[name].replicator.is_active)
        return names[:count]

    def reset_one(self) -> float:
        one, other = self.pick(2)
        self.network.reset(one, other)
        return 0.1

    def cut_some(self) -> float:
        alone, *rest = self.pick(len(self.processes))
        for other in rest if self.random.random() < 0.5 else rest[:1]:
            self.network.cut(alone, other)
        return self._until_healed(f"cut {alone}")

    def cut_one_way(self) -> float:
        alone, *rest = self.pick(len(self.processes))
        for other in rest if self.random.random() < 0.5 else rest[:1]:
            self.network.cut(*self.random.choice(((alone, other), (other, alone))), both=False)
        return self._until_healed(f"cut {alone} one way")

    def _until_healed(self, text: str) -> float:
        duration = self.random.uniform(0.2, 4.0)
        self.note(text)
        self.loop.call_later(duration, self.network.heal)
        return duration

    def kill_one(self) -> float:
        return self.stop(self.pick(1)[0], power=False)

    def power_cut_one(self) -> float:
        return self.stop(self.pick(1)[0], power=True)

    def blackout(self) -> float:
        return max(self.stop(name, power=True) for name in sorted(self.processes))

    def stop(self, name: str, *, power: bool, revive: bool = True) -> float:
        process = self.processes[name]
        if not process.alive:
            return 0.0
        self.note(f"{'power cut of' if power else 'kill -9'} {name}")
        process.end(silently=power)
        if power:
            self.disk_of[name].power_cut(self.random)
        duration = self.random.uniform(0.05, 3.0)
        if revive:
            self.loop.call_later(duration, self.revive, name)
        return duration

    def wipe_one(self) -> float:
        """The member comes back with an empty disk. Until it has everything again, it counts as lost."""
        (name,) = self.pick(1)
        others = (each for each in self.processes.values() if each.name != name)
        whole = {each.name for each in others if self.is_whole(each)}
        if self.loop.time() < self.wiped_at + 3.0 or not self.is_enough(whole):
            return 0.0
        self.wiped_at = self.loop.time()
        duration = self.stop(name, power=True)
        if duration:
            self.note(f"wipe {name}")
            self.disk_of[name].wipe()
        return duration

    def is_enough(self, names: set[str]) -> bool:
        """A majority by every member list that somebody has, also by one that is not committed yet."""
        member_lists = [each.replicator.member_list.members.keys() for each in self.processes.values()]
        return all(2 * len(names & member_list) > len(member_list) for member_list in member_lists)

    def is_whole(self, process: SimProcess) -> bool:
        """Its disk holds everything that it may have promised to hold."""
        caught_up = len(process.machine.events) >= self.checker.floor()
        return process.alive and bool(process.member.joining.is_member) and caught_up

    def revive(self, name: str) -> None:
        if name in self.processes and not self.processes[name].alive and self.loop.is_running():
            self.note(f"start {name}")
            self.start(name)

    def pause_one(self) -> float:
        (name,) = self.pick(1)
        process, duration = self.processes[name], self.random.uniform(0.1, 3.0)
        if process.alive and not process.paused:
            self.note(f"pause {name}")
            process.paused = True
            process.offset += self.random.choice((0.0, 0.0, 3600.0))  # a suspended machine: its clock jumps
            self.loop.call_later(duration, process.resume)
        return duration

    # ------------------------------------------------------------------ the run
    async def run(self, script: Script | None = None) -> None:
        """Faults, by the nemesis or a script, then healing, then checks. Raises Violation."""
        for name in sorted(self.addresses):
            self.start(name)
        end = self.loop.time() + self.conditions.faults_s
        self.checker.trouble(self.loop.time(), self.loop.time() + 1.0)  # the first election
        tasks = [self.loop.create_task(self.client(f"c{i}", end)) for i in range(self.conditions.clients)]
        tasks.append(self.loop.create_task(self.nemesis(end) if script is None else script(self)))
        while self.loop.time() < end:
            await asyncio.sleep(0.25)
            self.raise_violation()
        await self.heal(tasks)
        self.checker.final({each.name: each.machine.events for each in self.in_group()})
        self.raise_violation()
        if not self.checker.acknowledged:
            raise Violation("nothing was ever acknowledged")

    def raise_violation(self) -> None:
        if self.checker.violations:
            raise Violation("; ".join(self.checker.violations[:4]))
        return None

    async def heal(self, tasks: list[asyncio.Task[None]]) -> None:
        """Everything works again: one more event is accepted, and all members have it. Raises Violation."""
        self.checker.trouble(self.loop.time(), self.loop.time() + HEALING_S)
        self.network.heal()
        self.network.duplicates = 0.0
        for name, process in self.processes.items():
            self.network.loop.call_later(0.5, self.revive, name)
            process.resume()
        deadline, last = self.loop.time() + HEALING_S, False
        while self.loop.time() < deadline:
            await asyncio.sleep(0.2)
            self.network.heal()
            self.raise_violation()
            process = self.someone()
            if not last and process is not None and all(task.done() for task in tasks):
                self._event += 1
                last = await self.append(process, f"last-{self._event}")
            if last and self.converged():
                await asyncio.gather(*tasks)  # all done: what one of them raised
                return
        raise Violation(f"not healed: {[self.state_of(name) for name in sorted(self.processes)]}")

    def converged(self) -> bool:
        processes = self.in_group()
        if not processes or not all(each.alive for each in processes):
            return False
        ends = {each.core.log[-1][1] for each in processes} | {each.core.last_applied for each in processes}
        return len(ends) == 1 and sum(each.replicator.is_active for each in processes) == 1

    def in_group(self) -> list[SimProcess]:
        """As the active member has it: a newcomer may not have come so far."""
        active = [each for each in self.processes.values() if each.alive and each.replicator.is_active]
        ids = active[0].replicator.member_list.members if active else {}
        return [each for name, each in self.processes.items() if name in ids]

    def state_of(self, name: str) -> str:
        process = self.processes[name]
        core = process.core
        return (
            f"{name} alive {process.alive} leads {core.leads} active {process.replicator.is_active} term "
            f"{core.term} applied {core.last_applied} commit {core.commit_index} last {core.log[-1][1]} "
            f"links {process.member.links.connected()} standing {process.member.joining.own.state} "
            f"group {sorted(process.replicator.member_list.members)} "
            f"since {process.replicator.member_list.index}"
        )


Script = Callable[[World], Coroutine[Any, Any, None]]


def run_seed(seed: int, script: Script | None = None, **changes: Any) -> World:
    """Raises Violation. `changes`: fields of Conditions, for a test that wants a certain one."""
    loop = VirtualLoop()
    logging.disable(logging.CRITICAL)
    try:
        with tempfile.TemporaryDirectory(prefix="raft-sim-", dir=FAST_DIRECTORY) as directory:
            world = World(seed, loop, Path(directory), **changes)
            with (
                virtual_library(world.clock, world.random, APPEND_BYTES_MAX=world.conditions.append_bytes),
                mock.patch.object(proposals, "IN_FLIGHT_MAX", world.conditions.in_flight),
                mock.patch.object(proposals, "BATCH_MAX", 256 if world.conditions.in_flight <= 2 else 1),
                world.disks.installed(),
            ):
                try:
                    loop.run_until_complete(world.run(script))
                except Violation as violation:
                    story = "\n".join(world.notes[-60:])
                    raise Violation(f"seed {seed} {world.conditions}: {violation}\n{story}") from None
                finally:
                    for process in world.processes.values():
                        if process.alive:
                            process.end(silently=True)
                    loop.run_until_complete(cancel_all(asyncio.all_tasks(loop)))
            return world
    finally:
        logging.disable(logging.NOTSET)
        loop.close()
