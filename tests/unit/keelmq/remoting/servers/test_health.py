"""/livez, /readyz, /v1/health and /metrics, the port that they are at, and the late start of it all."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import fastapi
import httpx
import pytest

from broker.admin.http_app import BROKER_EXAMPLE
from keelmq.remoting.operations.health import Health, Reason
from keelmq.remoting.servers.health import HEALTH_TABLE, LIBRARY_TABLE, add_health
from keelmq.remoting.servers.http_app import new_app
from keelmq.remoting.servers.http_late import LateHttp
from keelmq.remoting.servers.http_port import http_listen_port
from keelmq.remoting.servers.metrics import Metric, Scrape, ScrapeCollector, Table, documented
from keelmq.runtime.config import ConfigError
from tests.support.http_parts import app_client, samples, shapes, value

TABLE = Table(
    "Test", ("node_id",), (Metric("a_bytes", "a gauge", ("topic",)), Metric("b_total", "a counter"))
)
OPEN_METRICS = "application/openmetrics-text; version=1.0.0"


def app(health: Health, value: float = 7) -> fastapi.FastAPI:
    made = new_app("test")

    def scrapes() -> list[Scrape]:
        scrape = Scrape(TABLE, ("n0",))
        scrape.add("a_bytes", value, 'a "quoted"\ntopic')
        scrape.add("b_total", 3)
        return [scrape]

    add_health(made, health=lambda: health, example=health, collectors=[ScrapeCollector(scrapes)])
    return made


READY = BROKER_EXAMPLE.model_copy(update={"ready": True, "reasons": []})


async def test_a_ready_program() -> None:
    async with app_client(app(READY)) as http:
        alive, ready = await http.get("/livez"), await http.get("/readyz")
        assert (alive.status_code, alive.json()) == (200, {"alive": True})
        assert (ready.status_code, ready.json()) == (200, {"ready": True, "reasons": []})
        paths = (await http.get("/openapi.json")).json()["paths"]
    assert {"/livez", "/readyz", "/v1/health", "/metrics"} <= set(paths)
    assert {"200", "503"} <= set(paths["/readyz"]["get"]["responses"])
    assert list(paths["/readyz"]["get"]["responses"]["503"]["content"]) == ["application/problem+json"]
    example = paths["/v1/health"]["get"]["responses"]["200"]["content"]["application/json"]["example"]
    assert (example["role"], example["registeredWith"]) == ("master", ["10.0.0.1:9876"])


async def test_a_program_that_is_not_ready_says_why_and_is_alive() -> None:
    """/readyz briefly, to everybody; /v1/health with the details, and with 200: it is an answer."""
    failed = [Reason(reason="no role yet"), Reason(reason="the store cannot write", detail="/data: ENOSPC")]
    async with app_client(app(Health.of(failed))) as http:
        assert (await http.get("/livez")).status_code == 200
        ready = await http.get("/readyz")
        assert (ready.status_code, ready.headers["content-type"]) == (503, "application/problem+json")
        assert ready.json() == {
            "title": "Service Unavailable",
            "status": 503,
            "detail": "not ready: no role yet; the store cannot write",
            "ready": False,
            "reasons": ["no role yet", "the store cannot write"],
        }
        told = await http.get("/v1/health")
        assert told.status_code == 200 and told.json()["ready"] is False
        assert told.json()["reasons"][1] == {"reason": "the store cannot write", "detail": "/data: ENOSPC"}
        assert value(samples((await http.get("/metrics")).text), "rocketmq_ready") == 0


async def test_metrics_in_both_dialects() -> None:
    async with app_client(app(READY)) as http:
        plain = await http.get("/metrics")
        modern = await http.get("/metrics", headers={"accept": OPEN_METRICS})
    assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = samples(plain.text)
    assert value(found, "a_bytes", node_id="n0", topic='a "quoted"\ntopic') == 7
    assert value(found, "b_total", node_id="n0") == 3
    assert value(found, "rocketmq_ready") == 1
    assert value(found, "process_resident_memory_bytes") > 1_000_000
    assert modern.headers["content-type"].startswith("application/openmetrics-text")
    assert modern.text.endswith("# EOF\n")


class Counted:
    """An app that shows the number of its scrapes. The first one waits until `others` requests have come.
    fails: the scrapes that cannot be prepared."""

    def __init__(self, others: int, *fails: int) -> None:
        self.app, self.scrapes = new_app("counted"), 0
        self._prepared, self._others, self._fails = 0, others, fails
        health = Health(ready=True)
        collector = ScrapeCollector(self._scrape)
        add_health(
            self.app, health=lambda: health, example=health, collectors=[collector], prepare=self._prepare
        )
        self.scrapes = 0  # the registry looks at the names when it is made

    def _scrape(self) -> list[Scrape]:
        self.scrapes += 1
        scrape = Scrape(TABLE, ("n0",))
        scrape.add("b_total", self.scrapes)
        return [scrape]

    async def _prepare(self) -> None:
        self._prepared += 1
        if self._prepared in self._fails:
            raise OSError("a process is gone")
        if self._prepared == 1:
            self._waiting = asyncio.gather(*(self.count() for _ in range(self._others)))
            await asyncio.sleep(0)  # they start
            await asyncio.sleep(0)

    async def count(self) -> float | None:
        """Asks, and returns the number; None: the answer was an error."""
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app, raise_app_exceptions=False), base_url="http://door"
        ) as http:
            answer = await http.get("/metrics")
        return value(samples(answer.text), "b_total") if answer.status_code == 200 else None

    async def counts(self) -> list[float | None]:
        """Returns the answers to the first request and to the others."""
        first = await self.count()
        return [first, *await self._waiting]


async def test_scrapes_at_once_are_one_and_the_next() -> None:
    """Each would block the event loop, and anybody may ask."""
    counted = Counted(20)
    assert await counted.counts() == [1, *[2] * 20]
    assert counted.scrapes == 2
    assert await counted.count() == 3


async def test_nobody_gets_an_old_scrape_after_one_that_failed() -> None:
    assert await Counted(3, 2).counts() == [1, None, 2, 2]


async def test_the_loop_reads_the_values_and_threads_do_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """50,000 series are read in a tenth of the time that their families take."""
    in_loop: dict[str, bool] = {}
    families = Scrape.__iter__

    def note(what: str) -> None:
        in_loop[what] = threading.current_thread() is threading.main_thread()

    def scrapes() -> Iterator[Scrape]:
        note("values")
        scrape = Scrape(TABLE, ("n0",))
        scrape.add("b_total", 3)
        yield scrape

    def iterate(scrape: Scrape) -> Any:
        note("families")
        return families(scrape)

    monkeypatch.setattr(Scrape, "__iter__", iterate)
    made = new_app("test")
    add_health(made, health=lambda: READY, example=READY, collectors=[ScrapeCollector(scrapes)])
    async with app_client(made) as http:
        found = samples((await http.get("/metrics")).text)
    assert value(found, "b_total", node_id="n0") == 3
    assert in_loop == {"values": True, "families": False}


async def test_only_what_is_declared_is_scraped() -> None:
    async with app_client(app(READY)) as http:
        found = shapes((await http.get("/metrics")).text)
    assert found == documented([TABLE, HEALTH_TABLE, LIBRARY_TABLE])


def test_an_undeclared_metric_or_label_is_a_bug() -> None:
    scrape = Scrape(TABLE, ("n0",))
    with pytest.raises(KeyError):
        scrape.add("c_bytes", 1)
    with pytest.raises(AssertionError):
        scrape.add("a_bytes", 1)
    assert list(scrape) == []


@pytest.mark.parametrize(
    ("http_port", "listen_port", "bound_port", "wanted"),
    [
        (0, 9876, 9876, 19_876),
        (0, 55_535, 55_535, 65_535),
        (0, 55_536, 55_536, 0),
        (0, 0, 40_000, 0),
        (-1, 9876, 9876, None),
        (8080, 9876, 9876, 8080),
        (8080, 0, 40_000, 8080),
    ],
)
def test_the_rule_of_every_http_port(
    http_port: int, listen_port: int, bound_port: int, wanted: int | None
) -> None:
    assert http_listen_port(http_port, listen_port=listen_port, bound_port=bound_port) == wanted


async def test_early_requests_wait_for_the_late_server() -> None:
    late = LateHttp(lambda: app(READY), host="127.0.0.1", port=0)
    late.bind()
    async with httpx.AsyncClient(base_url="http://{}:{}".format(*late.address)) as http:
        early = asyncio.create_task(http.get("/livez"))
        await late.serve()
        assert (await early).status_code == 200
    address = late.address
    await late.close()
    await late.close()
    assert late.address == address, "controllers tell theirs as long as they are asked"


async def test_a_server_that_is_closed_before_it_opened() -> None:
    late = LateHttp(lambda: app(READY), host="127.0.0.1", port=0)
    late.bind()
    port = late.address[1]
    serving = asyncio.create_task(late.serve())
    await asyncio.sleep(0)
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    await late.close()
    with socket.socket() as again:
        again.bind(("127.0.0.1", port))


async def test_a_taken_port_is_known_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"^http: cannot listen on 127.0.0.1:{port}: Address already"):
            LateHttp(lambda: None, host="127.0.0.1", port=port).bind()
