"""The HTTP door of mqbroker: health, metrics, replication. Imported late (remoting/doors/http_late.py)."""

from typing import TYPE_CHECKING

from fastapi import FastAPI, Response

from broker.core.readiness import not_ready
from broker.ha.report import runtime_info
from broker.metrics import scrape
from remoting.doors.health import add_health
from remoting.doors.http_answers import NOT_HERE, NotFound, answer_of, as_json, refused_as_statuses
from remoting.doors.metrics import ScrapeCollector
from remoting.operations.broker import HaConnectionRuntimeInfo, HaRuntimeInfo

if TYPE_CHECKING:
    from broker.app import Broker

_SLAVE = HaConnectionRuntimeInfo(
    addr="10.0.0.2:40002", slave_ack_offset=1024, diff=1024, broker_id=2, eta_millis=1_000
)
_EXAMPLE = HaRuntimeInfo(master=True, master_commit_log_max_offset=2048, ha_connection_info=[_SLAVE])


def make_app(broker: "Broker") -> FastAPI:
    app = FastAPI(title="KeelMQ broker", docs_url="/docs", redoc_url=None)
    add_health(app, health=lambda: health(broker), collectors=[ScrapeCollector(lambda: [scrape(broker)])])

    @app.get(
        "/v1/haStatus",
        summary="of a master: how far its slaves are, and when they have everything; of a slave: its link",
        tags=["replication"],
        responses={**answer_of(_EXAMPLE), **NOT_HERE},
    )
    @refused_as_statuses
    async def ha_status() -> Response:
        if broker.controlled is None:
            raise NotFound("a stand-alone broker replicates nothing: see enableControllerMode")
        return as_json(runtime_info(broker.controlled.ha))

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
