"""A controller without raft, sockets and time: what the unit tests of the controller plugin stand on."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from keelmq.remoting.body import body_bytes
from keelmq.remoting.command import RemotingCommand, decode, header_fields
from keelmq.remoting.operation import Call, CommandError, Operation, Reply, Unknown
from keelmq.remoting.operations import controller as wire
from keelmq.remoting.operations.route import BROKER_HEARTBEAT, BrokerHeartbeatRequest
from namesrv.core.liveness import BrokerKey, HeartbeatTable
from namesrv.plugins import PluginContext
from namesrv.plugins.controller.config import ControllerConfig
from namesrv.plugins.controller.core.death_proof import ProbeAnswer
from namesrv.plugins.controller.plugin import ControllerPlugin
from namesrv.plugins.controller.raft.api import (
    AppendOutcome,
    ChangeOutcome,
    ChangeRefused,
    Committed,
    NotActive,
    StateMachine,
)

CLUSTER, GROUP = "C1", "broker-a"


class FakeReplicator:
    """Applies at once. `next_outcome`: the answer of the next append, which is then not applied.
    `lose_answers`: appends are applied, and answered Unknown."""

    def __init__(self, machine: StateMachine) -> None:
        self.machine = machine
        self.active = True
        self.lose_answers = False
        self.no_leader = False
        self.deposed = False  # it still thinks that it leads; the majority follows another
        self.next_outcome: AppendOutcome | None = None
        self.gate: asyncio.Event | None = None  # while not set, answers wait (the event is applied)
        self.before_apply: asyncio.Event | None = None  # while not set, appends wait (nothing is applied)
        self.waiting = 0
        self.events: list[bytes] = []
        self.callbacks: list[Callable[[bool], None]] = []
        self.peers = {"n0": ("127.0.0.1", 9878)}  # of the configuration
        self.newcomers: dict[str, tuple[str, int]] = {}
        self.changes: list[tuple[object, ...]] = []  # of the group, as they were asked for
        self.next_change: ChangeOutcome | None = None  # of the next one, which then does nothing

    @property
    def is_active(self) -> bool:
        return self.active

    @property
    def leader_id(self) -> str | None:
        if self.no_leader:
            return None
        return "n0" if self.active else "n1"

    @property
    def self_id(self) -> str:
        return "n0"

    @property
    def epoch(self) -> int | None:
        return 1 if self.active else None

    @property
    def request_addresses(self) -> dict[str, tuple[str, int]]:
        return {**self.peers, **self.newcomers}

    @property
    def added(self) -> dict[str, tuple[str, int]]:
        return dict(self.newcomers)

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def add_member(
        self, member_id: str, address: tuple[str, int], request_address: tuple[str, int] | None = None
    ) -> ChangeOutcome:
        self.changes.append(("add", member_id, address, request_address))
        return self._changed(lambda: self.newcomers.update({member_id: request_address or address}))

    async def remove_member(self, member_id: str, *, dry_run: bool = False) -> ChangeOutcome:
        if dry_run:
            return self._changed(lambda: None)
        self.changes.append(("remove", member_id))
        return self._changed(lambda: [each.pop(member_id, None) for each in (self.peers, self.newcomers)])

    async def transfer_leadership(self, member_id: str) -> ChangeOutcome:
        self.changes.append(("transfer", member_id))
        if member_id not in self.request_addresses:
            return ChangeRefused(f"{member_id} is not a member")
        return self._changed(lambda: self.become(False))

    def _changed(self, change: Callable[[], object]) -> ChangeOutcome:
        outcome, self.next_change = self.next_change, None
        if outcome is None:
            change()
        return outcome or Committed(None)

    async def append(self, event: bytes) -> AppendOutcome:
        outcome, self.next_outcome = self.next_outcome, None
        if outcome is not None:
            return outcome
        if not self.active:
            return NotActive("n1")
        if self.before_apply is not None:
            self.waiting += 1
            await self.before_apply.wait()
        self.events.append(event)
        result = self.machine.apply(event)
        if self.gate is not None:
            await self.gate.wait()
        return Unknown("the answer was lost") if self.lose_answers else Committed(result)

    async def barrier(self) -> AppendOutcome:
        return Committed(None) if self.active and not self.deposed else NotActive("n1")

    def on_active_changed(self, callback: Callable[[bool], None]) -> None:
        self.callbacks.append(callback)

    def call_in_loop(self, action: Callable[[], object]) -> None:
        action()

    def status(self) -> dict[str, Any]:
        return {}

    def become(self, active: bool) -> None:
        self.active = active
        for callback in self.callbacks:
            callback(active)


async def turns(count: int = 20) -> None:
    """Lets the event loop turn, so that what is due now runs."""
    for _ in range(count):
        await asyncio.sleep(0)


@dataclass
class FakePeer:
    """The connection of one broker process."""

    connection_id: int
    address: str = "127.0.0.1:50000"
    frames: list[bytes] = field(default_factory=list)
    closing: bool = False

    def is_closing(self) -> bool:
        return self.closing

    def send(self, frame: bytes) -> bool:
        self.frames.append(frame)
        return True

    def pushed(self) -> list[RemotingCommand]:
        frames, self.frames[:] = list(self.frames), []
        return [decode(frame[4:]) for frame in frames]


def config(**values: object) -> ControllerConfig:
    return ControllerConfig.model_validate(
        {
            "controllerDLegerGroup": "group1",
            "controllerDLegerPeers": "n0-127.0.0.1:9878;n1-127.0.0.1:9868",
            "controllerDLegerSelfId": "n0",
            "controllerRaftInsecure": True,
            **values,
        }
    )


class Bench:
    """One controller on virtual time and brokers that speak to it. Active at once, without a grace window."""

    def __init__(self, tmp_path: Path, **values: object) -> None:
        self.now_ms = 100_000
        self.liveness = HeartbeatTable()
        self.subscribers: list[Callable[[BrokerKey], None]] = []
        context = PluginContext(
            liveness=self.liveness,
            clock=lambda: self.now_ms,
            on_inactive=self.subscribers.append,
            wake_scan=lambda: None,
        )
        self.probes: list[tuple[str, int]] = []
        self.probe_answer = ProbeAnswer.NOTHING

        async def probe(host: str, port: int, timeout_s: float) -> ProbeAnswer:
            self.probes.append((host, port))
            return self.probe_answer

        self.plugin = ControllerPlugin(
            context,
            config(controllerStorePath=tmp_path, **values),
            make_replicator=FakeReplicator,
            probe=probe,
        )
        replicator = self.plugin.replicator
        assert isinstance(replicator, FakeReplicator)
        self.replicator = replicator
        replicator.peers = self.plugin.config.request_addresses
        self.peers: dict[int, FakePeer] = {}
        self._connections = 0

    async def ask(
        self,
        operation: Operation[Any, Any],
        body: object = None,
        peer: FakePeer | None = None,
        **header: object,
    ) -> Reply:
        """Raises CommandError, like the handler."""
        request = operation.request.model_validate(header)
        fast_path = self.plugin.table.fast_path.get(operation.code)
        if fast_path is not None:
            frame = fast_path.handler(
                fast_path.lenient(operation.code, 1, 0, header_fields(request)), b"", peer or FakePeer(0)
            )
            return Reply(code=-1 if frame is None else decode(frame[4:]).code)
        _operation, handler = self.plugin.table.handlers[operation.code]
        reply = await handler(request, Call(peer or FakePeer(0), body, raw_body=body_bytes(body)))
        if isinstance(reply, Reply):
            return reply
        return Reply(reply)

    async def heartbeat(self, broker_id: int, /, **values: object) -> None:
        """A heartbeat over the broker's connection, opened if it has none."""
        if broker_id not in self.peers:
            self._connections += 1
            self.peers[broker_id] = FakePeer(self._connections)
        header = BrokerHeartbeatRequest(
            cluster_name=CLUSTER,
            broker_name=GROUP,
            broker_id=broker_id,
            broker_addr=address(broker_id),
            heartbeat_timeout_mills=3_000,
            min_in_sync_replicas=1,
        )
        await self.ask(BROKER_HEARTBEAT, None, self.peers[broker_id], **{**header.model_dump(), **values})

    def lose(self, broker_id: int) -> None:
        """The connection breaks and the grace passes; the name server reports the inactive broker."""
        self.liveness.connection_closed(self.peers.pop(broker_id).connection_id, self.now_ms)
        self.now_ms += 51
        for key in self.liveness.scan_not_active(self.now_ms):
            assert isinstance(key, BrokerKey)
            for subscriber in self.subscribers:
                subscriber(key)

    async def apply(self, broker_id: int, check_code: str | None = None) -> Reply:
        return await self.ask(
            wire.APPLY_BROKER_ID,
            cluster_name=CLUSTER,
            broker_name=GROUP,
            applied_broker_id=broker_id,
            register_check_code=check_code or f"{address(broker_id)};1",
        )

    async def register(self, broker_id: int, broker_address: str | None = None, **values: object) -> Reply:
        header = {
            "cluster_name": CLUSTER,
            "broker_name": GROUP,
            "broker_id": broker_id,
            "broker_address": broker_address or address(broker_id),
        }
        return await self.ask(wire.REGISTER_BROKER_TO_CONTROLLER, **{**header, **values})

    async def elect(self, broker_id: int, designate: bool = False, **values: object) -> Reply:
        return await self.ask(
            wire.ELECT_MASTER,
            cluster_name=CLUSTER,
            broker_name=GROUP,
            broker_id=broker_id,
            designate_elect=designate,
            **values,
        )

    async def clean(self, ids: str = "", living: bool = False, **values: object) -> Reply:
        header = {
            "cluster_name": CLUSTER,
            "broker_name": GROUP,
            "broker_controller_ids_to_clean": ids,
            "is_clean_living_broker": living,
        }
        return await self.ask(wire.CLEAN_BROKER_DATA, **{**header, **values})

    async def configure(self, text: str, **values: object) -> Reply:
        return await self.ask(wire.UPDATE_CONTROLLER_CONFIG, text.encode(), **values)

    async def alter(self, members: list[int], *, master: int, epoch: int, set_epoch: int) -> Reply:
        return await self.ask(
            wire.ALTER_SYNC_STATE_SET,
            wire.SyncStateSet(sync_state_set=members, sync_state_set_epoch=set_epoch),
            broker_name=GROUP,
            master_broker_id=master,
            master_epoch=epoch,
        )

    @asynccontextmanager
    async def reconciling(self) -> AsyncIterator[None]:
        """Inside, the reconcile loop runs, in real time but on this clock."""
        task = asyncio.create_task(self.plugin.elections.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await self.plugin.elections.stop()

    async def run_elections(self) -> None:
        """The elections that are due now, to their ends. Those that fail are in `retries`."""
        async with self.reconciling():
            await turns()

    async def group_of(self, *broker_ids: int) -> None:
        """Registered, alive, the first is master, all in the SyncStateSet: masterEpoch 1, set epoch 2."""
        for broker_id in broker_ids:
            await self.apply(broker_id)
            await self.register(broker_id)
            await self.heartbeat(broker_id)
        await self.elect(broker_ids[0])
        if len(broker_ids) > 1:
            await self.alter(list(broker_ids), master=broker_ids[0], epoch=1, set_epoch=1)
        for peer in self.peers.values():
            peer.frames.clear()

    @property
    def broker_set(self) -> Any:
        return self.plugin.machine.state.brokers[GROUP]


def address(broker_id: int) -> str:
    return f"10.0.0.{broker_id}:10911"


async def refused(awaitable: object) -> CommandError:
    """Returns the error with which a handler refuses."""
    with pytest.raises(CommandError) as caught:
        await awaitable  # type: ignore[misc]
    return caught.value
