"""Broker: the whole life of one broker process, minus flags and signals.

`async with Broker(config) as broker:` recovers the store, binds its ports, serves until the block ends, and
leaves nothing behind. It raises ConfigError, BrokerMetaError or StoreError if it cannot. It accepts no
message before it is master: at once without controller mode, else when the controllers decide it.
"""

import asyncio
import logging
import sys
from collections.abc import Callable, Collection
from typing import Any, Final

from broker.admin.lag_times import LagTimes
from broker.admin.metrics import MetricSources
from broker.admin.retention_service import RetentionService
from broker.admin.telemetry import ALONE, BrokerTelemetry, start_telemetry
from broker.admission.disk_fault import DiskFault
from broker.admission.pending_replies import PendingReplies
from broker.admission.send_gate import DISK_FULL, STOPPING
from broker.app.assembly import (
    cached_bytes,
    close_store,
    flush_forever,
    load_store,
    make_gate,
    make_metadata,
    make_store,
    make_topics,
    store_host,
)
from broker.app.background_services import BackgroundServices
from broker.app.binding import ServedParts, bind_operations
from broker.app.handlers import BrokerHandlers
from broker.app.http import BrokerHttp
from broker.app.listeners import Listeners
from broker.app.plain_replication import PlainReplication
from broker.app.process import ProcessParts, make_process_parts
from broker.app.single_master import SingleMaster
from broker.app.start_check import check_ports, load_settings
from broker.app.status import BrokerStatus
from broker.backup.service import StoreBackups
from broker.clients.service import Clients
from broker.config.broker_config import BrokerConfig
from broker.config.detected_address import detect_address
from broker.controller_mode.broker_meta_file import MetaFiles
from broker.controller_mode.service import ControllerMode, ReplicationParts
from broker.core.durability import guarantees
from broker.core.read_counters import ReadCounters
from broker.core.role import Role
from broker.ha.core.epochs import Epochs
from broker.healing.service import Healer
from broker.metadata.broker_users import BrokerUsers
from broker.metadata.user_exchange import UserExchange
from broker.naming.route_registration import RouteRegistration
from broker.put.handler_context import RetryStore
from broker.stats.service import BrokerStats
from broker.store.log.group_commit import GroupCommit
from broker.store.scrub import Scrub
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.config_store import ConfigSources
from keelmq.remoting.operation import Operation, OperationTable, Outcome, Wire
from keelmq.remoting.operations.route import RegisterBrokerResponse
from keelmq.runtime.clock import now_ms
from keelmq.runtime.compiled import tell_report
from keelmq.runtime.long_work import LongWork
from keelmq.runtime.stop_steps import AsyncLife, StopSteps
from keelmq.runtime.tasks import TaskSet, finished_in_thread
from keelmq.security.audit.log import make_audit
from keelmq.security.program import ProgramSecurity, first_users
from keelmq.security.refusal_log import RefusalLog
from keelmq.security.signer import optional_signer

logger = logging.getLogger(__name__)

EXPIRE_PERIOD_MS = 100
DRAIN_MS = 500
"""How long a stopping master waits for its pending replies."""
DRAIN_STEP_MS = 10

TASKS: Final = "background tasks"
REPLICATION: Final = "replication"
GROUP_COMMIT: Final = "group commit"
WRITERS: Final = frozenset({TASKS, REPLICATION, GROUP_COMMIT})
"""Steps of a stop after which no component writes to the store."""


class Broker(AsyncLife):
    """Makes the parts in the order in which they need each other (__init__), starts them in order (_start),
    and stops them in reverse (_stop). Where two parts need each other, the one that is made first gets a
    method of this class, which calls the other one."""

    def __init__(
        self,
        config: BrokerConfig,
        config_sources: ConfigSources | None = None,
        *,
        process: ProcessParts | None = None,
        escape_target: Callable[[], RetryStore | None] = lambda: None,
    ) -> None:
        """config_sources: changes of the configuration (25) are kept there. process: shared with other
        brokers, and run by their owner; None: this broker has its own. escape_target: see HandlerContext."""
        self.config, self.config_sources = config, config_sources or ConfigSources()
        self._is_alone, self._escape_target = process is None, escape_target
        self._opening = LongWork(is_shared=not self._is_alone)
        self.process = make_process_parts(config) if process is None else process
        self.host = config.broker_ip1 or detect_address(
            config.bind_address, (*config.name_servers, *config.controllers)
        )
        self._tasks, self._pushed = TaskSet(), OperationTable()
        self._handlers: BrokerHandlers | None = None
        self._services: BackgroundServices | None = None
        self.telemetry: BrokerTelemetry | None = None  # None: switched off, or not started
        self._http: BrokerHttp | None = None
        self._loaded = self._serving = False
        self._meta_files = MetaFiles(
            config.store_path_root_dir,
            cluster_name=config.broker_cluster_name,
            broker_name=config.broker_name,
        )
        self._make_connections()
        self._make_storage()
        self._make_services()
        self._make_replication()
        self.healer = Healer(
            self.store,
            self._client,
            broker_name=config.broker_name,
            epochs=self._epochs,
            needs_epochs=self.controlled is not None,
            peers=self._other_replicas,
        )
        self.status = BrokerStatus(
            config,
            host=self.host,
            listeners=self.listeners,
            http_address=lambda: self.http_address,
            store=self.store,
            metadata=self.metadata,
            disk_fault=self.disk_fault,
            routes=self._routes,
            controlled=self.controlled,
            plain=self.plain,
            tasks=self._tasks,
            is_serving=lambda: self._serving,
            refusal=lambda: "the broker is starting" if self._handlers is None else self._handlers.refusal,
            no_room=lambda: self.gate.remark_of(DISK_FULL),
        )

    # -- life --------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        self.disk_fault.watch()
        await check_ports(self.config, self.host)
        # Takes long after a crash: other brokers of the process go on.
        await finished_in_thread(self._open_disk, on_cancel=self._opening.give_up)
        for line in guarantees(self.config.durability):
            logger.info("%s", line)
        tell_report()
        for line in self.config.warnings():
            logger.warning("%s", line)
        if self.replication is not None:
            await self.replication.listen()
        self.security.tell_super_users(self.users.users())
        await self.listeners.start(self._bind_operations(), self.security.listener_access)
        if self.audit is not None:
            directory = self.config.audit_path or self.config.store_path_root_dir / "audit"
            node = f"{self.config.broker_name}-{self.address}"
            self.audit.start(directory, node=node, port=self.listeners.port)
        self._http = self._make_http()
        self._http.bind()
        self.store.store_host = store_host(self.host, self.listeners.port)
        self.telemetry = start_telemetry(
            self.config,
            self.store,
            self.metadata,
            self._tasks,
            address=self.address,
            controlled=self.controlled,
            plain_role=self.status.role_name,
        )
        if self.controlled is not None:
            self.controlled.start(self._tasks)
        else:
            await self._serve_alone()
        self._routes.start(self._tasks)
        self._start_background()
        self._serving = True
        self._http.serve(self._tasks)

    async def _stop(self) -> None:
        """Ends within seconds, regardless of other machines. StopError: a step failed, the others ran."""
        self._serving = False
        self.gate.close(STOPPING, "the broker is stopping")
        steps = StopSteps("mqbroker")
        if self.listeners.is_listening:
            steps.add("the replies that are owed", self._drain)
            if self.status.registers:
                steps.add("the registration", lambda: self._routes.unregister(self.status.unregistration()))
        steps.add(TASKS, self._tasks.stop)
        if self._http is not None:
            for name, http in self._http.servers.items():
                steps.add(f"the {name} port", http.close)
        if self.replication is not None:
            steps.add(REPLICATION, self.replication.stop)
        for server in self.listeners.all:
            steps.add(server.name, server.close)
        steps.add("connections to others", self._client.close)
        if self.telemetry is not None:
            steps.add("telemetry", self.telemetry.close)
        if self.audit is not None:
            steps.add("the audit log", self.audit.close)
        steps.add(GROUP_COMMIT, self.commit.close)
        if self._loaded:
            steps.add("metadata", self.metadata.end)
            steps.add("the store", lambda: self._close_store(steps.failed))
        await steps.run()

    async def _close_store(self, failed: Collection[str]) -> None:
        """Marks the store clean unless its disk had a fault, or a writer may still be running. failed: the
        steps of the stop that failed."""
        await close_store(self.store, is_trusted=not self.disk_fault.text and WRITERS.isdisjoint(failed))

    async def leave(self) -> None:
        """Before a planned stop: hands over the mastership, if this broker has it, and serves clients that
        use the old route until they have read the new one. Bounded (planned_stop.py)."""
        if self.controlled is not None and self._serving:
            await self.controlled.leave()

    # -- steps of the start ------------------------------------------------------------------------------

    def _open_disk(self) -> None:
        """Checks first: a start that is refused has changed nothing."""
        epochs = load_settings(self.config, self.metadata)
        recover = self._uncontrolled.recover if self.controlled is None else None
        load_store(self.config, self.store, epochs, self._opening.between, recover)
        self._loaded = True

    def _bind_operations(self) -> OperationTable:
        self.operations, self._handlers, self._services, self._settings = bind_operations(
            ServedParts(
                config=self.config,
                config_sources=self.config_sources,
                store=self.store,
                gate=self.gate,
                pending=self.pending,
                metadata=self.metadata,
                users=self.users,
                security=self.security,
                clients=self.clients,
                stats=self.stats,
                retention=self.retention,
                scrub=self.scrub,
                backups=self.backups,
                epochs=self._epochs,
                controlled=self.controlled,
                plain=self.plain,
                end_of_tick=self.controlled.ha.appended if self.controlled else self._uncontrolled.appended,
                find_route=self._routes.find,
                escape_target=self._escape_target,
                status=self.status,
                settings_changed=self._settings_changed,
            )
        )
        self.operations.audit = self.audit
        return self.operations

    def _make_http(self) -> BrokerHttp:
        return BrokerHttp(
            self.config,
            self.operations,
            host=self.host,
            listen_port=self.listeners.port,
            process=self.process,
            status=self.status,
            services=self.services,
            settings=self._settings,
            sources=self.metric_sources,
            accesses=self.security.accesses,
            audit=self.audit,
            proxy=lambda: self.listeners.proxy,
        )

    async def _serve_alone(self) -> None:
        await self._uncontrolled.serve()
        if self.plain is not None:
            self.plain.start(self._tasks)
        if self.status.role_name == "master":
            self._role_changed(Role(broker_id=0), ALONE, 0)

    def _start_background(self) -> None:
        assert self._services is not None
        if self._is_alone:
            self._tasks.start("certificates of our ports", self.process.tls.run)
        self._tasks.start("accounts", self.security.run)
        self._tasks.start("exchange of users", self.user_exchange.run)
        self._tasks.start(
            "flush", lambda: flush_forever(self.store, lambda: self.config.flush_interval_commit_log)
        )
        self.metadata.write_in_background()
        self._tasks.start("metadata", self.metadata.run)
        self._tasks.start("offset checks", self.metadata.check_offsets)
        self._tasks.start("retention", self.retention.run)
        self._tasks.start("scrub of the log", self.scrub.run)
        self._tasks.start("statistics", self.stats.run)
        self._tasks.start("healing of the log", self.healer.run)
        self._services.start(self._tasks)
        self._tasks.start("expiry of waiting requests", self._expire_forever)

    async def _expire_forever(self) -> None:
        assert self._handlers is not None
        while True:
            await asyncio.sleep(EXPIRE_PERIOD_MS / 1000)
            self._handlers.expire(now_ms())
            self.clients.expire(now_ms())

    async def _drain(self) -> None:
        for _ in range(DRAIN_MS // DRAIN_STEP_MS):
            if not len(self.pending):
                return
            await asyncio.sleep(DRAIN_STEP_MS / 1000)

    # -- the parts ---------------------------------------------------------------------------------------

    def _make_connections(self) -> None:
        """The listeners for clients, and the connections to name servers, controllers and the master."""
        config, process = self.config, self.process
        self.audit = make_audit(config, "mqbroker")
        self.listeners = Listeners(
            config,
            host=self.host,
            on_closed=lambda connection_id: self.clients.connection_closed(connection_id),
            write_buffers=process.write_buffers,
            limits=process.limits,
            tls=process.tls,
        )
        self._client = RemotingClient(
            self._pushed,
            on_closed=self._connection_lost,
            drop_silent_ms=config.controller_heart_beat_timeout_mills,
            tls=process.client_tls,
            signer=optional_signer(config.member_credentials, proof=True),
            on_refused=RefusalLog().refused,
        )
        self._routes = RouteRegistration(
            self._client,
            config.name_servers,
            period_ms=config.register_name_server_period,
            timeout_ms=config.register_broker_timeout_mills,
            registration=lambda: self.status.registrations(),
            on_answer=self._registered,
        )

    def _make_storage(self) -> None:
        """The parts that a send passes (gate, pending replies), the store, and the metadata."""
        config = self.config
        self.gate = make_gate(config)
        self.pending = PendingReplies(self.gate, replicas=config.waits_for_replicas, disk=config.sync_flush)
        self.topics = make_topics(config, on_change=self._routes.trigger)
        self.topics.unregistrable = lambda: self.status.unregistrable()
        self.store = make_store(
            config,
            self.topics,
            on_queue=self._replicated_queue,
            on_sync_fault=lambda fault: self.disk_fault.found(fault),
        )
        self.metadata = make_metadata(config, self.topics, self.gate, self.store)
        self.users = BrokerUsers(self.metadata)
        self.security = ProgramSecurity(config, self.users, cluster_name=config.broker_cluster_name)
        if config.has_members:
            # Without it, a controller cannot be identified, and this broker chose its peers itself.
            self._pushed.access = self.security.access
        self.metadata.first_users = first_users(config)
        self.disk_fault = DiskFault(self.store, self.gate, self.pending, on_fault=self._disk_failed)
        self.commit = GroupCommit(
            self.store.commit_log.sync, on_flushed=self._flushed, on_fault=self.disk_fault.failed
        )
        self.commit.is_on = config.sync_flush

    def _make_services(self) -> None:
        """Clients, statistics, retention, and the role without controllers."""
        config = self.config
        self.clients = Clients(self.metadata, config, forward_to_master=self._forward_to_master)
        self.stats = BrokerStats(
            self.store,
            ReadCounters(),
            config.broker_cluster_name,
            self.pending.times,
            timer_counts=lambda: (self.services.timers.added, self.services.timers.delivered),
        )
        self.lags = LagTimes(
            self.store, self.metadata, self.stats.reads, pairs_max=config.metrics_otel_cardinality_limit
        )
        self.retention = RetentionService(
            self.store,
            self.gate,
            config,
            held_offset=self._held_offset,
            on_emptied=self.metadata.remember_ends,
            roll_timers=lambda log_offset: self.services.timers.roll_before(log_offset),
        )
        self.scrub = Scrub(
            self.store, bytes_per_second=lambda: config.scrub_bytes_per_second, cached_bytes=cached_bytes()
        )
        self.user_exchange = self._make_user_exchange()
        self.backups = StoreBackups(
            config, self.store, self.metadata, epochs=self._epochs, start_task=self._tasks.start
        )

    def _make_user_exchange(self) -> UserExchange:
        tls, is_member = self.process.client_tls, self.config.member_credentials is not None
        keeps_users = is_member and self.config.at_listeners.security_on
        servers = (*self.config.name_servers, *self.config.controllers) if keeps_users else ()
        return UserExchange(
            self._client, self.metadata, self.users, servers, verifies=tls is not None and tls.verifies
        )

    def _make_replication(self) -> None:
        """The role, and the copy of log and metadata: with controllers, with slaves only, or without both."""
        config = self.config
        parts = ReplicationParts(
            client=self._client,
            pushed=self._pushed,
            gate=self.gate,
            pending=self.pending,
            store=self.store,
            commit=self.commit,
            disk_fault=self.disk_fault,
            metadata=self.metadata,
            registry=self.clients.registry,
            messages_in=self.stats.messages_in,
            audit=self.audit,
            address=lambda: self.address,
            announce=self._routes.trigger,
            send_here=lambda *send: self.handlers.send.send(*send),
            close_clients=self.listeners.close_connections,
            on_role_changed=self._role_changed,
        )
        self.controlled = (
            ControllerMode(config, parts, self._meta_files) if config.enable_controller_mode else None
        )
        """None without controller mode."""
        has_plain = config.is_plain_slave or config.serves_plain_slaves
        self.plain = PlainReplication(config, parts) if has_plain else None
        """The master/slave mode without controllers; None: there are controllers, or no slaves."""
        self.replication = self.controlled or self.plain
        self._uncontrolled = self.plain or SingleMaster(parts)

    # -- for parts that are made before those that they call ---------------------------------------------

    def _replicated_queue(self, topic: str, queue_id: int) -> None:
        """The store has a record of a new queue: its topic exists, and the master knows its settings."""
        self.topics.ensure_replicated(topic, queue_id, self.store.dispatch_offset)
        if self.replication is not None:
            self.replication.slave_sync.unknown_topic()

    def _flushed(self) -> None:
        """A round of the group commit is over."""
        offset = self.store.commit_log.flushed_offset
        if self.controlled is not None:
            self.controlled.ha.flushed()
        else:
            self._uncontrolled.flushed(offset)
        self.pending.flushed(offset)

    def _disk_failed(self) -> None:
        if self.controlled is not None:
            self.controlled.hand_over_soon()

    async def _forward_to_master(
        self, operation: Operation[Any, Any], header: Wire, body: Wire | None
    ) -> Outcome[Any] | None:
        if self.replication is None:
            return None
        return await self.replication.forward_to_master(operation, header, body)

    def _held_offset(self) -> int:
        """Connected replicas and the backup in progress have everything below it, and every timer below it is
        delivered."""
        links = self.replication.ha.links.values() if self.replication is not None else ()
        acked = min((link.ack_offset for link in links if link.position >= 0), default=sys.maxsize)
        return min(acked, self.backups.held_offset, self.services.timers.held_offset)

    def _epochs(self) -> Epochs:
        """The epochs of the log; none without controllers."""
        return Epochs() if self.controlled is None else self.controlled.ha.log_epochs.now

    async def _other_replicas(self) -> list[str]:
        """The sources from which damaged ranges of the log are healed: the master first."""
        if self.controlled is not None:
            return await self.controlled.replicas()
        if self.plain is None:
            return []
        members = await self._routes.members(self.config.broker_cluster_name, self.config.broker_name)
        return [members[each] for each in sorted(members) if members[each] != self.address]

    def _registered(self, answer: RegisterBrokerResponse) -> None:
        """A name server answers a registration with the HA address of the master that it knows."""
        if self.controlled is not None and answer.master_addr and answer.ha_server_addr:
            self.controlled.slave_sync.route_ha_address = (answer.master_addr, answer.ha_server_addr)
        if self.plain is not None:
            self.plain.registered(answer)

    def _connection_lost(self, address: str) -> None:
        """A connection that this broker opened was closed."""
        self._routes.connection_lost(address)
        if self.controlled is not None:
            self.controlled.connection_lost(address)

    def _role_changed(self, before: Role, after: Role, took_ms: int) -> None:
        if self.telemetry is not None:
            self.telemetry.role_changed(before, after, took_ms)

    # -- changes of the settings -------------------------------------------------------------------------

    def _settings_changed(self) -> None:
        """The configuration has new values (25): the parts that keep a copy get them here. Parts that read
        the configuration each time need no call. Messages are held back before HA confirms by the new rules,
        and the disk is asked last."""
        config, routes = self.config, self._routes
        self.handlers.configure(config)
        self.commit.is_on = config.sync_flush
        self.gate.wait = config.waits_for_replicas or config.sync_flush
        self.pending.configure(
            replicas=config.waits_for_replicas,
            disk=config.sync_flush,
            flushed_offset=self.store.commit_log.flushed_offset,
        )
        self.metadata.waits = config.enable_controller_mode and config.waits_for_replicas
        self.metadata.timeout_ms = config.slave_timeout
        config.configure_creation(self.topics.creation, self.metadata.groups.creation)
        self._client.drop_silent_ms = config.controller_heart_beat_timeout_mills
        routes.period_ms, routes.timeout_ms = (
            config.register_name_server_period,
            config.register_broker_timeout_mills,
        )
        if self.replication is not None:
            self.replication.configure()
        else:
            self._uncontrolled.appended()
        self.commit.want()

    # -- parts that the start makes ----------------------------------------------------------------------

    @property
    def handlers(self) -> BrokerHandlers:
        """Of the data path, after the start."""
        assert self._handlers is not None, "not started"
        return self._handlers

    @property
    def services(self) -> BackgroundServices:
        """Transactions, timers, pops, replies, after the start."""
        assert self._services is not None, "not started"
        return self._services

    @property
    def http_address(self) -> tuple[str, int] | None:
        """None: there is no HTTP port."""
        return None if self._http is None else self._http.address

    @property
    def prom_address(self) -> tuple[str, int] | None:
        """The listener of metricsExporterType=PROM; None: there is none."""
        return None if self._http is None else self._http.prom_address

    @property
    def address(self) -> str:
        """host:port that is announced to clients, after the start."""
        return self.listeners.address

    # -- for programs and tests --------------------------------------------------------------------------

    def metric_sources(self) -> MetricSources:
        """Returns the sources of the metrics, after the start."""
        services = self.services
        return MetricSources(
            config=self.config,
            store=self.store,
            quota=self.retention.quota,
            scrub=self.scrub,
            pending=self.pending,
            metadata=self.metadata,
            stats=self.stats,
            registry=self.clients.registry,
            lags=self.lags,
            healer=self.healer,
            transactions=services.transactions,
            timers=services.timers,
            timer_times=services.timer_times,
            pop=services.pop,
            write_buffers=self.process.write_buffers if self._is_alone else None,
            limits=self.process.limits if self._is_alone else None,
            controlled=self.controlled,
            plain=None if self.plain is None else self.plain.ha,
            telemetry=None if self.telemetry is None else self.telemetry.writer,
            readiness=lambda: self.status.readiness,
            connection_count=lambda: self.listeners.connection_count,
            task_deaths=lambda: self.status.task_deaths,
        )
