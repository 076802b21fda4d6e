"""What the tests of HTTP doors share: asking a server or an app, and reading what a scrape says."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from keelmq.remoting.servers.http import HttpServer
from keelmq.remoting.servers.http_settings import HttpPolicy

Samples = dict[str, list[tuple[Mapping[str, str], float]]]

LOADED_S = 30
"""Within this an HTTP server is loaded, on a loaded machine too."""


async def ask(base: tuple[str, int] | None, path: str, **headers: str) -> httpx.Response:
    """GET from a running server, which may still load its HTTP server."""
    assert base is not None, "no HTTP door"
    async with httpx.AsyncClient(base_url=f"http://{base[0]}:{base[1]}", timeout=LOADED_S) as http:
        return await http.get(
            path, headers={name.replace("_", "-"): value for name, value in headers.items()}
        )


def app_client(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://door")


def samples(text: str) -> Samples:
    """{sample name: [(labels, value)]} of a scrape."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def shapes(text: str) -> dict[str, tuple[str, frozenset[str]]]:
    """{sample name: (type, label names)} of a scrape."""
    return {
        sample.name: (family.type, frozenset(sample.labels))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(found: Samples, name: str, **labels: str) -> float:
    """Of the one sample that has these labels."""
    values = [got for having, got in found.get(name, []) if labels.items() <= having.items()]
    assert len(values) == 1, f"{name} {labels}: {found.get(name)}"
    return values[0]


@asynccontextmanager
async def served(app: Any, policy: HttpPolicy) -> AsyncIterator[httpx.AsyncClient]:
    """A client of this app behind a real port."""
    server = HttpServer(app, host="127.0.0.1", port=0, policy=policy)
    await server.start()
    try:
        async with httpx.AsyncClient(base_url="http://{}:{}".format(*server.address)) as client:
            yield client
    finally:
        await server.close()
