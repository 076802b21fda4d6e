"""The HTTP ports of a broker: httpPort, and the listener of metricsExporterType=PROM.

FastAPI is imported in a thread, when the ports are bound already (keelmq/remoting/servers/http_late.py).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from broker.admin.exporter_metrics import exporter_scrape
from broker.admin.live_settings import LiveSettings
from broker.admin.metrics import MetricSources, scrape
from broker.app.background_services import BackgroundServices
from broker.app.process import ProcessParts
from broker.app.proxy import Proxy
from broker.app.status import BrokerStatus
from broker.config.broker_config import BrokerConfig
from broker.config.metrics_settings import PROM
from keelmq.remoting.operation import Access, OperationTable
from keelmq.remoting.operations.health import BrokerHealth
from keelmq.remoting.servers.http_late import LateHttp
from keelmq.remoting.servers.http_port import http_listen_port
from keelmq.remoting.servers.metrics import Scrape, SlicedCollector
from keelmq.runtime.tasks import TaskSet
from keelmq.security.audit.log import AuditLog
from keelmq.security.http_access import program_policy
from keelmq.security.metrics import scrape as security_scrape


class BrokerHttp:
    """Call bind() when the listeners have their ports, serve() once the broker serves; close `servers`."""

    def __init__(
        self,
        config: BrokerConfig,
        table: OperationTable,
        *,
        host: str,
        listen_port: int,
        process: ProcessParts,
        status: BrokerStatus,
        services: BackgroundServices,
        settings: LiveSettings,
        sources: Callable[[], MetricSources],
        accesses: Sequence[Access],
        audit: AuditLog | None,
        proxy: Callable[[], Proxy | None],
    ) -> None:
        """table: of the broker. host, listen_port: as announced to clients. accesses: of its remoting ports.
        proxy: None: enableProxy=false, or its port is not open."""
        self._config, self._table, self._process, self._status = config, table, process, status
        self._services, self._settings, self._sources, self._audit = services, settings, sources, audit
        self._accesses, self._proxy = accesses, proxy
        self._address = f"{host}:{listen_port}"
        port = http_listen_port(config.http_port, listen_port=config.listen_port, bound_port=listen_port)
        self._http = self._prom = None
        if port is not None:
            http_host = config.http_bind_address or config.bind_address
            names = (http_host, config.bind_address, host, config.broker_ip2)
            self._http = self._server(self._app, http_host, port, names)
        if config.metrics_exporter_type == PROM:
            prom_host, port = config.metrics_prom_exporter_host or host, config.metrics_prom_exporter_port
            self._prom = self._server(self._prom_app, prom_host, port, (prom_host, host, config.broker_ip2))

    def _server(self, make_app: Callable[[], object], host: str, port: int, names: Iterable[str]) -> LateHttp:
        policy = program_policy(self._config, self._table.access, *names)
        return LateHttp(make_app, host=host, port=port, tls=self._process.tls.http, policy=policy)

    @property
    def servers(self) -> Mapping[str, LateHttp]:
        """The configured ports, by their names in the log."""
        both = {"HTTP": self._http, "metrics": self._prom}
        return {name: server for name, server in both.items() if server is not None}

    @property
    def address(self) -> tuple[str, int] | None:
        """None: there is no HTTP port."""
        return None if self._http is None else self._http.address

    @property
    def prom_address(self) -> tuple[str, int] | None:
        """The listener of metricsExporterType=PROM; None: there is none."""
        return None if self._prom is None else self._prom.address

    def bind(self) -> None:
        """Binds the ports. Raises ConfigError."""
        for server in self.servers.values():
            server.bind()

    def serve(self, tasks: TaskSet) -> None:
        """Starts the servers."""
        if self._http is not None:
            tasks.start("HTTP server", self._http.serve)
        if self._prom is not None:
            tasks.start("metrics exporter", self._prom.serve)

    async def _measure(self) -> None:
        await self._sources().measure()

    async def _scrapes(self) -> list[Scrape]:
        sources, config, tls = self._sources(), self._config, self._process.tls
        found = [
            await scrape(sources),
            security_scrape(self._accesses, [self._audit], tls, self._process.client_tls),
        ]
        if (proxy := self._proxy()) is not None:
            found.append(proxy.scrape())
        if config.metrics_exporter_compat:
            exporter = await exporter_scrape(
                names=(config.broker_cluster_name, config.broker_name, self._address),
                runtime=self._services.runtime_info.table(),
                store=sources.store,
                metadata=sources.metadata,
                stats=sources.stats,
                registry=sources.registry,
                lags=sources.lags,
                limit=config.metrics_otel_cardinality_limit,
            )
            found.append(exporter)
        return found

    def _health(self) -> BrokerHealth:
        from broker.admin.http_app import health_of

        status = self._status
        return health_of(
            status.readiness,
            broker_name=self._config.broker_name,
            broker_id=status.own_id,
            master_epoch=status.master_epoch,
        )

    def _app(self) -> object:
        from broker.admin.http_app import make_app

        return make_app(
            table=self._table,
            health=self._health,
            scrapes=self._scrapes,
            ha_status=self._status.ha_status,
            prepare=self._measure,
            more_labels=self._config.more_labels,
            settings=self._settings.view(self._table),
        )

    def _prom_app(self) -> object:
        from keelmq.remoting.servers.health import prom_app

        collector = SlicedCollector(self._scrapes, self._config.more_labels)
        title = "KeelMQ broker: metrics"
        return prom_app(title, health=self._health, collectors=[collector], prepare=self._measure)
