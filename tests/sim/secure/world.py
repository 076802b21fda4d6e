"""A whole group with security on: the programs of tests/sim/whole with authentication, authorization and
credentials of members, an attacker in the network, and users that change while masters do.

TLS is not simulated: its transport (keelmq/runtime/tls) decides nothing by what a peer says.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine
from pathlib import Path
from random import Random
from typing import Any

from broker.app.broker import Broker
from keelmq.remoting.operation import Ok, Outcome
from keelmq.remoting.operations.auth import AUTH_CREATE_USER, UserInfo, UserRequest
from keelmq.security.core.access import WRONG_SIGNATURE
from keelmq.security.signer import Signer
from tests.sim.checkers import Violation
from tests.sim.secure.admissions import Admissions
from tests.sim.secure.attacker import Attacker
from tests.sim.secure.keys import ADMIN, BROKER_SETTINGS, FOUNDER, ROOT, SETTINGS, signer_for
from tests.sim.secure.on_path import OnPath
from tests.sim.secure.users import UserAdministrator, UserJudge, UserState, state_at
from tests.sim.whole.clients import Client
from tests.sim.whole.group import Conditions, WholeGroup, play
from tests.sim.whole.machines import WALL_S, MachineLoop, Process
from tests.sim.whole.nemesis import Nemesis
from tests.sim.whole.programs import BrokerRun

SKEW_S = 0.3
"""By so much a machine's wall clock is wrong all the time; jumps come in addition."""
RATES = (0.0, 0.03, 0.15)
"""How many of the requests with a proof somebody on the path touches."""
TAKEN = 0.4
"""How often the attacker answers at the address of a host that died."""
TAKEN_AFTER_S = 0.02
FOUND_S = 10.0


class Idle(Client):
    async def live(self) -> None:
        await asyncio.Event().wait()


class SecureGroup(WholeGroup):
    """`admissions`: of what run() observes."""

    def __init__(
        self, seed: int, loop: MachineLoop, base: Path, conditions: Conditions | None = None
    ) -> None:
        super().__init__(seed, loop, base, conditions)
        self.admissions, self.users = Admissions(), UserJudge()
        self.more_dice = Random(f"secure {seed}")
        rate = self.more_dice.choice(RATES)
        self.on_path = OnPath(loop, self.network, Random(f"path {seed}"), rate)
        self.attacker = Attacker(self, self.on_path)

    # -- what it is made of ------------------------------------------------------------------------------

    def controller_settings(self, name: str) -> dict[str, object]:
        return {**SETTINGS, "usersPath": self.base / name / "users"}

    def signer_of(self, client: str) -> Signer:
        return signer_for(client)

    def start_controller(self, name: str) -> None:
        self.attacker.leave(name)
        super().start_controller(name)
        self._begins(self.controllers[name].process)

    def start_broker(self, name: str, **settings: object) -> BrokerRun:
        self.attacker.leave(name)
        run = super().start_broker(name, **{**BROKER_SETTINGS, **settings})
        self._begins(run.process)
        return run

    def _begins(self, process: Process) -> None:
        process.skew_s = self.more_dice.uniform(-SKEW_S, SKEW_S)
        self.admissions.started(process, self.wall_ms(process.skew_s))

    def wall_ms(self, skew_s: float = 0.0) -> int:
        """What a wall clock shows now."""
        return int((WALL_S + self.loop.time() + skew_s) * 1_000)

    async def begin(self) -> None:
        """Everything runs, and clients use it."""
        self.start()
        await self.until(lambda: self.master is not None, 10.0)
        await self.found()
        self.start_clients()

    async def found(self) -> None:
        """The user of initAuthenticationUser creates the administrator."""
        founder = Idle(self, FOUNDER, "10.0.2.6")
        self.clients.append(founder)
        header = UserRequest(username=ADMIN.access_key)
        info = UserInfo(username=ADMIN.access_key, password=ADMIN.secret_key, user_type="Super")
        end = self.loop.time() + FOUND_S
        while self.loop.time() < end:
            await asyncio.sleep(0.05)
            outcome = await self.do(founder, founder.ask(AUTH_CREATE_USER, header, info))
            if isinstance(outcome, Ok):
                for each in (ROOT, ADMIN):
                    self.users.created(each.access_key, UserState(each.secret_key, is_super=True))
                return
        raise Violation(f"there is no administrator: {outcome}")

    def start_clients(self, *, producers: int = 2, pause_s: float = 0.05, others: bool = True) -> None:
        founders = self.clients
        super().start_clients(producers=producers, pause_s=pause_s, others=others)
        self.clients += founders
        if others:
            self.clients.append(UserAdministrator(self, "users", "10.0.2.5", self.users))

    def is_final(self, outcome: Outcome[Any]) -> bool:
        """A broker that has not heard of the user refuses the signature, and the attacker may send the same
        request when it has (ADR 31, "What remains")."""
        return super().is_final(outcome) and getattr(outcome, "remark", "") != WRONG_SIGNATURE

    # -- deaths ------------------------------------------------------------------------------------------

    def kill(self, name: str, *, power: bool = False) -> None:
        was_alive = self.brokers[name].process.alive
        super().kill(name, power=power)
        self._died(name, was_alive)

    def kill_controller(self, name: str) -> None:
        was_alive = self.controllers[name].process.alive
        super().kill_controller(name)
        self._died(name, was_alive)

    def _died(self, name: str, was_alive: bool) -> None:
        if was_alive and self.more_dice.random() < TAKEN:
            self.loop.call_later(TAKEN_AFTER_S, self._take, name)

    def _take(self, name: str) -> None:
        if not self.process_of(name).alive:
            self.attacker.take(name)

    # -- judgement ---------------------------------------------------------------------------------------

    def look_at_metadata(self, run: BrokerRun, broker: Broker) -> None:
        super().look_at_metadata(run, broker)
        self.users.judge(run.name, {name: state_at(broker.users, name) for name in self.users.known})
        self.look_at_doors(run, broker)

    def look_at_doors(self, run: BrokerRun, broker: Broker, names: Collection[str] | None = None) -> None:
        """names: of the users in question; None: all."""
        access = broker.security.access
        assert access is not None
        self.users.judge_doors(run.name, access.control, self.wall_ms(run.process.skew_s), names)

    def user_changed(self, name: str) -> None:
        """A change was acknowledged: it counts at the master, at once."""
        run = self.master
        if run is not None and run.serving is not None:
            try:
                self.look_at_doors(run, run.serving, (name,))
            except Violation as violation:
                self.failed = self.failed or violation

    def raise_problem(self) -> None:
        super().raise_problem()
        self.admissions.raise_problem()
        self.attacker.raise_problem()

    async def conclude(self) -> None:
        self.on_path.end()
        self.attacker.end()
        for run in (*self.brokers.values(), *self.controllers.values()):
            run.process.skew_s = 0.0
        await super().conclude()
        if self.admissions.unnamed:
            raise Violation(f"{self.admissions.unnamed} proofs name no recipient")


Story = Callable[[SecureGroup], Coroutine[Any, Any, None]]


class SecureNemesis(Nemesis):
    """Wall clocks of controllers jump, too."""

    def __init__(self, world: SecureGroup) -> None:
        super().__init__(world)
        self.faults = (*self.faults, self.jump_a_controllers_clock)

    async def jump_a_controllers_clock(self) -> None:
        name = self.dice.choice(sorted(self.world.controllers))
        process = self.world.controllers[name].process
        process.skew_s += self.dice.choice((-3_600.0, -5.0, 5.0, 86_400.0))
        self.world.note("clock", f"{name} {process.skew_s:+.0f} s")


async def story(world: SecureGroup) -> None:
    """A seed: everything starts, faults and attacks, everything heals, the verdict."""
    await world.begin()
    await SecureNemesis(world).run()
    await world.conclude()
    await world.serves()


def run(seed: int, what: Story = story, conditions: Conditions | None = None) -> SecureGroup:
    """One world, with every signature and every check observed."""

    async def observed(world: SecureGroup) -> None:
        with world.admissions.observing():
            await what(world)

    return play(seed, observed, conditions, world_type=SecureGroup)


def run_seed(seed: int) -> SecureGroup:
    return run(seed)
