"""Injects the faults of the plan: each is made, held and healed, and recorded in the history.

Every kind is a method that makes the fault and returns the function that heals it.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence

from msgspec.structs import replace

from cli.lab.chaos.damage import Surgeon
from cli.lab.chaos.history import Fault, Stuck
from cli.lab.chaos.net import OUR_HOST
from cli.lab.chaos.plan import DAMAGE_FAMILIES, Step
from cli.lab.chaos.stage import DISK_BYTES, Stage
from cli.lab.cluster import Program

ACCEPTED_TIMEOUT_S = 60.0
IN_SYNC_TIMEOUT_S = 90.0
HEAL_TIMEOUT_S = 120.0
POLL_S = 0.02
CLOCK_JUMPS_MS = (-86_400_000, -3_600_000, -60_000, -2_000, 2_000, 60_000, 3_600_000, 86_400_000)
FLUSH_LONGER_MS = (20, 200, 1_000, 3_000)

KILLED = 0.5
"""Share of the stopped replicas that are killed; the others end by SIGTERM."""

Heal = Callable[[], Awaitable[None]]


async def _nothing() -> None:
    """Heals nothing: a live replica heals its damage itself, or the damage stays."""


class StuckError(Exception):
    """The cluster did not recover although every fault was healed. The run ends; its history is checked."""


class Nemesis:
    """`tell` is called with a line of text per fault."""

    def __init__(self, stage: Stage, tell: Callable[[str], None]) -> None:
        self._stage, self._tell = stage, tell
        self._dice = random.Random(0)
        self._taken: list[Program] = []
        self.struck = 0

    async def strike(self, step: Step) -> None:
        """Runs one step. StuckError: the cluster accepts no message, or lacks replicas, after the time
        limit."""
        self._dice, self._taken = random.Random(step.dice), []
        stage, recorder = self._stage, self._stage.recorder
        master = stage.picture.master
        begun = recorder.clock()
        recorder.put(Fault(t=begun, phase="start", number=step.number, kinds=step.kinds, master=master))
        heals: list[Heal] = []
        try:
            for kind in step.kinds:
                heals.append(await self._make(kind))
            placed = recorder.clock()
            targets = tuple(program.name for program in self._taken)
            recorder.put(
                Fault(
                    t=placed,
                    phase="placed",
                    number=step.number,
                    kinds=step.kinds,
                    targets=targets,
                    master=master,
                )
            )
            self.struck += 1
            what = f"fault {step.number}: {' and '.join(step.kinds)}"
            self._tell(f"{what}: {', '.join(targets)} for {step.hold_ms} ms")
            await asyncio.sleep(step.hold_ms / 1_000)
        finally:
            for heal in reversed(heals):
                await heal()
        recorder.put(Fault(t=recorder.clock(), phase="end", number=step.number, kinds=step.kinds))
        await self.until(
            f"a send that is accepted after {what}",
            lambda: recorder.counts.accepted_since(placed),
            ACCEPTED_TIMEOUT_S,
        )
        if not step.impatient:
            await self.all_in_sync(f"all replicas in sync after {what}")

    async def all_in_sync(self, what: str) -> None:
        """Returns when a picture taken after this call has every broker in the SyncStateSet. StuckError: not
        in time."""
        stage, asked = self._stage, self._stage.recorder.clock()
        brokers = len(stage.cluster.brokers)
        await self.until(
            what, lambda: stage.picture_t > asked and stage.picture.all_in_sync(brokers), IN_SYNC_TIMEOUT_S
        )

    async def all_healed(self) -> None:
        """Restarts a replica with damage that is not healed yet, because a start begins a scrub, and returns
        when everything is healed or HEAL_TIMEOUT_S have passed: the check of the files shows which."""
        stage = self._stage
        names = [program.name for program in stage.cluster.brokers]
        wounded = await asyncio.to_thread(stage.ledger.allowed, names)
        if wounded is None:
            return
        self._tell(f"{wounded} has damage that is not healed: it is restarted, and checks its log")
        program = stage.cluster.brokers[names.index(wounded)]
        await stage.terminate(program)
        stage.start(program)
        await self.all_in_sync("all replicas in sync after the last restart")
        deadline = stage.recorder.clock() + int(HEAL_TIMEOUT_S * 1e6)
        while stage.recorder.clock() < deadline:
            if not await asyncio.to_thread(stage.ledger.open_of, wounded):
                return
            await asyncio.sleep(POLL_S)

    async def until(self, what: str, condition: Callable[[], bool], timeout_s: float) -> None:
        """Returns when the condition holds. StuckError: not within `timeout_s`; the history then has
        `what`."""
        recorder = self._stage.recorder
        deadline = recorder.clock() + int(timeout_s * 1e6)
        while not condition():
            if recorder.clock() > deadline:
                recorder.put(Stuck(t=recorder.clock(), what=f"{what} ({timeout_s:g} s)"))
                raise StuckError(what)
            await asyncio.sleep(POLL_S)

    # -- aim ---------------------------------------------------------------------------------------------

    def aim(self, role: str) -> Program:
        """Returns a program with this role that is not a target yet, or else any of its kind."""
        stage, picture = self._stage, self._stage.picture
        cluster = stage.cluster
        kinds = {"leader": cluster.name_servers, "controller": cluster.name_servers, "proxy": cluster.proxies}
        programs = kinds.get(role, cluster.brokers)
        name = picture.controller_leader if role == "leader" else picture.master
        free = [program for program in programs if program not in self._taken]
        if role in ("leader", "master"):
            chosen = [program for program in free if program.name == name]
        elif role == "slave":
            chosen = [program for program in free if program.name != name]
        else:
            chosen = []
        program = self._dice.choice(chosen or free or programs)
        self._taken.append(program)
        return program

    async def _make(self, kind: str) -> Heal:
        verb, _, role = kind.partition("-")
        if kind in ("kill-brokers", "kill-controllers", "kill-proxies", "kill-all"):
            return await self._kill_many(role)
        if kind == "power-brokers":
            return await self._power()
        if verb in DAMAGE_FAMILIES:
            return await self._damage(verb, role)
        if verb == "part":
            return await self._part(*role.split("-"))
        make = {
            "kill": self._kill,
            "pause": self._pause,
            "restart": self._restart,
            "cut": self._cut,
            "mute": self._mute,
            "deaf": self._deaf,
            "move": self._move,
            "fill": self._fill,
            "slow": self._slow,
            "clock": self._clock,
        }[verb]
        return await make(self.aim(role))

    # -- programs ----------------------------------------------------------------------------------------

    async def _kill(self, program: Program) -> Heal:
        await self._stage.kill(program)
        return self._starting([program])

    async def _kill_many(self, which: str) -> Heal:
        cluster = self._stage.cluster
        programs = {
            "brokers": cluster.brokers,
            "controllers": cluster.name_servers,
            "proxies": cluster.proxies,
            "all": cluster.programs,
        }[which]
        self._taken += programs
        await asyncio.gather(*(self._stage.kill(program) for program in programs))
        return self._starting(programs)

    async def _power(self) -> Heal:
        """All replicas stop at the same moment, so that none of them sees another one end. The system keeps
        what they wrote: unsynced bytes are not lost by this."""
        brokers = self._stage.cluster.brokers
        self._taken += brokers
        for program in brokers:
            self._stage.cluster.pause(program)
        await asyncio.gather(*(self._stage.kill(program) for program in brokers))
        return self._starting(self._dice.sample(brokers, len(brokers)))

    async def _restart(self, program: Program) -> Heal:
        """As a rolling upgrade does it: SIGTERM, and a master hands over."""
        recorder = self._stage.recorder
        if program.is_running and not await self._stage.terminate(program):
            recorder.put(Stuck(t=recorder.clock(), what=f"{program.name} does not end at SIGTERM"))
        return self._starting([program])

    def _starting(self, programs: Sequence[Program]) -> Heal:
        async def heal() -> None:
            for program in programs:
                self._stage.start(program)

        return heal

    async def _pause(self, program: Program) -> Heal:
        self._stage.cluster.pause(program)

        async def heal() -> None:
            self._stage.cluster.resume(program)

        return heal

    # -- network -----------------------------------------------------------------------------------------

    async def _cut(self, program: Program) -> Heal:
        net = self._stage.launcher.net
        assert net is not None
        net.unplug(program.name)

        async def heal() -> None:
            net.plug(program.name)

        return heal

    async def _mute(self, program: Program) -> Heal:
        return await self._cut_ways([(program.name, other) for other in self._others(program)])

    async def _deaf(self, program: Program) -> Heal:
        return await self._cut_ways([(other, program.name) for other in self._others(program)])

    async def _part(self, one: str, others: str) -> Heal:
        """Both directions, between the one and these others only; clients reach all of them."""
        cluster, program = self._stage.cluster, self.aim(one)
        group = cluster.name_servers if others == "controllers" else cluster.brokers
        names = [other.name for other in group if other is not program]
        ways = [(program.name, name) for name in names]
        return await self._cut_ways(ways + [(name, program.name) for name in names])

    async def _cut_ways(self, ways: list[tuple[str, str]]) -> Heal:
        net = self._stage.launcher.net
        assert net is not None
        await asyncio.to_thread(net.cut, ways)

        async def heal() -> None:
            await asyncio.to_thread(net.heal, ways)

        return heal

    def _others(self, program: Program) -> list[str]:
        return [OUR_HOST, *(other.name for other in self._stage.cluster.programs if other is not program)]

    async def _move(self, program: Program) -> Heal:
        """It comes back with another address."""
        await self._stage.kill(program)

        async def heal() -> None:
            self._stage.launcher.move(program)
            self._stage.start(program)

        return heal

    # -- damage ------------------------------------------------------------------------------------------

    async def _damage(self, verb: str, where: str) -> Heal:
        """Damages files of one replica. The one that has unhealed damage is chosen, if there is one: what the
        others have stays sound."""
        stage = self._stage
        await self.all_in_sync(f"all replicas in sync before {verb}")
        names = [program.name for program in stage.cluster.brokers]
        wounded = await asyncio.to_thread(stage.ledger.allowed, names)
        if wounded is None:
            program = self.aim("master" if where == "master" else "slave")
        else:
            program = stage.cluster.brokers[names.index(wounded)]
            self._taken.append(program)
        end = stage.confirmed_by_all()
        heal: Heal = _nothing
        if where == "stopped":
            if self._dice.random() < KILLED:
                await stage.kill(program)
            else:
                await stage.terminate(program)
            heal = self._starting([program])
        surgeon = Surgeon(stage.ledger, self._dice, program=program.name, store=stage.store(program), end=end)
        damage = await asyncio.to_thread(surgeon.strike, verb)
        if damage is not None:
            stage.recorder.put(replace(damage, t=stage.recorder.clock()))
            self._tell(f"{verb}: {damage.length} bytes at {damage.start} of {damage.program}/{damage.file}")
        return heal

    # -- disk and clock ----------------------------------------------------------------------------------

    async def _fill(self, program: Program) -> Heal:
        net, disk = self._stage.launcher.net, self._stage.store(program)
        assert net is not None
        self._stage.filled.add(program.name)
        await asyncio.to_thread(net.fill_disk, disk)

        async def heal() -> None:
            await asyncio.to_thread(net.free_disk, disk, DISK_BYTES)
            self._stage.filled.discard(program.name)

        return heal

    async def _slow(self, program: Program) -> Heal:
        fault_shim = self._stage.launcher.fault_shims[program.name]
        fault_shim.set_flush(self._dice.choice(FLUSH_LONGER_MS))

        async def heal() -> None:
            fault_shim.set_flush(0)

        return heal

    async def _clock(self, program: Program) -> Heal:
        """The wall clock jumps, and jumps back at the end."""
        fault_shim = self._stage.launcher.fault_shims[program.name]
        fault_shim.set_clock(self._dice.choice(CLOCK_JUMPS_MS))

        async def heal() -> None:
            fault_shim.set_clock(0)

        return heal
