"""The HTTP server of mqnamesrv and mqcontroller: operations, plugin routers, health, metrics and web pages.

Imported only when HTTP is enabled: importing FastAPI takes longer than the rest of the start.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from fastapi import FastAPI

from keelmq.console.pages import is_built
from keelmq.console.service import ConsoleService
from keelmq.remoting.codes import RequestCode
from keelmq.remoting.operation import OperationTable, Role
from keelmq.remoting.operations.health import NamesrvHealth, RouteCounts
from keelmq.remoting.servers.config_view import config_router
from keelmq.remoting.servers.health import add_health
from keelmq.remoting.servers.http_app import add_operations, new_app
from keelmq.remoting.servers.http_call import needs
from keelmq.remoting.servers.metrics import Scrape, SlicedCollector
from keelmq.security.core.rules import role_of
from keelmq.web.api_docs import add_docs
from namesrv.http.dashboard import dashboard_router
from namesrv.http.pages_view import pages_router
from namesrv.http.views import RouteSources, views_router
from namesrv.plugins import Settings


class RouteService(msgspec.Struct, frozen=True):
    """The parts of a process that serves routes. `scrape` is called at every GET /metrics."""

    table: OperationTable
    sources: RouteSources
    scrape: Callable[[], Scrape]


NAMESRV_EXAMPLE = NamesrvHealth(
    ready=True,
    routes=RouteCounts(topics=12, groups=3, brokers=9),
    plugins={
        "controller": {
            "ready": True,
            "reasons": [],
            "address": "10.0.0.1:9878",
            "active": True,
            "leader": "n0",
            "groups": 3,
            "elections": 4,
            "failedElections": 0,
            "withoutLiveMaster": {},
            "settings": {},
            "settingsFault": None,
            "raft": {"running": True, "role": "leader", "term": 4, "commitIndex": 128, "lastApplied": 128},
            "telemetry": {"written": 96, "dropped": 0, "fault": ""},
        }
    },
)
CHANGES = (
    "Keys of one program. The name server stores a change in its file (318); a change of the "
    "controller is replicated to all controllers (1009), and null resets a key to their files' value."
)
"""How changes of settings are stored."""


def _served(table: OperationTable) -> set[int]:
    """Returns the codes of a table but the one for users with passwords: members use the remoting port."""
    return table.handlers.keys() - {RequestCode.KEELMQ_SYNC_USERS}


def make_app(
    *,
    route_service: RouteService | None,
    settings: Sequence[Settings],
    plugin_routers: Iterable[Any],
    plugin_scrapes: Iterable[Callable[[], Iterable[Any] | Awaitable[Iterable[Any]]]],
    health: Callable[[], NamesrvHealth],
    analytics_output_dir: Path | None,
    console: ConsoleService | None = None,
) -> FastAPI:
    """Returns the application. `route_service` None: a standalone controller.

    A plugin router is an OperationTable, or a function that returns an APIRouter, so that a plugin imports
    FastAPI only in a process with HTTP.
    """
    app = new_app("KeelMQ name server")
    add_docs(app, openapi_extra=needs(Role.READ))
    if route_service is not None:
        app.include_router(views_router(route_service.sources))
        add_operations(app, route_service.table, role_of, _served(route_service.table))
    app.include_router(config_router(settings, note=CHANGES))
    for each in plugin_routers:
        if isinstance(each, OperationTable):
            add_operations(app, each, role_of, _served(each))
        else:
            app.include_router(each())

    async def scrapes() -> list[Scrape]:
        found = [] if route_service is None else [route_service.scrape()]
        for plugin in plugin_scrapes:
            made = plugin()
            found += await made if isinstance(made, Awaitable) else made
        return found

    add_health(app, health=health, example=NAMESRV_EXAMPLE, collectors=[SlicedCollector(scrapes)])
    if console is not None:
        console.add_to(app)
    app.include_router(dashboard_router(has_console=console is not None and is_built()))
    app.include_router(pages_router(analytics_output_dir))
    return app
