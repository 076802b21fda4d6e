"""The HTTP server of mqproxy: health and metrics.

Imported late (keelmq/remoting/servers/http_late.py), because FastAPI loads slowly.
"""

from collections import Counter
from collections.abc import Callable
from typing import Final

from fastapi import FastAPI

from keelmq.remoting.operation import Role
from keelmq.remoting.operations.health import ProxyHealth
from keelmq.remoting.servers.health import add_health
from keelmq.remoting.servers.http_app import new_app
from keelmq.remoting.servers.http_call import needs
from keelmq.remoting.servers.metrics import Scrape, ScrapeCollector
from keelmq.web.api_docs import add_docs

EXAMPLE: Final = ProxyHealth(
    ready=True, address="10.0.0.1:8081", clients={"PRODUCER": 12, "PUSH_CONSUMER": 3}
)


def make_app(
    *, address: str, clients: Callable[[], Counter[tuple[str, str]]], scrape: Callable[[], Scrape]
) -> FastAPI:
    """Returns the application. clients: by type and language."""

    def health() -> ProxyHealth:
        by_type = Counter[str]()
        for (kind, _), count in clients().items():
            by_type[kind] += count
        return ProxyHealth.of([], address=address, clients=dict(sorted(by_type.items())))

    app = new_app("KeelMQ proxy")
    add_docs(app, openapi_extra=needs(Role.READ))
    collector = ScrapeCollector(lambda: [scrape()])
    add_health(app, health=health, example=EXAMPLE, collectors=[collector])
    return app
