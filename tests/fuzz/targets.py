"""The tables of all programs with the real handlers behind them, in this process, without a network.

check() compares what a table holds with its bounds and invariants; emptied() does so when every connection is
gone and every timeout has passed: garbage that leaves something behind is a leak.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol
from unittest import mock

from broker.admission import send_forwarder
from broker.app.broker import Broker
from broker.config.broker_config import BrokerConfig
from broker.store.queue.queue_table import WAITERS_MAX
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.dispatch import Dispatcher
from keelmq.remoting.operation import OperationTable
from keelmq.remoting.operations.broker_metadata import PULL_METADATA
from namesrv.app import Namesrv
from namesrv.config import NamesrvConfig
from namesrv.core.liveness import BrokerKey
from tests.support.controller_fakes import Bench

HOST = "127.0.0.1"
LONG_MS = 2**62
"""Beyond every timeout that a request can ask for and that is not refused."""
TOPICS_MAX = 400
"""Of the fuzzed broker: each new one rewrites topics.json."""


class Target(Protocol):
    name: str
    table: OperationTable
    dispatcher: Dispatcher
    slow: frozenset[int]
    """Codes that wait or write to the disk: asked seldom."""

    async def open(self) -> None: ...

    def lost(self, connection_id: int) -> None:
        """As the door reports a closed connection."""

    def tick(self, ms: int) -> None:
        """Time passes."""

    async def flush(self) -> None:
        """Whatever waits for time, or for a file, is answered now."""

    def check(self) -> None: ...

    def emptied(self) -> None: ...

    async def close(self) -> None: ...


class NamesrvTarget:
    name = "namesrv"
    slow = frozenset({100, 102, 318})

    def __init__(self, path: Path) -> None:
        self.now_ms = 1_000_000
        config = NamesrvConfig(kv_config_path=path / "kvConfig.json", need_wait_for_service=False)
        self.server = Namesrv(config, clock=lambda: self.now_ms, config_path=None)
        self.server.kv.load()
        self.server._registrations.notify = lambda change: None  # it would call the addresses that it is told
        self.table = self.server.table
        self.dispatcher = Dispatcher(self.table, name=self.name)

    async def open(self) -> None: ...

    def lost(self, connection_id: int) -> None:
        self.server.connection_closed(connection_id)

    def tick(self, ms: int) -> None:
        self.now_ms += ms
        self.server.scan()

    async def flush(self) -> None: ...

    def check(self) -> None:
        self.server.routes.check_invariants()
        self.server.liveness.check_invariants()
        counts = self.server.routes.counts()
        known = list(self.server.liveness.keys())
        assert len(known) == counts["brokers"], (
            f"{len(known)} heartbeat entries for {counts['brokers']} brokers"
        )

    def emptied(self) -> None:
        self.tick(LONG_MS)
        self.check()
        assert not any(self.server.routes.counts().values()), self.server.routes.counts()
        assert not list(self.server.liveness.keys())

    async def close(self) -> None:
        await self.dispatcher.close()
        await self.server.stop()


class ControllerTarget:
    name = "controller"
    slow = frozenset[int]({1009, 29021})  # the second dials whoever is named

    def __init__(self, path: Path) -> None:
        self.bench = Bench(path, telemetryEnable=False)
        self.plugin = self.bench.plugin
        self.table = self.plugin.table
        self.dispatcher = Dispatcher(
            self.table, name=self.name, bad_request_code=ResponseCode.CONTROLLER_INVALID_REQUEST
        )
        self.elections = asyncio.get_running_loop().create_task(self.plugin.elections.run())

    async def open(self) -> None: ...

    def lost(self, connection_id: int) -> None:
        self.plugin.connection_closed(connection_id)

    def tick(self, ms: int) -> None:
        self.bench.now_ms += ms
        for key in self.bench.liveness.scan_not_active(self.bench.now_ms):
            assert isinstance(key, BrokerKey)
            for subscriber in self.bench.subscribers:
                subscriber(key)

    async def flush(self) -> None: ...

    def check(self) -> None:
        self.bench.liveness.check_invariants()
        for group in self.plugin.machine.state.brokers.values():
            group.check_invariants()

    def emptied(self) -> None:
        self.tick(LONG_MS)
        self.check()
        brokers = self.plugin.machine.state.brokers
        registered = {key for group in brokers.values() for key in group.keys()}  # noqa: SIM118
        unverified_peers = set(self.bench.liveness.keys()) - registered
        assert not unverified_peers, (
            f"heartbeats of {len(unverified_peers)} brokers that nobody registered are kept"
        )

    async def close(self) -> None:
        self.elections.cancel()
        await asyncio.gather(self.elections, return_exceptions=True)
        await self.dispatcher.close()
        await self.plugin.elections.stop()


class BrokerTarget:
    """A whole broker, alone and so master at once; only its door is ours."""

    name = "broker"
    slow = frozenset[int]({17, 200, 207, 215, 5002, 5003, PULL_METADATA.code})  # the last one may wait
    settings: Mapping[str, object] = {}

    def __init__(self, path: Path) -> None:
        config = {
            "listenPort": 0,
            "bindAddress": HOST,
            "httpPort": -1,
            "brokerIP1": HOST,
            "storePathRootDir": path / "store",
            "mappedFileSizeCommitLog": 1 << 20,
            "maxMessageSize": 100_000,
            "telemetryEnable": False,
        }
        self.broker = Broker(BrokerConfig.model_validate({**config, **self.settings}))

    async def open(self) -> None:
        await self.broker.__aenter__()
        self.table = self.broker.operations
        self.dispatcher = Dispatcher(self.table, name=self.name)
        self.handlers = self.broker.handlers

    def lost(self, connection_id: int) -> None:
        self.broker.clients.connection_closed(connection_id)

    def tick(self, ms: int) -> None:
        if len(self.broker.topics.topics) > TOPICS_MAX:
            self.broker.topics.auto_create = False

    async def flush(self) -> None:
        self._expire()
        await self.broker.topics.saved()
        await asyncio.sleep(0)  # the replies that waited for it leave

    def _expire(self) -> None:
        self.handlers.expire(LONG_MS)
        self.broker.services.pop.handlers.expire(LONG_MS)

    def check(self) -> None:
        store = self.broker.store
        assert 0 <= store.dispatch_offset <= store.confirm_offset <= store.commit_log.max_offset
        assert self.handlers.pull.waiting_count <= WAITERS_MAX
        self.broker.clients.registry.check_invariants()

    def emptied(self) -> None:
        self._expire()
        self.check()
        assert not self.handlers.pull.waiting_count
        assert not len(self.broker.pending)
        assert not self.broker.store.queues.waiter_count
        self.broker.services.transactions.state.check_invariants()
        self.broker.services.timers.wheel.check_invariants()

    async def close(self) -> None:
        await self.dispatcher.close()
        await self.broker.__aexit__(None, None, None)


class ReplicaTarget(BrokerTarget):
    """A broker in controller mode whose controllers never answer: it has no role, and says so."""

    name = "replica"
    settings: Mapping[str, object] = {
        "enableControllerMode": True,
        "controllerAddr": f"{HOST}:1",
        "haListenPort": 0,
    }

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        # Sends wait for a master that never comes, each for 2.5 s.
        self._no_wait = mock.patch.object(send_forwarder, "FORWARD_TIMEOUT_MS", 0)

    async def open(self) -> None:
        self._no_wait.start()
        await super().open()

    async def flush(self) -> None:
        await super().flush()
        assert self.broker.controlled is not None
        while self.broker.controlled.forwarder.count:  # noqa: ASYNC110 - as in frames._settle
            await asyncio.sleep(0)

    async def close(self) -> None:
        await super().close()
        self._no_wait.stop()


TARGETS = {each.name: each for each in (NamesrvTarget, ControllerTarget, BrokerTarget, ReplicaTarget)}


@asynccontextmanager
async def open_target(name: str, path: Path) -> AsyncIterator[Target]:
    target: Target = TARGETS[name](path)
    await target.open()
    try:
        yield target
    finally:
        await target.close()
