"""The HTTP door of mqbroker: /livez, /readyz and /metrics. Imported late (remoting/doors/http_late.py)."""

from typing import TYPE_CHECKING

from fastapi import FastAPI

from broker.core.readiness import not_ready
from broker.metrics import scrape
from remoting.doors.health import add_health
from remoting.doors.metrics import ScrapeCollector

if TYPE_CHECKING:
    from broker.app import Broker


def make_app(broker: "Broker") -> FastAPI:
    app = FastAPI(title="KeelMQ broker", docs_url="/docs", redoc_url=None)
    add_health(app, health=lambda: health(broker), collectors=[ScrapeCollector(lambda: [scrape(broker)])])
    return app


def health(broker: "Broker") -> dict[str, object]:
    """The answer of /readyz. `role` is for role services and people; it decides nothing."""
    standing = broker.standing
    reasons = not_ready(standing)
    controlled = broker.controlled
    return {
        "ready": not reasons,
        "reasons": reasons,
        "role": standing.role,
        "brokerName": broker.config.broker_name,
        "brokerId": broker.config.broker_id if controlled is None else controlled.role.broker_id,
        "masterEpoch": 0 if controlled is None else controlled.role.epoch,
        "writable": broker.gate.writable,
        "registeredWith": list(standing.registered),
    }
