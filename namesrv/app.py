"""Namesrv: makes the parts of a name server, starts and stops them, and runs the scan timer.

`async with Namesrv(config) as server:` binds the ports (ConfigError if it cannot), serves until the block
ends and then closes everything. Decisions are made in core/; flags and signals are handled in __main__.py.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import msgspec

from keelmq.remoting.address_text import INTERNAL
from keelmq.remoting.config_store import ConfigStore
from keelmq.remoting.operation import OperationTable
from keelmq.remoting.operations.health import NamesrvHealth, Reason
from keelmq.remoting.operations.namesrv_admin import UPDATE_NAMESRV_CONFIG
from keelmq.remoting.servers.http_late import LateHttp
from keelmq.remoting.servers.request_counts import RequestCounts
from keelmq.remoting.servers.tcp import SMALL_UNSENT_BYTES_MAX, TcpServer
from keelmq.remoting.write_buffers import WriteBuffers
from keelmq.runtime.clock import now_ms
from keelmq.runtime.config import Config
from keelmq.runtime.stop_steps import StopSteps, stop_after
from keelmq.runtime.tasks import TaskSet
from keelmq.runtime.tls.contexts import PortTls
from keelmq.runtime.tls.settings import client_tls, server_tls
from keelmq.security.audit.log import make_audit
from keelmq.security.file_users import binder_of, load_users
from keelmq.security.http_access import program_policy
from keelmq.security.program import ProgramSecurity
from keelmq.security.user_store import NoUsers
from namesrv.config import AT_RUN_TIME, NamesrvConfig
from namesrv.core.liveness import BrokerKey, HeartbeatTable, RouteKey
from namesrv.core.routes import RouteTable
from namesrv.handlers.admin import ConfigAdmin, KvAdmin, TopicAdmin
from namesrv.handlers.queries import Queries
from namesrv.handlers.registration import OF_BROKERS, Registrations
from namesrv.kv_store import DEFAULT_PATH, KvStore
from namesrv.min_id_notifier import MinIdNotifier
from namesrv.plugins import Plugin, PluginContext, Settings, reasons_of

if TYPE_CHECKING:
    from fastapi import FastAPI

    from keelmq.console.service import ConsoleService

log = logging.getLogger(__name__)

SWEEP_PAUSE_MS = 50
"""Minimum time between two scans for heartbeat timeouts."""
STALL_MS = 2_000
"""A scan that runs this late shows that the process was paused: unread heartbeats may be in the sockets."""
STALL_GRACE_MS = 1_000
"""Delay of the next scan after such a pause: every broker sends a heartbeat each second."""


class PluginChoice(msgspec.Struct, frozen=True):
    """A plugin class and the instances of its config_models()."""

    plugin: type[Plugin]
    configs: tuple[Config, ...] = ()


def _state_of(plugins: Sequence[PluginChoice]) -> Path:
    """Returns the state directory of a program that runs only a plugin."""
    found = (getattr(each, "state_path", None) for choice in plugins for each in choice.configs)
    return next((path for path in found if isinstance(path, Path)), DEFAULT_PATH)


class Namesrv:
    """`route_service` False: only plugins, without a name-server port (standalone controller).

    `clock`: monotonic ms. `environ` and `overrides`: settings in addition to the file, for ConfigStore.
    """

    def __init__(
        self,
        config: NamesrvConfig,
        plugins: Sequence[PluginChoice] = (),
        *,
        route_service: bool = True,
        config_path: Path | None = None,
        environ: Mapping[str, str] | None = None,
        overrides: Mapping[str, str] | None = None,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self._clock = clock
        self.settings = ConfigStore(
            config,
            on_change=self._settings_changed,
            path=config_path,
            environ=environ,
            overrides=overrides,
        )
        self.kv, self.liveness = KvStore(config.kv_config_path or DEFAULT_PATH), HeartbeatTable()
        self.routes = RouteTable(
            support_acting_master=config.support_acting_master,
            delete_missing_topics=config.delete_topic_with_broker_registration,
            aliases=config.alias_limits(),
        )
        self.tls, self.client_tls = server_tls(config), client_tls(config)
        self.audit = make_audit(config, "mqnamesrv" if route_service else "mqcontroller")
        self._tasks = TaskSet()
        self.users = load_users(config, self.kv.path if route_service else _state_of(plugins))
        self.security = ProgramSecurity(
            config,
            self.users or NoUsers(),
            cluster_name=config.authorization_cluster,
            poll_users=None if self.users is None else self.users.poll,
        )
        self._notifier = MinIdNotifier(self.client_tls, self.security.signer)
        self._registrations = Registrations(
            self.routes, self.liveness, self.kv, self.settings, clock, self._notifier.notify
        )
        self.queries = Queries(self.routes, self.kv, self.settings, clock)
        self._bind_users = binder_of(self.users, self.security)
        self.write_buffers = WriteBuffers(SMALL_UNSENT_BYTES_MAX)
        self.limits, self.requests = config.peer_limits(), RequestCounts()
        self.table = self._make_table(self.queries)
        self._subscribers: list[Callable[[BrokerKey], None]] = []
        self.context = self._make_context(
            route_service=route_service,
            config_path=config_path,
            environ=environ or {},
            overrides=overrides or {},
        )
        self.plugins = [choice.plugin(self.context, *choice.configs) for choice in plugins]
        self._server = self._make_server() if route_service else None
        self._listeners = self._make_listeners() if route_service else []
        self._http: LateHttp | None = None
        self._console: ConsoleService | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._next_scan_ms = self._scan_from_ms = self._scanned_ms = 0
        self._started = False

    @property
    def config(self) -> NamesrvConfig:
        """The settings in force now; requests change some keys (318)."""
        return self.settings.current

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the name server, once started."""
        assert self._server is not None, "a standalone controller has no name-server port"
        return self._server.address

    @property
    def has_route_service(self) -> bool:
        """False: a standalone controller, which has no name-server port."""
        return self._server is not None

    @property
    def http_address(self) -> tuple[str, int] | None:
        """Host and port of the HTTP server; None: it is disabled, or not bound yet."""
        return None if self._http is None else self._http.address

    @property
    def connection_count(self) -> int:
        """Open connections of the name-server ports."""
        return sum(server.connection_count for server in self._servers)

    @property
    def listener_addresses(self) -> list[tuple[str, int]]:
        """Host and port of each further listener, once started."""
        return [server.address for server, _ in self._listeners]

    @property
    def _servers(self) -> list[TcpServer]:
        further = [server for server, _ in self._listeners]
        return further if self._server is None else [self._server, *further]

    async def start(self) -> None:
        """Raises ConfigError: a port is in use, or a plugin cannot start; everything is closed again then."""
        if self.config.need_wait_for_service:
            serve_from_ms = self._clock() + self.config.wait_seconds_for_service * 1_000
            for queries in (self.queries, *(each for _, each in self._listeners)):
                queries.serve_from_ms = serve_from_ms
        try:
            if self._server is not None:
                self.kv.load()
            for server in self._servers:
                await server.start()
            self._start_audit()
            self._bind_http()
            for plugin in self.plugins:
                await plugin.start()
            if self._http is not None:
                self._tasks.start("HTTP server", self._http.serve)
            self._tasks.start("certificates of our ports", self.tls.run)
            self._tasks.start("accounts", self.security.run)
        except BaseException as error:
            await stop_after(self.stop, error)
            raise
        self._started = True
        self._next_scan_ms = self._clock() + self.config.scan_not_active_broker_interval
        self._arm()

    async def stop(self) -> None:
        """Closes the ports, then the plugins, so that no request reaches a stopped plugin. Safe to repeat.

        Raises StopError: a step failed; the other steps were carried out.
        """
        self._started = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        steps = StopSteps("mqnamesrv" if self.has_route_service else "mqcontroller")
        steps.add("background tasks", self._tasks.stop)  # one of them may be about to start the HTTP server
        if self._console is not None:
            steps.add("the console", self._console.stop)
        if self._http is not None:
            steps.add("the HTTP port", self._http.close)
        for server in self._servers:
            steps.add("listenPort" if server is self._server else server.name, server.close)
        for plugin in reversed(self.plugins):
            steps.add(plugin.name, plugin.stop)
        if self.audit is not None:
            steps.add("the audit log", self.audit.close)
        steps.add("notifications", self._notifier.close)
        steps.add("the KV configuration", self.kv.close)
        await steps.run()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await stop_after(self.stop, error)

    def health(self) -> NamesrvHealth:
        """Returns the health of the process. Not ready: before the start, while routes are refused
        (needWaitForService), and while a plugin is not ready."""
        plugins = {plugin.name: plugin.health() for plugin in self.plugins}
        reasons = [] if self._started else [Reason(reason="starting or stopping")]
        wait_ms = self.queries.serve_from_ms - self._clock()
        if self.has_route_service and wait_ms > 0:
            text = f"routes are not served for another {wait_ms} ms (needWaitForService)"
            reasons.append(Reason(reason=text))
        for name, each in plugins.items():
            if not each.get("ready", True):
                reasons += [Reason(reason=f"{name}: {reason}") for reason in reasons_of(each)]
        return NamesrvHealth.of(reasons, routes=self.routes.counts(), plugins=plugins)

    def scan(self) -> None:
        """Unregisters the brokers that became inactive, and notifies the plugins."""
        self._scanned_ms = self._clock()
        keys = self.liveness.scan_not_active(self._scanned_ms)
        self._registrations.expired(key for key in keys if isinstance(key, RouteKey))
        for key in keys:
            if isinstance(key, BrokerKey):
                for subscriber in self._subscribers:
                    subscriber(key)

    def _settings_changed(self) -> None:
        self.routes.support_acting_master = self.config.support_acting_master
        self.routes.delete_missing_topics = self.config.delete_topic_with_broker_registration
        self.routes.aliases = self.config.alias_limits()
        self._next_scan_ms = min(
            self._next_scan_ms, self._clock() + self.config.scan_not_active_broker_interval
        )
        self._wake_scan()

    def _make_context(
        self,
        *,
        route_service: bool,
        config_path: Path | None,
        environ: Mapping[str, str],
        overrides: Mapping[str, str],
    ) -> PluginContext:
        """Returns what plugins get."""
        return PluginContext(
            liveness=self.liveness,
            clock=self._clock,
            on_inactive=self._subscribers.append,
            wake_scan=self._wake_scan,
            routes=self.routes if route_service else None,
            masters=self.routes.elected if route_service else None,
            config_path=config_path,
            environ=environ,
            overrides=overrides,
            http_address=lambda: self.http_address,
            tls=self.tls,
            client_tls=self.client_tls,
            security=self.security,
            bind_users=self._bind_users,
            audit=self.audit,
            limits=self.limits,
            bind_address=self.config.bind_address,
            settings=[
                Settings(
                    "mqnamesrv",
                    lambda: self.config,
                    AT_RUN_TIME,
                    lambda: self.settings.sources,
                    self.table,
                    UPDATE_NAMESRV_CONFIG,
                )
            ],
        )

    def _start_audit(self) -> None:
        if self.audit is not None:
            port, beside = self._bound_port, None if self.has_route_service else self.context.directory
            directory = self.config.audit_path or (beside or self.kv.path.parent) / "audit"
            self.audit.start(directory, node=f"{socket.gethostname()}:{port}", port=port)

    @property
    def _bound_port(self) -> int:
        """Returns the port of the name server; without one, that of the plugin."""
        if self._server is not None:
            return self._server.address[1]
        return self.context.request_port or self.config.listen_port

    def _make_table(self, queries: Queries) -> OperationTable:
        """Returns what a listener serves: brokers use `internal` only."""
        table = OperationTable()
        for handlers in (queries, TopicAdmin(self.routes), KvAdmin(self.kv), ConfigAdmin(self.settings)):
            handlers.bind(table)
        if queries.listener == INTERNAL:
            self._registrations.bind(table)
        else:
            remark = f"brokers register at listenPort, not at listener {queries.listener}"
            table.unsupported = {operation.code: remark for operation in OF_BROKERS}
        self._bind_users(table)
        security, table.audit = self.security, self.audit
        table.access = security.access if queries.listener == INTERNAL else security.listener_access
        self.requests.watch(table)
        return table

    def _make_server(self) -> TcpServer:
        host, port = self.config.bind_address, self.config.listen_port
        return self._server_of(self.table, "namesrv", host, port, self.tls)

    def _make_listeners(self) -> list[tuple[TcpServer, Queries]]:
        made = []
        for name, (host, port) in self.config.further_listeners.items():
            queries = Queries(self.routes, self.kv, self.settings, self._clock, listener=name)
            table = self._make_table(queries)
            made.append((self._server_of(table, f"listener {name}", host, port, self.tls.listeners), queries))
        return made

    def _server_of(self, table: OperationTable, name: str, host: str, port: int, tls: PortTls) -> TcpServer:
        return TcpServer(
            table,
            host=host,
            port=port,
            name=name,
            on_closed=self.connection_closed,
            write_buffers=self.write_buffers,
            limits=self.limits,
            tls=tls,
        )

    def connection_closed(self, connection_id: int) -> None:
        """Brokers whose heartbeats came over this connection will be inactive soon."""
        if self.liveness.connection_closed(connection_id, self._clock()):
            self._wake_scan()

    def _wake_scan(self) -> None:
        """Scans at the earliest deadline instead of the next second."""
        if self._started:
            self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        now = self._clock()
        at_ms = self._next_scan_ms
        if (deadline_ms := self.liveness.next_deadline_ms()) is not None:
            at_ms = min(at_ms, deadline_ms)
        if (timeout_ms := self.liveness.next_timeout_ms()) is not None:
            at_ms = min(at_ms, max(timeout_ms, self._scanned_ms + SWEEP_PAUSE_MS))
        due_ms = max(at_ms, self._scan_from_ms, now)
        delay_s = (due_ms - now) / 1_000
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer, due_ms)

    def _on_timer(self, due_ms: int) -> None:
        """An exception raised by a subscriber reaches the event loop's handler; the timer is set again."""
        self._timer = None
        now = self._clock()
        if now >= self._next_scan_ms:
            self._next_scan_ms = now + self.config.scan_not_active_broker_interval
        try:
            if now - due_ms > STALL_MS:
                log.warning(
                    "this process was paused for %d ms: the scan for inactive brokers is postponed",
                    now - due_ms,
                )
                self._scan_from_ms = now + STALL_GRACE_MS
            else:
                self.scan()
                self._sweep()
        finally:
            if self._started:
                self._arm()

    def _sweep(self) -> None:
        """Frees the remains of removed brokers; other work runs between two steps."""
        if self._started and self.routes.sweep():
            asyncio.get_running_loop().call_soon(self._sweep)

    def _bind_http(self) -> None:
        if (port := self.config.http_listen_port(self._bound_port)) is not None:
            host = self.config.http_bind_address or self.config.bind_address
            policy = program_policy(self.config, self.table.access, host, self.config.bind_address)
            self._http = LateHttp(self.http_app, host=host, port=port, tls=self.tls.http, policy=policy)
            self._http.bind()

    def http_app(self) -> "FastAPI":
        """Returns the application of the HTTP port. Imports FastAPI."""
        from namesrv.http.of_server import app_of

        if self.has_route_service and self.config.console_enable:
            # A controller without a name server has none: keelmq console asks the name servers as well.
            from namesrv.http.console import make_console

            self._console = make_console(self, None if self._http is None else self._http.policy.access)
        return app_of(self, self._console)
