"""The parts of one broker: makes them in the order in which they need each other, and connects them.

Where two parts need each other, the one that is made first gets a method of this class, which calls the other
one. Nothing runs here, and no file or port is open: app/broker.py starts and stops the parts.
"""

import sys
from collections.abc import Callable
from typing import Any

from broker.admin.lag_times import LagTimes
from broker.admin.retention_service import RetentionService
from broker.admin.telemetry import BrokerTelemetry
from broker.admission.disk_fault import DiskFault
from broker.admission.fast_path import FastPathPeer
from broker.admission.pending_replies import PendingReplies
from broker.admission.send_gate import DISK_FULL, SendGate
from broker.app.assembly import cached_bytes, make_metadata, make_store, make_topics
from broker.app.background_services import BackgroundServices
from broker.app.handlers import BrokerHandlers
from broker.app.listeners import Listeners
from broker.app.plain_replication import PlainParts, PlainReplication
from broker.app.process import ProcessParts, make_process_parts
from broker.app.stand_alone import StandAlone
from broker.app.status import BrokerStatus
from broker.backup.service import StoreBackups
from broker.clients.service import Clients
from broker.config.broker_config import BrokerConfig
from broker.config.detected_address import detect_address
from broker.controller_mode.broker_meta_file import MetaFiles
from broker.controller_mode.controlled_parts import ControlledParts
from broker.controller_mode.service import ControllerMode
from broker.core.read_counters import ReadCounters
from broker.core.role import Role
from broker.ha.core.epochs import Epochs
from broker.healing.service import Healer
from broker.metadata.broker_users import BrokerUsers
from broker.metadata.topics import PERM_WRITE
from broker.metadata.user_exchange import UserExchange
from broker.naming.route_registration import RouteRegistration
from broker.put.handler_context import RetryStore
from broker.put.send_commands import SendCommand
from broker.stats.service import BrokerStats
from broker.store.log.group_commit import GroupCommit
from broker.store.scrub import Scrub
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.config_store import Given
from keelmq.remoting.operation import Operation, OperationTable, Outcome, Wire
from keelmq.remoting.operations.route import RegisterBrokerResponse
from keelmq.remoting.servers.http_late import LateHttp
from keelmq.runtime.long_work import LongWork
from keelmq.runtime.tasks import TaskSet
from keelmq.security.audit.log import make_audit
from keelmq.security.program import ProgramSecurity, first_users
from keelmq.security.refusal_log import RefusalLog
from keelmq.security.signer import optional_signer


class BrokerParts:
    """All parts of a broker, not started. Handlers, services, telemetry and HTTP are made by the start."""

    def __init__(
        self,
        config: BrokerConfig,
        given: Given | None = None,
        *,
        process: ProcessParts | None = None,
        neighbour: Callable[[], RetryStore | None] = lambda: None,
    ) -> None:
        """given: where the configuration came from; changes of it (25) are kept there. process: shared with
        other brokers, and run by their owner; None: this broker has its own. neighbour: see
        HandlerContext."""
        self.config, self.given = config, given or Given()
        self._is_alone, self._neighbour = process is None, neighbour
        self._opening = LongWork(is_shared=not self._is_alone)
        self.process = make_process_parts(config) if process is None else process
        self.host = config.broker_ip1 or detect_address(
            config.bind_address, (*config.name_servers, *config.controllers)
        )
        self._tasks, self._pushed = TaskSet(), OperationTable()
        self._handlers: BrokerHandlers | None = None
        self._services: BackgroundServices | None = None
        self._telemetry: BrokerTelemetry | None = None
        self._http: LateHttp | None = None
        self._prom: LateHttp | None = None
        self._loaded = self._serving = False
        self._meta_files = MetaFiles(
            config.store_path_root_dir,
            cluster_name=config.broker_cluster_name,
            broker_name=config.broker_name,
        )
        self._controlled: ControllerMode | None = None
        self._plain: PlainReplication | None = None
        self._make_connections()
        self._make_storage()
        self._make_services()
        if config.enable_controller_mode:
            self._controlled = self._make_controller_mode()
        self.healer = self._make_healer()
        self.status = BrokerStatus(
            config,
            host=self.host,
            listeners=self.listeners,
            http_address=lambda: self.http_address,
            store=self.store,
            metadata=self.metadata,
            disk_fault=self.disk_fault,
            routes=self._routes,
            controlled=self._controlled,
            plain=self._plain,
            tasks=self._tasks,
            is_serving=lambda: self._serving,
            refusal=lambda: "the broker is starting" if self._handlers is None else self._handlers.refusal,
            no_room=lambda: self.gate.remark_of(DISK_FULL),
        )

    # -- the parts ---------------------------------------------------------------------------------------

    def _make_connections(self) -> None:
        """What clients connect to, and what connects to name servers, controllers and the master."""
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
        """What a send passes (gate, pending replies), the store, and the metadata."""
        config, has_replicas = self.config, self.config.enable_controller_mode
        self.gate = SendGate(
            wait=config.waits_for_replicas or config.sync_flush,
            permits_write=bool(config.broker_permission & PERM_WRITE),
            accept_from_ms=config.start_accept_send_request_time_stamp,
            min_in_sync=config.min_in_sync_replicas if config.has_ha_port else 1,
            lease=self._lease_is_over if has_replicas and config.isolation_lease_enable else None,
            hold_or_forward=self._hold_or_forward if has_replicas and config.forward_late_sends else None,
        )
        self.pending = PendingReplies(self.gate, replicas=config.waits_for_replicas, disk=config.sync_flush)
        self.topics = make_topics(config, on_change=self._routes.trigger)
        self.topics.unregistrable = lambda: self.status.unregistrable()
        self.store = make_store(
            config, self.topics, on_queue=self._replicated_queue, on_sync_fault=self._sync_failed
        )
        self.metadata = make_metadata(config, self.topics, self.gate, self.store)
        self.users = BrokerUsers(self.metadata)
        self.security = ProgramSecurity(config, self.users, cluster_name=config.broker_cluster_name)
        if config.has_members:
            # Without, nobody can tell a controller from others, and this broker chose its peers itself.
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
            timer_counts=self._timer_counts,
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
            self.store, bytes_per_second=self._scrub_bytes_per_second, cached_bytes=cached_bytes()
        )
        self.user_exchange = self._make_user_exchange()
        self.backups = StoreBackups(
            config, self.store, self.metadata, epochs=self._epochs, start_task=self._tasks.start
        )
        if config.is_plain_slave or config.serves_plain_slaves:
            self._plain = self._make_plain_replication()
        self._stand_alone: StandAlone | PlainReplication = self._plain or StandAlone(
            gate=self.gate,
            store=self.store,
            commit=self.commit,
            metadata=self.metadata,
            messages_in=self.stats.messages_in,
        )

    def _scrub_bytes_per_second(self) -> int:
        return self.config.scrub_bytes_per_second

    def _make_user_exchange(self) -> UserExchange:
        tls, is_member = self.process.client_tls, self.config.member_credentials is not None
        keeps_users = is_member and self.config.security_on
        servers = (*self.config.name_servers, *self.config.controllers) if keeps_users else ()
        return UserExchange(
            self._client, self.metadata, self.users, servers, verifies=tls is not None and tls.verifies
        )

    def _make_healer(self) -> Healer:
        return Healer(
            self.store,
            self._client,
            broker_name=self.config.broker_name,
            epochs=self._epochs,
            needs_epochs=self._controlled is not None,
            peers=self._other_replicas,
        )

    def _make_controller_mode(self) -> ControllerMode:
        parts = ControlledParts(
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
            send_here=self._send_here,
            close_clients=self.listeners.close_connections,
            on_role_changed=self._role_changed,
        )
        return ControllerMode(self.config, parts, self._meta_files)

    def _make_plain_replication(self) -> PlainReplication:
        parts = PlainParts(
            client=self._client,
            gate=self.gate,
            pending=self.pending,
            store=self.store,
            commit=self.commit,
            metadata=self.metadata,
            messages_in=self.stats.messages_in,
            audit=self.audit,
            announce=self._routes.trigger,
        )
        return PlainReplication(self.config, parts)

    # -- for parts that are made before those that they call ---------------------------------------------

    def _replicated_queue(self, topic: str, queue_id: int) -> None:
        """The store has a record of a new queue: its topic exists, and the master knows its settings."""
        self.topics.ensure_replicated(topic, queue_id, self.store.dispatch_offset)
        replication = self._controlled or self._plain
        if replication is not None:
            replication.slave_sync.unknown_topic()

    def _flushed(self) -> None:
        """A round of the group commit is over."""
        offset = self.store.commit_log.flushed_offset
        if self._controlled is not None:
            self._controlled.ha.flushed()
        else:
            self._stand_alone.flushed(offset)
        self.pending.flushed(offset)

    def _sync_failed(self, fault: str) -> None:
        """Called in any thread."""
        self.disk_fault.found(fault)

    def _disk_failed(self) -> None:
        if self._controlled is not None:
            self._controlled.hand_over_soon()

    def _lease_is_over(self, now_ms: int) -> bool:
        return self._controlled is not None and self._controlled.lease_is_over(now_ms)

    def _hold_or_forward(self, command: SendCommand, body: bytes, peer: FastPathPeer) -> bool:
        return self._controlled is not None and self._controlled.forwarder.take(command, body, peer)

    async def _forward_to_master(
        self, operation: Operation[Any, Any], header: Wire, body: Wire | None
    ) -> Outcome[Any] | None:
        replication = self._controlled or self._plain
        return None if replication is None else await replication.forward_to_master(operation, header, body)

    def _send_here(self, command: SendCommand, body: bytes, peer: FastPathPeer) -> bytes | None:
        return self.handlers.send.send(command, body, peer)

    def _timer_counts(self) -> tuple[int, int]:
        return self.services.timers.added, self.services.timers.delivered

    def _held_offset(self) -> int:
        """Connected replicas and the backup in progress have everything below it, and no timer that is not
        delivered is there."""
        replication = self._controlled or self._plain
        links = replication.ha.links.values() if replication is not None else ()
        acked = min((link.ack_offset for link in links if link.position >= 0), default=sys.maxsize)
        return min(acked, self.backups.held_offset, self.services.timers.held_offset)

    def _epochs(self) -> Epochs:
        """The epochs of the log; none without controllers."""
        return Epochs() if self._controlled is None else self._controlled.ha.log_epochs.now

    async def _other_replicas(self) -> list[str]:
        """Where damaged ranges of the log are healed from: the master first."""
        if self._controlled is not None:
            return await self._controlled.replicas()
        if self._plain is None:
            return []
        members = await self._routes.members(self.config.broker_cluster_name, self.config.broker_name)
        return [members[each] for each in sorted(members) if members[each] != self.address]

    def _registered(self, answer: RegisterBrokerResponse) -> None:
        """A name server answers a registration with the HA address of the master that it knows."""
        if self._controlled is not None and answer.master_addr and answer.ha_server_addr:
            self._controlled.slave_sync.route_ha_address = (answer.master_addr, answer.ha_server_addr)
        if self._plain is not None:
            self._plain.registered(answer)

    def _connection_lost(self, address: str) -> None:
        """A connection that this broker opened was closed."""
        self._routes.connection_lost(address)
        if self._controlled is not None:
            self._controlled.connection_lost(address)

    def _role_changed(self, before: Role, after: Role, took_ms: int) -> None:
        if self._telemetry is not None:
            self._telemetry.role_changed(before, after, took_ms)

    # -- changes of the settings -------------------------------------------------------------------------

    def _settings_changed(self) -> None:
        """The configuration has new values (25): the parts that keep some of them get them here. Parts that
        read the configuration each time need nothing. Messages are held back before HA confirms by the new
        rules, and the disk is asked last."""
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
        replication = self._controlled or self._plain
        if replication is not None:
            replication.configure()
        else:
            self._stand_alone.appended()
        self.commit.want()

    # -- what the start makes ----------------------------------------------------------------------------

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
        return None if self._prom is None else self._prom.address

    @property
    def address(self) -> str:
        """host:port that clients are told, after the start."""
        return self.listeners.address
