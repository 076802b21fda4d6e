"""S2: a master that is cut off acknowledges nothing that another one lacks.

Fixed partitions on virtual time, with the real lease in each broker. A record counts as acknowledged late
when another master, who lacks it, had been elected before. With replies that wait for the whole SyncStateSet
there are none, lease or not. Otherwise the lease makes the difference: without it such records are lost. What
was acknowledged before the election may be lost in these settings: that is what they promise.

In these partitions a broken link is noticed at once and all timers are aligned, so they do not show how long
a report of a slave may count: LeaseGroup does, with random clocks, phases, settings and silent cuts.
"""

from collections.abc import Callable

import pytest

from broker.config.broker_config import BrokerConfig
from broker.core.confirm_offset import replicated_offset
from broker.core.lease import Lease, ReplicaLeases
from keelmq.remoting.codes import ResponseCode
from namesrv.core.liveness import BrokerKey
from namesrv.plugins.controller.core.elect import LiveInfo
from namesrv.plugins.controller.core.state import BrokerSet
from tests.sim import brokers as sim
from tests.sim.brokers import CLUSTER, GROUP, SimBroker
from tests.sim.checkers import Checker, Violation
from tests.sim.controllers import HEARTBEAT_TIMEOUT_MS, SimController
from tests.sim.group import Group
from tests.sim.kinds import found_seeds
from tests.sim.lease_group import Cut, LeaseGroup, Rules, config_of
from tests.support.slices import first, share

CUT_MS, HEAL_MS, END_MS = 6_000, 16_000, 26_000
REPORT_LEASE_MS = 3_000


class LateChecker(Checker):
    """Knows when each acknowledgement came, and whether another master had been elected by then."""

    def __init__(self, group: "Isolated") -> None:
        super().__init__()
        self.group = group
        self.late: dict[bytes, int] = {}

    def became_master(self, broker: str, epoch: int, log: bytes, record_bytes: int) -> None:
        owner = self.masters.setdefault(epoch, broker)
        if owner != broker:
            raise Violation(f"masterEpoch {epoch} has two masters: {owner} and {broker}")

    def acknowledged(self, record: bytes, offset: int, epoch: int) -> None:
        super().acknowledged(record, offset, epoch)
        elected = self.group.controllers.committed().brokers[GROUP]
        if elected.master_epoch > epoch and not self._holds(elected.master_broker_id, record, offset):
            self.late[record] = offset

    def _holds(self, broker_id: int | None, record: bytes, offset: int) -> bool:
        """The heir that has not heard of its election yet still acknowledges, and keeps, what it gets."""
        transfer_targets = [each for each in self.group.brokers.values() if each.broker_id == broker_id]
        return any(
            bytes(transfer_target.disk.log[offset : offset + sim.RECORD_BYTES]) == record
            for transfer_target in transfer_targets
        )

    def final(self, log: bytes, record_bytes: int) -> None:
        lost = [r for r, offset in self.late.items() if log[offset : offset + record_bytes] != r]
        if lost:
            raise Violation(f"{len(lost)} records, acknowledged after another election, are lost")


class LeasedBroker(SimBroker):
    """Heartbeats with answers, and acknowledgements only while the lease lasts."""

    lease: Lease | None = None

    def _heartbeat(self) -> None:
        if not self.is_running:
            return
        info = LiveInfo(self.name, self.disk.epochs.last_epoch, len(self.disk.log), self.confirm)
        key, sent_ms = BrokerKey(CLUSTER, GROUP, self.broker_id), self.world.now_ms
        for member in self.controllers.members:
            self._heartbeat_one(member, key, info, sent_ms)

    def _heartbeat_one(self, member: SimController, key: BrokerKey, info: LiveInfo, sent_ms: int) -> None:
        connection = self._connections[member.name]

        def answered() -> None:
            if self.lease is not None and self.up:
                self.lease.heartbeat_answered(member.name, sent_ms, self.world.now_ms)

        def deliver() -> None:
            if member.up and self.up:
                member.heartbeat(key, connection, info)
                self.world.send(member.name, self.name, answered)

        self.world.send(self.name, member.name, deliver)

    def _poll(self) -> None:
        if not self.is_running:
            return
        asked_ms, leader = self.world.now_ms, self.controllers.members[self._leader].name

        def answered(group: BrokerSet | None, code: ResponseCode) -> None:
            if group is None:
                return
            mine = (self.broker_id, self.role.epoch)
            if self.lease is not None and (group.master_broker_id, group.master_epoch) == mine:
                self.lease.confirmed(leader, asked_ms)
            self._role_update_of(group, code)

        self.ask(lambda _c: sim._read_group, answered)

    def may_acknowledge(self) -> bool:
        if self.lease is None:
            return True
        transfer_targets = (
            self.sync_state_set_manager.others if self.sync_state_set_manager is not None else ()
        )
        return not self.lease.is_over(self.world.now_ms, transfer_targets, self._followers())

    def send(self, record: bytes) -> None:
        if self.may_acknowledge():
            super().send(record)

    def _progress(self) -> None:
        held = self.pending if not self.may_acknowledge() else None
        if held is not None:
            self.pending = []  # answered 12 when their time is over
        super()._progress()


class Isolated(Group):
    def __init__(self, seed: int, *, lease: bool, all_ack: bool = False) -> None:
        self._lease = lease
        super().__init__(seed, all_ack=all_ack)
        self.checker = LateChecker(self)
        for broker in self.brokers.values():
            broker.checker = self.checker

    def start_broker(self, name: str) -> None:
        broker = LeasedBroker(name, self.world, self.controllers, self.checker, self.disks[name])
        if self._lease:
            broker.lease = Lease(
                timeout_ms=HEARTBEAT_TIMEOUT_MS,
                replica_leases=ReplicaLeases(REPORT_LEASE_MS, REPORT_LEASE_MS),
            )
        broker.all_ack = self.all_ack
        self.brokers[name] = broker
        broker.peers = self.brokers

    def produce(self) -> None:
        """One producer in each room: every broker that calls itself master is sent to."""
        for broker in self.brokers.values():
            if broker.is_running and broker.role.is_master:
                self.sent += 1
                broker.send(self.sent.to_bytes(sim.RECORD_BYTES, "big"))

    def partition(self, rooms: Callable[["Isolated"], tuple[list[str], list[str]]]) -> LateChecker:
        self.world.run_until(CUT_MS)
        one, other = rooms(self)
        for here in one:
            for there in other:
                self.world.cut(here, there)
        self.world.run_until(HEAL_MS)
        self.world.heal()
        self.world.run_until(END_MS)
        group = self.controllers.committed().brokers[GROUP]
        master = next(b for b in self.brokers.values() if b.broker_id == group.master_broker_id)
        assert isinstance(self.checker, LateChecker)
        self.checker.final(bytes(master.disk.log), sim.RECORD_BYTES)
        return self.checker

    @property
    def rooms(self) -> tuple[str, list[str], list[str]]:
        """The master, its slaves, the controllers."""
        group = self.controllers.committed().brokers[GROUP]
        master = next(b.name for b in self.brokers.values() if b.broker_id == group.master_broker_id)
        slaves = [name for name in self.brokers if name != master]
        return master, slaves, [member.name for member in self.controllers.members]


def alone(group: Isolated) -> tuple[list[str], list[str]]:
    master, slaves, controllers = group.rooms
    return [master], [*slaves, *controllers]


def with_a_slave(group: Isolated) -> tuple[list[str], list[str]]:
    """Pain 26: the controllers, and a slave that they can elect, are in the other room."""
    master, slaves, controllers = group.rooms
    return [master, slaves[0]], [slaves[1], *controllers]


def from_the_controllers_only(group: Isolated) -> tuple[list[str], list[str]]:
    master, _, controllers = group.rooms
    return [master], controllers


SEEDS = range(share(8))
ROOMS = [alone, with_a_slave]


def two_copies(
    current: int, *, max_offset: int, others: set[int], acks: dict[int, int], all_ack: bool
) -> int:
    return max(current, replicated_offset(max_offset=max_offset, others=others, acks=acks, copies=2))


def loses(rooms: Callable[[Isolated], tuple[list[str], list[str]]], **settings: bool) -> bool:
    """Does one of the seeds lose what it acknowledged late?"""
    for seed in range(8):
        try:
            Isolated(seed, **settings).partition(rooms)
        except Violation:
            return True
    return False


@pytest.mark.parametrize("rooms", ROOMS)
@pytest.mark.promise("S2")
def test_s2_with_the_lease_a_cut_off_master_acknowledges_nothing_late(
    rooms: Callable[[Isolated], tuple[list[str], list[str]]],
) -> None:
    for seed in SEEDS:
        checker = Isolated(seed, lease=True).partition(rooms)
        assert len(checker.masters) >= 2, "another one was elected"
        assert not checker.late


@pytest.mark.parametrize("rooms", ROOMS)
@pytest.mark.promise("S2")
def test_s2_without_it_asynchronous_replication_does(
    rooms: Callable[[Isolated], tuple[list[str], list[str]]],
) -> None:
    assert loses(rooms, lease=False)


@pytest.mark.slow
@pytest.mark.parametrize("lease", first(1, [True, False]))
@pytest.mark.promise("S2")
def test_s2_counting_copies(monkeypatch: pytest.MonkeyPatch, lease: bool) -> None:
    """inSyncReplicas=2: the slave on the master's side acknowledges for a long time."""
    monkeypatch.setattr(sim, "confirm_offset", two_copies)
    assert loses(with_a_slave, lease=lease) is not lease


@pytest.mark.parametrize("rooms", ROOMS)
@pytest.mark.promise("S2")
def test_s2_waiting_for_the_whole_set_needs_no_lease(
    rooms: Callable[[Isolated], tuple[list[str], list[str]]],
) -> None:
    for seed in SEEDS:
        assert not Isolated(seed, lease=False, all_ack=True).partition(rooms).late


def late_of(group: Isolated) -> int:
    try:
        group.partition(from_the_controllers_only)
    except Violation:
        pass
    assert isinstance(group.checker, LateChecker)
    return len(group.checker.late)


@pytest.mark.slow
@pytest.mark.promise("S2")
def test_s2_cut_off_from_the_controllers_only_costs_what_was_on_its_way() -> None:
    """The heir is our slave until it hears of its election, and closes the link then. So long, not for the
    length of the partition, messages are acknowledged that it may lack."""
    with_lease = [late_of(Isolated(seed, lease=True)) for seed in SEEDS]
    without = [late_of(Isolated(seed, lease=False)) for seed in SEEDS]
    assert max(with_lease) < 20 and min(without) > 300


def test_the_controllers_downtime_does_not_hurt() -> None:
    """Every slave is heard: nobody else was elected, and messages flow for ten seconds without them."""
    group = Isolated(1, lease=True)
    group.world.run_until(CUT_MS)
    for member in group.controllers.members:
        member.crash()
    before = len(group.checker.acked)
    group.world.run_until(HEAL_MS)
    assert len(group.checker.acked) - before > 500


def late_in(
    seeds: range, *, config: BrokerConfig | None = None, cut: Cut | None = None, rules: Rules
) -> bool:
    """Does one of the seeds acknowledge something late?"""
    for seed in seeds:
        try:
            LeaseGroup(seed, config=config, cut=cut, rules=rules).run()
        except Violation:
            return True
    return False


@pytest.mark.promise("S2")
@pytest.mark.parametrize("seed", [*range(8), *found_seeds("lease")])
def test_s2_nothing_is_acknowledged_after_another_master(seed: int) -> None:
    LeaseGroup(seed).run()


@pytest.mark.long
@pytest.mark.promise("S2")
@pytest.mark.parametrize("seed", range(8, 1_000))
def test_s2_nothing_is_acknowledged_after_another_master_in_more_settings(seed: int) -> None:
    LeaseGroup(seed).run()


@pytest.mark.promise("S2")
@pytest.mark.parametrize("interval_ms", [1_000, 5_000])
def test_s2_three_reports_are_too_long_for_a_lease(interval_ms: int) -> None:
    """Rule 1, protection off. The heartbeat timeout is the default, the interval ours and RocketMQ's."""
    config = config_of(haSendHeartbeatInterval=interval_ms)
    rules = Rules(first=False, second=False)
    assert not late_in(range(2), config=config, cut=Cut(), rules=Rules())
    assert late_in(range(4), config=config, cut=Cut(), rules=rules)


@pytest.mark.promise("S2")
def test_s2_a_report_counts_no_longer_although_its_sender_waits() -> None:
    """Rule 1 alone: no controller has elected, not only no broker begun, when the lease is over."""
    config = config_of(haSendHeartbeatInterval=5_000)
    assert late_in(range(3), config=config, cut=Cut(), rules=Rules(first=False))
    assert not late_in(range(3), config=config, cut=Cut(), rules=Rules(second=False))


@pytest.mark.promise("S2")
def test_s2_an_elected_slave_that_does_not_wait_is_too_early() -> None:
    """Rule 2, protection off. The slave is cut off while it is told of its election."""
    seeds, rules = range(share(40), share(40) + 8), Rules(second=False)
    assert any(late_in(seeds, cut=Cut(lag_ms=lag_ms), rules=rules) for lag_ms in (2_000, 1_500, 2_500))
    assert not late_in(seeds, cut=Cut(lag_ms=2_000), rules=Rules())


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="defaults"),
        pytest.param(
            {
                "haSendHeartbeatInterval": 5_000,
                "haHousekeepingInterval": 20_000,
                "controllerHeartBeatTimeoutMills": 10_000,
            },
            id="RocketMQ's, written out",
        ),
        pytest.param(
            {"controllerHeartBeatTimeoutMills": 1_500, "brokerHeartbeatInterval": 400}, id="short timeout"
        ),
    ],
)
def test_while_the_controllers_are_down_a_master_serves_on(settings: dict[str, int]) -> None:
    """RIP-44: a message every 15 ms, for ten seconds. In a network that loses a fifth of the packets, a short
    lease may end between two reports for a moment."""
    for seed in range(share(24)):
        group = LeaseGroup(seed, config=config_of(**settings))
        assert group.run_without_controllers() > 580


def test_with_a_timeout_that_is_too_short_a_master_does_not_serve_without_controllers() -> None:
    """No report counts then, and the start says so (BrokerConfig.warnings)."""
    config = config_of(controllerHeartBeatTimeoutMills=1_000, brokerHeartbeatInterval=200)
    assert LeaseGroup(1, config=config).run_without_controllers() < 100
