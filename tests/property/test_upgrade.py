"""keelmq upgrade against a model of a cluster: crashes and elections at any time, and an upgrade that is
interrupted anywhere and begun again without memory.

Whatever happens, a step begins only when everything runs and is in sync, brokers are never newer than
controllers and name servers, and the last word is Done, twice.
"""

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from cli.upgrade.core.steps import Deed, Done, HandOver, Restart, Stop, TransferLeader, Wait, next_step, plan
from cli.upgrade.core.view import Facts, Kind, View, rank, view_of
from keelmq.health.status import (
    ClusterStatus,
    ControllerStatus,
    GroupStatus,
    NameServerStatus,
    ReplicaStatus,
    Verdict,
)

VERSIONS = ("", "0.1.0", "0.2.0", "0.10.0")
TICKS_MAX = 2_000


@dataclass
class Process:
    """A process of the model. brokers: (group, broker id) of the replicas in it. down: ticks until it
    runs."""

    kind: Kind
    address: str
    version: str
    member: str = ""
    brokers: list[tuple[str, int]] = field(default_factory=list)
    down: int = 0


class Model:
    """The cluster. `dice` decides its form, its crashes, and how long everything takes."""

    def __init__(self, dice: random.Random, target: str) -> None:
        self._dice, self.target = dice, target
        self.processes: list[Process] = []
        self._make_controllers()
        self.controllers = [each.member for each in self.processes if each.member]
        self.leader = dice.choice(self.controllers)
        self.min_in_sync = dice.choice((1, 2))
        self._make_brokers()
        self.masters = {name: dice.choice(ids) for name, ids in self.ids.items()}
        self.in_sync = {name: set(ids) for name, ids in self.ids.items()}
        self.linked = {name: set(ids) for name, ids in self.ids.items()}
        self.name_servers = [each for each in self.processes if each.kind is Kind.NAME_SERVER]
        self.registered = {each.address: self._replicas() for each in self.name_servers}

    def _replicas(self) -> set[tuple[str, int]]:
        return {(name, broker_id) for name, ids in self.ids.items() for broker_id in ids}

    def _make_controllers(self) -> None:
        dice = self._dice
        count, embedded = dice.choice((1, 2, 3, 3, 3, 5)), dice.random() < 0.6
        lowest = dice.randrange(len(VERSIONS))
        for number in range(count):
            kind = Kind.NAME_SERVER if embedded else Kind.CONTROLLER
            version = dice.choice(VERSIONS[lowest:])
            self.processes.append(Process(kind, f"10.0.0.{number}:9876", version, member=f"n{number}"))
        for number in range(0 if embedded else dice.choice((1, 2, 2))):
            version = dice.choice(VERSIONS[lowest:])
            self.processes.append(Process(Kind.NAME_SERVER, f"10.0.1.{number}:9876", version))

    def _make_brokers(self) -> None:
        dice = self._dice
        least = min((each.version for each in self.processes), key=rank)
        choice = VERSIONS[: VERSIONS.index(least) + 1]
        self.ids = {
            f"broker-{name}": list(range(1, dice.choice((1, 2, 3, 3, 3, 4)) + 1))
            for name in "abc"[: dice.choice((1, 2, 3))]
        }
        replicas = [(name, broker_id) for name, ids in self.ids.items() for broker_id in ids]
        containers: list[Process] = []
        for number, each in enumerate(replicas):
            where = dice.randrange(5)
            if where < 2:
                if where >= len(containers):
                    address = f"10.0.3.{len(containers)}:10811"
                    containers.append(Process(Kind.CONTAINER, address, dice.choice(choice)))
                containers[min(where, len(containers) - 1)].brokers.append(each)
            else:
                address = f"10.0.2.{number}:10911"
                self.processes.append(Process(Kind.BROKER, address, dice.choice(choice), brokers=[each]))
        self.processes += containers

    def process_of(self, group: str, broker_id: int) -> Process:
        return next(each for each in self.processes if (group, broker_id) in each.brokers)

    def at(self, address: str) -> Process:
        return next(each for each in self.processes if each.address == address)

    @property
    def is_whole(self) -> bool:
        return (
            not any(each.down for each in self.processes)
            and self.leader in self.controllers
            and all(self.in_sync[name] == self.linked[name] == set(ids) for name, ids in self.ids.items())
            and all(each == self._replicas() for each in self.registered.values())
            and all(self.masters[name] in ids for name, ids in self.ids.items())
        )

    def stop(self, process: Process) -> None:
        """The process ends; it runs again after some time."""
        process.down = self._dice.randint(1, 5)
        if process.member and process.member == self.leader:
            self.leader = ""
        if process.kind is Kind.NAME_SERVER:
            self.registered[process.address].clear()
        for each in self.registered.values():
            each.difference_update(process.brokers)
        for name, broker_id in process.brokers:
            self.linked[name].discard(broker_id)
            if self._dice.random() < 0.7:  # else it is back before the master has noticed
                self.in_sync[name].discard(broker_id)
            if self.masters[name] == broker_id:
                self.masters[name] = 0

    def tick(self) -> None:
        """Processes come back, replicas catch up, masters and a leader are elected."""
        for process in self.processes:
            process.down = max(process.down - 1, 0)
        running = [each.member for each in self.processes if each.member and not each.down]
        if not self.leader and self._dice.random() < 0.5 and 2 * len(running) > len(self.controllers):
            self.leader = self._dice.choice(running)
        for name, ids in self.ids.items():
            up = [each for each in ids if not self.process_of(name, each).down]
            able = [each for each in up if each in self.in_sync[name]] or up
            if not self.masters[name] and able and self.leader:
                self.masters[name] = self._dice.choice(able)
                self.in_sync[name].add(self.masters[name])
                self.linked[name] = {self.masters[name]}
            if self.masters[name]:
                self.linked[name] |= self._some(up)
                self.in_sync[name] |= self._some(self.linked[name])
            for each in self.name_servers:
                if not each.down:
                    self.registered[each.address] |= {(name, broker_id) for broker_id in self._some(up)}

    def _some(self, ids: Iterable[int]) -> set[int]:
        return {each for each in ids if self._dice.random() < 0.4}

    def view(self) -> View:
        """What the servers answer."""
        groups = [self._group(name, ids) for name, ids in self.ids.items()]
        facts = Facts(
            registered={each.address: self._table(each) for each in self.name_servers if not each.down},
            linked={
                group.master_address: frozenset(self.linked[group.broker_name])
                for group in groups
                if group.master_id is not None
            },
            embedded={each.address: f"{each.address}0" for each in self.name_servers if each.member},
            contained={
                self.broker_address(*broker): each.address
                for each in self.processes
                if each.kind is Kind.CONTAINER
                for broker in each.brokers
            },
        )
        found = ClusterStatus(
            taken_ms=0,
            took_ms=0,
            verdict=Verdict.OK,
            name_servers=[
                NameServerStatus(
                    address=each.address,
                    is_up=not each.down,
                    problem="connection refused" if each.down else "",
                    keelmq_version="" if each.down else each.version,
                )
                for each in self.name_servers
            ],
            controllers=list(self._controllers()),
            groups=groups,
        )
        return view_of(found, facts)

    def _table(self, name_server: Process) -> dict[str, frozenset[str]]:
        listed = self.registered[name_server.address]
        return {
            group: frozenset(self.broker_address(name, each) for name, each in listed if name == group)
            for group in self.ids
        }

    def _controllers(self) -> Iterator[ControllerStatus]:
        for each in self.processes:
            if each.member:
                address = f"{each.address}0" if each.kind is Kind.NAME_SERVER else each.address
                role = "silent" if each.down else "leader" if each.member == self.leader else "follower"
                yield ControllerStatus(
                    address=address,
                    member=each.member,
                    role=role,
                    keelmq_version="" if each.down else each.version,
                )

    def broker_address(self, group: str, broker_id: int) -> str:
        process = self.process_of(group, broker_id)
        if process.kind is Kind.BROKER:
            return process.address
        return f"10.0.4.{list(self.ids).index(group)}:{10_000 + broker_id}"

    def _group(self, name: str, ids: list[int]) -> GroupStatus:
        master = self.masters[name] or None
        replicas = []
        for each in ids:
            process = self.process_of(name, each)
            role = "silent" if process.down else "master" if each == master else "slave"
            replicas.append(
                ReplicaStatus(
                    broker_id=each,
                    address=self.broker_address(name, each),
                    role=role,
                    is_alive=not process.down,
                    is_in_sync=each in self.in_sync[name],
                    keelmq_version="" if process.down else process.version,
                )
            )
        return GroupStatus(
            cluster="c",
            broker_name=name,
            verdict=Verdict.OK,
            has_controllers=True,
            master_id=master,
            master_address="" if master is None else self.broker_address(name, master),
            min_in_sync=self.min_in_sync,
            replicas=replicas,
        )

    def carry_out(self, step: Deed, *, allow_gap: bool) -> None:
        """Checks that the step may be made now, and makes it."""
        assert self.is_whole
        match step:
            case Restart(server):
                process = self.at(server.address)
                self._check(process, allow_gap=allow_gap)
                process.version = self.target
                self.stop(process)
                self._check_order()
            case HandOver(_, name, from_id, to_id):
                assert self.masters[name] == from_id != to_id and to_id in self.in_sync[name]
                assert self.process_of(name, from_id) is not self.process_of(name, to_id)
                version = self.process_of(name, from_id).version
                assert version != self.target
                kinds = {self.process_of(name, each).kind for each in self.ids[name]}
                # A newer one comes first, even if the others are older than the target.
                if kinds == {Kind.BROKER} and rank(version) < rank(self.target):
                    assert self.process_of(name, to_id).version == self.target
                self.masters[name] = to_id
            case TransferLeader(from_id, to_id):
                assert self.leader == from_id
                (heir,) = (each for each in self.processes if each.member == to_id)
                assert heir.version == self.target
                self.leader = to_id

    def _check(self, process: Process, *, allow_gap: bool) -> None:
        """A process that is about to be restarted can be done without, unless a gap is allowed."""
        assert process.version != self.target
        for name in {name for name, _ in process.brokers}:
            others = [each for each in self.ids[name] if (name, each) not in process.brokers]
            assert allow_gap or len(others) >= self.min_in_sync
            assert not others or self.process_of(name, self.masters[name]) is not process
        if process.member:
            assert allow_gap or len(self.controllers) >= 3
            assert self.leader != process.member or len(self.controllers) == 1
        assert allow_gap or self.name_servers != [process]

    def _check_order(self) -> None:
        of_brokers = [rank(each.version) for each in self.processes if each.brokers]
        of_others = [rank(each.version) for each in self.processes if not each.brokers]
        assert max(of_brokers) <= min(of_others)


@given(st.integers(0, 2**32), st.sampled_from(VERSIONS), st.booleans(), st.sampled_from((0.0, 0.02, 0.1)))
def test_it_ends_with_done_whatever_happens(seed: int, target: str, allow_gap: bool, crashes: float) -> None:
    dice = random.Random(seed)
    model = Model(dice, target)
    deeds: list[Deed] = []
    asked = {each.address for each in model.processes if each.version != target}
    for tick in range(TICKS_MAX):
        view = model.view()
        assert bool(view.faults) != model.is_whole
        step = next_step(view, target, allow_gap=allow_gap)
        match step:
            case Done():
                break
            case Stop():
                assert step.is_gap and not allow_gap and not deeds
                return
            case Wait():
                assert not model.is_whole
            case _:
                assert model.is_whole
                if tick < TICKS_MAX // 2 and dice.random() < crashes:
                    model.stop(dice.choice(model.processes))  # the run is interrupted before the step
                else:
                    deeds.append(step)
                    model.carry_out(step, allow_gap=allow_gap)
        model.tick()
        if tick < TICKS_MAX // 2 and dice.random() < crashes:
            model.stop(dice.choice(model.processes))
    else:
        raise AssertionError(f"not done after {TICKS_MAX} ticks")
    assert all(each.version == target for each in model.processes)
    assert next_step(model.view(), target, allow_gap=allow_gap) == Done()
    restarted = [each.server.address for each in deeds if isinstance(each, Restart)]
    assert sorted(restarted) == sorted(asked)  # each once


@given(st.integers(0, 2**32), st.sampled_from(VERSIONS))
def test_the_plan_is_the_deed(seed: int, target: str) -> None:
    """If nothing else happens, the steps are those that were shown."""
    model = Model(random.Random(seed), target)
    *shown, end = plan(model.view(), target, allow_gap=True)
    assert end == Done()
    made: list[Deed] = []
    while (step := next_step(model.view(), target, allow_gap=True)) != Done():
        if isinstance(step, Restart):
            made.append(step)
            model.at(step.server.address).version = target  # as if it were back before the next look
        elif isinstance(step, HandOver | TransferLeader):
            made.append(step)
            model.carry_out(step, allow_gap=True)
    assert made == shown
