"""ControllerPlugin: makes and connects the parts of the controller, in mqnamesrv or in mqcontroller."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from keelmq.remoting.addresses import is_loopback
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import OperationTable
from keelmq.remoting.operations.controller import UPDATE_CONTROLLER_CONFIG
from keelmq.remoting.peer_limits import PeerLimits
from keelmq.remoting.servers.listening import EVERYWHERE
from keelmq.remoting.servers.request_counts import RequestCounts
from keelmq.remoting.servers.tcp import SMALL_UNSENT_BYTES_MAX, TcpServer
from keelmq.remoting.write_buffers import WriteBuffers
from keelmq.runtime.config import Config, ConfigError, setting_sources
from keelmq.runtime.histogram import BOUNDS_US
from keelmq.runtime.slices import in_slices
from keelmq.runtime.stop_steps import StopSteps
from keelmq.runtime.tasks import TaskSet
from keelmq.security.private_file import exposed
from namesrv.core.liveness import BrokerKey
from namesrv.plugins import PluginContext, Settings
from namesrv.plugins.controller.config import AT_RUN_TIME, ControllerConfig
from namesrv.plugins.controller.core.apply import Applied
from namesrv.plugins.controller.core.events import AnyEvent
from namesrv.plugins.controller.core.state import BrokerSet, State
from namesrv.plugins.controller.core.tally import NEW_MASTER_ELECTED, NO_MASTER_ELECTED, ElectionTally
from namesrv.plugins.controller.election.death_proofs import DeathProofs, Probe, connect_and_close
from namesrv.plugins.controller.election.hung_masters import HungMasters
from namesrv.plugins.controller.election.liveness_view import LivenessView
from namesrv.plugins.controller.election.reconcile_loop import Elections
from namesrv.plugins.controller.election.role_change_notifier import RoleChangeNotifier
from namesrv.plugins.controller.election.route_masters import RouteMasters
from namesrv.plugins.controller.http.sources import ControllerSources, GroupSources, MetricSources
from namesrv.plugins.controller.machine import ControllerMachine
from namesrv.plugins.controller.proposer import Proposer
from namesrv.plugins.controller.raft.api import RaftSettings, Replicator
from namesrv.plugins.controller.raft.transport.addresses import ANY_ADDRESS, listen_host
from namesrv.plugins.controller.replicator import RaftReplicator
from namesrv.plugins.controller.requests.admin import AdminHandlers
from namesrv.plugins.controller.requests.elections import ElectionHandlers
from namesrv.plugins.controller.requests.heartbeats import HeartbeatHandler
from namesrv.plugins.controller.requests.members import MemberHandlers
from namesrv.plugins.controller.requests.metadata import MetadataHandler
from namesrv.plugins.controller.requests.registration import RegistrationHandlers
from namesrv.plugins.controller.requests.replies import added_controllers
from namesrv.plugins.controller.requests.sync_state_set import SyncStateSetHandlers
from namesrv.plugins.controller.settings import LiveConfig
from namesrv.plugins.controller.telemetry import ControllerTelemetry

if TYPE_CHECKING:
    from keelmq.remoting.servers.metrics import Scrape

logger = logging.getLogger(__name__)

ANY_HOST = ("0.0.0.0", "::")
NO_LEADER = "no controller leads"
REMOVED = "this controller was removed from the group"
MEASURED = frozenset({"syncSeconds", "commitSeconds", "batchSizes"})
"""Distributions, which are shown as metrics."""


class ControllerPlugin:
    """Implements Plugin."""

    name = "controller"

    @classmethod
    def config_models(cls) -> tuple[type[Config], ...]:
        return (ControllerConfig,)

    def __init__(
        self,
        context: PluginContext,
        *configs: Config,
        make_replicator: Callable[[ControllerMachine], Replicator] | None = None,
        probe: Probe = connect_and_close,
    ) -> None:
        """For tests: `make_replicator` makes a log that is not raft; `probe` makes no real connection."""
        (config,) = configs
        assert isinstance(config, ControllerConfig)
        self.context = context
        self.telemetry: ControllerTelemetry | None = None
        if config.telemetry_enable:
            self.telemetry = ControllerTelemetry(config)
        self.machine = ControllerMachine(self._applied, self._restored)
        self.replicator: Replicator
        if make_replicator is None:
            self.replicator = RaftReplicator(self.machine, raft_settings(config, context.bind_address))
        else:
            self.replicator = make_replicator(self.machine)
        self.settings = LiveConfig(config, lambda: self.machine.state)
        self.proposer = Proposer(self.machine, self.replicator)
        self.route_masters = RouteMasters(
            context.masters, lambda: self.machine.state, self.proposer.call_in_loop
        )
        self.liveness_view = LivenessView(context.liveness, context.clock)
        self.tally = ElectionTally()
        self.notifier = RoleChangeNotifier(
            lambda: self.machine.state,
            self.liveness_view,
            self.settings,
            lambda: added_controllers(self.replicator),
            None if context.security is None else context.security.signer,
            context.client_tls,
        )
        self.elections = Elections(
            self.proposer, self.liveness_view, self.settings, context.clock, self.notifier, self.tally
        )
        self.death_proofs = DeathProofs(
            context.liveness, self.settings, context.clock, context.wake_scan, probe
        )
        self._make_handlers(context)
        self.table = OperationTable()
        if context.security is not None:
            self.table.access = context.security.access
        self.write_buffers = WriteBuffers(SMALL_UNSENT_BYTES_MAX)
        self.limits = context.limits or PeerLimits()
        self.requests = RequestCounts(BOUNDS_US, scale=1e6)
        self._add_to(context)
        host, port = config.request_addresses[config.controller_d_leger_self_id]
        context.request_port, context.directory = port, config.root
        self._server = TcpServer(
            self.table,
            host=host if is_loopback(host) else _everywhere(context),
            port=port,
            name="controller",
            on_closed=self.connection_closed,
            bad_request_code=ResponseCode.CONTROLLER_INVALID_REQUEST,
            write_buffers=self.write_buffers,
            limits=self.limits,
            tls=context.tls,
        )
        self._cleaned: deque[BrokerKey] = deque()  # written by the raft thread, read by the event loop
        self._tasks = TaskSet()
        self._started = False
        self.replicator.on_active_changed(self.elections.active_changed)
        self.replicator.on_active_changed(self.hung_masters.active_changed)
        if self.telemetry is not None:
            self.replicator.on_active_changed(self.telemetry.active_changed)
        context.on_inactive(self._became_inactive)

    def _make_handlers(self, context: PluginContext) -> None:
        settings, proposer, replicator, view = (
            self.settings,
            self.proposer,
            self.replicator,
            self.liveness_view,
        )
        signer = None if context.security is None else context.security.signer
        self.hung_masters = HungMasters(
            context.liveness, view, proposer, settings, context.clock, context.wake_scan
        )
        self.heartbeats = HeartbeatHandler(
            settings,
            context.liveness,
            context.clock,
            self.elections.broker_became_active,
            self._group_of,
            self.hung_masters,
            None if self.telemetry is None else self.telemetry.clock_offsets,
        )
        self.admin = AdminHandlers(
            settings, proposer, replicator, self.elections, view, tls=context.client_tls, signer=signer
        )
        metadata = MetadataHandler(settings, replicator, self._http_address)
        self.members = MemberHandlers(
            replicator,
            metadata.metadata,
            self.notifier.notify_all,
            tls=context.client_tls,
            signer=signer,
        )
        self._handlers = (
            ElectionHandlers(settings, proposer, replicator, view, self.tally, context.clock, signer),
            SyncStateSetHandlers(proposer, replicator, view),
            RegistrationHandlers(settings, proposer, replicator, view),
            metadata,
            self.admin,
            self.members,
        )

    def _add_to(self, context: PluginContext) -> None:
        """Adds operations, views, metrics and settings. Heartbeats are accepted over TCP only."""
        http_table = OperationTable()
        http_table.access = self.table.access
        for table in (self.table, http_table):
            for handlers in self._handlers:
                handlers.bind(table)
            self.requests.watch(table)
            table.audit = context.audit
        self.heartbeats.bind(self.table)
        if context.bind_users is not None:
            context.bind_users(self.table)
        context.http += [http_table, self._views_router]
        context.scrapes.append(self._scrapes)
        path = context.config_path
        self._sources = setting_sources(
            ControllerConfig,
            path=path if path is not None and path.exists() else None,
            environ=context.environ,
            overrides=context.overrides,
        )
        update = UPDATE_CONTROLLER_CONFIG
        context.settings.append(
            Settings(
                "controller", lambda: self.config, AT_RUN_TIME, self._setting_sources, http_table, update
            )
        )

    async def start(self) -> None:
        """Raises ConfigError: a port is in use, or the directory belongs to another member."""
        for line in (*self.config.warnings(), *map(exposed, self.config.key_files)):
            if line is not None:
                logger.warning("%s", line)
        await self._server.start()
        if self.telemetry is not None:
            await asyncio.to_thread(self.telemetry.resume)
            self._tasks.start("controller telemetry", self.telemetry.writer.run)
            self._tasks.start("clocks of brokers", self.telemetry.compare_clocks)
        await self.replicator.start()
        self.route_masters.tell_all()
        self._tasks.start("controller elections", self.elections.run)
        self._started = True

    async def stop(self) -> None:
        """Closes the port first, then the raft log and telemetry. Raises StopError: a step failed."""
        self._started = False
        steps = StopSteps(self.name)
        steps.add("the controller's port", self._server.close)
        steps.add("background tasks", self._tasks.stop)
        steps.add("connection probes", self.death_proofs.stop)
        steps.add("hung masters", self.hung_masters.stop)
        steps.add("elections", self.elections.stop)
        steps.add("notifications of brokers", self.notifier.stop)
        steps.add("forwarded requests", self.admin.close)
        steps.add("changes of members", self.members.close)
        steps.add("the raft log", self.replicator.stop)
        if self.telemetry is not None:
            steps.add("telemetry", self.telemetry.writer.close)
        await steps.run()

    @property
    def config(self) -> ControllerConfig:
        """The settings in force; a request (1009) changes some keys."""
        return self.settings.current

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the request server, once started."""
        return self._server.address

    async def leader_http_address(self) -> str | None:
        """Returns host:port; None: no leader is known, or it does not answer."""
        return self._http_address() if self.replicator.is_active else await self.admin.leader_http_address()

    def health(self) -> dict[str, object]:
        leader = self.replicator.leader_id
        host, port = self.config.request_addresses[self.config.controller_d_leger_self_id]
        raft = self.replicator.status()
        reason = "" if self._started else "starting or stopping"
        if self._started and raft.get("role") == "removed":
            reason = REMOVED
        elif self._started and not self.replicator.is_active and leader is None:
            reason = NO_LEADER
        return {
            "ready": not reason,
            "reasons": [reason] if reason else [],
            "address": f"{host}:{port}",
            "active": self.replicator.is_active,
            "leader": leader,
            "groups": len(self.machine.state.brokers),
            "elections": self.tally.total(NEW_MASTER_ELECTED),
            "failedElections": self.tally.total(NO_MASTER_ELECTED),
            "withoutLiveMaster": {name: retry.reason for name, retry in self.elections.retries.items()},
            "settings": dict(self.machine.state.settings),
            "settingsFault": self.settings.fault,
            "raft": {key: value for key, value in raft.items() if key not in MEASURED},
            "telemetry": None if self.telemetry is None else self.telemetry.health(),
        }

    def _applied(self, event: AnyEvent, applied: Applied) -> None:
        """Implements EventHook."""
        self.tally.applied(event, applied)
        self.elections.applied(event, applied)
        self.route_masters.applied(event, applied)
        before, after = applied.before, applied.after
        if before is not None and (after is None or len(after.replicas) < len(before.replicas)):
            self._cleaned.extend(set(before.keys()) - set(() if after is None else after.keys()))
        if self.telemetry is not None:
            self.telemetry.applied(event, applied)

    def _restored(self, state: State) -> None:
        """Implements RestoreHook."""
        self.route_masters.restored(state)
        if self.telemetry is not None:
            self.telemetry.restored(state)

    def _http_address(self) -> str | None:
        """Returns host:port for other hosts: the request host, unless HTTP is bound to a certain address."""
        bound = self.context.http_address()
        if bound is None:
            return None
        host = self.config.request_addresses[self.replicator.self_id][0] if bound[0] in ANY_HOST else bound[0]
        return f"{host}:{bound[1]}"

    def _setting_sources(self) -> dict[str, str]:
        changed = dict.fromkeys(self.settings.replicated, "changed at run time, on all controllers")
        return self._sources | changed

    def group_sources(self) -> GroupSources:
        """Returns what the views read."""
        context = self.context
        controller = ControllerSources(
            self.settings, self.machine, self.replicator, self.elections, self.leader_http_address
        )
        return GroupSources(controller, context.liveness, self.liveness_view, context.routes, context.clock)

    def metric_sources(self) -> MetricSources:
        """Returns what the metrics read."""
        return MetricSources(
            self.group_sources(),
            self.requests,
            self.write_buffers,
            self.limits,
            lambda: self.heartbeats.received,
            lambda: (self.death_proofs.proved, self.death_proofs.unproved),
            lambda: self.hung_masters.found,
            None if self.telemetry is None else self.telemetry.writer,
        )

    def _views_router(self) -> object:
        from namesrv.plugins.controller.http.views import controller_routers

        return controller_routers(self.group_sources(), self.table)

    async def _scrapes(self) -> "Sequence[Scrape]":
        from namesrv.plugins.controller.http.metrics import scrapes

        return await in_slices(scrapes(self.metric_sources()))

    def connection_closed(self, connection_id: int) -> None:
        """Brokers whose heartbeats came over this connection will be inactive soon."""
        while self._cleaned:
            self._forget_unregistered(self._cleaned.popleft())
        if suspects := self.context.liveness.connection_closed(connection_id, self.context.clock()):
            self.context.wake_scan()
            self.death_proofs.suspect(suspects)

    def _became_inactive(self, key: BrokerKey) -> None:
        self.elections.broker_became_inactive(key)
        self._forget_unregistered(key)

    def _forget_unregistered(self, key: BrokerKey) -> None:
        """Forgets an inactive broker that is not registered: a client can send heartbeats under any name."""
        if self._group_of(key) is None and not self.context.liveness.is_active(key, self.context.clock()):
            self.context.liveness.forget(key)

    def _group_of(self, key: BrokerKey) -> BrokerSet | None:
        """Returns the group of this broker; None: it is not registered."""
        broker_set = self.machine.state.brokers.get(key.broker_name)
        return broker_set if broker_set is not None and key in broker_set.keys() else None  # noqa: SIM118


def _everywhere(context: PluginContext) -> str:
    """Returns what a port binds that is not for this machine alone: IPv4, or IPv6 as well."""
    return EVERYWHERE if context.bind_address == EVERYWHERE else ANY_ADDRESS


def raft_settings(config: ControllerConfig, bind_address: str) -> RaftSettings:
    """Returns the settings of this member. Raises ConfigError."""
    host, _port = config.raft_addresses[config.controller_d_leger_self_id]
    of_both_families = bind_address == EVERYWHERE and listen_host(host) == ANY_ADDRESS
    secret = config.read_secret()
    try:
        config.directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"controllerStorePath {config.directory}: {error.strerror}") from error
    return RaftSettings(
        self_id=config.controller_d_leger_self_id,
        members=config.raft_addresses,
        request_addresses=config.request_addresses,
        directory=config.directory,
        cluster_id=config.controller_d_leger_group,
        secret=secret,
        tls=config.tls_files,
        listen_host=EVERYWHERE if of_both_families else None,
        bootstrap=config.controller_raft_bootstrap,
        insecure=config.controller_raft_insecure or (secret is None and len(config.raft_addresses) == 1),
    )
