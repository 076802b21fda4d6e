"""The lease against the controllers' own view (S2): while it holds by their word, none has deposed us.

Three controllers with the real heartbeat table and the real watch, one leader after another, messages that
are late or lost, links that are cut one way or both, connections that are reset, a broker whose clock is a
twentieth too fast or slow.
"""

import heapq
import random
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from broker.core.lease import Lease, ReplicaLeases
from namesrv.core.liveness import BrokerKey, HeartbeatTable
from namesrv.plugins.controller.core.elect import LiveInfo
from namesrv.plugins.controller.core.state import BrokerSet, Replica
from namesrv.plugins.controller.election.liveness_view import RECENT_MS, Heartbeat, LivenessView
from tests.support.controller_fakes import FakePeer
from tests.support.slices import first

TIMEOUT_MS, GRACE_MS = 3_000, 3_000
KEY = BrokerKey("C", "b", 1)
GROUP = BrokerSet("C", "b", replicas={1: Replica("a:1", "a:1;1")}, master_broker_id=1, master_epoch=1)
END_MS = 60_000
LEASES = ReplicaLeases(keelmq_ms=3_000, foreign_ms=5_000)


class World:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_ms = 10_000
        self.queue: list[tuple[int, int, Callable[[], None]]] = []
        self.count = 0
        self.rate = self.random.uniform(0.95, 1.05)
        self.is_cut = ([False] * 3, [False] * 3)  # to the controllers, and back
        self.connections = [1] * 3
        self.closed_ms = [0] * 3
        self.leader = 0
        self.deposed_ms: int | None = None
        self.lease = Lease(timeout_ms=TIMEOUT_MS, replica_leases=ReplicaLeases(TIMEOUT_MS, TIMEOUT_MS))
        self.tables = [HeartbeatTable() for _ in range(3)]
        self.watches = [LivenessView(table, lambda: self.now_ms) for table in self.tables]
        self.held_ms = 0

    @property
    def broker_ms(self) -> int:
        return int(self.now_ms * self.rate)

    def at(self, delay_ms: int, action: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.queue, (self.now_ms + delay_ms, self.count, action))

    def send(self, controller: int, action: Callable[[], None], *, back: bool = False) -> None:
        if self.random.random() < 0.1:
            return
        slow = self.random.random() < 0.05
        delay_ms = self.random.randint(1, 2_500 if slow else 40)
        self.at(delay_ms, lambda: None if self.is_cut[back][controller] else action())

    def heartbeat(self) -> None:
        for controller in range(3):
            self.heartbeat_one(controller, self.broker_ms)
        self.at(int(1_000 / self.rate), self.heartbeat)

    def heartbeat_one(self, controller: int, sent_ms: int) -> None:
        def heard() -> None:
            self.tables[controller].record_heartbeat(
                KEY, connection_id=self.connections[controller], incarnation="a:1", timeout_ms=TIMEOUT_MS,
                now_ms=self.now_ms, info=Heartbeat(LiveInfo("a:1"), FakePeer(1)),
            )  # fmt: skip
            self.send(controller, lambda: self.answered(str(controller), sent_ms), back=True)

        self.send(controller, heard)

    def answered(self, controller: str, sent_ms: int) -> None:
        self.lease.heartbeat_answered(controller, sent_ms, self.broker_ms)

    def confirmed(self, controller: str, asked_ms: int) -> None:
        self.lease.confirmed(controller, asked_ms)

    def poll(self) -> None:
        controller, asked_ms = self.leader, self.broker_ms

        def asked() -> None:
            if self.leader == controller and self.deposed_ms is None:
                self.send(controller, lambda: self.confirmed(str(controller), asked_ms), back=True)

        self.send(controller, asked)
        self.at(int(1_000 / self.rate), self.poll)

    def nemesis(self) -> None:
        match self.random.choice(["cut", "cut", "cut", "close", "heal", "heal", "lead", "lead"]):
            case "cut":
                one_way = self.random.random() < 0.5
                for controller in self.random.sample(range(3), self.random.randint(1, 3)):
                    self.is_cut[False][controller] = True
                    self.is_cut[True][controller] |= not one_way
            case "heal":
                self.is_cut = ([False] * 3, [False] * 3)
            case "close":
                self.close(self.random.randrange(3))
            case "lead":
                self.lead(self.random.randrange(3))
        self.at(self.random.randint(100, 6_000), self.nemesis)

    def close(self, controller: int) -> None:
        """The connection is reset, and there is no other until the link is healed. The broker hears of it, or
        not; always, if this one leads, and not while it is young: that is what a close is proof of."""
        leads = controller == self.leader
        if leads and self.watches[controller].grace_left_ms():
            return
        self.tables[controller].connection_closed(self.connections[controller], self.now_ms)
        self.connections[controller] += 1
        self.closed_ms[controller] = self.now_ms
        self.is_cut[False][controller] = self.is_cut[True][controller] = True
        if leads or self.random.random() < 0.5:
            self.lease.connection_lost(str(controller))

    def lead(self, controller: int) -> None:
        """Not at once after a close: leader and master on one machine die together."""
        if self.now_ms - self.closed_ms[controller] > RECENT_MS + 100:
            self.leader = controller
            self.watches[controller].became_active(GRACE_MS)

    def look(self) -> None:
        """As the controllers do it: every table is scanned, the leader judges."""
        for table in self.tables:
            table.scan_not_active(self.now_ms)
        view = self.watches[self.leader].view(GROUP)
        if not view.is_alive(1) and self.deposed_ms is None and any(self.tables[self.leader].keys()):
            self.deposed_ms = self.now_ms
        holds = self.broker_ms < self.lease.controllers_end_ms()
        self.held_ms += 10 * holds
        assert not (holds and self.deposed_ms is not None), (
            f"deposed at {self.deposed_ms}, and at {self.now_ms} the lease still holds"
        )
        self.at(10, self.look)

    def run(self) -> None:
        self.watches[0].became_active(GRACE_MS)
        self.at(0, self.heartbeat)
        self.at(5, self.poll)
        self.at(3_100, self.look)
        self.at(4_000, self.nemesis)
        while self.queue and self.now_ms < END_MS:
            self.now_ms, _, action = heapq.heappop(self.queue)
            action()


@pytest.mark.parametrize("seed", first(20, range(60)))
def test_no_controller_has_deposed_who_holds_the_lease(seed: int) -> None:
    World(seed).run()


def test_the_worlds_depose_masters_and_the_lease_is_worth_something() -> None:
    worlds = [World(seed) for seed in range(30)]
    for world in worlds:
        world.run()
    assert sum(world.deposed_ms is not None for world in worlds) > 10
    assert sum(world.held_ms for world in worlds) / len(worlds) > 3_000


def fails(seeds: range) -> bool:
    """Does one of the seeds break the promise?"""
    for seed in seeds:
        try:
            World(seed).run()
        except AssertionError:
            return True
    return False


def test_without_the_margin_it_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clocks run at different rates."""
    monkeypatch.setattr("broker.core.lease.MARGIN", 1_000)
    assert fails(range(150))


def test_counted_from_the_answer_it_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller heard the heartbeat when it came, not when its answer came back."""

    def answered(self: World, controller: str, _sent_ms: int) -> None:
        self.lease.heartbeat_answered(controller, self.broker_ms, self.broker_ms)

    def confirmed(self: World, controller: str, _asked_ms: int) -> None:
        self.lease.confirmed(controller, self.broker_ms)

    monkeypatch.setattr(World, "answered", answered)
    monkeypatch.setattr(World, "confirmed", confirmed)
    assert fails(range(150))


def test_a_break_between_heartbeats_must_not_be_overlooked(monkeypatch: pytest.MonkeyPatch) -> None:
    """It deposed us in the break, and hears us again; what it said before the break counts no more."""

    def forgetful(self: Lease, controller: str, sent_ms: int, _now_ms: int) -> None:
        self._heard[controller] = (0, sent_ms)

    monkeypatch.setattr(Lease, "heartbeat_answered", forgetful)
    assert fails(range(150))


def test_a_young_leader_that_judges_at_once_breaks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It lost the master by its timeout while the leader before it heard it."""
    monkeypatch.setattr(LivenessView, "grace_left_ms", lambda view: 0)
    assert fails(range(150))


def test_a_close_of_earlier_is_no_proof_for_a_new_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader before it heard the master all the time."""
    monkeypatch.setattr("namesrv.plugins.controller.election.liveness_view.RECENT_MS", 1 << 60)
    assert fails(range(150))


ROCKETMQ = 4
"""The id of a slave that is not KeelMQ's."""


def over_from(lease: Lease, transfer_targets: set[int], spoke_ms: dict[int, int]) -> int:
    """The first tenth of a second at which the lease is over; END_MS: it never is."""
    links = {
        transfer_target: SimpleNamespace(heard_ms=at_ms, pulls_metadata=transfer_target != ROCKETMQ)
        for transfer_target, at_ms in spoke_ms.items()
    }
    return next((at for at in range(0, END_MS, 100) if lease.is_over(at, transfer_targets, links)), END_MS)


class TestTransferTargets:
    def test_a_master_without_transfer_targets_needs_nobody(self) -> None:
        lease = Lease(timeout_ms=3_000, replica_leases=LEASES)
        assert over_from(lease, set(), {}) == END_MS

    def test_every_transfer_target_must_have_spoken(self) -> None:
        """One room with the master and a slave, the other with the controllers and another slave."""
        lease = Lease(timeout_ms=3_000, replica_leases=LEASES)
        assert over_from(lease, {2, 3}, {2: 900, 3: 400}) == 3_400
        assert over_from(lease, {2, 3}, {2: 400, 3: 900}) == 3_400
        assert over_from(lease, {2, 3}, {2: 900}) == 0, "3 may be elected, and we would not hear of it"

    def test_a_report_counts_as_long_as_its_sender_allows(self) -> None:
        lease = Lease(timeout_ms=3_000, replica_leases=LEASES)
        assert over_from(lease, {2, ROCKETMQ}, {2: 2_500, ROCKETMQ: 0}) == 5_000
        assert over_from(lease, {2, ROCKETMQ}, {2: 1_500, ROCKETMQ: 0}) == 4_500
        lease.configure(timeout_ms=1_000, replica_leases=ReplicaLeases(0, 500), since_ms=0)
        assert over_from(lease, {2}, {2: 2_500}) == 2_500, "a report says nothing"
        assert over_from(lease, {ROCKETMQ}, {ROCKETMQ: 2_500}) == 3_000

    def test_the_controllers_or_the_transfer_targets(self) -> None:
        lease = Lease(timeout_ms=3_000, replica_leases=LEASES)
        lease.heartbeat_answered("n0", 1_000, 1_010)
        assert over_from(lease, {2}, {}) == 0, "who leads?"
        lease.confirmed("n0", 1_200)
        assert over_from(lease, {2}, {}) == 3_700
        assert over_from(lease, {2}, {2: 2_000}) == 5_000, "the controllers are down, the slave is not"
        assert over_from(lease, {2}, {2: 100}) == 3_700, "the slave is down, the controllers are not"
        lease.connection_lost("n1")
        assert over_from(lease, {2}, {}) == 3_700, "that one did not lead"
        lease.connection_lost("n0")
        assert over_from(lease, {2}, {}) == 0

    def test_after_a_lost_connection_a_controller_must_hear_a_heartbeat_again(self) -> None:
        """It says on a new connection that we are master, and deposes us for the close of the old one."""
        lease = Lease(timeout_ms=3_000, replica_leases=LEASES)
        lease.heartbeat_answered("n0", 1_000, 1_010)
        lease.connection_lost("n0")
        lease.confirmed("n0", 1_100)
        assert lease.controllers_end_ms() == 0
        lease.heartbeat_answered("n0", 1_200, 1_210)
        assert lease.controllers_end_ms() == 0, "and has to say it afterwards"
        lease.confirmed("n0", 1_220)
        assert lease.controllers_end_ms() == 3_900

    def test_with_a_short_timeout_the_grace_of_a_new_leader_is_as_short(self) -> None:
        lease = Lease(timeout_ms=1_000, replica_leases=LEASES)
        lease.heartbeat_answered("n0", 9_900, 9_910)
        lease.confirmed("n0", 10_000)
        lease.heartbeat_answered("n0", 10_500, 10_510)
        assert lease.controllers_end_ms() == 10_900, "n0 may have stopped leading at 10 000"

    def test_a_long_timeout_does_not_outlast_the_grace_of_a_new_leader(self) -> None:
        lease = Lease(timeout_ms=10_000, replica_leases=LEASES)
        lease.heartbeat_answered("n0", 1_000, 1_010)
        lease.confirmed("n0", 1_020)
        assert lease.controllers_end_ms() == 1_020 + 2_700
