"""The HTTP door: statuses, the same answers as the TCP door, start and stop."""

import asyncio
from typing import Any

import fastapi
import httpx
import pytest

from remoting.client import RemotingClient
from remoting.command import header_fields
from remoting.config import ConfigError
from remoting.doors.http import HttpServer, http_router
from remoting.doors.tcp import TcpDoor
from remoting.operation import (
    Call,
    CommandError,
    Empty,
    Failed,
    Ok,
    Operation,
    OperationTable,
    Reply,
    Unknown,
    Wire,
)
from remoting.operations.controller import ALTER_SYNC_STATE_SET, AlterSyncStateSetRequest, SyncStateSet


class EchoResponse(Wire):
    new_sync_state_set_epoch: int = 0
    seen: str | None = None


ECHO = Operation(
    1001,
    "echo",
    AlterSyncStateSetRequest,
    EchoResponse,
    request_body=SyncStateSet,
    response_body=SyncStateSet,
)
RAW = Operation(26, "raw", Empty, Empty, request_body=bytes, response_body=bytes)


async def echo(header: AlterSyncStateSetRequest, call: Call) -> Reply:
    """Refuses epoch 13, breaks at 14; otherwise shows everything that it was given."""
    if header.master_epoch == 13:
        raise CommandError(2000, "fenced")
    if header.master_epoch == 14:
        raise ZeroDivisionError("bug")
    return Reply(EchoResponse(new_sync_state_set_epoch=header.master_epoch, seen=repr(header)), call.body)


async def raw(_: Empty, call: Call) -> Reply:
    return Reply(body=call.body[::-1])


def table() -> OperationTable:
    made = OperationTable()
    made.bind(ECHO, echo)
    made.bind(RAW, raw)
    return made


def app(of: OperationTable) -> fastapi.FastAPI:
    made = fastapi.FastAPI()
    made.include_router(http_router(of))
    return made


def http_client(of: OperationTable) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app(of)), base_url="http://door")


INPUTS = [
    AlterSyncStateSetRequest(broker_name="b", master_broker_id=1, master_epoch=7, invoke_time=3),
    AlterSyncStateSetRequest(broker_name="b", master_broker_id=2**62, master_epoch=-1),
    AlterSyncStateSetRequest(broker_name="b", master_broker_id=1, master_epoch=13),
    AlterSyncStateSetRequest(broker_name="b", master_broker_id=1, master_epoch=14),
    AlterSyncStateSetRequest(broker_name="", master_broker_id=1, master_epoch=1),
]


@pytest.mark.parametrize("header", INPUTS, ids=repr)
async def test_both_doors_give_the_same_reply(header: AlterSyncStateSetRequest) -> None:
    body = SyncStateSet(sync_state_set=[1, 2], sync_state_set_epoch=9)
    door = TcpDoor(table(), host="127.0.0.1", port=0, name="test")
    await door.start()
    client = RemotingClient()
    by_tcp = await client.call("{}:{}".format(*door.address), ECHO, header, body)
    await client.close()
    await door.close()
    json: dict[str, Any] = {**header.model_dump(by_alias=True), "body": body.model_dump(by_alias=True)}
    async with http_client(table()) as http:
        by_http = await http.post("/v1/echo", json=json)
    answer = by_http.json()
    if isinstance(by_tcp, Ok):
        assert by_http.status_code == 200
        assert SyncStateSet.model_validate(answer.pop("body")) == by_tcp.body
        assert EchoResponse.model_validate(answer) == by_tcp.header
    else:
        assert isinstance(by_tcp, Failed)
        assert by_http.status_code in {409, 422, 500}
        assert answer.get("remark", answer.get("detail")) == by_tcp.remark
        assert answer.get("code", 1) == by_tcp.code


@pytest.mark.parametrize(
    "json", [{}, {"brokerName": "b"}, {"brokerName": "b", "masterBrokerId": "x", "masterEpoch": 1}, []]
)
async def test_bad_input_is_422(json: Any) -> None:
    async with http_client(table()) as http:
        assert (await http.post("/v1/echo", json=json)).status_code == 422


async def test_raw_bodies_are_base64() -> None:
    async with http_client(table()) as http:
        assert (await http.post("/v1/raw", json={"body": "AQID"})).json() == {"body": "AwIB"}
        assert (await http.post("/v1/raw", json={"body": "!"})).status_code == 422


async def test_unknown_outcome_is_504() -> None:
    async def lost(_: Wire, __: Call) -> Any:
        return Unknown("no quorum in time")

    of = OperationTable()
    of.bind(ALTER_SYNC_STATE_SET, lost)
    async with http_client(of) as http:
        answer = await http.post("/v1/alterSyncStateSet", json=INPUTS[0].model_dump(by_alias=True))
    assert (answer.status_code, answer.json()) == (504, {"remark": "no quorum in time"})


async def test_openapi_names_every_operation() -> None:
    async with http_client(table()) as http:
        paths = (await http.get("/openapi.json")).json()["paths"]
    assert set(paths) == {"/v1/echo", "/v1/raw"}
    assert header_fields(INPUTS[0])  # the same models describe both doors


async def test_server_serves_refuses_large_bodies_and_leaves_no_task() -> None:
    server = HttpServer(app(table()), host="127.0.0.1", port=0)
    await server.start()
    base = "http://{}:{}".format(*server.address)
    async with httpx.AsyncClient(base_url=base) as http:
        assert (await http.post("/v1/raw", json={"body": "AQID"})).status_code == 200
    reader, writer = await asyncio.open_connection(*server.address)
    writer.write(b"POST /v1/raw HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999\r\n\r\n")
    assert b" 413 " in await reader.readline()
    writer.close()
    await writer.wait_closed()
    await server.close()
    await server.close()
    assert len(asyncio.all_tasks()) == 1


async def test_taken_port_is_one_clear_error() -> None:
    door = TcpDoor(table(), host="127.0.0.1", port=0, name="test")
    await door.start()
    port = door.address[1]
    with pytest.raises(
        ConfigError, match=f"^http: cannot listen on 127.0.0.1:{port}: Address already in use$"
    ):
        await HttpServer(app(table()), host="127.0.0.1", port=port).start()
    await door.close()
