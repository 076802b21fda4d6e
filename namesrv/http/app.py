"""The HTTP door of mqnamesrv and mqcontroller: operations, the plugins' routers, health, metrics, the pages.

Imported late: FastAPI costs more start-up time than everything else together.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError

from namesrv.config_view import config_router
from namesrv.dashboard import dashboard_router
from namesrv.metrics import scrape
from namesrv.views import views_router
from remoting.doors.health import add_health
from remoting.doors.http import http_router
from remoting.doors.http_answers import input_refused
from remoting.doors.metrics import Scrape, ScrapeCollector
from remoting.operation import OperationTable

if TYPE_CHECKING:
    from namesrv.app import Namesrv


def make_app(server: "Namesrv") -> FastAPI:
    app = FastAPI(
        title="KeelMQ name server",
        docs_url="/docs",
        redoc_url=None,
        exception_handlers={RequestValidationError: input_refused},
    )
    if server.has_route_service:
        app.include_router(views_router(server))
        app.include_router(http_router(server.table))
    app.include_router(config_router(server.context.settings))
    for door in server.context.http:
        # a table or a function, so that a plugin need not import FastAPI when there is no HTTP door
        router: Any = http_router(door) if isinstance(door, OperationTable) else door()
        app.include_router(router)

    def scrapes() -> Iterator[Scrape]:
        if server.has_route_service:
            yield scrape(server)
        for plugin in server.context.scrapes:
            yield from plugin()

    add_health(app, health=server.health, collectors=[ScrapeCollector(scrapes)])
    app.include_router(dashboard_router(server.config.analytics_output_dir))
    return app
