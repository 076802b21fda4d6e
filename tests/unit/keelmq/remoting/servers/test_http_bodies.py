"""Bodies of HTTP requests: their limits, and who leaves before the end."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from keelmq.remoting.frame import FRAME_BYTES_MAX
from keelmq.remoting.operation import Call, Empty, Operation, OperationTable, Reply
from keelmq.remoting.servers import http_guard
from keelmq.remoting.servers.http import HttpServer, http_router
from keelmq.remoting.servers.http_app import new_app

RAW = Operation(26, "raw", Empty, Empty, request_body=bytes, response_body=bytes)
TEXT = {"content-type": "text/plain"}


@pytest.fixture
async def server() -> AsyncIterator[HttpServer]:
    """It answers POST /v1/raw with the body."""

    async def raw(_: Empty, call: Call) -> Reply:
        return Reply(body=call.body)

    table = OperationTable()
    table.bind(RAW, raw)
    app = new_app("test")
    app.include_router(http_router(table))
    made = HttpServer(app, host="127.0.0.1", port=0)
    await made.start()
    yield made
    await made.close()


def client_of(server: HttpServer) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url="http://{}:{}".format(*server.address))


def chunked(path: bytes, size: int) -> bytes:
    """A request whose head does not tell how large its body is."""
    head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n" % path
    return head + b"Content-Type: text/plain\r\n\r\n%x\r\n" % size + b"x" * size


async def test_a_body_that_turns_out_to_be_too_large_is_refused(
    server: HttpServer, caplog: pytest.LogCaptureFixture
) -> None:
    reader, writer = await asyncio.open_connection(*server.address)
    writer.write(chunked(b"/v1/raw", FRAME_BYTES_MAX + 1))
    assert b" 413 " in await reader.readline()
    writer.close()
    assert not caplog.records


async def test_who_leaves_before_the_end_of_a_body_leaves_no_traceback(
    server: HttpServer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    _, writer = await asyncio.open_connection(*server.address)
    writer.write(chunked(b"/v1/raw", 9))
    writer.close()
    await writer.wait_closed()
    async with client_of(server) as http:
        assert (await http.post("/v1/raw", json={"body": "AQID"})).status_code == 200
    assert not caplog.records


async def test_large_bodies_of_many_requests_have_a_limit_together(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small ones are served meanwhile."""
    monkeypatch.setattr(http_guard, "BODIES_BYTES_MAX", 1_000_000)
    first, waiting = await asyncio.open_connection(*server.address)
    waiting.write(chunked(b"/v1/raw", 800_000))  # and no end
    async with client_of(server) as http:
        async with asyncio.timeout(10):
            while (await http.post("/v1/raw", content=b"x" * 300_000, headers=TEXT)).status_code != 503:
                pass
        assert (await http.post("/v1/raw", content=b"xy", headers=TEXT)).status_code == 200
        waiting.write(b"\r\n0\r\n\r\n")
        assert b" 200 " in await first.readline()
        assert (await http.post("/v1/raw", content=b"x" * 300_000, headers=TEXT)).status_code == 200
    waiting.close()
