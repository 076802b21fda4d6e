"""Isolated masters in the virtual world, with nothing aligned: every broker has a clock of its own, each of
its periodic tasks begins at a random time, the settings are any that start, and a cut is silent, as in a
network that drops packets (bytes wait, and no end of a connection is told).

The cores of the lease are real: Lease, report_lease_ms, ReportPromise, the HA links. Claims:

    an acknowledgement   never comes after another broker has begun its term; with all-ack, unless that
                         broker has the message
    at a cut at once     never after the controllers have elected, either (the first rule of
                         broker/core/report_lease.py alone)
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from broker.config.broker_config import BrokerConfig
from broker.controller_mode.replication_settings import ha_settings
from broker.core.lease import Lease, ReplicaLeases
from broker.core.report_lease import ReportPromise, report_lease_ms
from broker.core.role import RoleUpdate
from broker.ha.core import master_link, slave_link
from keelmq.remoting.codes import ResponseCode
from namesrv.core.liveness import BrokerKey
from namesrv.plugins.controller.core.elect import LiveInfo
from namesrv.plugins.controller.core.state import BrokerSet
from tests.sim import brokers as sim
from tests.sim.brokers import CLUSTER, FILE_BYTES, GROUP, MasterSide, SimBroker
from tests.sim.checkers import Checker, Violation
from tests.sim.controllers import SimController
from tests.sim.group import Group
from tests.sim.wire import End
from tests.sim.world import World
from tests.support.ha_parts import slave_settings

RESEND_MS = 200
GIVE_UP_MS = 20_000
RATE = 0.01
"""Clocks run faster or slower by this at the most; the margin is a tenth."""
SETTLE_MS, HEALED_MS = 8_000, 6_000
POLL_MS, TICK_MS = 1_000, 100


class LeaseWorld(World):
    """Cuts may be one way, and a lost packet is a late one: messages go over TCP."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._ways: set[tuple[str, str]] = set()

    def cut_way(self, source: str, target: str) -> None:
        self._ways.add((source, target))

    def heal(self) -> None:
        super().heal()
        self._ways.clear()

    def delay_ms(self) -> int:
        delay_ms = super().delay_ms()
        while self.random.random() < self.conditions.loss:
            delay_ms += RESEND_MS
        return delay_ms

    def send(self, sender: str, receiver: str, deliver: Callable[[], None]) -> None:
        self.at(self.delay_ms(), lambda: deliver() if self.connected(sender, receiver) else None)

    def connected(self, one: str, other: str) -> bool:
        return super().connected(one, other) and (one, other) not in self._ways


class LocalWorld:
    """The world as one broker sees it: its clock, and timers by that clock. The first call of a periodic task
    comes at any time of its period."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rate = 1 + world.random.uniform(-RATE, RATE)
        self._ahead_ms = world.random.randint(0, 1_000_000)

    @property
    def now_ms(self) -> int:
        return self._ahead_ms + int(self._world.now_ms * self._rate)

    @property
    def count(self) -> int:
        return self._world.count

    @count.setter
    def count(self, count: int) -> None:
        self._world.count = count

    def at(self, delay_ms: int, action: Callable[[], None]) -> None:
        self._world.at(round(delay_ms / self._rate), action)

    def every(self, period_ms: int, action: Callable[[], None]) -> None:
        def again() -> None:
            action()
            self.at(period_ms, again)

        self.at(self._world.random.randint(1, period_ms), again)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world, name)


@dataclass
class SilentWire:
    """One direction of a TCP connection: `here` sends. Bytes and the end of the stream wait while nothing
    passes, and the sender sends them again."""

    world: World
    here: End
    there: End
    _queue: deque[bytes | None] = field(default_factory=deque)
    _is_flying: bool = False
    _stuck_since_ms: int | None = None
    back: "SilentWire | None" = None
    by_peer: bool = False  # `here` was closed by the other end

    def send(self, _sender: End, data: bytes) -> None:
        if not self.here.closed:
            self._put(data)

    def half_close(self) -> None:
        if not self.here.closed:
            self._put(None)

    def reset(self) -> None:
        """`here` closes: at once here, and over there when that is known there."""
        if not self.here.closed:
            self.here.closed = True
            self._put(None)
            self.world.at(1, self.here.on_close)

    def _put(self, data: bytes | None) -> None:
        self._queue.append(data)
        self._fly(self.world.delay_ms())

    def _fly(self, delay_ms: int) -> None:
        if not self._is_flying and self._queue:
            self._is_flying = True
            self.world.at(delay_ms, self._arrive)

    def _arrive(self) -> None:
        self._is_flying = False
        if not self.world.connected(self.here.name, self.there.name):
            return self._stuck()
        if not self.world.connected(self.there.name, self.here.name):
            self._fly(RESEND_MS)  # this arrives, and its sender does not know it: nothing more is sent
        self._stuck_since_ms = None
        while self._queue and not self.there.closed:
            data = self._queue.popleft()
            if data is not None:
                self.there.on_data(data)
            elif self.back is not None:
                self.there.closed = self.back.by_peer = True
                self.back._put(None)
                self.there.on_close()
        return None

    def _stuck(self) -> None:
        now_ms = self.world.now_ms
        self._stuck_since_ms = self._stuck_since_ms or now_ms
        if now_ms - self._stuck_since_ms < GIVE_UP_MS:
            return self._fly(RESEND_MS)
        self._queue.clear()
        if not self.here.closed:
            self.here.closed = True
            self.here.on_close()
        return None


@dataclass(frozen=True)
class Rules:
    """What holds a report true. The group runs without one of them, too, to see that it is needed."""

    first: bool = True  # a report counts for report_lease_ms(); without: for three of haSendHeartbeatInterval
    second: bool = True  # an elected slave waits


class LeaseChecker(Checker):
    """Late acknowledgements: after another election, and after another broker has begun its term."""

    def __init__(self, group: "LeaseGroup") -> None:
        super().__init__()
        self.group = group
        self.after_election = self.after_term = 0

    def became_master(self, broker: str, epoch: int, log: bytes, record_bytes: int) -> None:
        owner = self.masters.setdefault(epoch, broker)
        if owner != broker:
            raise Violation(f"masterEpoch {epoch} has two masters: {owner} and {broker}")

    def acknowledged(self, record: bytes, offset: int, epoch: int) -> None:
        super().acknowledged(record, offset, epoch)
        self.after_election += self.group.elected_after(epoch)
        self.after_term += any(
            name != self.masters[epoch] and not self._has(name, record, offset)
            for later, name in self.masters.items()
            if later > epoch
        )

    def _has(self, name: str, record: bytes, offset: int) -> bool:
        """With all-ack nobody waits: the elected broker's ack may be on its way."""
        log = self.group.brokers[name].disk.log
        return self.group.all_ack and bytes(log[offset : offset + len(record)]) == record


class LeasedBroker(SimBroker):
    lease: Lease
    config: BrokerConfig
    rules: Rules

    def __init__(self, name: str, group: "LeaseGroup", disk: sim.Disk) -> None:
        self.group, self.config, self.rules = group, group.config, group.rules
        timeout_ms = self.config.controller_heart_beat_timeout_mills
        interval_ms = self.config.broker_heartbeat_interval
        ours, foreign = (
            report_lease_ms(timeout_ms, interval_ms, is_keelmq=True),
            report_lease_ms(timeout_ms, interval_ms, is_keelmq=False),
        )
        if not self.rules.first:
            ours = foreign = 3 * self.config.ha_send_heartbeat_interval
        self.lease = Lease(timeout_ms=timeout_ms, replica_leases=ReplicaLeases(ours, foreign))
        self.promise = ReportPromise()
        self._reports_end = False
        world = cast(World, LocalWorld(group.world))
        super().__init__(name, world, group.controllers, group.checker, disk)
        self.all_ack = self.config.all_ack_in_sync_state_set
        self.world.every(interval_ms, self._heartbeat_as_configured)
        self.world.every(POLL_MS, self._poll_as_configured)
        self.world.every(TICK_MS, self._tick_links)

    # -- heartbeats ------------------------------------------------------------------------------------

    def _heartbeat(self) -> None:
        """SimBroker's own timer."""

    def _poll(self) -> None:
        """SimBroker's own timer."""

    def _registered_answered(self, group: BrokerSet | None, code: ResponseCode) -> None:
        super()._registered_answered(group, code)
        self._heartbeat_as_configured()

    def _heartbeat_as_configured(self) -> None:
        if not self.is_running:
            return
        info = LiveInfo(self.name, self.disk.epochs.last_epoch, len(self.disk.log), self.confirm)
        for member in self.controllers.members:
            self._heartbeat_one(member, info, self.world.now_ms)

    def _heartbeat_one(self, member: SimController, info: LiveInfo, sent_ms: int) -> None:
        connection = self._connections[member.name]

        def answered() -> None:
            self.lease.heartbeat_answered(member.name, sent_ms, self.world.now_ms)

        def deliver() -> None:
            if not member.up:
                return
            member.table.record_heartbeat(
                BrokerKey(CLUSTER, GROUP, self.broker_id),
                connection_id=connection,
                incarnation=str(connection),
                timeout_ms=self.config.controller_heart_beat_timeout_mills,
                now_ms=member.world.now_ms,
                info=info,
            )
            self.world.send(member.name, self.name, answered)

        self.world.send(self.name, member.name, deliver)

    def _poll_as_configured(self) -> None:
        if not self.is_running:
            return
        asked_ms, leader = self.world.now_ms, self.controllers.members[self._leader].name

        def answered(group: BrokerSet | None, code: ResponseCode) -> None:
            if group is None:
                return
            if (group.master_broker_id, group.master_epoch) == (self.broker_id, self.role.epoch):
                self.lease.confirmed(leader, asked_ms)
            self._role_update_of(group, code)

        self.ask(lambda _c: sim._read_group, answered)

    def reset_connection(self, member: SimController) -> None:
        """Both ends see it."""
        member.table.connection_closed(self._connections[member.name], member.world.now_ms)
        self.lease.connection_lost(member.name)

    # -- the lease -------------------------------------------------------------------------------------

    def may_acknowledge(self) -> bool:
        manager = self.sync_state_set_manager
        others = manager.others if manager is not None else ()
        return not self.lease.is_over(self.world.now_ms, others, self._followers())

    def send(self, record: bytes) -> None:
        if self.may_acknowledge():
            super().send(record)

    def _progress(self) -> None:
        if not self.may_acknowledge():
            self.pending = []  # answered 12 when their time is over
        super()._progress()

    # -- links -----------------------------------------------------------------------------------------

    def _dial(self) -> None:
        if self._reports_end or not self.is_running or self.role.is_master or self.slave is not None:
            return
        master = self.peers.get(self.role.master_address or "")
        if not isinstance(master, LeasedBroker) or not master.accepts():
            return
        if not (
            self.world.connected(self.name, master.name) and self.world.connected(master.name, self.name)
        ):
            return
        settings = ha_settings(self.config).slave_link(file_bytes=FILE_BYTES)
        if not self.rules.first:
            settings = slave_settings(FILE_BYTES)
        link = slave_link.SlaveLink(
            self.broker_id, settings, epochs=self.disk.epochs, min_offset=0,
            max_offset=len(self.disk.log), now_ms=self.world.now_ms,
        )  # fmt: skip
        mine, theirs = End(self.name), End(master.name)
        out, back = SilentWire(self.group.world, mine, theirs), SilentWire(self.group.world, theirs, mine)
        out.back, back.back = back, out
        self.slave = (link, mine, cast(Any, out))
        mine.on_data = lambda data: self._slave_data(link, mine, data)
        mine.on_close = lambda: self._link_ended(link, out)
        master.accept(theirs, cast(Any, back))
        self._slave_effects(link, mine)

    def _link_ended(self, link: slave_link.SlaveLink, wire: SilentWire) -> None:
        if not wire.by_peer:
            self.promise.reported(link.sent_ms)
        self._slave_closed(link)

    def _slave_effects(self, link: slave_link.SlaveLink, end: End) -> None:
        if self._reports_end:
            while isinstance(effect := link.next_effect(self.world.now_ms), slave_link.Confirm):
                self.confirm = effect.offset
            return
        super()._slave_effects(link, end)

    def accept(self, end: End, wire: Any) -> None:
        link = master_link.MasterLink(
            self.log_view, ha_settings(self.config).master_link, now_ms=self.world.now_ms
        )
        side = MasterSide(link, end, wire)
        self.sides.append(side)
        end.on_data = lambda data: self._master_data(side, data)
        end.on_close = lambda: self._side_closed(side)

    def _tick_links(self) -> None:
        if self.slave is not None and not self._reports_end:
            self.slave[0].tick(self.world.now_ms)
        self._tick()

    # -- the promise -----------------------------------------------------------------------------------

    def _become_master(self, role_update: RoleUpdate) -> None:
        if self.rules.second and not self.all_ack and self._waits(role_update):
            return
        self._reports_end = False
        super()._become_master(role_update)

    def _become_slave(self, role_update: RoleUpdate) -> None:
        self._reports_end = False
        super()._become_slave(role_update)

    def _waits(self, role_update: RoleUpdate) -> bool:
        """Ends the reports; returns whether one may still count."""
        if self.slave is not None:
            link, _, wire = self.slave
            if not self._reports_end:
                self._reports_end = True
                cast(SilentWire, wire).half_close()
            promise = ReportPromise()
            promise.reported(link.sent_ms)
            left_ms = promise.left_ms(self.world.now_ms)
        else:
            left_ms = self.promise.left_ms(self.world.now_ms)
        if left_ms:
            self.world.at(min(left_ms, 5), lambda: self._again(role_update))
        return left_ms > 0

    def _again(self, role_update: RoleUpdate) -> None:
        if self.up and self.role.epoch < role_update.master_epoch:
            self._become_master(role_update)


@dataclass(frozen=True)
class Cut:
    """What happens to the master. lag_ms: so long after the controllers are cut off the slaves are.
    one_way: only what it sends ("out"), or only what it gets ("in"), is lost. resets: its connections to the
    controllers are reset first, and both ends see that."""

    lag_ms: int = 0
    one_way: str = ""
    resets: bool = False
    slaves: int = 2  # how many of the two

    @property
    def is_at_once(self) -> bool:
        """Whether the first rule alone holds. Over a cut of one direction the keep-alive of a slave whose
        master is silent still arrives, and a broker that cannot be answered may be replaced before T."""
        return not self.lag_ms and not self.resets and not self.one_way and self.slaves == 2


class LeaseGroup(Group):
    """Three controllers, three brokers; one producer beside each broker."""

    def __init__(
        self, seed: int, *, config: BrokerConfig | None = None, cut: Cut | None = None, rules: Rules = Rules()
    ) -> None:
        self.rules = rules
        self._dice = World(seed + 1_000_003).random
        self._elected: dict[int, int] = {}  # masterEpoch -> broker id
        self.config = config or self._some_config()
        self.cut_off = cut or self._some_cut()
        super().__init__(seed, all_ack=self.config.all_ack_in_sync_state_set)

    def _some_config(self) -> BrokerConfig:
        """Any settings that start."""
        timeout_ms = self._dice.choice([3_000, 10_000, self._dice.randint(1_000, 12_000)])
        interval_ms = self._dice.randint(timeout_ms // 10, timeout_ms // 3)
        return config_of(
            controllerHeartBeatTimeoutMills=timeout_ms,
            brokerHeartbeatInterval=self._dice.choice([min(1_000, timeout_ms // 3), interval_ms]),
            haSendHeartbeatInterval=self._dice.choice([100, 1_000, 5_000]),
            allAckInSyncStateSet=self._dice.random() < 0.3,
        )

    def _some_cut(self) -> Cut:
        late_ms = self._dice.randint(0, self.config.controller_heart_beat_timeout_mills + 1_000)
        return Cut(
            lag_ms=self._dice.choice([0, 0, late_ms]),
            one_way=self._dice.choice(["", "", "out", "in"]),
            resets=self._dice.random() < 0.2,
            slaves=self._dice.choice([2, 2, 1, 0]),
        )

    def make_world(self, seed: int) -> World:
        return LeaseWorld(seed)

    def make_checker(self) -> Checker:
        return LeaseChecker(self)

    def start_broker(self, name: str) -> None:
        broker = LeasedBroker(name, self, self.disks[name])
        self.brokers[name] = broker
        broker.peers = self.brokers

    def produce(self) -> None:
        for broker in self.brokers.values():
            if broker.is_running and broker.role.is_master:
                self.sent += 1
                broker.send(self.sent.to_bytes(sim.RECORD_BYTES, "big"))

    def elected_after(self, epoch: int) -> bool:
        """Returns whether another broker than the master of `epoch` has been elected since."""
        leader = next((each for each in self.controllers.members if each.is_active), None)
        group = leader.state.brokers.get(GROUP) if leader is not None else None
        if group is not None and group.master_broker_id is not None:
            self._elected[group.master_epoch] = group.master_broker_id
        elected = self._elected.get(epoch)
        return any(each != elected for later, each in self._elected.items() if later > epoch)

    def master(self) -> str:
        group = self.controllers.committed().brokers[GROUP]
        return next(each.name for each in self.brokers.values() if each.broker_id == group.master_broker_id)

    def _cut_from(self, master: str, others: list[str]) -> None:
        assert isinstance(self.world, LeaseWorld)
        for other in others:
            if self.cut_off.one_way != "in":
                self.world.cut_way(master, other)
            if self.cut_off.one_way != "out":
                self.world.cut_way(other, master)

    def run(self) -> None:
        """Cuts the master off, and raises Violation for a late acknowledgement."""
        world, random = self.world, self.world.random
        world.run_until(SETTLE_MS + random.randint(0, 3_000))
        master = self.master()
        slaves = [name for name in self.brokers if name != master][: self.cut_off.slaves]
        begin = len(self.checker.acked)
        world.note(f"{master} is cut off: {self.cut_off}, {described(self.config)}")
        self._cut_from(master, [member.name for member in self.controllers.members])
        if self.cut_off.resets:
            for member in self.controllers.members:
                cast(LeasedBroker, self.brokers[master]).reset_connection(member)
        if self.cut_off.lag_ms:
            world.run_until(world.now_ms + self.cut_off.lag_ms)
        self._cut_from(master, slaves)
        world.run_until(world.now_ms + self.config.controller_heart_beat_timeout_mills + HEALED_MS)
        world.heal()
        world.calm()
        world.run_until(world.now_ms + HEALED_MS)
        self._judge(begin)

    def run_without_controllers(self) -> int:
        """Stops all controllers for ten seconds. Returns how many messages are acknowledged meanwhile."""
        self.world.run_until(SETTLE_MS)
        for member in self.controllers.members:
            member.crash()
        begin = len(self.checker.acked)
        self.world.run_until(SETTLE_MS + 10_000)
        return len(self.checker.acked) - begin

    def _judge(self, begin: int) -> None:
        checker = self.checker
        assert isinstance(checker, LeaseChecker)
        what = f"{self.cut_off}, {described(self.config)}"
        if not begin:
            raise Violation(f"{what}: nothing was acknowledged before the cut")
        if len(checker.masters) < 2 and self.cut_off.one_way != "in":
            raise Violation(f"{what}: nobody else was elected")
        if checker.after_term:
            raise Violation(f"{what}: {checker.after_term} acknowledgements after another term had begun")
        if checker.after_election and self.cut_off.is_at_once and not self.config.all_ack_in_sync_state_set:
            raise Violation(f"{what}: {checker.after_election} acknowledgements after another election")


def config_of(**settings: object) -> BrokerConfig:
    return BrokerConfig.model_validate(
        {"enableControllerMode": True, "controllerAddr": "a:1", "namesrvAddr": "a:1", **settings}
    )


def described(config: BrokerConfig) -> str:
    keys = (
        "controllerHeartBeatTimeoutMills", "brokerHeartbeatInterval", "haSendHeartbeatInterval",
        "allAckInSyncStateSet",
    )  # fmt: skip
    values = config.model_dump(by_alias=True)
    return ", ".join(f"{key}={values[key]}" for key in keys)
