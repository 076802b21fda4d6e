"""What anonymous clients do to the HTTP port costs neither memory nor /livez."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import fastapi
import httpx
import pytest

from keelmq.remoting.servers import http, http_limits
from keelmq.remoting.servers.http import HttpServer
from keelmq.remoting.servers.http_limits import LimitedHttp

BIG = b"x" * (32 * 1024 * 1024)  # beyond what two sockets hold


def app() -> fastapi.FastAPI:
    made = fastapi.FastAPI()

    @made.get("/livez")
    async def livez() -> dict[str, bool]:
        return {"alive": True}

    @made.post("/echo")
    async def echo(request: fastapi.Request) -> fastapi.Response:
        return fastapi.Response(await request.body())

    @made.get("/big")
    async def big() -> fastapi.Response:
        return fastapi.Response(BIG)

    return made


@pytest.fixture
async def server() -> AsyncIterator[HttpServer]:
    made = HttpServer(app(), host="127.0.0.1", port=0)
    await made.start()
    yield made
    await made.close()


async def is_alive(server: HttpServer) -> bool:
    async with httpx.AsyncClient(base_url="http://{}:{}".format(*server.address)) as client:
        return (await client.get("/livez")).status_code == 200


async def said(server: HttpServer, sent: bytes) -> bytes:
    """Everything that comes back until the other side closes, which it has to do soon."""
    reader, writer = await asyncio.open_connection(*server.address)
    try:
        writer.write(sent)
        async with asyncio.timeout(10):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def problem_of(answer: bytes) -> Any:
    """The body of a whole answer, whose head must say the same."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/problem+json" in head.split(b"\r\n")
    assert b"content-length: %d" % len(body) in head.split(b"\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % json.loads(body)["status"])
    return json.loads(body)


async def test_what_is_no_http_is_refused_as_a_problem(server: HttpServer) -> None:
    answer = problem_of(await said(server, b"hello\r\n\r\n"))
    assert (answer["status"], answer["detail"]) == (400, "Invalid HTTP request received.")
    assert await is_alive(server)


async def test_many_lines_that_are_no_http_are_few_lines_of_the_log(
    server: HttpServer, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(50):
        await said(server, b"hello\r\n\r\n")
    lines = [each for each in caplog.messages if each.startswith("Invalid HTTP request")]
    assert len(lines) < 25  # one a second


HEADS = {
    "one header": b"GET /livez HTTP/1.1\r\nHost: x\r\nY: " + b"y" * http_limits.HEAD_BYTES_MAX,
    "the path": b"GET /livez?" + b"y" * http_limits.HEAD_BYTES_MAX,
    "many headers": b"GET /livez HTTP/1.1\r\nHost: x\r\n" + b"Y: y\r\n" * 11_000,
}
HEADS |= {f"{name}, and the end": head + b" HTTP/1.1\r\n\r\n" for name, head in HEADS.items()}
"""Its end may come with the same read."""


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS.keys())
async def test_a_head_without_end_is_refused_in_words(server: HttpServer, head: bytes) -> None:
    answer = await said(server, head)
    assert problem_of(answer) == {
        "title": "Request Header Fields Too Large",
        "status": 431,
        "detail": "path and headers are above 65536 bytes",
    }
    assert await is_alive(server)


async def test_a_head_below_the_limit_is_served_with_what_follows_it(server: HttpServer) -> None:
    """Two requests in one write, which are larger together than a head may be."""
    path = b"GET /livez?" + b"y" * (http_limits.HEAD_BYTES_MAX - 1_000) + b" HTTP/1.1\r\nHost: x\r\n"
    last = b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\nY: " + b"y" * 10_000
    answer = await said(server, path + b"\r\n" + last + b"\r\n\r\n")
    assert answer.count(b"HTTP/1.1 200 ") == 2


async def test_trailers_without_end_are_cut_off(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_limits, "REQUEST_BYTES_MAX", 100_000)
    head = b"POST /livez HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nY: "
    await said(server, head + b"y" * 200_000)  # it ends: that is what counts
    assert await is_alive(server)


@pytest.mark.parametrize(
    "sent",
    [b"", b"\r\n", b"GET /livez HT", b"POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{"],
    ids=["nothing", "an empty line", "half a head", "half a body"],
)
async def test_who_never_finishes_a_request_is_closed(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(http_limits, "REQUEST_S", 0.05)
    await said(server, sent)


async def test_the_second_request_of_a_connection_has_a_limit_too(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = await asyncio.open_connection(*server.address)
    writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200 ")
    monkeypatch.setattr(http_limits, "REQUEST_S", 0.05)
    writer.write(b"GET /li")
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(10):
            assert not await reader.read()
    writer.close()


async def test_who_does_not_read_an_answer_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost = asyncio.Event()

    class Watched(LimitedHttp):
        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            lost.set()

    monkeypatch.setattr(http_limits, "UNREAD_S", 0.05)
    monkeypatch.setattr(http, "LimitedHttp", Watched)
    server = HttpServer(app(), host="127.0.0.1", port=0)
    await server.start()
    _, writer = await asyncio.open_connection(*server.address, limit=1)
    writer.write(b"GET /big HTTP/1.1\r\nHost: x\r\n\r\n")
    async with asyncio.timeout(10):
        await lost.wait()
    writer.close()
    await server.close()


async def test_quiet_connections_make_room(server: HttpServer) -> None:
    """Three times as many as there may be: the newest, and whoever asks something, are served."""
    quiet = [await asyncio.open_connection(*server.address) for _ in range(3 * http_limits.CONNECTIONS_MAX)]
    assert await is_alive(server)
    async with asyncio.timeout(10):
        await asyncio.gather(*(reader.read() for reader, _ in quiet[: http_limits.CONNECTIONS_MAX]))
    for _, writer in quiet:
        writer.close()


HALF = b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"
"""A request whose body does not come."""


async def test_half_a_request_that_came_with_a_whole_one_is_closed(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It starts when the answer to the first has gone, and gets no byte any more."""
    monkeypatch.setattr(http_limits, "REQUEST_S", 0.05)
    answer = await said(
        server, b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\nhi" + HALF
    )
    assert answer.count(b"HTTP/1.1 200 ") == 1


async def test_half_requests_make_room(server: HttpServer) -> None:
    """Who awaits their bodies would otherwise serve nobody else."""
    halves = [await asyncio.open_connection(*server.address) for _ in range(http_limits.CONNECTIONS_MAX)]
    for _, writer in halves:
        writer.write(HALF)
    assert await is_alive(server)
    assert await is_alive(server)
    for _, writer in halves:
        writer.close()
