"""The application of a name server or a standalone controller, made of its parts. Imported only when HTTP is
enabled: it needs FastAPI.
"""

from typing import Protocol

from fastapi import FastAPI

from keelmq.console.service import ConsoleService
from keelmq.remoting.operation import OperationTable
from keelmq.remoting.operations.health import NamesrvHealth
from keelmq.remoting.peer_limits import PeerLimits
from keelmq.remoting.servers.request_counts import RequestCounts
from keelmq.remoting.write_buffers import WriteBuffers
from keelmq.runtime.tls.contexts import ClientTls, ServerTls
from keelmq.security.audit.log import AuditLog
from keelmq.security.metrics import scrape as security_scrape
from keelmq.security.program import ProgramSecurity
from namesrv.config import NamesrvConfig
from namesrv.core.liveness import HeartbeatTable
from namesrv.core.routes import RouteTable
from namesrv.handlers.queries import Queries
from namesrv.http.app import RouteService, make_app
from namesrv.http.metrics import scrape
from namesrv.http.views import RouteSources
from namesrv.plugins import PluginContext


class Served(Protocol):
    """The parts of Namesrv that its HTTP port shows."""

    table: OperationTable
    routes: RouteTable
    liveness: HeartbeatTable
    queries: Queries
    context: PluginContext
    audit: AuditLog | None
    security: ProgramSecurity
    tls: ServerTls
    client_tls: ClientTls | None
    limits: PeerLimits
    requests: RequestCounts
    write_buffers: WriteBuffers

    @property
    def config(self) -> NamesrvConfig: ...

    @property
    def address(self) -> tuple[str, int]: ...

    @property
    def http_address(self) -> tuple[str, int] | None: ...

    @property
    def has_route_service(self) -> bool: ...

    @property
    def connection_count(self) -> int: ...

    def health(self) -> NamesrvHealth: ...


def app_of(server: Served, console: ConsoleService | None) -> FastAPI:
    """Returns the application."""
    service = None
    if server.has_route_service:
        service = RouteService(
            server.table,
            RouteSources(server.routes, server.liveness, server.queries, server.context.clock),
            lambda: scrape(
                listen_port=server.address[1],
                routes=server.routes,
                connection_count=server.connection_count,
                write_buffers=server.write_buffers,
                limits=server.limits,
                requests=server.requests,
            ),
        )
    return make_app(
        route_service=service,
        settings=server.context.settings,
        plugin_routers=server.context.http,
        plugin_scrapes=[
            lambda: [
                security_scrape(server.security.accesses, [server.audit], server.tls, server.client_tls)
            ],
            *server.context.scrapes,
        ],
        health=server.health,
        analytics_output_dir=server.config.analytics_output_dir,
        console=console,
    )
