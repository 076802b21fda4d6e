"""Clients that break the gRPC server, or hold what it has: what the fuzzer found (tests/fuzz/grpc.py)."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from grpc._cython import cygrpc

from broker.app.broker import Broker
from proxy.server import grpc_server
from proxy.wire import messaging_pb2 as pb
from tests.fuzz.http2 import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    HEARTBEAT,
    PREFACE,
    START,
    frame,
    headers_of,
)
from tests.unit.proxy.server.parts import HOST, METADATA, GrpcClient, serving


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[Broker, GrpcClient]]:
    async with serving(tmp_path) as found:
        yield found


@pytest.mark.parametrize("damage", [b"/apach\xb5.rocketmq", b"/apache.rocketm\xff"])
async def test_a_path_that_is_no_utf_8(
    served: tuple[Broker, GrpcClient], caplog: pytest.LogCaptureFixture, damage: bytes
) -> None:
    """One such call ended grpcio's server, and with it the port."""
    broker, client = served
    assert broker.listeners.proxy is not None
    block = headers_of("Heartbeat").replace(b"/apache.rocketmq", damage)
    reader, writer = await asyncio.open_connection(HOST, broker.listeners.proxy.port)
    writer.write(START + frame(HEADERS, END_HEADERS, 1, block) + frame(DATA, END_STREAM, 1, HEARTBEAT))
    answer = b""
    while b"grpc-status" not in answer:
        answer += await asyncio.wait_for(reader.read(10_000), 10)
    assert b"Method not found!" in answer
    writer.close()
    for _ in range(2):
        assert (await client.call("Heartbeat", pb.HeartbeatRequest())).status.code == pb.OK
    assert caplog.records == []


async def test_a_header_that_is_no_utf_8(
    served: tuple[Broker, GrpcClient], caplog: pytest.LogCaptureFixture
) -> None:
    """Each was logged with a traceback."""
    broker, _ = served
    assert broker.listeners.proxy is not None
    reader, writer = await asyncio.open_connection(HOST, broker.listeners.proxy.port)
    block = headers_of("Heartbeat", (b"x-a", b"\xff"))
    calls = [
        frame(HEADERS, END_HEADERS, stream, block) + frame(DATA, END_STREAM, stream, HEARTBEAT)
        for stream in range(1, 20, 2)
    ]
    writer.write(START + b"".join(calls))
    answer = b""
    while answer.count(b"OK") < 10:
        answer += await asyncio.wait_for(reader.read(10_000), 10)
    writer.close()
    assert {each.levelname for each in caplog.records} == {"WARNING"} and len(caplog.records) < 4
    assert "a header or a path that is no UTF-8" in caplog.text


async def test_a_client_that_goes_at_the_moment_of_its_answer(caplog: pytest.LogCaptureFixture) -> None:
    """Each was logged with a traceback. The fuzzer finds the moment (tests/fuzz/grpc.py)."""
    for error in (cygrpc.ExecuteBatchError('Failed "execute_batch"'), cygrpc.InternalError("another one")):
        logging.getLogger(grpc_server.GRPCIO).error("%s raised in core", error, exc_info=error)
    assert [each.message for each in caplog.records] == ["another one raised in core"]


@pytest.mark.parametrize("data", [PREFACE[:9], PREFACE, START + frame(HEADERS, 0, 1, b"\x00\x05:path")])
async def test_a_connection_without_a_call_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    """Also one whose first headers never end."""
    monkeypatch.setattr(grpc_server, "IDLE_MS", 200)
    async with serving(tmp_path) as (broker, _):
        assert broker.listeners.proxy is not None
        reader, writer = await asyncio.open_connection(HOST, broker.listeners.proxy.port)
        writer.write(data)
        async with asyncio.timeout(30):
            while await reader.read(1_000):
                pass
        writer.close()


async def test_more_calls_than_the_server_permits(tmp_path: Path) -> None:
    """Others are refused, and a call that has ended makes room."""
    async with serving(tmp_path, grpcMaxConcurrentCalls=3) as (_, client):
        settings = pb.TelemetryCommand(settings=pb.Settings(publishing=pb.Publishing()))
        for _ in range(2):
            streams = [client.telemetry() for _ in range(3)]
            for stream in streams:
                await stream.write(settings)
                assert (await stream.read()).status.code == pb.OK
            with pytest.raises(grpc.aio.AioRpcError, match="RESOURCE_EXHAUSTED"):
                await client.call("Heartbeat", pb.HeartbeatRequest())
            for stream in streams:
                await stream.done_writing()
                assert await stream.read() is grpc.aio.EOF


async def test_the_service_for_administrators(served: tuple[Broker, GrpcClient]) -> None:
    broker, _ = served
    assert broker.listeners.proxy is not None
    async with grpc.aio.insecure_channel(f"{HOST}:{broker.listeners.proxy.port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError, match="use mqadmin") as error:
            await channel.unary_unary("/apache.rocketmq.v2.Admin/QueryMessage")(b"", metadata=METADATA)
        assert error.value.code() == grpc.StatusCode.UNIMPLEMENTED
