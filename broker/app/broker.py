"""Broker: the whole life of one broker process, minus flags and signals.

`async with Broker(config) as broker:` reads the identity, recovers the store, binds its ports (ConfigError,
BrokerMetaError or StoreError if it cannot), serves until the block ends and leaves nothing behind. It accepts
no message before it is master: at once without controller mode, else when the controllers say so.
"""

import asyncio
import contextlib
import logging
import sys
from collections import Counter
from types import TracebackType
from typing import Self

from broker.announcement import registration_of, unregistration_of
from broker.assembly import close_store, flush_forever, make_metadata, make_store, make_topics, store_host
from broker.binding import bind_operations
from broker.clients.service import Clients
from broker.config import BrokerConfig, detect_address
from broker.controlled import NO_ROLE, Controlled
from broker.core.promise import promises
from broker.core.readiness import RoleName, Standing
from broker.deliveries import Deliveries
from broker.fast_port import open_fast_port
from broker.group_commit import GroupCommit
from broker.handlers.admin import BrokerHandlers
from broker.handlers.send_commands import SendCommand
from broker.pending import DISK, ROLE, STOPPING, HotPeer, PendingReplies, SendGate
from broker.route_registration import RouteRegistration
from broker.slave_sync import SlaveSync
from broker.stats.reads import ReadCounters
from broker.stats.service import BrokerStats
from broker.store.meta_file import MetaFiles
from broker.telemetry import ALONE, BrokerTelemetry
from broker.upkeep import StoreUpkeep
from remoting.client import RemotingClient
from remoting.clock import now_ms
from remoting.codes import MASTER_ID
from remoting.compiled import report
from remoting.config import ConfigError
from remoting.config_store import Given
from remoting.doors.http_late import LateHttp, http_listen_port
from remoting.doors.tcp import TcpDoor
from remoting.operation import OperationTable
from remoting.operations.route import RegisterBrokerResponse, TopicRouteData
from remoting.tasks import TaskSet
from remoting.telemetry import TelemetryWriter

logger = logging.getLogger(__name__)

EXPIRE_PERIOD_MS = 100
DRAIN_MS = 500
"""How long a stopping master waits for the replies that it owes."""
DRAIN_STEP_MS = 10
DISPATCH_RECORDS = 512


class Broker:
    """Parts in the order in which they start; stop() goes back through them."""

    def __init__(self, config: BrokerConfig, given: Given | None = None) -> None:
        """given: where the configuration came from; changes of it (25) are kept there."""
        self.config, self.given = config, given or Given()
        self.gate = SendGate()
        self.gate.wait = config.waits_for_replicas or config.sync_flush
        self.pending = PendingReplies(
            replicas=config.waits_for_replicas, disk=config.sync_flush, gate=self.gate
        )
        self.host = config.broker_ip1 or detect_address(
            config.bind_address, (*config.name_servers, *config.controllers)
        )
        self.store = make_store(config)
        self.commit = (
            GroupCommit(self.store.commit_log.sync, on_fault=self._disk_failed) if config.sync_flush else None
        )
        if self.commit is not None:
            self.commit.listeners.append(self._flushed)
        self.topics = make_topics(config)
        self.metadata = make_metadata(config, self.topics, self.gate)
        self.clients = Clients(self.metadata, config)
        self.stats = BrokerStats(self.store, ReadCounters(), config.broker_cluster_name)
        self.upkeep = StoreUpkeep(
            self.store,
            self.gate,
            config,
            held_offset=self._held_offset,
            on_emptied=self.metadata.remember_ends,
        )
        self._tasks = TaskSet()
        self._pushed = OperationTable()
        self._client = RemotingClient(
            self._pushed,
            on_closed=self._connection_lost,
            drop_silent_ms=config.controller_heart_beat_timeout_mills,
        )
        self._routes = RouteRegistration(
            self._client,
            config.name_servers,
            period_ms=config.register_name_server_period,
            timeout_ms=config.register_broker_timeout_mills,
            registration=lambda: registration_of(self),
            on_answer=self._registered,
        )
        self._sync = SlaveSync(
            self._client, self.metadata, cluster=config.broker_cluster_name, broker_name=config.broker_name
        )
        self._controlled: Controlled | None = None
        self._handlers: BrokerHandlers | None = None
        self._deliveries: Deliveries | None = None
        self._door: TcpDoor | None = None
        self._fast_door: TcpDoor | None = None
        self._telemetry: BrokerTelemetry | None = None
        self._http: LateHttp | None = None
        self._loaded = self._listening = self._serving = False
        self._port = 0

    # -- life --------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    async def _start(self) -> None:
        config = self.config
        files = self._open_disk()
        for line in (*promises(config.durability), *config.warnings(), f"data path: {report()}"):
            logger.info("%s", line)
        if config.enable_controller_mode:
            self._controlled = Controlled(self, files, self._sync, self._routes)
            await self._controlled.listen()
        table = self._bind()
        self._door = TcpDoor(
            table,
            host=config.bind_address,
            port=config.listen_port,
            name="listenPort",
            on_closed=self.clients.connection_closed,
        )
        await self._door.start()
        self._port, self._listening = self._door.address[1], True
        self._fast_door = await open_fast_port(
            table,
            host=config.bind_address,
            configured=config.fast_listen_port,
            listen_port=config.listen_port,
            on_closed=self.clients.connection_closed,
        )
        self._bind_http()
        self.store.store_host = store_host(self.host, self._port)
        if config.telemetry_enable:
            self._telemetry = self._open_telemetry()
            self._telemetry.start(self._tasks)
        if self._controlled is not None:
            self._controlled.start(self._client, self._pushed, self._tasks, self._telemetry)
        else:
            self._serve_alone()
        self._routes.start(self._tasks)
        self._tasks.start("flush", self._flush_forever)
        self._tasks.start("metadata", self.metadata.run)
        self._tasks.start("store upkeep", self.upkeep.run)
        self._tasks.start("statistics", self.stats.run)
        assert self._deliveries is not None
        self._deliveries.start(self._tasks)
        self._tasks.start("expiry of waiting requests", self._expire_forever)
        self._serving = True
        if self._http is not None:
            self._tasks.start("HTTP door", self._http.serve)

    def _bind_http(self) -> None:
        config = self.config
        port = http_listen_port(config.http_port, listen_port=config.listen_port, bound_port=self._port)
        if port is not None:
            self._http = LateHttp(self._http_app, host=config.bind_address, port=port)
            self._http.bind()

    def _http_app(self) -> object:
        from broker.http_app import make_app

        return make_app(self)

    def _open_disk(self) -> MetaFiles:
        """Identity first: a damaged one stops us before anything is changed."""
        config = self.config
        files = MetaFiles(
            config.store_path_root_dir,
            cluster_name=config.broker_cluster_name,
            broker_name=config.broker_name,
        )
        try:
            config.store_path_root_dir.mkdir(parents=True, exist_ok=True)
            files.load()  # without controller mode, too: a store is never opened under another name
            self.metadata.load()
            self.metadata.log_end = lambda: self.store.commit_log.max_offset
            self.metadata.queue_end = self._queue_end
            self.metadata.emptied = lambda: self.store.queues.emptied(self.store.commit_log.min_offset)
            self.metadata.go_on_from = self.store.queues.go_on_from
            self.store.on_queue = self._replicated_queue
            self.store.queues.follow(self.topics)
            self.store.load()
        except OSError as error:
            where = error.filename or config.store_path_root_dir
            raise ConfigError(f"storePathRootDir: cannot use {where}: {error.strerror or error}") from error
        self._loaded = True
        return files

    def _bind(self) -> OperationTable:
        end_of_tick = self._controlled.appended if self._controlled else self._confirm_alone
        table, self._handlers, self._deliveries = bind_operations(self, end_of_tick)
        self.topics.on_change = self._routes.trigger
        return table

    async def _stop(self) -> None:
        """Within seconds, whatever the others do."""
        self._serving = False
        self.gate.close(STOPPING, "the broker is stopping")
        if self._listening:
            await self._drain()
            if self.registers:
                await self._routes.unregister(unregistration_of(self))
        await self._tasks.stop()
        if self._http is not None:
            await self._http.close()
        if self._controlled is not None:
            await self._controlled.stop()
        for door in self._doors:
            await door.close()
        await self._client.close()
        if self._telemetry is not None:
            await self._telemetry.close()
        if self.commit is not None:
            await self.commit.close()
        if self._loaded:
            self.metadata.close()
        if self._loaded:
            await close_store(self.store, is_trusted=self.commit is None or not self.commit.fault)

    def _open_telemetry(self) -> BrokerTelemetry:
        """Needs the address: it is in the files' names, which are unique in the cluster so."""
        controlled = self._controlled
        return BrokerTelemetry(
            self.config,
            self.store,
            node=f"{self.config.broker_name}-{self.address}",
            ha=controlled.ha if controlled is not None else None,
            role=lambda: controlled.role if controlled is not None else ALONE,
        )

    async def leave(self) -> None:
        """Before a planned stop: the mastership goes to a replica, if this broker has it. Bounded."""
        if self._controlled is None or not self._serving or not self.config.shutdown_hand_over_timeout:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.config.shutdown_hand_over_timeout / 1000):
                await self._controlled.leave()

    async def find_route(self, topic: str) -> TopicRouteData | None:
        return await self._routes.find(topic)

    def send_here(self, command: SendCommand, body: bytes, peer: HotPeer) -> bytes | None:
        assert self._handlers is not None
        return self._handlers.send.send(command, body, peer)

    def close_clients(self) -> None:
        """Clients read the route again when their connection closes."""
        for door in self._doors:
            door.close_connections()

    async def _drain(self) -> None:
        for _ in range(DRAIN_MS // DRAIN_STEP_MS):
            if not len(self.pending):
                return
            await asyncio.sleep(DRAIN_STEP_MS / 1000)

    # -- facts -------------------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """host:port that clients are told."""
        assert self._listening, "not started"
        return f"{self.host}:{self._port}"

    @property
    def _doors(self) -> list[TcpDoor]:
        return [door for door in (self._door, self._fast_door) if door is not None]

    @property
    def ha_address(self) -> str:
        """host:port that slaves are told; empty without controller mode."""
        if self._controlled is None:
            return ""
        return f"{self.config.broker_ip2 or self.host}:{self._controlled.ha_port}"

    @property
    def registers(self) -> bool:
        """Is there a role to announce, and no change of it under way?"""
        if self._controlled is None:
            return True
        role = self._controlled.role
        return role.epoch > 0 and (self.gate.writable or not role.is_master)

    @property
    def broker_id(self) -> int:
        """As name servers know us: 0 as master."""
        role = self._controlled.role if self._controlled is not None else None
        return MASTER_ID if role is None or role.is_master else role.broker_id

    @property
    def controlled(self) -> Controlled | None:
        """None without controller mode."""
        return self._controlled

    @property
    def deliveries(self) -> Deliveries | None:
        """None before the start."""
        return self._deliveries

    @property
    def telemetry(self) -> TelemetryWriter | None:
        """None: switched off."""
        return None if self._telemetry is None else self._telemetry.writer

    @property
    def http_address(self) -> tuple[str, int] | None:
        return None if self._http is None else self._http.address

    @property
    def connection_count(self) -> int:
        """Open connections of clients."""
        return sum(door.connection_count for door in self._doors)

    @property
    def role_name(self) -> RoleName:
        """ "none": no role yet, or a change of it is under way."""
        if self._controlled is None:
            return "master"
        ha = self._controlled.ha
        if not self._controlled.role.epoch:
            return "none"
        return "master" if ha.mastership is not None else "slave" if ha.client is not None else "none"

    @property
    def task_deaths(self) -> Counter[str]:
        """How often each background task has ended by an error."""
        ha = self._controlled.ha.task_deaths if self._controlled is not None else Counter[str]()
        return self._tasks.deaths + ha

    @property
    def standing(self) -> Standing:
        """What readiness is judged by."""
        return Standing(
            serving=self._serving,
            role=self.role_name,
            name_servers=self.config.name_servers,
            registered=self._routes.registered,
            role_fault=self._controlled.fault if self._controlled is not None else "",
            disk_fault=self.store.commit_log.write_fault
            or self.store.dispatch_fault
            or self.metadata.fault
            or (self.commit.fault if self.commit is not None else ""),
            ha_fault=(self._controlled.ha.fault or "") if self._controlled is not None else "",
        )

    def describe(self) -> str:
        mode = f"replication on {self.ha_address}" if self._controlled else "stand-alone"
        http = f", http on {self._http.address[0]}:{self._http.address[1]}" if self._http else ""
        return f"{self.config.broker_name} listening on {self.address}, {mode}{http}"

    # -- alone -------------------------------------------------------------------------------------------

    def _serve_alone(self) -> None:
        self.store.become_master()
        self._confirm_alone()
        while self.store.dispatch(DISPATCH_RECORDS):
            pass  # nobody is connected yet
        self.metadata.begin_alone()
        self.gate.open(ROLE)
        if self._telemetry is not None:
            self._telemetry.role_changed(NO_ROLE, ALONE, 0)

    def _confirm_alone(self) -> None:
        if self.commit is None:
            self.store.set_confirm_offset(self.store.commit_log.max_offset)
        else:
            self.commit.want()  # consumers never see what a power cut could take back

    def _held_offset(self) -> int:
        """Connected replicas have everything below it."""
        links = self._controlled.ha.links.values() if self._controlled is not None else ()
        return min((link.ack_offset for link in links if link.position >= 0), default=sys.maxsize)

    def _queue_end(self, topic: str, queue_id: int) -> int:
        """The offset that the queue's next message gets."""
        queue = self.store.find_queue(topic, queue_id)
        return 0 if queue is None else queue.next_offset

    # -- SYNC_FLUSH --------------------------------------------------------------------------------------

    def _flushed(self) -> None:
        offset = self.store.commit_log.flushed_offset
        if self._controlled is not None:
            self._controlled.ha.flushed()
        else:
            self.store.set_confirm_offset(offset)
        self.pending.flushed(offset)

    def _disk_failed(self, fault: str) -> None:
        self.gate.close(DISK, fault)

    # -- routes ------------------------------------------------------------------------------------------

    def _registered(self, answer: RegisterBrokerResponse) -> None:
        if answer.master_addr and answer.ha_server_addr:
            self._sync.route_ha_address = (answer.master_addr, answer.ha_server_addr)

    def _connection_lost(self, address: str) -> None:
        self._routes.connection_lost(address)
        if self._controlled is not None:
            self._controlled.connection_lost(address)

    def _replicated_queue(self, topic: str, queue_id: int) -> None:
        """A record of a queue that the store had not: the topic exists, its settings are at the master."""
        self.topics.ensure_replicated(topic, queue_id, self.store.dispatch_offset)
        self._sync.unknown_topic()

    # -- background --------------------------------------------------------------------------------------

    async def _flush_forever(self) -> None:
        await flush_forever(self.store, self.config.flush_interval_commit_log)

    async def _expire_forever(self) -> None:
        assert self._handlers is not None
        while True:
            await asyncio.sleep(EXPIRE_PERIOD_MS / 1000)
            self._handlers.expire(now_ms())
            self.clients.expire(now_ms())
