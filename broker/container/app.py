"""ContainerServer: the whole life of one mqbrokercontainer process, minus flags and signals.

    async with ContainerServer(config, config_sources) as server:

opens the container's own port and HTTP port, then starts the brokers. It raises ConfigError if the container
itself cannot run; a broker that cannot run is quarantined.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from broker.app.process import make_process_parts
from broker.config.detected_address import detect_address
from broker.container.bounded_stop import close_hosts
from broker.container.config import ContainerConfig
from broker.container.container import Container
from broker.container.host import BrokerHost, BrokerRefused
from broker.container.local_host import LocalHost
from broker.container.requests import ContainerRequests
from broker.container.workers.host import WorkerHost
from broker.container.workers.running import Launch
from broker.naming.vip_port import open_fast_port
from keelmq.remoting.config_store import ConfigSources, ConfigStore
from keelmq.remoting.operation import OperationTable
from keelmq.remoting.operations.container import BrokerState
from keelmq.remoting.operations.health import ContainerHealth, Reason
from keelmq.remoting.servers.http_late import LateHttp
from keelmq.remoting.servers.http_port import http_listen_port
from keelmq.remoting.servers.tcp import TcpServer
from keelmq.runtime.config import ConfigError
from keelmq.runtime.stop_steps import AsyncLife, StopError, StopSteps
from keelmq.runtime.tasks import TaskSet
from keelmq.security.audit.log import make_audit
from keelmq.security.file_users import binder_of, load_users
from keelmq.security.http_access import program_policy
from keelmq.security.program import ProgramSecurity
from keelmq.security.user_store import NoUsers

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

logger = logging.getLogger(__name__)

PROGRAM = "mqbrokercontainer"


class ContainerServer(AsyncLife):
    """`container` lists the brokers, `hosts` run them."""

    def __init__(self, config: ContainerConfig, config_sources: ConfigSources | None = None) -> None:
        self._config_sources = config_sources or ConfigSources()
        self.settings = ConfigStore(
            config,
            on_change=self._on_change,
            path=self._config_sources.path,
            environ=self._config_sources.environ,
            overrides=self._config_sources.overrides,
        )
        self.config = config
        self.host = config.broker_container_ip or detect_address(config.bind_address, config.name_servers)
        self.process = make_process_parts(config)
        self._users = load_users(config, config.state_path)
        self._security = ProgramSecurity(
            config,
            self._users or NoUsers(),
            cluster_name=config.authorization_cluster,
            poll_users=None if self._users is None else self._users.poll,
        )
        self._audit = make_audit(config, PROGRAM)
        self._workers = self._make_workers()
        self.hosts: list[BrokerHost] = [*self._workers] or [self._make_local_host()]
        self.container = Container(
            config, self.hosts, config_file=self._config_sources.path, own_ports=own_ports(config)
        )
        self.table = self._make_table()
        self._tasks = TaskSet()
        self._servers: list[TcpServer] = []
        self._http: LateHttp | None = None
        self._is_serving = False

    def _on_change(self) -> None:
        self.config.become(self.settings.current)
        self.process.limits.change(self.config.limits())

    def _make_workers(self) -> list[WorkerHost]:
        """Returns no processes if the brokers are in this process."""
        count = self.config.container_processes
        return [
            WorkerHost(Launch(number, self._config_sources)) for number in range(count if count > 1 else 0)
        ]

    def _make_local_host(self) -> LocalHost:
        return LocalHost(self.config, self.process, accesses=[self._security.access], audits=[self._audit])

    def _make_table(self) -> OperationTable:
        table = OperationTable()
        table.access, table.audit = self._security.access, self._audit
        self._requests = ContainerRequests(
            self.container, self.settings, detected=self._detected, on_change=self._tell_processes
        )
        self._requests.bind(table)
        binder_of(self._users, self._security, exchanges=False)(table)
        return table

    # -- life --------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        config = self.config
        if not self._workers:
            LocalHost.share_threads()
        server = TcpServer(
            self.table,
            host=config.bind_address,
            port=config.listen_port,
            name="listenPort",
            write_buffers=self.process.write_buffers,
            limits=self.process.limits,
            tls=self.process.tls,
        )
        self._servers.append(server)
        await server.start()
        fast = await open_fast_port(
            self.table,
            host=config.bind_address,
            configured=config.fast_listen_port,
            listen_port=config.listen_port,
            on_closed=lambda connection_id: None,
            write_buffers=self.process.write_buffers,
            limits=self.process.limits,
            tls=self.process.tls,
        )
        if fast is not None:
            self._servers.append(fast)
        self.container.address = self.address
        if self._audit is not None:
            directory = config.audit_path or config.state_path.parent / "audit"
            self._audit.start(directory, node=self.address, port=self.port)
        self._bind_http()
        self._tasks.start("certificates of our ports", self.process.tls.run)
        self._tasks.start("accounts", self._security.run)
        if self._http is not None:
            self._tasks.start("HTTP server", self._http.serve)
        await self._open_workers()
        await self.container.start_all()
        self._tasks.start("retries", self.container.retry_refused)
        self._is_serving = True

    async def _open_workers(self) -> None:
        """Raises ConfigError: a process cannot start, although it has the configuration of this one."""
        try:
            await asyncio.gather(*(worker.open(self.container) for worker in self._workers))
        except BrokerRefused as error:
            raise ConfigError(str(error)) from error

    def _bind_http(self) -> None:
        config = self.config
        port = http_listen_port(config.http_port, listen_port=config.listen_port, bound_port=self.port)
        if port is not None:
            host = config.http_bind_address or config.bind_address
            policy = program_policy(config, self.table.access, host, config.bind_address, self.host)
            self._http = LateHttp(
                self._http_app, host=host, port=port, tls=self.process.tls.http, policy=policy
            )
            self._http.bind()

    def _http_app(self) -> object:
        """Called in a thread; imports FastAPI."""
        from broker.container.http_app import make_app

        return make_app(
            table=self.table, health=self.health, families=self._families, status=self.container.status
        )

    async def leave(self) -> None:
        """Before a planned stop: all masters hand over, at the same time. Bounded; may be cancelled. From now
        on no broker is added."""
        self._requests.refuse_changes()
        await asyncio.gather(*(host.leave() for host in self.hosts))

    async def _stop(self) -> None:
        self._is_serving = False
        self._requests.refuse_changes()
        steps = StopSteps(PROGRAM)
        hung = list[str]()
        steps.add("the brokers", partial(close_hosts, self.hosts, hung))
        steps.add("background tasks", self._tasks.stop)
        if self._http is not None:
            steps.add("the HTTP port", self._http.close)
        for server in self._servers:
            steps.add(server.name, server.close)
        if self._audit is not None:
            steps.add("the audit log", self._audit.close)
        try:
            await steps.run()
        except StopError as error:
            raise StopError("; ".join([*hung, str(error)])) from None

    # -- status ------------------------------------------------------------------------------------------

    @property
    def port(self) -> int:
        """listenPort, or the port that the system chose for 0."""
        return self._servers[0].address[1]

    @property
    def address(self) -> str:
        """host:port of the container, after the start."""
        return f"{self.host}:{self.port}"

    @property
    def http_address(self) -> tuple[str, int] | None:
        """None: there is no HTTP port."""
        return None if self._http is None else self._http.address

    async def describe(self) -> str:
        """Returns the line that the program prints when it is ready."""
        status = await self.container.status()
        serving = sum(broker.state is BrokerState.SERVING for broker in status.brokers)
        kept_out = len(status.brokers) - serving
        http = self.http_address
        parts = [
            f"listening on {self.address}",
            "" if http is None else f"http on {http[0]}:{http[1]}",
            f"{serving} broker{'' if serving == 1 else 's'}",
            f"{kept_out} quarantined" if kept_out else "",
            f"{len(self.hosts)} processes" if len(self.hosts) > 1 else "",
        ]
        return ", ".join(filter(None, parts))

    def health(self) -> ContainerHealth:
        """Returns the health of the container. A broker that is not ready has a separate /readyz, and does
        not take the others out of service."""
        reasons = [] if self._is_serving else [Reason(reason="starting or stopping")]
        return ContainerHealth.of(reasons, brokers=self.container.states())

    async def _tell_processes(self, settings: Mapping[str, str]) -> list[str]:
        """Returns the reasons why processes could not apply the changed keys."""
        told = await asyncio.gather(*(host.change(settings) for host in self.hosts), return_exceptions=True)
        failures = [each for each in told if isinstance(each, BaseException)]
        for failure in failures:
            if not isinstance(failure, BrokerRefused):
                raise failure
        return list(map(str, failures))

    def _detected(self) -> dict[str, str]:
        found = {"brokerContainerIP": self.host, "listenPort": str(self.port)}
        http = self.http_address
        if http is not None:
            found["httpPort"] = str(http[1])
        return found

    async def _families(self) -> "Iterable[Family]":
        from broker.container.metrics import merged, scrape
        from keelmq.security.metrics import scrape as security_scrape

        own = list(scrape(await self.container.status(), self.process.write_buffers, self.process.limits))
        alone = len(self.hosts) == 1
        if not alone:
            own += security_scrape(
                [self.table.access], [self._audit], self.process.tls, self.process.client_tls
            )
        by_worker: list[tuple[int | None, Iterable[Family]]] = [(None, own)]
        for number, host in enumerate(self.hosts):
            by_worker.append((None if alone else number, await host.metrics()))
        return merged(by_worker)


def own_ports(config: ContainerConfig) -> dict[int, str]:
    """Returns {port: key}. A free port that the system chooses cannot clash."""
    ports = {config.listen_port: "listenPort"}
    if config.listen_port:
        ports[config.fast_listen_port or config.listen_port - 2] = "fastListenPort"
        ports[config.http_port or config.listen_port + 10_000] = "httpPort"
    return {port: key for port, key in ports.items() if port > 0}
