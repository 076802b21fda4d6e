"""Who asks the controllers: brokers with the real registration, masters that alter their set, an operator.

A message is lost, late, or arrives twice; a connection breaks with its process. Every answer goes to Truth.
"""

import asyncio
import itertools
from collections.abc import Coroutine
from dataclasses import dataclass, field
from random import Random
from typing import Any

from broker.core.registration import Effect, Event, RegisterState, event_of, recover, step
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.command import decode, decode_body, encode, parse_header, request_command
from keelmq.remoting.operation import Empty, Failed, Ok, Operation, Outcome, Unknown, Wire
from keelmq.remoting.operations import controller as wire
from keelmq.remoting.operations.route import BROKER_HEARTBEAT, BrokerHeartbeatRequest
from tests.sim.control.node import Node
from tests.sim.control.truth import Truth, View

CLUSTER = "C"
CALL_TIMEOUT_S = 0.4
HEARTBEAT_S, POLL_S = 1.0, 0.3
HEARTBEAT_TIMEOUT_MS = 3_000
SURE_S = 1.4
"""Who was heard within this time, less than half the time-out, works for sure."""


@dataclass
class Air:
    """What lies between clients and controllers. `cut`: pairs of names that do not reach each other."""

    loop: asyncio.AbstractEventLoop
    random: Random
    nodes: dict[str, Node]
    truth: Truth
    loss: float
    duplicates: float
    delay_max_s: float
    cut: set[frozenset[str]] = field(default_factory=set)
    messages: int = 0
    connection_ids: Any = field(default_factory=lambda: itertools.count(1))
    opaques: Any = field(default_factory=lambda: itertools.count(1))

    def connected(self, one: str, other: str) -> bool:
        return frozenset((one, other)) not in self.cut

    def send(self, sender: str, receiver: str, arrive: Any) -> None:
        self.messages += 1

        def deliver() -> None:
            if self.connected(sender, receiver):
                arrive()

        if self.random.random() >= self.loss:
            self.loop.call_later(self.delay(), deliver)
            if self.random.random() < self.duplicates:
                self.loop.call_later(self.delay() + self.random.random() * 0.5, deliver)

    def delay(self) -> float:
        return 0.0005 + self.random.random() * self.delay_max_s


class Connection:
    """From a client to one run of a node; both ends."""

    def __init__(self, client: "Client", node: Node) -> None:
        self.client, self.node = client, node
        self.connection_id = next(client.air.connection_ids)
        self.address, self.closed = client.name, False
        self.in_flight = self.in_flight_bytes = 0
        self.heard_s: list[float] = []  # when a heartbeat arrived

    def is_closing(self) -> bool:
        return self.closed or not self.node.alive

    def send(self, frame: bytes) -> bool:
        """An answer or a push, by the node."""
        if self.is_closing():
            return False
        self.client.air.send(self.node.name, self.client.name, lambda: self.client.received(frame))
        return True

    def close(self) -> None:
        """The client is gone; the node hears of it a little later."""
        self.closed = True
        node = self.node
        self.client.air.loop.call_later(self.client.air.delay(), node.connection_closed, self.connection_id)


class Client:
    def __init__(self, name: str, air: Air) -> None:
        self.name, self.air, self.alive = name, air, True
        self.connections: dict[str, Connection] = {}
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._leader = air.random.choice(sorted(air.nodes))
        self._tasks: list[asyncio.Task[None]] = []

    def run(self, what: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.append(self.air.loop.create_task(what, name=f"{name} of {self.name}"))

    def end(self) -> None:
        """kill -9."""
        self.alive = False
        for task in self._tasks:
            task.cancel()
        for connection in self.connections.values():
            connection.close()

    def finished(self) -> list[asyncio.Task[None]]:
        return [task for task in self._tasks if task.done() and not task.cancelled()]

    def tell(
        self, target: str, operation: Operation[Any, Any], header: Wire, body: object = None, opaque: int = 0
    ) -> None:
        """One request to that controller, over a connection to its present run."""
        node = self.air.nodes[target]
        connection = self.connections.get(target)
        if connection is None or connection.node is not node:
            connection = self.connections[target] = Connection(self, node)
        command = request_command(operation, header, body, oneway=opaque == 0)
        command.opaque = opaque
        frame, via = encode(command), connection

        def arrive() -> None:
            if via.closed:
                return
            node.arrived(frame, via)
            if operation is BROKER_HEARTBEAT:
                via.heard_s.append(self.air.loop.time())

        self.air.send(self.name, target, arrive)

    async def call(
        self, target: str, operation: Operation[Any, Any], header: Wire, body: object = None
    ) -> Outcome[Any]:
        opaque = next(self.air.opaques)
        future = self._pending[opaque] = self.air.loop.create_future()
        self.tell(target, operation, header, body, opaque)
        await asyncio.wait({future}, timeout=CALL_TIMEOUT_S)
        del self._pending[opaque]
        if not future.done():
            return Unknown("timeout")
        answer = future.result()
        good = (ResponseCode.SUCCESS, ResponseCode.CONTROLLER_MASTER_STILL_EXIST)
        if answer.code not in good:
            return Failed(answer.code, answer.remark or "")
        return Ok(
            parse_header(operation.response, answer.ext_fields),
            decode_body(operation.response_body, answer.body),
            answer.code,
        )

    async def ask(self, operation: Operation[Any, Any], header: Wire, body: object = None) -> Outcome[Any]:
        """Whom we take for the leader; another one is asked next if that was none."""
        outcome = await self.call(self._leader, operation, header, body)
        lost = isinstance(outcome, Unknown) or (
            isinstance(outcome, Failed) and outcome.code == ResponseCode.CONTROLLER_NOT_LEADER
        )
        if lost:
            names = sorted(self.air.nodes)
            self._leader = names[(names.index(self._leader) + 1) % len(names)]
        return outcome

    def received(self, frame: bytes) -> None:
        if not self.alive:
            return
        command = decode(frame[4:])
        if not command.is_response:
            return self.pushed(command)
        future = self._pending.get(command.opaque)
        if future is not None and not future.done():
            future.set_result(command)

    def pushed(self, command: Any) -> None: ...


@dataclass
class Disk:
    """What a broker keeps over kill -9."""

    temp: tuple[int, str] | None = None
    meta: tuple[int, str] | None = None


class Broker(Client):
    """One process. It believes who is master when a controller says so, and acts upon it."""

    def __init__(self, name: str, group: str, air: Air, disk: Disk) -> None:
        super().__init__(name, air)
        self.group, self.disk = group, disk
        self.info, self.set = wire.MasterInfo(), wire.SyncStateSet()
        self.offset = air.random.randrange(100)
        temp, meta = disk.temp, disk.meta
        self.registration = recover(temp and temp[0], meta and meta[0])
        self.is_new = meta is None
        self.run(self._live(), "life")

    @property
    def broker_id(self) -> int | None:
        return self.disk.meta[0] if self.disk.meta else None

    def works_for(self, node: str, since_s: float) -> bool:
        """Whether that controller has heard this broker all the time since then."""
        connection = self.connections.get(node)
        if not self.is_registered or connection is None or connection.is_closing():
            return False
        times = [since_s - SURE_S, *connection.heard_s, self.air.loop.time()]
        gaps = [later - earlier for earlier, later in itertools.pairwise(times) if later > since_s - SURE_S]
        return max(gaps) < SURE_S

    @property
    def is_registered(self) -> bool:
        return self.alive and self.registration.state is RegisterState.REGISTERED

    async def _live(self) -> None:
        while self.registration.state is not RegisterState.REGISTERED:
            await self._register()
        self.run(self._heartbeat(), "heartbeats")
        self.run(self._poll(), "polls")
        self.run(self._work(), "work")

    # ---- registration ----

    async def _register(self) -> None:
        """One step of the real procedure; a temp file is written, and removed, as it says."""
        effect, broker_id = self.registration.effect, None
        event = Event.OK
        match effect:
            case Effect.GET_NEXT_BROKER_ID:
                request = wire.BrokerSetRequest(cluster_name=CLUSTER, broker_name=self.group)
                outcome = await self.ask(wire.GET_NEXT_BROKER_ID, request)
                event = event_of(effect, outcome)
                broker_id = outcome.header.next_broker_id if isinstance(outcome, Ok) else None
            case Effect.WRITE_TEMP:
                assert self.registration.broker_id is not None
                code = f"{self.name}:10911;{int(self.air.loop.time() * 1_000)}"
                self.disk.temp = (self.registration.broker_id, code)
            case Effect.APPLY_BROKER_ID:
                event = await self._apply_id()
            case Effect.DELETE_TEMP:
                self.disk.temp = None
            case Effect.REPLACE_TEMP_BY_META:
                self.disk.meta, self.disk.temp = self.disk.temp, None
            case Effect.REGISTER_TO_CONTROLLER:
                event = await self._register_to_controller()
        self.registration = step(self.registration, event, broker_id)
        await asyncio.sleep(0.02 if event is Event.UNKNOWN else 0.001)

    async def _apply_id(self) -> Event:
        assert self.disk.temp is not None
        broker_id, code = self.disk.temp
        request = wire.ApplyBrokerIdRequest(
            cluster_name=CLUSTER,
            broker_name=self.group,
            applied_broker_id=broker_id,
            register_check_code=code,
        )
        outcome = await self.ask(wire.APPLY_BROKER_ID, request)
        if isinstance(outcome, Ok):
            self.air.truth.owns(self.group, broker_id, code)
        return event_of(Effect.APPLY_BROKER_ID, outcome)

    async def _register_to_controller(self) -> Event:
        assert self.broker_id is not None
        request = wire.RegisterBrokerToControllerRequest(
            cluster_name=CLUSTER, broker_name=self.group, broker_id=self.broker_id, broker_address=self.name,
            epoch=0 if self.is_new else None,
        )  # fmt: skip
        floor = self.air.truth.floor(self.group)
        outcome = await self.ask(wire.REGISTER_BROKER_TO_CONTROLLER, request)
        if isinstance(outcome, Ok):
            self._heard("1003", outcome, floor)
        elif (
            isinstance(outcome, Failed)
            and outcome.code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
        ):
            await self._cleaned()
        return event_of(Effect.REGISTER_TO_CONTROLLER, outcome)

    async def _cleaned(self) -> None:
        """An operator forgot us: what an operator then does is to begin anew, with an empty disk."""
        await asyncio.sleep(0.2)
        self.disk.meta = self.disk.temp = None
        self.is_new = True
        self.registration = recover(None, None)

    # ---- what it hears ----

    def _heard(self, what: str, outcome: Ok[Any], floor: int) -> None:
        """An answer with MasterInfo in its header and the set in its body."""
        info, members = outcome.header, outcome.body
        self.air.truth.answered(what, self.group, _view(info, members), floor)
        self._adopt(info, members)

    def pushed(self, command: Any) -> None:
        if command.code != wire.NOTIFY_BROKER_ROLE_CHANGED.code:
            return
        info = parse_header(wire.NotifyBrokerRoleChangedRequest, command.ext_fields)
        members = decode_body(wire.SyncStateSet, command.body)
        self.air.truth.notified(self.group, _view(info, members))
        if self.is_registered:
            self._adopt(info, members)

    def _adopt(self, info: Any, members: Any) -> None:
        mine, role_update = self.info.master_epoch or 0, info.master_epoch or 0
        if role_update > mine or (
            role_update == mine and (info.sync_state_set_epoch or 0) >= self.set.sync_state_set_epoch
        ):
            self.info = wire.MasterInfo(
                master_broker_id=info.master_broker_id,
                master_epoch=role_update,
                master_address=info.master_address,
            )
            if members is not None:
                self.set = members

    # ---- what it does ----

    async def _heartbeat(self) -> None:
        while True:
            request = BrokerHeartbeatRequest(
                cluster_name=CLUSTER,
                broker_addr=self.name,
                broker_name=self.group,
                broker_id=self.broker_id,
                epoch=self.info.master_epoch or 0,
                max_offset=self.offset,
                confirm_offset=self.offset,
                heartbeat_timeout_mills=HEARTBEAT_TIMEOUT_MS,
                min_in_sync_replicas=1,
            )
            for name in sorted(self.air.nodes):
                self.tell(name, BROKER_HEARTBEAT, request)
            await asyncio.sleep(HEARTBEAT_S)

    async def _poll(self) -> None:
        while True:
            floor = self.air.truth.floor(self.group)
            outcome = await self.ask(wire.GET_REPLICA_INFO, wire.ReplicaInfoRequest(broker_name=self.group))
            if isinstance(outcome, Ok):
                self._heard("1004", outcome, floor)
                if outcome.header.master_broker_id is None:
                    await self._elect(self.broker_id, designate=False)
            await asyncio.sleep(POLL_S)

    async def _elect(self, broker_id: int | None, *, designate: bool) -> None:
        request = wire.ElectMasterRequest(
            cluster_name=CLUSTER, broker_name=self.group, broker_id=broker_id, designate_elect=designate
        )
        floor = self.air.truth.floor(self.group)
        outcome = await self.ask(wire.ELECT_MASTER, request)
        if isinstance(outcome, Ok):
            body = outcome.body
            members = wire.SyncStateSet(
                sync_state_set=body.sync_state_set,
                sync_state_set_epoch=outcome.header.sync_state_set_epoch or 0,
            )
            self.air.truth.answered("1002", self.group, _view(outcome.header, members), floor)
            self._adopt(outcome.header, members)

    async def _work(self) -> None:
        random = self.air.random
        while True:
            await asyncio.sleep(random.uniform(0.02, 0.25))
            self.offset += random.randrange(3)
            if self.info.master_broker_id == self.broker_id and self.broker_id is not None:
                await self._alter(random)

    async def _alter(self, random: Random) -> None:
        """Another set, mostly of ids that exist; at times with an epoch of the past, as after a pause."""
        known = [broker_id for name, broker_id in sorted(self.air.truth.owners) if name == self.group]
        members = {self.broker_id, *random.sample(known, random.randint(0, len(known)))}
        if random.random() < 0.05:
            members.add(random.choice((0, 99)))
        epoch = (self.info.master_epoch or 0) - (random.random() < 0.05)
        request = wire.AlterSyncStateSetRequest(
            broker_name=self.group, master_broker_id=self.broker_id or 0, master_epoch=epoch
        )
        body = wire.SyncStateSet(
            sync_state_set=sorted(members), sync_state_set_epoch=self.set.sync_state_set_epoch
        )
        outcome = await self.ask(wire.ALTER_SYNC_STATE_SET, request, body)
        if isinstance(outcome, Ok):
            view = View(
                master_epoch=epoch,
                sync_state_set=frozenset(members),
                sync_state_set_epoch=outcome.header.new_sync_state_set_epoch,
            )
            self.air.truth.answered("1001", self.group, view, 0)
            if epoch == self.info.master_epoch:
                self.set = outcome.body


class Copy(Broker):
    """A process over a copy of another one's disk, at another address."""

    def __init__(self, name: str, original: Broker) -> None:
        super().__init__(name, original.group, original.air, Disk(meta=original.disk.meta))
        self.original, self.tries = original, 0

    async def _register_to_controller(self) -> Event:
        began_s, node, state = self.air.loop.time(), self._leader, self.air.truth.states[-1]
        self.tries += 1
        event = await super()._register_to_controller()
        group, broker_id = state.brokers.get(self.group), self.broker_id
        recorded = None if group is None or broker_id is None else group.replicas.get(broker_id)
        if recorded is None or recorded.address != self.original.name or self.tries > 1:
            return event  # an earlier try may have been decided while the original was silent
        if event is Event.OK and self.original.works_for(node, began_s):
            self.air.truth.violated(
                f"{node} gave id {broker_id} of {self.group}, whose owner works, to a copy"
            )
        return event


class Operator(Client):
    """Designates masters, cleans dead brokers, changes settings, and looks at everything."""

    def __init__(self, name: str, air: Air, groups: list[str], *, changes: bool) -> None:
        super().__init__(name, air)
        self.groups, self.changes = groups, changes
        self.run(self._live(), "life")

    async def _live(self) -> None:
        random = self.air.random
        while True:
            await asyncio.sleep(random.uniform(0.1, 0.8))
            group, choice = random.choice(self.groups), random.random()
            if not self.changes or choice < 0.4:
                await self._look(group)
            elif choice < 0.7:
                await self._designate(group)
            elif choice < 0.85:
                await self._clean(group)
            else:
                body = f"scanInactiveMasterInterval={random.choice((800, 1_000, 1_500))}\n".encode()
                await self.ask(wire.UPDATE_CONTROLLER_CONFIG, wire.UpdateConfigRequest(forwarded=True), body)

    async def _look(self, group: str) -> None:
        truth, floors = self.air.truth, {each: self.air.truth.floor(each) for each in self.groups}
        outcome = await self.ask(wire.GET_SYNC_STATE_DATA, Empty(), list(self.groups))
        if not isinstance(outcome, Ok):
            return
        for name, info in outcome.body.replicas_info_table.items():
            members = [each.broker_id for each in info.in_sync_replicas]
            view = View(
                info.master_broker_id, info.master_epoch, frozenset(members), info.sync_state_set_epoch
            )
            truth.answered("1006", name, view, floors[name])

    async def _designate(self, group: str) -> None:
        ids = [broker_id for name, broker_id in sorted(self.air.truth.owners) if name == group]
        request = wire.ElectMasterRequest(
            cluster_name=CLUSTER, broker_name=group, broker_id=self.air.random.choice(ids or [1]),
            designate_elect=True,
        )  # fmt: skip
        floor = self.air.truth.floor(group)
        outcome = await self.ask(wire.ELECT_MASTER, request)
        if isinstance(outcome, Ok):
            members = wire.SyncStateSet(sync_state_set=outcome.body.sync_state_set)
            view = _view(outcome.header, members)
            self.air.truth.answered("1002", group, view, floor)

    async def _clean(self, group: str) -> None:
        ids = [broker_id for name, broker_id in sorted(self.air.truth.owners) if name == group]
        request = wire.CleanBrokerDataRequest(
            cluster_name=CLUSTER, broker_name=group,
            broker_controller_ids_to_clean=str(self.air.random.choice(ids or [1])),
        )  # fmt: skip
        await self.ask(wire.CLEAN_BROKER_DATA, request)


def _view(info: Any, members: Any) -> View:
    return View(
        info.master_broker_id,
        info.master_epoch,
        None if members is None else frozenset(members.sync_state_set),
        info.sync_state_set_epoch,
    )
