"""One run of one controller process: the plugin as it ships, without its sockets and threads."""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.command import decode
from keelmq.remoting.dispatch import Dispatcher
from namesrv.core.liveness import BrokerKey, HeartbeatTable
from namesrv.plugins import PluginContext
from namesrv.plugins.controller.machine import ControllerMachine
from namesrv.plugins.controller.plugin import ControllerPlugin
from namesrv.plugins.controller.raft.api import Replicator
from tests.sim.control.truth import Truth
from tests.support.controller_fakes import config

SCAN_S = 0.05


class Observed:
    """A StateMachine that reports what it applies. `claimed` belongs to the raft world."""

    def __init__(self, name: str, machine: ControllerMachine, truth: Truth) -> None:
        self.name, self.machine, self.truth = name, machine, truth
        self.claimed = 0

    @property
    def events(self) -> range:
        """As many as were applied."""
        return range(self.machine.state.event_count)

    def apply(self, event: bytes) -> object:
        applied = self.machine.apply(event)
        self.truth.applied(self.name, event, self.machine.state)
        return applied

    def snapshot(self) -> bytes:
        return self.machine.snapshot()

    def restore(self, data: bytes) -> None:
        self.claimed = 0
        self.machine.restore(data)
        self.truth.restored(self.name, self.machine.state)


class Peer(Protocol):
    """A broker's connection, as this node has it."""

    connection_id: int
    address: str
    in_flight: int
    in_flight_bytes: int

    def is_closing(self) -> bool: ...
    def send(self, frame: bytes) -> bool: ...


class Node:
    """`make_replicator` gets the observed machine. Time is the loop's."""

    def __init__(
        self, name: str, names: list[str], truth: Truth, make_replicator: Callable[[Observed], Replicator]
    ) -> None:
        self.name, self.alive = name, True
        self.loop = asyncio.get_running_loop()
        self.liveness = HeartbeatTable()
        self._subscribers: list[Callable[[BrokerKey], None]] = []
        context = PluginContext(
            liveness=self.liveness,
            clock=self.now_ms,
            on_inactive=self._subscribers.append,
            wake_scan=lambda: None,
        )
        peers = ";".join(f"{each}-127.0.0.1:{9_878 + number}" for number, each in enumerate(names))
        self.observed: Observed

        def observed(machine: ControllerMachine) -> Replicator:
            self.observed = Observed(name, machine, truth)
            return make_replicator(self.observed)

        settings = config(
            controllerDLegerPeers=peers,
            controllerDLegerSelfId=name,
            telemetryEnable=False,
            scanInactiveMasterInterval=1_000,
            controllerGraceMs=3_000,
        )
        self.plugin = ControllerPlugin(context, settings, make_replicator=observed)
        self.plugin.proposer._wall_clock = self.plugin.liveness_view._wall_clock = self.now_ms
        self.dispatcher = Dispatcher(
            self.plugin.table, name=name, bad_request_code=ResponseCode.CONTROLLER_INVALID_REQUEST
        )
        self._tasks = [self.loop.create_task(self.plugin.elections.run(), name=f"elections of {name}")]
        self._tasks.append(self.loop.create_task(self._scan(), name=f"scan of {name}"))

    def now_ms(self) -> int:
        return int(self.loop.time() * 1_000)

    @property
    def is_active(self) -> bool:
        return self.alive and self.plugin.replicator.is_active

    def arrived(self, frame: bytes, peer: Peer) -> None:
        """A request came over the network."""
        if self.alive:
            reply = self.dispatcher.request(decode(frame[4:]), peer)
            if reply is not None:
                peer.send(reply)

    def connection_closed(self, connection_id: int) -> None:
        if self.alive:
            self.plugin.connection_closed(connection_id)

    def end(self) -> None:
        """kill -9: nothing of it runs any more."""
        self.alive = False
        running: list[asyncio.Task[Any]] = [
            *self._tasks, *self.dispatcher._tasks, *self.plugin.elections._tasks,
        ]  # fmt: skip
        for task in running:
            task.cancel()

    async def _scan(self) -> None:
        while True:
            for key in self.liveness.scan_not_active(self.now_ms()):
                assert isinstance(key, BrokerKey)
                for subscriber in self._subscribers:
                    subscriber(key)
            await asyncio.sleep(SCAN_S)
