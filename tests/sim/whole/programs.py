"""The programs of a whole group, each as one run of a process: name server with controller, and broker.

Both are what mqnamesrv and mqbroker start, with their real files, doors and tasks. Only the controllers'
replicated log is a model (tests/sim/control/model_log.py): the real one has worlds of its own.
"""

import asyncio
import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from broker.app.broker import Broker
from broker.config.broker_config import BrokerConfig
from broker.store.index.message_index import MessageIndex
from namesrv.app import Namesrv, PluginChoice
from namesrv.config import NamesrvConfig
from namesrv.plugins.controller.config import ControllerConfig
from namesrv.plugins.controller.plugin import ControllerPlugin
from tests.sim.control.model_log import ModelLog, ModelReplicator
from tests.sim.control.node import Observed
from tests.sim.control.truth import Truth
from tests.sim.whole.disks import Disk
from tests.sim.whole.machines import MachineLoop, Process

CLUSTER, GROUP = "C", "broker-a"
CONTROLLERS = ("n0", "n1", "n2")
CONTROLLER_PORT, NAMESRV_PORT, BROKER_PORT = 9878, 9876, 10911
HEARTBEAT_TIMEOUT_MS, HEARTBEAT_MS = 1_500, 400
COMMIT_LOG_BYTES = 32_768
INDEX_SLOTS, INDEX_ENTRIES = 64, 6_000


@contextmanager
def small_files() -> Iterator[None]:
    """IndexFiles have 420 MB, and no key of the configuration says otherwise."""
    real = MessageIndex.__init__

    def small(self: MessageIndex, directory: Path, *_sizes: int) -> None:
        real(self, directory, INDEX_SLOTS, INDEX_ENTRIES)

    with mock.patch.object(MessageIndex, "__init__", small):
        yield


class _Replicator(ModelReplicator):
    """Its callbacks run in the controller's process, whoever caused them."""

    def __init__(self, log: ModelLog, process: Process, machine: Any) -> None:
        super().__init__(log, process.name, machine)
        self._process = process

    @property
    def request_addresses(self) -> dict[str, tuple[str, int]]:
        return {each: (each, CONTROLLER_PORT) for each in CONTROLLERS}

    async def start(self) -> None:
        self.begin()

    def on_active_changed(self, callback: Callable[[bool], None]) -> None:
        context = self._process.context
        super().on_active_changed(lambda active: context.copy().run(callback, active))

    def call_in_loop(self, action: Callable[[], object]) -> None:
        context = self._process.context
        super().call_in_loop(lambda: context.copy().run(action))


class ControllerRun:
    """One run of `mqnamesrv` with the controller plugin."""

    def __init__(
        self,
        loop: MachineLoop,
        name: str,
        host: str,
        log: ModelLog,
        truth: Truth,
        root: Path,
        settings: Mapping[str, object],
    ) -> None:
        """settings: of the name server, in addition."""
        self.process = Process(loop, name, host)
        self.log = log
        self.replicator: _Replicator | None = None
        self.server: Namesrv | None = None
        peers = ";".join(f"{each}-{each}:{CONTROLLER_PORT}" for each in CONTROLLERS)
        config = ControllerConfig.model_validate(
            {
                "controllerDLegerGroup": "g",
                "controllerDLegerPeers": peers,
                "controllerDLegerSelfId": name,
                "controllerRaftSecret": "0" * 32,
                "controllerStorePath": root / name,
                "telemetryEnable": False,
                "scanInactiveMasterInterval": 500,
                "controllerGraceMs": HEARTBEAT_TIMEOUT_MS,  # as by default; the lease counts on it
            }
        )

        def make(machine: Any) -> Any:
            self.replicator = _Replicator(log, self.process, Observed(name, machine, truth))
            return self.replicator

        plugin: Any = functools.partial(ControllerPlugin, make_replicator=make)
        settings = NamesrvConfig.model_validate(
            {
                "listenPort": NAMESRV_PORT,
                "httpPort": -1,
                "kvConfigPath": root / name / "kv.json",
                **settings,
            }
        )
        self._settings, self._choice = settings, PluginChoice(plugin, (config,))
        self.process.run(self._live)

    async def _live(self) -> None:
        async with Namesrv(self._settings, [self._choice]) as self.server:
            await asyncio.Event().wait()

    @property
    def plugin(self) -> ControllerPlugin:
        assert self.server is not None
        plugin = self.server.plugins[0]
        assert isinstance(plugin, ControllerPlugin)
        return plugin

    @property
    def is_active(self) -> bool:
        return self.process.alive and self.replicator is not None and self.replicator.is_active

    def end(self) -> None:
        """kill -9, after the network has done its part."""
        if self.replicator is not None:
            self.log.died(self.replicator)
            self.replicator.epoch = None


class BrokerRun:
    """One run of `mqbroker`."""

    def __init__(
        self, loop: MachineLoop, name: str, host: str, disk: Disk, settings: dict[str, object]
    ) -> None:
        self.process = Process(loop, name, host)
        self.broker: Broker | None = None
        self.judged = 0  # bytes of its log that were compared
        self.begun_epoch = 0
        self.is_stopping = False
        self.failure: BaseException | None = None
        root = disk.mount()
        self.settings: dict[str, object] = {
            "brokerClusterName": CLUSTER,
            "brokerName": GROUP,
            "brokerIP1": host,
            "listenPort": BROKER_PORT,
            "httpPort": -1,
            "storePathRootDir": root,
            "namesrvAddr": ";".join(f"{each}:{NAMESRV_PORT}" for each in CONTROLLERS),
            "enableControllerMode": True,
            "controllerAddr": ";".join(f"{each}:{CONTROLLER_PORT}" for each in CONTROLLERS),
            "telemetryEnable": False,
            "mappedFileSizeCommitLog": COMMIT_LOG_BYTES,
            "mappedFileSizeConsumeQueue": 4_000,
            "defaultTopicQueueNums": 2,
            "controllerHeartBeatTimeoutMills": HEARTBEAT_TIMEOUT_MS,
            "brokerHeartbeatInterval": HEARTBEAT_MS,
            "haSendHeartbeatInterval": 400,
            "haHousekeepingInterval": 6_000,
            "haMaxTimeSlaveNotCatchup": 900,
            "checkSyncStateSetPeriod": 300,
            "slaveTimeout": 1_200,
            "syncBrokerMetadataPeriod": 700,
            "allAckInSyncStateSet": True,
            **settings,
        }
        self._config = BrokerConfig.model_validate(self.settings)
        self.process.disk = disk
        self.process.run(self._live)
        assert self.process.main is not None
        self.process.main.add_done_callback(lambda task: task.cancelled() or task.exception())  # `failure`

    async def _live(self) -> None:
        try:
            async with Broker(self._config) as self.broker:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self.failure = error
            raise

    @property
    def name(self) -> str:
        return self.process.name

    @property
    def address(self) -> str:
        return f"{self.process.host}:{BROKER_PORT}"

    @property
    def broker_id(self) -> int | None:
        """As the controllers know it; None: not registered yet."""
        controlled = self.broker.controlled if self.broker is not None else None
        return controlled.role.broker_id or None if controlled is not None else None

    @property
    def serving(self) -> Broker | None:
        """Its broker, once it is started and while its process lives."""
        broker = self.broker
        if (
            not self.process.alive
            or broker is None
            or broker.controlled is None
            or not broker.status.readiness.serving
        ):
            return None
        return broker

    @property
    def is_master(self) -> bool:
        broker = self.serving
        return broker is not None and broker.status.role_name == "master"
