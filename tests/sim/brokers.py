"""Replicas of one group in the virtual world: the real registration, role, set and HA cores over a byte log.

What dies with the process is in SimBroker, what survives kill -9 is in Disk.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from broker.core.confirm_offset import confirm_offset
from broker.core.registration import Effect, Event, RegisterState, recover, step
from broker.core.role import (
    AdoptSyncStateSet,
    AskForElection,
    ChangeToMaster,
    ChangeToSlave,
    Role,
    RoleUpdate,
    decide_role,
    finished,
)
from broker.core.sync_state_set import SyncStateSet, SyncStateSetManager
from broker.ha.core import master_link, slave_link
from broker.ha.core.epochs import Epochs
from keelmq.remoting.codes import ResponseCode
from namesrv.core.liveness import BrokerKey
from namesrv.plugins.controller.core.decide import (
    Answer,
    Decision,
    ElectionRequest,
    decide_alter_sync_state_set,
    decide_apply_broker_id,
    decide_elect,
    decide_read,
    decide_register,
)
from namesrv.plugins.controller.core.elect import LiveInfo, LiveView
from namesrv.plugins.controller.core.events import AlterSyncStateSet, ApplyBrokerId
from namesrv.plugins.controller.core.rules import Refused
from namesrv.plugins.controller.core.state import BrokerSet, State
from tests.sim.checkers import Checker
from tests.sim.controllers import Answered, Controllers, SimController
from tests.sim.wire import End, Wire
from tests.sim.world import World
from tests.support.ha_parts import link_settings, slave_settings

CLUSTER, GROUP = "C", "broker-a"
RECORD_BYTES = 16
FILE_BYTES = 1 << 20
CALL_TIMEOUT_MS = 400
STRAGGLER_MS = (1_000, 9_000)
"""So late arrives a request that everybody has given up."""


@dataclass
class Disk:
    temp: tuple[int, str] | None = None
    meta: tuple[int, str] | None = None
    log: bytearray = field(default_factory=bytearray)
    epochs: Epochs = field(default_factory=Epochs)


@dataclass
class MasterSide:
    """A slave's connection, as its master has it."""

    link: master_link.MasterLink
    end: End
    wire: Wire


class SimBroker:
    """One process. Restarting makes a new one over the same Disk."""

    def __init__(
        self, name: str, world: World, controllers: Controllers, checker: Checker, disk: Disk
    ) -> None:
        self.name, self.world, self.controllers, self.checker, self.disk = (
            name,
            world,
            controllers,
            checker,
            disk,
        )
        self.up = True
        self.all_ack = True
        self.peers: dict[str, SimBroker] = {}
        self.confirm = 0
        self.role = Role(0)
        self.log_view = master_link.MasterLog(FILE_BYTES)
        self.sync_state_set_manager: SyncStateSetManager | None = None
        self.sides: list[MasterSide] = []
        self.pending: list[tuple[int, bytes]] = []
        self.slave: tuple[slave_link.SlaveLink, End, Wire] | None = None
        self._leader = world.random.randrange(len(controllers.members))
        self._asking = self._reading = False
        self._connections = {member.name: self._new_connection() for member in controllers.members}
        temp, meta = disk.temp, disk.meta
        self.registration = recover(temp and temp[0], meta and meta[0])
        world.at(1, self._register)
        world.every(1_000, self._heartbeat)
        world.every(500, self._poll)
        world.every(50, self._tick)

    def _new_connection(self) -> int:
        self.world.count += 1
        return self.world.count

    # -- the controllers -----------------------------------------------------------------------------------

    def ask(self, decide: Callable[[SimController], Callable[[State], Decision]], answered: Answered) -> None:
        """One request to whom we take for the leader; no answer in time: another is asked next."""
        target = self.controllers.members[self._leader]
        done = [False]

        def finish(group: BrokerSet | None, code: ResponseCode) -> None:
            if done[0] or not self.up:
                return
            done[0] = True
            if code in (ResponseCode.CONTROLLER_NOT_LEADER, ResponseCode.SYSTEM_BUSY):
                self._leader = (self._leader + 1) % len(self.controllers.members)
            answered(group, code)

        def back(group: BrokerSet | None, code: ResponseCode) -> None:
            self.world.send(target.name, self.name, lambda: finish(group, code))

        def deliver() -> None:
            if target.up:
                target.request(decide(target), back)

        if self.world.random.random() < self.world.conditions.straggling:  # as in a process that stood still
            self.world.at(self.world.random.randint(*STRAGGLER_MS), deliver)
        else:
            self.world.send(self.name, target.name, deliver)
        self.world.at(CALL_TIMEOUT_MS, lambda: finish(None, ResponseCode.SYSTEM_BUSY))

    def _register(self) -> None:
        if not self.up or self.registration.state is RegisterState.REGISTERED:
            return
        match self.registration.effect:
            case Effect.GET_NEXT_BROKER_ID:
                self.ask(lambda _c: _next_id, self._next_id_answered)
            case Effect.WRITE_TEMP:
                assert self.registration.broker_id is not None
                self.disk.temp = (self.registration.broker_id, f"{self.name};{self.world.now_ms}")
                self._registered(Event.OK)
            case Effect.APPLY_BROKER_ID:
                assert self.disk.temp is not None
                broker_id, code = self.disk.temp
                event = ApplyBrokerId(
                    broker_name=GROUP, cluster_name=CLUSTER, broker_id=broker_id, broker_address=self.name,
                    register_check_code=code,
                )  # fmt: skip
                self.ask(lambda _c: lambda state: decide_apply_broker_id(state, event), self._applied)
            case Effect.DELETE_TEMP:
                self.disk.temp = None
                self._registered(Event.OK)
            case Effect.REPLACE_TEMP_BY_META:
                self.disk.meta, self.disk.temp = self.disk.temp, None
                self._registered(Event.OK)
            case Effect.REGISTER_TO_CONTROLLER:
                self.ask(lambda c: lambda state: self._decide_register(c, state), self._registered_answered)

    def _decide_register(self, controller: SimController, state: State) -> Decision:
        assert self.registration.broker_id is not None
        group = state.brokers.get(GROUP)
        view = LiveView() if group is None else controller.view(group)
        return decide_register(
            state, view, cluster_name=CLUSTER, broker_name=GROUP, broker_id=self.registration.broker_id,
            broker_address=self.name, epoch=self.disk.epochs.last_epoch if self.disk.epochs.entries else None,
        )  # fmt: skip

    def _next_id_answered(self, group: BrokerSet | None, code: ResponseCode) -> None:
        if code is ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED:
            self._registered(Event.OK, 1)
        elif group is not None:
            self._registered(Event.OK, group.next_broker_id)
        else:
            self._registered(Event.UNKNOWN)

    def _applied(self, _group: BrokerSet | None, code: ResponseCode) -> None:
        if code is ResponseCode.CONTROLLER_BROKER_ID_INVALID:
            self._registered(Event.REFUSED)
        else:
            self._registered(Event.OK if code is ResponseCode.SUCCESS else Event.UNKNOWN)

    def _registered_answered(self, group: BrokerSet | None, code: ResponseCode) -> None:
        self._registered(Event.OK if code is ResponseCode.SUCCESS else Event.UNKNOWN)
        if self.registration.state is RegisterState.REGISTERED:
            assert self.registration.broker_id is not None
            self.role = Role(self.registration.broker_id)
            self._heartbeat()

    def _registered(self, event: Event, broker_id: int | None = None) -> None:
        self.registration = step(self.registration, event, broker_id)
        self.world.at(20 if event is Event.UNKNOWN else 1, self._register)

    @property
    def broker_id(self) -> int:
        return self.role.broker_id

    @property
    def is_running(self) -> bool:
        return self.up and self.registration.state is RegisterState.REGISTERED

    def _heartbeat(self) -> None:
        if not self.is_running:
            return
        info = LiveInfo(self.name, self.disk.epochs.last_epoch, len(self.disk.log), self.confirm)
        key = BrokerKey(CLUSTER, GROUP, self.broker_id)
        for member in self.controllers.members:
            connection = self._connections[member.name]

            def deliver(member: SimController = member, connection: int = connection) -> None:
                if member.up and self.up:
                    member.heartbeat(key, connection, info)

            self.world.send(self.name, member.name, deliver)

    def _poll(self) -> None:
        if self.is_running:
            self.ask(lambda _c: _read_group, self._role_update_of)

    def _role_update_of(self, group: BrokerSet | None, _code: ResponseCode) -> None:
        if group is not None:
            self.on_role_update(group)

    def on_role_update(self, group: BrokerSet) -> None:
        """From a poll or a notification, in any order."""
        if not self.is_running:
            return
        role_update = RoleUpdate(
            group.master_epoch, group.master_broker_id, group.master_address, group.sync_state_set,
            group.sync_state_set_epoch,
        )  # fmt: skip
        decision = decide_role(self.role, role_update)
        match decision:
            case ChangeToMaster():
                self._become_master(role_update)
            case ChangeToSlave():
                self._become_slave(role_update)
            case AdoptSyncStateSet() if self.sync_state_set_manager is not None:
                self.sync_state_set_manager.adopt(
                    SyncStateSet(role_update.sync_state_set, role_update.sync_state_set_epoch)
                )
                self.role = finished(self.role, role_update)
                self._progress()
            case AskForElection():
                self._ask_for_election()

    def _ask_for_election(self) -> None:
        if self._asking:
            return
        self._asking = True
        me = self.broker_id

        def decide_with(controller: SimController) -> Callable[[State], Decision]:
            def decide(state: State) -> Decision:
                group = state.brokers.get(GROUP)
                if group is None:
                    return Refused(ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST, "")
                return decide_elect(state, controller.view(group), ElectionRequest(GROUP, CLUSTER, me))

            return decide

        def answered(group: BrokerSet | None, code: ResponseCode) -> None:
            self._asking = False
            if group is not None and group.master_broker_id is not None:
                self.on_role_update(group)

        self.ask(decide_with, answered)

    # -- role changes --------------------------------------------------------------------------------------

    def _become_master(self, role_update: RoleUpdate) -> None:
        self._drop_links()
        del self.disk.log[len(self.disk.log) - len(self.disk.log) % RECORD_BYTES :]
        if role_update.master_epoch > self.disk.epochs.last_epoch:
            self.disk.epochs = self.disk.epochs.append(role_update.master_epoch, len(self.disk.log))
        self.checker.became_master(self.name, role_update.master_epoch, bytes(self.disk.log), RECORD_BYTES)
        self.world.note(f"{self.name} (id {self.broker_id}) is master, epoch {role_update.master_epoch}")
        self.sync_state_set_manager = SyncStateSetManager(
            self.broker_id,
            SyncStateSet(role_update.sync_state_set, role_update.sync_state_set_epoch),
            all_ack=self.all_ack,
            max_lag_ms=3_000,
            now_ms=self.world.now_ms,
        )
        self.role = finished(self.role, role_update)
        self.log_view = master_link.MasterLog(FILE_BYTES, self.disk.epochs)
        self._progress()

    def _become_slave(self, role_update: RoleUpdate) -> None:
        self._drop_links()
        self.sync_state_set_manager = None
        self.role = finished(self.role, role_update)
        self._dial()

    def _drop_links(self) -> None:
        self.pending.clear()
        sides, self.sides = self.sides, []
        for side in sides:
            side.wire.reset()
        if self.slave is not None:
            self.slave[2].reset()
            self.slave = None

    # -- slave ---------------------------------------------------------------------------------------------

    def _dial(self) -> None:
        if not self.is_running or self.role.is_master or self.slave is not None:
            return
        master = self.peers.get(self.role.master_address or "")
        if master is None or not self.world.connected(self.name, master.name) or not master.accepts():
            return
        link = slave_link.SlaveLink(
            self.broker_id, slave_settings(FILE_BYTES), epochs=self.disk.epochs, min_offset=0,
            max_offset=len(self.disk.log), now_ms=self.world.now_ms,
        )  # fmt: skip
        mine, theirs = End(self.name), End(master.name)
        wire = Wire(self.world, mine, theirs)
        self.slave = (link, mine, wire)
        mine.on_data = lambda data: self._slave_data(link, mine, data)
        mine.on_close = lambda: self._slave_closed(link)
        master.accept(theirs, wire)
        self._slave_effects(link, mine)

    def _slave_closed(self, link: slave_link.SlaveLink) -> None:
        if self.slave is not None and self.slave[0] is link:
            self.slave = None

    def _slave_data(self, link: slave_link.SlaveLink, end: End, data: bytes) -> None:
        if self.slave is None or self.slave[0] is not link or not self.up:
            return
        now_ms = self.world.now_ms
        while data and not link.closed:
            if link.body_wanted:
                piece, data = data[: link.body_wanted], data[link.body_wanted :]
                self.disk.log += piece
                link.body_received(len(piece), now_ms)
            else:
                piece, data = data[: link.control_wanted], data[link.control_wanted :]
                link.receive_control(piece, now_ms)
            self._slave_effects(link, end)

    def _slave_effects(self, link: slave_link.SlaveLink, end: End) -> None:
        wire = self.slave[2] if self.slave is not None else None
        while wire is not None and (effect := link.next_effect(self.world.now_ms)) is not None:
            match effect:
                case slave_link.SendBytes(data):
                    wire.send(end, data)
                case slave_link.Truncate(offset):
                    self.world.note(f"{self.name} truncates to {offset}")
                    del self.disk.log[offset - offset % RECORD_BYTES :]
                    link.truncated(len(self.disk.log))
                case slave_link.SaveEpochs(epochs):
                    self.disk.epochs = epochs
                case slave_link.Confirm(offset):
                    self.confirm = offset
                case slave_link.Close(reason, fatal):
                    assert not fatal, f"{self.name}: {reason}"
                    wire.reset()
                    self.slave = None
                    return

    # -- master --------------------------------------------------------------------------------------------

    def accepts(self) -> bool:
        return self.is_running and self.role.is_master

    def accept(self, end: End, wire: Wire) -> None:
        link = master_link.MasterLink(self.log_view, link_settings(), now_ms=self.world.now_ms)
        side = MasterSide(link, end, wire)
        self.sides.append(side)
        end.on_data = lambda data: self._master_data(side, data)
        end.on_close = lambda: self._side_closed(side)

    def _master_data(self, side: MasterSide, data: bytes) -> None:
        if self.up and side in self.sides:
            side.link.receive_data(data, self.world.now_ms)
            self._progress()

    def _side_closed(self, side: MasterSide) -> None:
        if side in self.sides:
            self.sides.remove(side)
            self._progress()

    def _followers(self) -> dict[int, master_link.MasterLink]:
        """The newest link of each slave that said who it is."""
        return {side.link.slave_id: side.link for side in self.sides if side.link.slave_id is not None}

    def send(self, record: bytes) -> None:
        """A producer's record; acknowledged when every member of the SyncStateSet has it."""
        if not (self.is_running and self.role.is_master and self.sync_state_set_manager is not None):
            return
        offset = len(self.disk.log)
        self.disk.log += record
        self.pending.append((offset, record))
        self._progress()

    def _progress(self) -> None:
        """After anything moved: confirmOffset, answers, packets, proposals."""
        manager = self.sync_state_set_manager
        if manager is None or not self.up:
            return
        followers = self._followers()
        acks = {slave_id: link.ack_offset for slave_id, link in followers.items()}
        self.confirm = confirm_offset(
            self.confirm,
            max_offset=len(self.disk.log),
            others=manager.others,
            acks=acks,
            all_ack=self.all_ack,
        )
        while self.pending and self.pending[0][0] + RECORD_BYTES <= self.confirm:
            offset, record = self.pending.pop(0)
            self.checker.acknowledged(record, offset, self.role.epoch)
        self.log_view.max_offset, self.log_view.confirm_offset = len(self.disk.log), self.confirm
        for side in list(self.sides):
            self._pump(side)
        self._propose(manager)

    def _pump(self, side: MasterSide) -> None:
        while (effect := side.link.next_effect(self.world.now_ms)) is not None:
            if isinstance(effect, master_link.Close):
                self.sides.remove(side)
                side.wire.reset()
                return
            body = bytes(self.disk.log[effect.offset : effect.offset + effect.body_bytes])
            side.wire.send(side.end, effect.header + body)

    def _propose(self, manager: SyncStateSetManager) -> None:
        epoch_start = self.disk.epochs.last_start_offset
        proposal = manager.next_proposal(
            self._followers(), confirm_offset=self.confirm, epoch_start_offset=epoch_start,
            now_ms=self.world.now_ms,
        )  # fmt: skip
        if proposal is None:
            return
        event = AlterSyncStateSet(
            broker_name=GROUP, master_broker_id=self.broker_id,
            new_sync_state_set=tuple(sorted(proposal.members)), expected_master_epoch=self.role.epoch,
            expected_sync_state_set_epoch=proposal.base_epoch,
        )  # fmt: skip

        def answered(group: BrokerSet | None, code: ResponseCode) -> None:
            good = (
                group is not None and code is ResponseCode.SUCCESS and self.sync_state_set_manager is manager
            )
            answer = (
                SyncStateSet(group.sync_state_set, group.sync_state_set_epoch) if good and group else None
            )
            manager.answered(answer, now_ms=self.world.now_ms)
            if self.sync_state_set_manager is manager:
                self._progress()

        self.ask(lambda c: lambda state: _decide_alter(c, state, event), answered)

    def _tick(self) -> None:
        if not self.is_running:
            return
        if self.slave is not None:
            self._slave_effects(self.slave[0], self.slave[1])
        else:
            self._dial()
        self._progress()
        if (
            self.sync_state_set_manager is not None
            and self.sync_state_set_manager.must_read
            and not self._reading
        ):
            self._read_set(self.sync_state_set_manager)

    def _read_set(self, manager: SyncStateSetManager) -> None:
        self._reading, begun_ms = True, self.world.now_ms

        def answered(group: BrokerSet | None, _code: ResponseCode) -> None:
            self._reading = False
            if group is not None and group.master_epoch == self.role.epoch:
                manager.read(
                    SyncStateSet(group.sync_state_set, group.sync_state_set_epoch), begun_ms=begun_ms
                )
                self._progress()

        reader, epoch, doubted = self.broker_id, self.role.epoch, manager.agreed.epoch

        def decide_fenced(state: State) -> Decision:
            return decide_read(
                state, broker_name=GROUP, master_broker_id=reader, master_epoch=epoch,
                fence_sync_state_set_epoch=doubted,
            )  # fmt: skip

        self.ask(lambda _c: decide_fenced, answered)

    def crash(self) -> None:
        """kill -9: connections close by themselves, everything in memory is gone."""
        self.up = False
        self._drop_links()
        for member in self.controllers.members:
            connection = self._connections[member.name]

            def closed(member: SimController = member, connection: int = connection) -> None:
                member.table.connection_closed(connection, self.world.now_ms)

            self.world.at(self.world.delay_ms(), closed)


def _next_id(state: State) -> Decision:
    group = state.brokers.get(GROUP)
    if group is None:
        return Refused(ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, "")
    return Answer(group)


def _read_group(state: State) -> Decision:
    return decide_read(state, broker_name=GROUP)


def _decide_alter(controller: SimController, state: State, event: AlterSyncStateSet) -> Decision:
    return decide_alter_sync_state_set(state, event, controller.view(state.brokers[GROUP]))
