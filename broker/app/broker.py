"""Broker: the whole life of one broker process, minus flags and signals.

`async with Broker(config) as broker:` recovers the store, binds its ports, serves until the block ends, and
leaves nothing behind. It raises ConfigError, BrokerMetaError or StoreError if it cannot. It accepts no
message before it is master: at once without controller mode, else when the controllers say so.
"""

import asyncio
import logging
from types import TracebackType
from typing import Self

from msgspec.structs import replace

from broker.admin.consumer_lags import ConsumerLags
from broker.admin.exporter_metrics import exporter_scrape
from broker.admin.metrics import MetricSources, scrape
from broker.admin.telemetry import ALONE, BrokerTelemetry
from broker.admission.send_gate import STOPPING
from broker.app.assembly import flush_forever, store_host
from broker.app.binding import ServedParts, bind_operations
from broker.app.parts import BrokerParts
from broker.app.plain_replication import PlainReplication
from broker.app.start_check import check_ports, load_settings, unusable
from broker.app.stopping import GROUP_COMMIT, REPLICATION, TASKS, end_store
from broker.config.metrics_settings import PROM
from broker.controller_mode.service import ControllerMode
from broker.core.durability import guarantees
from broker.core.readiness import BrokerReadiness, RoleName
from broker.core.role import Role
from keelmq.remoting.operation import OperationTable
from keelmq.remoting.operations.health import BrokerHealth
from keelmq.remoting.servers.http_late import LateHttp
from keelmq.remoting.servers.http_port import http_listen_port
from keelmq.remoting.servers.metrics import Scrape, SlicedCollector
from keelmq.runtime.clock import now_ms
from keelmq.runtime.compiled import tell_report
from keelmq.runtime.stop_steps import StopSteps, stop_after
from keelmq.runtime.tasks import finished_in_thread
from keelmq.security.http_access import program_policy
from keelmq.security.metrics import scrape as security_scrape

logger = logging.getLogger(__name__)

EXPIRE_PERIOD_MS = 100
DRAIN_MS = 500
"""How long a stopping master waits for the replies that it owes."""
DRAIN_STEP_MS = 10


class Broker(BrokerParts):
    """Starts the parts in order (_start), and stops them in reverse (_stop)."""

    # -- life --------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException as error:
            await stop_after(self._stop, error)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await stop_after(self._stop, error)

    async def _start(self) -> None:
        self.disk_fault.watch()
        await check_ports(self.config, self.host)
        # Long after a crash: other brokers of the process go on.
        await finished_in_thread(self._open_disk, on_cancel=self._opening.give_up)
        for line in guarantees(self.config.durability):
            logger.info("%s", line)
        tell_report()
        for line in self.config.warnings():
            logger.warning("%s", line)
        replication = self._controlled or self._plain
        if replication is not None:
            await replication.listen()
        self.security.tell_super_users(self.users.users())
        await self.listeners.start(self._bind_operations())
        self._start_audit()
        self._bind_http()
        self.store.store_host = store_host(self.host, self.listeners.port)
        self._start_telemetry()
        if self._controlled is not None:
            self._controlled.start(self._tasks)
        else:
            await self._serve_alone()
        self._routes.start(self._tasks)
        self._start_background()
        self._serving = True
        if self._http is not None:
            self._tasks.start("HTTP server", self._http.serve)
        if self._prom is not None:
            self._tasks.start("metrics exporter", self._prom.serve)

    async def _stop(self) -> None:
        """Ends within seconds, whatever other machines do. StopError: a step failed, the others were done."""
        self._serving = False
        self.gate.close(STOPPING, "the broker is stopping")
        steps = StopSteps("mqbroker")
        if self.listeners.is_listening:
            steps.add("the replies that are owed", self._drain)
            if self.status.registers:
                steps.add("the registration", lambda: self._routes.unregister(self.status.unregistration()))
        steps.add(TASKS, self._tasks.stop)
        if self._http is not None:
            steps.add("the HTTP port", self._http.close)
        if self._prom is not None:
            steps.add("the metrics port", self._prom.close)
        replication = self._controlled or self._plain
        if replication is not None:
            steps.add(REPLICATION, replication.stop)
        for server in self.listeners.servers:
            steps.add(server.name, server.close)
        steps.add("connections to others", self._client.close)
        if self._telemetry is not None:
            steps.add("telemetry", self._telemetry.close)
        if self.audit is not None:
            steps.add("the audit log", self.audit.close)
        steps.add(GROUP_COMMIT, self.commit.close)
        if self._loaded:
            steps.add("metadata", self.metadata.end)
            steps.add("the store", lambda: end_store(self.store, self.disk_fault, steps.failed))
        await steps.run()

    async def leave(self) -> None:
        """Before a planned stop: hands the mastership over, if this broker has it, and serves clients with
        the old route until they have read the new one. Bounded (planned_stop.py)."""
        if self._controlled is not None and self._serving:
            await self._controlled.leave()

    # -- steps of the start ------------------------------------------------------------------------------

    def _open_disk(self) -> None:
        """Checks first: a start that is refused has changed nothing."""
        load_settings(self.config, self.metadata)
        try:
            self._load_store()
        except OSError as error:
            raise unusable(self.config, error) from error
        self._loaded = True

    def _load_store(self) -> None:
        """A store that cannot be loaded is not kept open and locked: a container tries again."""
        try:
            self.store.load(self._opening.between)
            if self._controlled is None:
                self._stand_alone.recover(self._opening.between)
        except BaseException:
            self.store.close(clean=False)
            raise

    def _bind_operations(self) -> OperationTable:
        self.operations, self._handlers, self._services, self._settings = bind_operations(
            ServedParts(
                config=self.config,
                given=self.given,
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
                identity=lambda: (self.status.own_id, self.status.role_name == "master"),
                controlled=self._controlled,
                plain=self._plain,
                end_of_tick=self._controlled.ha.appended if self._controlled else self._stand_alone.appended,
                find_route=self._routes.find,
                neighbour=self._neighbour,
                address=lambda: self.address,
                detected_settings=self.status.detected_settings,
                settings_changed=self._settings_changed,
                ha_info=self.status.ha_info,
            )
        )
        self.operations.audit = self.audit
        return self.operations

    def _start_audit(self) -> None:
        if self.audit is not None:
            directory = self.config.audit_path or self.config.store_path_root_dir / "audit"
            node = f"{self.config.broker_name}-{self.address}"
            self.audit.start(directory, node=node, port=self.listeners.port)

    def _bind_http(self) -> None:
        config = self.config
        port = http_listen_port(
            config.http_port, listen_port=config.listen_port, bound_port=self.listeners.port
        )
        if port is not None:
            host = config.http_bind_address or config.bind_address
            names = (host, config.bind_address, self.host, config.broker_ip2)
            policy = program_policy(config, self.operations.access, *names)
            self._http = LateHttp(
                self._http_app, host=host, port=port, tls=self.process.tls.http, policy=policy
            )
            self._http.bind()
        if config.metrics_exporter_type == PROM:
            host = config.metrics_prom_exporter_host or self.host
            policy = program_policy(config, self.operations.access, host, self.host, config.broker_ip2)
            self._prom = LateHttp(
                self._prom_app,
                host=host,
                port=config.metrics_prom_exporter_port,
                tls=self.process.tls.http,
                policy=policy,
            )
            self._prom.bind()

    def _health(self) -> BrokerHealth:
        """Imports FastAPI."""
        from broker.admin.http_app import health_of

        controlled = self._controlled
        return health_of(
            self.readiness,
            broker_name=self.config.broker_name,
            broker_id=self.config.broker_id if controlled is None else controlled.role.broker_id,
            master_epoch=0 if controlled is None else controlled.role.epoch,
        )

    async def _scrapes(self) -> list[Scrape]:
        access, tls = self.operations.access, self.process.tls
        found = [
            await scrape(self.metric_sources()),
            security_scrape([access], [self.audit], tls, self.process.client_tls),
        ]
        if self.config.metrics_exporter_compat:
            found.append(await self._exporter_scrape())
        return found

    async def _exporter_scrape(self) -> Scrape:
        config = self.config
        return await exporter_scrape(
            names=(config.broker_cluster_name, config.broker_name, self.address),
            runtime=self.services.runtime_info.table(),
            store=self.store,
            metadata=self.metadata,
            stats=self.stats,
            registry=self.clients.registry,
            lags=self.lags,
            limit=config.metrics_otel_cardinality_limit,
        )

    def _prom_app(self) -> object:
        """Called in a thread; imports FastAPI."""
        from keelmq.remoting.servers.health import prom_app

        collector = SlicedCollector(self._scrapes, self.config.more_labels)
        title = "KeelMQ broker: metrics"
        return prom_app(title, health=self._health, collectors=[collector], prepare=self.measure)

    def _http_app(self) -> object:
        """Called in a thread; imports FastAPI."""
        from broker.admin.http_app import make_app

        return make_app(
            table=self.operations,
            health=self._health,
            scrapes=self._scrapes,
            ha_status=self.status.ha_status,
            prepare=self.measure,
            more_labels=self.config.more_labels,
            settings=self._settings.view(self.operations),
        )

    def _start_telemetry(self) -> None:
        """The address is needed: it makes the files' names unique in the cluster."""
        if not self.config.telemetry_enable:
            return
        controlled = self._controlled
        alone = replace(ALONE, broker_id=self.config.broker_id)
        self._telemetry = BrokerTelemetry(
            self.config,
            self.store,
            node=f"{self.config.broker_name}-{self.address}",
            ha=controlled.ha if controlled is not None else None,
            role=lambda: controlled.role if controlled is not None else alone,
            plain_role=self.status.role_name,
        )
        self._telemetry.start(self._tasks)
        if self.config.telemetry_consumer_lag_interval:
            telemetry = self._telemetry
            lags = ConsumerLags(self.config, self.store, self.metadata, telemetry.writer, telemetry.master_id)
            self._tasks.start("consumer lags", lags.run)

    async def _serve_alone(self) -> None:
        await self._stand_alone.serve()
        if self._plain is not None:
            self._plain.start(self._tasks)
        if self.status.role_name == "master":
            self._role_changed(Role(broker_id=0), ALONE, 0)

    def _start_background(self) -> None:
        assert self._services is not None
        if self._is_alone:
            self._tasks.start("certificates of our ports", self.process.tls.run)
        self._tasks.start("accounts", self.security.run)
        self._tasks.start("exchange of users", self.user_exchange.run)
        self._tasks.start("flush", lambda: flush_forever(self.store, self._flush_interval_ms))
        self.metadata.write_in_background()
        self._tasks.start("metadata", self.metadata.run)
        self._tasks.start("offset checks", self.metadata.check_offsets)
        self._tasks.start("retention", self.retention.run)
        self._tasks.start("scrub of the log", self.scrub.run)
        self._tasks.start("statistics", self.stats.run)
        self._tasks.start("healing of the log", self.healer.run)
        self._services.start(self._tasks)
        self._tasks.start("expiry of waiting requests", self._expire_forever)

    def _flush_interval_ms(self) -> int:
        return self.config.flush_interval_commit_log

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

    # -- for programs and tests --------------------------------------------------------------------------

    @property
    def ha_address(self) -> str:
        """host:port that slaves are told; empty: no slave can connect here."""
        return self.status.ha_address

    @property
    def controlled(self) -> ControllerMode | None:
        """None without controller mode."""
        return self._controlled

    @property
    def plain(self) -> PlainReplication | None:
        """The master/slave mode without controllers; None: there are controllers, or no slaves."""
        return self._plain

    @property
    def role_name(self) -> RoleName:
        """ "none": no role yet, or a change of it is under way."""
        return self.status.role_name

    @property
    def readiness(self) -> BrokerReadiness:
        """The facts that readiness is decided by."""
        return self.status.readiness

    @property
    def telemetry(self) -> BrokerTelemetry | None:
        """None: switched off, or not started."""
        return self._telemetry

    async def measure(self) -> None:
        """Takes the measurements that would stop other work during a scrape; called in front of one."""
        await self.lags.measure()
        await self.services.timer_times.measure()

    def metric_sources(self) -> MetricSources:
        """Returns what the metrics are read from, after the start."""
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
            controlled=self._controlled,
            plain=None if self._plain is None else self._plain.ha,
            telemetry=None if self._telemetry is None else self._telemetry.writer,
            readiness=lambda: self.readiness,
            connection_count=lambda: self.listeners.connection_count,
            task_deaths=lambda: self.status.task_deaths,
        )
