"""Proofs of death against the truth: whoever is found inactive by a proof is dead.

The real heartbeat table and the real DeathProofs on virtual time. Brokers are killed and started again, hang,
lose their connection, restart quicker than a proof takes, and lose their port to another program; some are
behind an address that is not their own. Everything between a broker and the controller takes its time, and a
connection attempt meets what is at the address when it arrives there.
"""

import asyncio
import heapq
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, cast
from unittest import mock

import pytest

from namesrv.core.liveness import BrokerKey, HeartbeatTable
from namesrv.plugins.controller.core.death_proof import ProbeAnswer, Verdict
from namesrv.plugins.controller.core.elect import LiveInfo
from namesrv.plugins.controller.election import death_proofs
from namesrv.plugins.controller.election.death_proofs import DeathProofs
from namesrv.plugins.controller.election.liveness_view import Heartbeat
from namesrv.plugins.controller.settings import LiveConfig
from tests.sim.raft.virtual import VirtualLoop
from tests.support.controller_fakes import FakePeer, config
from tests.support.slices import first

SEEDS = 60
END_S = 30.0
HEARTBEAT_S = 0.2
DELAY_S = 0.02
"""Greatest, of one way. A proof takes two, so a broker may be back before it."""
NAT = "192.0.2.1"


class Run:
    """A process of a broker: listens, then sends heartbeats, until it is killed."""

    def __init__(self, broker: "Broker") -> None:
        self.broker, self.alive, self.listens, self.hangs = broker, True, False, False
        self.connection = 0


class Broker:
    def __init__(self, world: "World", number: int) -> None:
        self.world, self.key = world, BrokerKey("C", "b", number)
        self.host = f"10.0.0.{number}"
        self.is_translated = number == 3
        """Its heartbeats come from another host, where its port is closed."""
        self.port_is_taken = False
        self.run: Run | None = None

    def start(self) -> None:
        run = self.run = Run(self)
        self.world.later(self.world.dice.uniform(0.0, 0.03), lambda: self.listen(run))

    def listen(self, run: Run) -> None:
        if run.alive and not self.port_is_taken:
            run.listens = True
            self.connect(run)
            self.heartbeat(run)

    def connect(self, run: Run) -> None:
        self.world.connections += 1
        run.connection = self.world.connections

    def heartbeat(self, run: Run) -> None:
        if run.alive and not run.hangs:
            connection = run.connection
            self.world.deliver(connection, lambda: self.world.heard(run, connection))
        if run.alive:
            self.world.later(HEARTBEAT_S, lambda: self.heartbeat(run))

    def close(self, run: Run) -> None:
        connection = run.connection
        self.world.deliver(connection, lambda: self.world.closed(connection))

    def kill(self) -> None:
        if self.run is not None and self.run.alive:
            self.run.alive = self.run.listens = False
            self.close(self.run)

    def reconnect(self) -> None:
        if self.run is not None and self.run.listens:
            self.close(self.run)
            self.connect(self.run)
            run = self.run
            self.world.later(self.world.dice.uniform(0, 0.08), lambda: self.heartbeat_once(run))

    def heartbeat_once(self, run: Run) -> None:
        if run.alive and not run.hangs:
            connection = run.connection
            self.world.deliver(connection, lambda: self.world.heard(run, connection))


class World:
    def __init__(self, seed: int) -> None:
        self.dice, self.loop = Random(seed), VirtualLoop()
        self.table = HeartbeatTable()
        self.connections = 0
        self.arrives: dict[int, float] = {}
        self.last: dict[BrokerKey, Run] = {}
        self.found_by_proof = self.restarts = 0
        self.evicted: list[str] = []
        settings = LiveConfig(config(), lambda: cast(Any, mock.Mock(settings={})))
        self.proofs = DeathProofs(self.table, settings, self.now_ms, self.scan, self.probe)
        self.brokers = [Broker(self, number) for number in (1, 2, 3)]

    def now_ms(self) -> int:
        return int(self.loop.time() * 1_000)

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        self.loop.call_later(delay_s, action)

    def delay_s(self) -> float:
        return self.dice.uniform(0.0001, DELAY_S)

    def deliver(self, connection: int, action: Callable[[], None]) -> None:
        """In the order of the connection."""
        at = max(self.loop.time() + self.delay_s(), self.arrives.get(connection, 0.0) + 1e-6)
        self.arrives[connection] = at
        self.loop.call_at(at, action)

    def heard(self, run: Run, connection: int) -> None:
        broker = run.broker
        self.last[broker.key] = run
        peer = FakePeer(connection)
        peer.address = f"{NAT if broker.is_translated else broker.host}:50000"
        self.table.record_heartbeat(
            broker.key, connection_id=connection, incarnation=f"{broker.host}:10911", timeout_ms=3_000,
            now_ms=self.now_ms(), info=Heartbeat(LiveInfo(f"{broker.host}:10911"), peer), grace_ms=50,
        )  # fmt: skip

    def closed(self, connection: int) -> None:
        self.proofs.suspect(self.table.connection_closed(connection, self.now_ms()))

    async def probe(self, host: str, port: int, timeout_s: float) -> ProbeAnswer:
        await asyncio.sleep(self.delay_s())
        broker = next((each for each in self.brokers if each.host == host), None)
        if broker is None or broker.is_translated:
            answer = ProbeAnswer.REFUSED
        elif broker.port_is_taken or (broker.run is not None and broker.run.listens):
            answer = self.dice.choice([ProbeAnswer.OPEN, ProbeAnswer.OPEN, ProbeAnswer.NOTHING])
        else:
            answer = ProbeAnswer.REFUSED
        await asyncio.sleep(self.delay_s())
        return answer

    def scan(self) -> None:
        for key in self.table.scan_not_active(self.now_ms()):
            seen = self.table.last_seen(key)
            if isinstance(key, BrokerKey) and seen is not None and seen.proved:
                self.found_by_proof += 1
                if self.last[key].alive:
                    self.evicted.append(f"{key} lives at {self.now_ms()} ms")
        self.table.check_invariants()

    async def live(self) -> None:
        for broker in self.brokers:
            broker.start()
        while self.loop.time() < 1_000.0 + END_S:
            await asyncio.sleep(self.dice.uniform(0.01, 0.6))
            self.fault(self.dice.choice(self.brokers))
            self.scan()
        await self.proofs.stop()

    def fault(self, broker: Broker) -> None:
        run = broker.run
        match self.dice.choice(["kill", "kill", "quick", "reconnect", "reconnect", "hang", "take", "wake"]):
            case "kill":
                broker.kill()
                self.later(self.dice.uniform(0.1, 2.0), lambda: self.again(broker))
            case "quick":
                broker.kill()
                self.again(broker)
            case "reconnect":
                broker.reconnect()
            case "hang" if run is not None:
                run.hangs = True
            case "take" if run is not None and not run.alive:
                broker.port_is_taken = True
                self.later(self.dice.uniform(0.1, 1.0), lambda: setattr(broker, "port_is_taken", False))
            case "wake" if run is not None:
                run.hangs = False

    def again(self, broker: Broker) -> None:
        if broker.run is not None and not broker.run.alive:
            self.restarts += 1
            broker.start()


def play(seed: int) -> World:
    world = World(seed)
    try:
        world.loop.run_until_complete(world.live())
    finally:
        world.loop.close()
    assert not world.evicted, world.evicted
    return world


@pytest.mark.parametrize("seed", first(12, range(SEEDS)))
def test_whoever_is_proved_dead_is_dead(seed: int) -> None:
    play(seed)


def test_the_worlds_prove_deaths_and_restart_brokers() -> None:
    worlds = [play(seed) for seed in range(6)]
    assert sum(world.found_by_proof for world in worlds) > 20
    assert sum(world.restarts for world in worlds) > 60


def fails() -> bool:
    for seed in range(SEEDS):
        try:
            play(seed)
        except AssertionError:
            return True
    return False


@contextmanager
def proofs_of_any_time() -> Iterator[None]:
    """Also of an earlier close, or of another process than the one whose heartbeats arrive now."""

    def proved_dead(self: HeartbeatTable, key: Any, suspicion: int, now_ms: int) -> bool:
        entry = self._entries[key]
        if not entry.active:
            return False
        self._unbind_all(key, entry)
        entry.proved = True
        entry.suspect_deadline_ms = self._suspects[key] = now_ms
        self._suspected += 1
        heapq.heappush(self._deadlines, (now_ms, self._suspected, key))
        return True

    with mock.patch.object(HeartbeatTable, "proved_dead", proved_dead):
        yield


@contextmanager
def every_answer_is_a_proof() -> Iterator[None]:
    with mock.patch.object(death_proofs, "verdict_of", lambda answer, attempts: Verdict.DEAD):
        yield


@contextmanager
def hosts_are_not_compared() -> Iterator[None]:
    def target(registered: str, heartbeats_from: str) -> tuple[str, int]:
        host, _, port = registered.rpartition(":")
        return host, int(port)

    with mock.patch.object(death_proofs, "probe_target", target):
        yield


@pytest.mark.parametrize("mutant", [proofs_of_any_time, every_answer_is_a_proof, hosts_are_not_compared])
def test_each_protection_is_needed(mutant: Callable[[], Any]) -> None:
    with mutant():
        assert fails()
