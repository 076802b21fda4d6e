"""The HTTP server of mqbrokercontainer: its operations, the readiness of each broker, health, metrics.

Imported late (keelmq/remoting/servers/http_late.py), because FastAPI loads slowly.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from fastapi import FastAPI, Response
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from keelmq.remoting.operation import OperationTable, Role
from keelmq.remoting.operations.container import ContainerStatus, InnerBroker
from keelmq.remoting.operations.health import BrokerRole, ContainerHealth, Health, Reason
from keelmq.remoting.servers.health import (
    READINESS,
    ROLE_NAMES,
    Ready,
    add_health,
    add_role,
    readiness_of,
    role_answer,
)
from keelmq.remoting.servers.http_answers import NOT_HERE, NotFound, refused_as_statuses
from keelmq.remoting.servers.http_app import add_operations, new_app
from keelmq.remoting.servers.http_call import needs
from keelmq.security.core.rules import role_of
from keelmq.web.api_docs import add_docs

ALL_BROKERS: Final = "all"
"""/readyz/all is 200 only if every broker is ready. No canonical name is without "_"."""
CONTAINER_EXAMPLE = ContainerHealth(ready=True, brokers={"serving": 3})


@dataclass(slots=True, eq=False)
class Collected(Collector):
    """Families that were collected before, from all processes."""

    families: list[Family] = field(default_factory=list)

    def collect(self) -> Iterator[Family]:
        """Yields the families."""
        yield from self.families


def make_app(
    *,
    table: OperationTable,
    health: Callable[[], ContainerHealth],
    families: Callable[[], Awaitable[Iterable[Family]]],
    status: Callable[[], Awaitable[ContainerStatus]],
) -> FastAPI:
    """Returns the application. health: of /v1/health, the container's own."""
    app = new_app("KeelMQ broker container")
    add_docs(app, openapi_extra=needs(Role.READ))
    add_operations(app, table, role_of)
    collected = Collected()

    async def prepare() -> None:
        collected.families = list(await families())

    add_health(app, health=health, example=CONTAINER_EXAMPLE, collectors=[collected], prepare=prepare)

    @app.get(
        "/readyz/{canonical_name}",
        summary="can this broker of the container (all: every one) get traffic?",
        tags=["health"],
        response_model=Ready,
        responses={**READINESS, **NOT_HERE},
        openapi_extra=needs(None),
    )
    @refused_as_statuses
    async def broker_readyz(canonical_name: str) -> Response:
        if canonical_name == ALL_BROKERS:
            return readiness_of(Health.of(_reasons_of_all((await status()).brokers)))
        return readiness_of(Health.of(_reasons_of(_named(canonical_name, await status()))))

    for role in ROLE_NAMES:
        _add_role(app, role, status)
    return app


def _add_role(app: FastAPI, role: str, status: Callable[[], Awaitable[ContainerStatus]]) -> None:
    @refused_as_statuses
    async def answer(canonical_name: str) -> Response:
        found = _named(canonical_name, await status())
        broker = BrokerRole.model_validate(found, from_attributes=True)
        return role_answer(role, broker, _reasons_of(found))

    add_role(app, f"/{role}/{{canonical_name}}", role, answer)


def _named(canonical_name: str, status: ContainerStatus) -> InnerBroker:
    """Returns the broker. Raises NotFound, which does not list the existing names: the endpoints need no
    authentication."""
    found = next((each for each in status.brokers if canonical_name in _names(each)), None)
    if found is None:
        raise NotFound("there is no such broker in this container: see `keelmq container list`")
    return found


def _reasons_of_all(brokers: Iterable[InnerBroker]) -> list[Reason]:
    """Returns why not all are ready, each reason once."""
    return list(dict.fromkeys(each for broker in brokers for each in _reasons_of(broker)))


def _reasons_of(broker: InnerBroker) -> list[Reason]:
    """Returns why it is not ready, without `broker.reason`: the endpoint needs no authentication."""
    if broker.is_ready:
        return []
    return [Reason(reason=each) for each in broker.not_ready or [f"the broker is {broker.state}"]]


def _names(broker: InnerBroker) -> tuple[str, str]:
    """Returns the names that a probe may use: an id from the controllers is not known beforehand."""
    return broker.canonical_name, f"{broker.broker_cluster_name}_{broker.broker_name}"
