"""ConsoleService: a console with its log-in and its routes, for the program that serves it.

Imports FastAPI: see keelmq/remoting/servers/http_late.py.
"""

from collections.abc import Callable
from typing import Any, Final

from fastapi import APIRouter, FastAPI
from fastapi.responses import RedirectResponse

from keelmq.console.access import ConsoleAccess, Verifier
from keelmq.console.actions import (
    consumer_settings,
    consumers,
    containers,
    groups,
    messages,
    permissions,
    settings,
    topics,
    users,
)
from keelmq.console.actions.action import Action
from keelmq.console.actions_api import actions_router
from keelmq.console.api import console_router
from keelmq.console.console import Console
from keelmq.console.cpu_clock import CpuClock
from keelmq.console.data_api import data_router
from keelmq.console.data_asking import Asking
from keelmq.console.details_api import details_router
from keelmq.console.messages_api import messages_router
from keelmq.console.pages import pages_router
from keelmq.console.poller import ClusterPoller
from keelmq.console.sources import ConsoleSources
from keelmq.console.verifiers import ClusterVerifier, PortVerifier
from keelmq.remoting.operation import Audit, Role
from keelmq.remoting.operations.health import Health
from keelmq.remoting.servers.health import add_health
from keelmq.remoting.servers.http_app import new_app
from keelmq.remoting.servers.http_call import needs
from keelmq.web.api_docs import add_docs

ACTIONS: Final[tuple[Action[Any], ...]] = (
    *groups.ACTIONS,
    *topics.ACTIONS,
    *consumers.ACTIONS,
    *consumer_settings.ACTIONS,
    *messages.ACTIONS,
    *users.ACTIONS,
    *permissions.ACTIONS,
    *settings.ACTIONS,
    *containers.ACTIONS,
)


class ConsoleService:
    """`verifier` None: anyone who reaches the port sees everything, and may log in with a user of the cluster
    to sign actions."""

    def __init__(
        self,
        sources: ConsoleSources,
        verifier: Verifier | None = None,
        *,
        audit: Callable[[], Audit | None] = lambda: None,
    ) -> None:
        if verifier is None:
            verifier = ClusterVerifier(self.brokers, tls=sources.tls)
        cpu = CpuClock()
        self.poller = ClusterPoller(sources, cpu)
        self.console = Console(sources, self.poller, cpu=cpu)
        self.access = ConsoleAccess(verifier, as_password=isinstance(verifier, PortVerifier), tls=sources.tls)
        self._audit = audit

    async def brokers(self) -> list[str]:
        """Returns brokers that answer, masters first: they can tell whether a password is right."""
        status = await self.console.current()
        replicas = [each for group in status.groups for each in group.replicas if each.role != "silent"]
        return [each.address for each in sorted(replicas, key=lambda each: each.role != "master")]

    def routers(self) -> list[APIRouter]:
        """Returns the routers of the page, and of everything under /v1/console."""
        return [
            pages_router(),
            console_router(self.console, self.access),
            data_router(Asking(self.console, self.access)),
            messages_router(Asking(self.console, self.access)),
            details_router(self.console, self.poller),
            actions_router(self.console, self.access, ACTIONS, audit=self._audit),
        ]

    async def stop(self) -> None:
        """Ends all streams, and stops polling. Safe to repeat."""
        await self.access.stop()
        await self.console.stop()

    def add_to(self, app: FastAPI) -> None:
        """Adds the routers to an application, and the sessions for its guard."""
        for router in self.routers():
            app.include_router(router)
        app.state.sessions = self.access


def standalone_app(service: ConsoleService) -> FastAPI:
    """Returns the application of a console that runs alone."""
    app = new_app("KeelMQ console")
    add_docs(app, openapi_extra=needs(Role.READ))
    service.add_to(app)
    add_health(app, health=lambda: Health(ready=True), example=Health(ready=True))

    @app.get("/", include_in_schema=False, openapi_extra=needs(None))
    async def root() -> RedirectResponse:
        return RedirectResponse("console/", 307)

    return app
