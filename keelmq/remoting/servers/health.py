"""/livez, /readyz, /v1/health and /metrics: one implementation for all programs.

    /livez      200 if the event loop responds; independent of peers and roles, which a restart would not
                repair
    /readyz     503 with short reasons while the program should get no traffic (its role decides what it
                depends on); everybody may ask, so addresses, paths and the state of parts are not in it
    /master     of a broker: 200 while it is master and ready, else 503; so that a load balancer, which knows
                no routes, follows the master. Also for everybody, also HEAD
    /slave      the same for a slave
    /v1/health  all that the program tells about itself; 200 also if it is not ready
    /metrics    Prometheus text; OpenMetrics if the request accepts it

Imports FastAPI: see http_late.py.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from pydantic import BaseModel

from keelmq.remoting.operation import Role
from keelmq.remoting.operations.health import BrokerRole, Health, Reason
from keelmq.remoting.servers.http_answers import Answers, Problem, answer_of, as_json, problem
from keelmq.remoting.servers.http_app import new_app
from keelmq.remoting.servers.http_call import METRICS, PROM_HEALTHY, needs
from keelmq.remoting.servers.metrics import Metric, Scrape, ScrapeCollector, SlicedCollector, Table

OTHERS_SHARE: Final = 4
"""After a scrape, the time for everything else is this many times as long as the scrape has taken."""

GetHealth = Callable[[], Health]
Prepare = Callable[[], Awaitable[None]]
AnyCollector = Collector | SlicedCollector

LIBRARY_TABLE = Table(
    "Every program, from prometheus_client",
    (),
    (
        Metric("process_cpu_seconds_total", "user and system CPU time"),
        Metric("process_resident_memory_bytes", "memory in use"),
        Metric("process_virtual_memory_bytes", "address space; the CommitLog is mapped into it"),
        Metric("process_open_fds", "open files and connections"),
        Metric("process_max_fds", "how many of those there may be"),
        Metric("process_start_time_seconds", "when the program started, seconds since 1970"),
        Metric("python_info", "1", ("implementation", "major", "minor", "patchlevel", "version")),
    ),
)
HEALTH_TABLE = Table("Every program", (), (Metric("rocketmq_ready", "1 while /readyz answers 200, else 0"),))


class Alive(BaseModel):
    """The body of /livez."""

    alive: bool = True


class Ready(BaseModel):
    """The body of /readyz, of a program that is ready."""

    ready: bool = True
    reasons: list[str] = []


class NotReady(Problem):
    """The body of /readyz, of a program that is not: a problem (RFC 9457) with a short reason for each
    failing check, and all of them in `detail`."""

    ready: bool = False
    reasons: list[str]


READINESS: Answers = {
    **answer_of(Ready()),
    503: {"model": NotReady, "description": "not ready; the reasons say why"},
}
"""The answers of /readyz."""


def readiness_of(health: Health) -> JSONResponse:
    """Returns the answer of /readyz."""
    if health.ready:
        return JSONResponse(Ready().model_dump())
    reasons = [each.reason for each in health.reasons]
    detail = f"not ready: {'; '.join(reasons)}"
    return problem(503, detail, more={"ready": False, "reasons": reasons})


class OtherRole(Problem, BrokerRole):
    """The body of /master and /slave, of a broker that is not, or is not ready: a problem (RFC 9457)."""

    reasons: list[str]


ROLE_EXAMPLE = BrokerRole(role="master", broker_name="broker-a", broker_id=1, master_epoch=3)
ROLE_ANSWERS: Answers = {
    **answer_of(ROLE_EXAMPLE),
    503: {"model": OtherRole, "description": "another role, or not ready"},
}
"""The answers of /master and /slave."""
ROLE_NAMES: Final = ("master", "slave")


def role_answer(wanted: str, broker: BrokerRole, reasons: Sequence[Reason]) -> Response:
    """Returns the answer of /master or /slave. reasons: why the broker is not ready."""
    if broker.role == wanted and not reasons:
        return as_json(broker)
    whys = [each.reason for each in reasons]
    detail = f"not ready: {'; '.join(whys)}" if broker.role == wanted else f"its role is {broker.role}"
    return problem(503, detail, more={**broker.model_dump(by_alias=True), "reasons": whys})


def add_role(app: FastAPI, path: str, role: str, endpoint: Callable[..., Awaitable[Response]]) -> None:
    """Adds a route that answers with role_answer(), for GET and HEAD."""
    app.head(path, include_in_schema=False, openapi_extra=needs(None))(endpoint)
    app.get(
        path,
        summary=f"whether the broker is {role} and ready, for load balancers",
        tags=["health"],
        response_model=BrokerRole,
        responses=ROLE_ANSWERS,
        openapi_extra=needs(None),
    )(endpoint)


@dataclass(frozen=True, slots=True)
class CollectedFamilies(Collector):
    """A collector for an encoder, of families that were collected before."""

    families: list[Family]

    def collect(self) -> list[Family]:
        """Returns the families."""
        return self.families


def add_health(
    app: FastAPI,
    *,
    health: GetHealth,
    example: Health,
    collectors: Sequence[AnyCollector] = (),
    prepare: Prepare | None = None,
) -> None:
    """Adds the four routes. `health` and the collectors are called in the event loop, so they may read the
    program's state. example: of what `health` returns. prepare: awaited before they are, where values come
    from other processes."""
    scrapes = Scrapes(all_collectors(health, collectors), prepare)

    @app.get(
        "/livez",
        summary="whether the event loop is responsive",
        tags=["health"],
        responses=answer_of(Alive()),
        openapi_extra=needs(None),
    )
    async def livez() -> Alive:
        return Alive()

    @app.get(
        "/readyz",
        summary="whether the program is ready for traffic",
        tags=["health"],
        response_model=Ready,
        responses=READINESS,
        openapi_extra=needs(None),
    )
    async def readyz() -> JSONResponse:
        return readiness_of(health())

    @app.get(
        "/v1/health",
        summary="the health information of the program, whether it is ready or not",
        tags=["health"],
        responses=answer_of(example),
        openapi_extra=needs(Role.READ),
    )
    async def get_health() -> Response:
        return as_json(health())

    @app.get(
        METRICS,
        summary="Prometheus metrics",
        tags=["health"],
        response_class=Response,
        openapi_extra=needs(Role.READ),
    )
    async def metrics(request: Request) -> Response:
        """All values of this program are from one moment, except those of long tables: they are read in
        slices."""
        return await scrapes.answer(request)


class Scrapes:
    """The answers of /metrics. The event loop reads the values; threads make families and text of them. With
    50,000 series that takes long, and anonymous clients may ask. So there is one scrape at a time, requests
    that come meanwhile share the next one, and that begins only when the loop had some time for others."""

    def __init__(self, collectors: Sequence[AnyCollector], prepare: Prepare | None) -> None:
        self._collectors, self._prepare = collectors, prepare
        self._turn = asyncio.Lock()
        self._begun = self._asking = 0
        self._not_before_s = 0.0
        self._collected: CollectedFamilies | None = None
        self._texts: dict[str, bytes] = {}

    async def answer(self, request: Request) -> Response:
        """Returns metrics that were collected after the request came, in the format that it accepts."""
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        before = self._begun
        self._asking += 1
        try:
            async with self._turn:
                if self._collected is None or self._begun == before:
                    self._collected, self._texts = await self._collect(), {}
                if content_type not in self._texts:  # slower than collecting
                    self._texts[content_type] = await asyncio.to_thread(encode, self._collected)
                text = self._texts[content_type]
        finally:
            self._asking -= 1
            if not self._asking:
                self._collected, self._texts = None, {}
        return Response(text, headers={"content-type": content_type})

    async def _collect(self) -> CollectedFamilies:
        self._collected, loop = None, asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._not_before_s - loop.time()))
        self._begun += 1
        if self._prepare is not None:
            await self._prepare()
        began_s = loop.time()
        found = [  # these read the values here
            await each.read() if isinstance(each, SlicedCollector) else each.collect()
            for each in self._collectors
        ]
        families = await asyncio.to_thread(lambda: list(chain.from_iterable(found)))
        self._not_before_s = loop.time() + OTHERS_SHARE * (loop.time() - began_s)
        return CollectedFamilies(families)


def prom_app(
    title: str, *, health: GetHealth, collectors: Sequence[AnyCollector], prepare: Prepare
) -> FastAPI:
    """Returns the application of RocketMQ's exporter port (metricsExporterType=PROM): /, /metrics and
    /-/healthy."""
    app = new_app(title)
    scrapes = Scrapes(all_collectors(health, collectors), prepare)

    @app.get("/", summary="Prometheus metrics", response_class=Response, openapi_extra=needs(Role.READ))
    @app.get(METRICS, summary="Prometheus metrics", response_class=Response, openapi_extra=needs(Role.READ))
    async def metrics(request: Request) -> Response:
        return await scrapes.answer(request)

    @app.get(PROM_HEALTHY, summary="does the exporter answer?", openapi_extra=needs(None))
    async def healthy() -> PlainTextResponse:
        return PlainTextResponse("Exporter is Healthy.\n")

    return app


def all_collectors(health: GetHealth, collectors: Sequence[AnyCollector]) -> list[AnyCollector]:
    """Returns the collectors of a program: of its process, its readiness, and its own."""

    def readiness() -> list[Scrape]:
        scrape = Scrape(HEALTH_TABLE, ())
        scrape.add("rocketmq_ready", health().ready)
        return [scrape]

    process = ProcessCollector(registry=None), PlatformCollector(registry=None)
    return [*process, ScrapeCollector(readiness), *collectors]
