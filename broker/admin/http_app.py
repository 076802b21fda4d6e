"""The HTTP server of mqbroker: its administrative operations, health, metrics, replication.

Imported late (keelmq/remoting/servers/http_late.py), because FastAPI loads slowly.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping

from fastapi import FastAPI, Response

from broker.admin.http_operations import HTTP_OPERATIONS
from broker.core.readiness import BrokerReadiness, not_ready, not_writable
from keelmq.remoting.config_store import Settings
from keelmq.remoting.operation import OperationTable, Role
from keelmq.remoting.operations.broker import HaConnectionRuntimeInfo, HaRuntimeInfo
from keelmq.remoting.operations.health import BrokerHealth, BrokerRole, Reason
from keelmq.remoting.servers.config_view import config_router
from keelmq.remoting.servers.health import ROLE_NAMES, add_health, add_role, role_answer
from keelmq.remoting.servers.http_answers import NOT_HERE, NotFound, answer_of, as_json, refused_as_statuses
from keelmq.remoting.servers.http_app import add_operations, new_app
from keelmq.remoting.servers.http_call import needs
from keelmq.remoting.servers.metrics import Scrape, SlicedCollector
from keelmq.security.core.rules import role_of
from keelmq.web.api_docs import add_docs

_SLAVE = HaConnectionRuntimeInfo(
    addr="10.0.0.2:40002", slave_ack_offset=1024, diff=1024, broker_id=2, eta_millis=1_000
)
BROKER_EXAMPLE = BrokerHealth(
    ready=False,
    reasons=[Reason(reason="the master refuses messages", detail="in-sync replicas not enough: 1 of 2")],
    role="master",
    broker_name="broker-a",
    broker_id=1,
    master_epoch=3,
    writable=False,
    not_writable="in-sync replicas not enough: 1 of 2",
    registered_with=["10.0.0.1:9876"],
)
CHANGES = (
    "The broker stores a change in its -c file, or in configStorePath (25). It is for this broker alone: "
    "mqadmin updateBrokerConfig --group changes all replicas."
)
"""How changes of settings are stored."""
_EXAMPLE = HaRuntimeInfo(master=True, master_commit_log_max_offset=2048, ha_connection_info=[_SLAVE])


def make_app(
    *,
    table: OperationTable,
    health: Callable[[], BrokerHealth],
    scrapes: Callable[[], Awaitable[Iterable[Scrape]]],
    ha_status: Callable[[], HaRuntimeInfo | None],
    settings: Settings,
    prepare: Callable[[], Awaitable[None]],
    more_labels: Mapping[str, str],
) -> FastAPI:
    """Returns the application. table: its HTTP_OPERATIONS are served. health: the answer of /v1/health.
    scrapes: the metrics. ha_status: None if this broker has no slaves and is not one. settings: those
    that /v1/config shows and changes. prepare: awaited before the metrics are read. more_labels: of all
    metrics (metricsLabel)."""
    app = new_app("KeelMQ broker")
    add_docs(app, openapi_extra=needs(Role.READ))
    add_operations(app, table, role_of, HTTP_OPERATIONS)
    collector = SlicedCollector(scrapes, more_labels)
    add_health(app, health=health, example=BROKER_EXAMPLE, collectors=[collector], prepare=prepare)
    for role in ROLE_NAMES:
        _add_role(app, role, health)
    app.include_router(config_router([settings], note=CHANGES))

    @app.get(
        "/v1/haStatus",
        summary="on a master: offsets, lag and catch-up time of its slaves; on a slave: its link",
        tags=["replication"],
        responses={**answer_of(_EXAMPLE), **NOT_HERE},
        openapi_extra=needs(Role.READ),
    )
    @refused_as_statuses
    async def get_ha_status() -> Response:
        status = ha_status()
        if status is None:
            raise NotFound("a stand-alone broker replicates nothing: see enableControllerMode, brokerRole")
        return as_json(status)

    return app


def _add_role(app: FastAPI, role: str, health: Callable[[], BrokerHealth]) -> None:
    async def answer() -> Response:
        found = health()
        # Not more of it: everybody may ask.
        broker = BrokerRole.model_validate(found.model_dump(include=set(BrokerRole.model_fields)))
        return role_answer(role, broker, found.reasons)

    add_role(app, f"/{role}", role, answer)


def health_of(
    readiness: BrokerReadiness, *, broker_name: str, broker_id: int, master_epoch: int
) -> BrokerHealth:
    """Returns the answer of /v1/health. broker_id: the permanent one."""
    unwritable = not_writable(readiness.refusal, permits_write=readiness.permits_write)
    return BrokerHealth.of(
        not_ready(readiness),
        role=readiness.role,
        broker_name=broker_name,
        broker_id=broker_id,
        master_epoch=master_epoch,
        writable=not unwritable,
        not_writable=unwritable,
        registered_with=list(readiness.registered),
        log_damage=readiness.log_damage,
    )
