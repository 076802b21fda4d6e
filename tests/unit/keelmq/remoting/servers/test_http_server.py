"""The HTTP door: statuses, the same answers as the TCP door, start and stop."""

import asyncio
import base64
import socket
from typing import Any

import fastapi
import httpx
import pytest
from fastapi.exceptions import RequestValidationError

from keelmq.remoting.client import RemotingClient
from keelmq.remoting.command import header_fields
from keelmq.remoting.operation import (
    Call,
    CommandError,
    Empty,
    Failed,
    Ok,
    Operation,
    OperationTable,
    Reply,
    Role,
    Unknown,
    UnknownOutcome,
    Wire,
)
from keelmq.remoting.operations.controller import ALTER_SYNC_STATE_SET, AlterSyncStateSetRequest, SyncStateSet
from keelmq.remoting.servers.http import HttpServer, http_router
from keelmq.remoting.servers.http_answers import input_refused, page_of, some_of
from keelmq.remoting.servers.http_app import add_operations, new_app
from keelmq.remoting.servers.http_port import listening_socket
from keelmq.remoting.servers.tcp import TcpServer
from keelmq.runtime.config import ConfigError
from tests.support.http_parts import app_client


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


class NamedRaw(Wire):
    name: str
    times: int = 1


NAMED_RAW = Operation(27, "namedRaw", NamedRaw, NamedRaw, request_body=bytes, response_body=bytes)


async def named_raw(header: NamedRaw, call: Call) -> Reply:
    return Reply(header, call.body * header.times)


def table() -> OperationTable:
    made = OperationTable()
    made.bind(NAMED_RAW, named_raw)
    made.bind(ECHO, echo)
    made.bind(RAW, raw)
    return made


def app(of: OperationTable) -> fastapi.FastAPI:
    made = fastapi.FastAPI(exception_handlers={RequestValidationError: input_refused})
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
async def test_both_servers_give_the_same_reply(header: AlterSyncStateSetRequest) -> None:
    body = SyncStateSet(sync_state_set=[1, 2], sync_state_set_epoch=9)
    listener = TcpServer(table(), host="127.0.0.1", port=0, name="test")
    await listener.start()
    client = RemotingClient()
    by_tcp = await client.call("{}:{}".format(*listener.address), ECHO, header, body)
    await client.close()
    await listener.close()
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
        assert answer["detail"] == by_tcp.remark
        assert answer.get("code", 1) == by_tcp.code


@pytest.mark.parametrize(
    "json", [{}, {"brokerName": "b"}, {"brokerName": "b", "masterBrokerId": "x", "masterEpoch": 1}, []]
)
async def test_bad_input_is_422(json: Any) -> None:
    async with http_client(table()) as http:
        assert (await http.post("/v1/echo", json=json)).status_code == 422


async def test_a_path_or_a_method_that_there_is_not_says_what_there_is() -> None:
    app = new_app("door")
    add_operations(app, table(), lambda code: Role.READ)
    async with app_client(app) as http:
        nowhere, got = await http.post("/v1/nosuch", json={}), await http.get("/v1/echo")
    assert (nowhere.status_code, got.status_code) == (404, 405)
    assert nowhere.json()["detail"] == "no such path; /openapi.json lists those that there are"
    assert got.json()["detail"] == "not with GET: POST" and got.headers["allow"] == "POST"


async def test_a_misspelled_field_is_422_and_the_right_ones_are_named() -> None:
    """On the wire it is ignored; a person would be told that all is well."""
    async with http_client(table()) as http:
        answer = await http.post("/v1/raw", json={"bdoy": "AQID", "x": 1})
        assert (answer.status_code, answer.json()["detail"]) == (422, "no field bdoy, x; there are: body")
        bare = {"content-type": "text/plain"}
        query = await http.post("/v1/namedRaw?name=n&time=2", content=b"ab", headers=bare)
    assert (query.status_code, query.json()["detail"]) == (422, "no field time; there are: name, times")


async def test_raw_bodies_are_base64() -> None:
    async with http_client(table()) as http:
        assert (await http.post("/v1/raw", json={"body": "AQID"})).json() == {"body": "AwIB"}
        assert (await http.post("/v1/raw", json={"body": "!"})).status_code == 422


@pytest.mark.parametrize("type_", ["text/plain", "text/plain; charset=utf-8", "application/octet-stream"])
async def test_a_raw_body_may_be_the_whole_body(type_: str) -> None:
    async with http_client(table()) as http:
        bare = await http.post("/v1/raw", content=b"a=1\n\xff", headers={"content-type": type_})
        assert bare.json() == {"body": base64.b64encode(b"a=1\n\xff"[::-1]).decode()}
        named = await http.post(
            "/v1/namedRaw?name=n&times=2",
            content=b"ab",
            headers={"content-type": type_, "accept": "text/plain"},
        )
        nameless = await http.post("/v1/namedRaw", content=b"ab", headers={"content-type": type_})
    assert (named.content, named.headers["content-type"]) == (b"abab", "text/plain; charset=utf-8")
    assert (nameless.status_code, nameless.json()["detail"]) == (422, "header field name is missing")


async def test_other_types_of_raw_bodies_are_refused_in_words() -> None:
    async with http_client(table()) as http:
        answer = await http.post("/v1/raw", content=b"<a/>", headers={"content-type": "text/xml"})
        broken = await http.post("/v1/raw", content=b'{"body":', headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert answer.json()["detail"] == (
        "content type text/xml: application/json, or for the bare body text/plain or application/octet-stream"
    )
    assert broken.status_code == 422 and broken.json()["problems"][0]["type"] == "json_invalid"


OF_FASTJSON = Operation(307, "stats", Empty, Empty, response_body=bytes, body_is_json=True)


async def test_the_notation_of_fastjson_becomes_json() -> None:
    """And the remark of a success is shown; what is no JSON can be had as it is."""
    bodies = [b'{"t":{{"brokerName":"b","queueId":0,"topic":"T"}:7},n:1}', b"", b"\xff", b"\xff"]

    async def stats(header: Wire, call: Call) -> Reply:
        return Reply(body=bodies.pop(0), remark="1 of 2" if len(bodies) == 3 else None)

    of = OperationTable()
    of.bind(OF_FASTJSON, stats)
    async with http_client(of) as http:
        told = (await http.post("/v1/stats")).json()
        assert told["body"] == {"t": {'{"brokerName":"b","queueId":0,"topic":"T"}': 7}, "n": 1}
        assert told["remark"] == "1 of 2"
        assert (await http.post("/v1/stats")).json() == {}
        broken = await http.post("/v1/stats")
        assert broken.status_code == 409 and "accept: text/plain" in broken.json()["detail"]
        assert (await http.post("/v1/stats", headers={"accept": "text/plain"})).content == b"\xff"


async def test_answers_do_not_wait_for_acknowledgements() -> None:
    """TCP_NODELAY on each connection: asyncio sets it where the listening socket names its protocol."""
    found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def accepted(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sock = writer.get_extra_info("socket")
        found.set_result(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    async with await asyncio.start_server(accepted, sock=listening_socket("127.0.0.1", 0)) as server:
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        assert await found
        writer.close()
        await writer.wait_closed()


async def test_what_needs_no_input_needs_no_body() -> None:
    async with http_client(table()) as http:
        assert (await http.post("/v1/raw")).json() == {"body": ""}
        assert (await http.post("/v1/raw", json={})).status_code == 200


NO_TEXT = "the input is not valid text: it has a lone surrogate"


@pytest.mark.parametrize("text", ['"\\ud800"', "NaN", '{"\\ud800": 1}', '"b", "\\ud800": 1'])
async def test_input_that_is_no_text_is_422(text: str) -> None:
    async with http_client(table()) as http:
        for path in ("/v1/echo", "/v1/namedRaw"):
            json = f'{{"brokerName": {text}, "name": {text}, "masterBrokerId": "x", "body": 7}}'
            answer = await http.post(path, content=json, headers={"content-type": "application/json"})
            assert answer.status_code == 422, answer.text
            assert all(set(each) == {"type", "loc", "msg"} for each in answer.json()["problems"])


async def test_half_characters_reach_no_handler() -> None:
    async with http_client(table()) as http:
        for part in (
            '"brokerName": "\\ud800"',
            '"brokerName": "b", "body": {"syncStateSetEpoch": "\\ud800"}',
        ):
            json = f'{{{part}, "masterBrokerId": 1, "masterEpoch": 1}}'
            answer = await http.post("/v1/echo", content=json, headers={"content-type": "application/json"})
            assert answer.status_code == 422, answer.text
    async with http_client(table()) as http:
        json = '{"brokerName": "\\ud800", "masterBrokerId": 1, "masterEpoch": 1}'
        answer = await http.post("/v1/echo", content=json, headers={"content-type": "application/json"})
    assert answer.json()["detail"] == NO_TEXT


@pytest.mark.parametrize("raised", [False, True])
async def test_unknown_outcome_is_504(raised: bool) -> None:
    async def lost(_: Wire, __: Call) -> Any:
        if raised:
            raise UnknownOutcome(1, "no quorum in time")
        return Unknown("no quorum in time")

    of = OperationTable()
    of.bind(ALTER_SYNC_STATE_SET, lost)
    async with http_client(of) as http:
        answer = await http.post("/v1/alterSyncStateSet", json=INPUTS[0].model_dump(by_alias=True))
    assert (answer.status_code, answer.json()) == (
        504,
        {"title": "Gateway Timeout", "status": 504, "detail": "no quorum in time"},
    )


async def test_openapi_names_every_operation() -> None:
    described = new_app("door")
    add_operations(described, table(), lambda code: Role.READ)
    async with app_client(described) as http:
        document = (await http.get("/openapi.json")).json()
    paths = document["paths"]
    assert set(paths) == {"/v1/echo", "/v1/raw", "/v1/namedRaw"}
    raw_types = {"application/json", "text/plain", "application/octet-stream"}
    assert set(paths["/v1/raw"]["post"]["requestBody"]["content"]) == raw_types
    assert set(paths["/v1/raw"]["post"]["responses"]["200"]["content"]) == raw_types
    request = paths["/v1/namedRaw"]["post"]["requestBody"]
    assert request["required"] and "required" not in paths["/v1/raw"]["post"]["requestBody"]
    schema = request["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    assert document["components"]["schemas"][schema]["required"] == ["name"]
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
    listener = TcpServer(table(), host="127.0.0.1", port=0, name="test")
    await listener.start()
    port = listener.address[1]
    with pytest.raises(
        ConfigError, match=f"^http: cannot listen on 127.0.0.1:{port}: Address already in use$"
    ):
        await HttpServer(app(table()), host="127.0.0.1", port=port).start()
    await listener.close()


FOREIGN = [
    ({}, 200),
    ({"origin": "http://{host}"}, 200),
    ({"origin": "http://elsewhere.example"}, 403),
    ({"origin": "null"}, 403),
    ({"origin": "http://[x"}, 403),
    ({"sec-fetch-site": "same-origin", "origin": "http://proxy.example"}, 200),
    ({"sec-fetch-site": "none"}, 200),
    ({"sec-fetch-site": "cross-site"}, 403),
    ({"sec-fetch-site": "same-site"}, 403),
]


async def test_a_page_of_another_site_changes_nothing() -> None:
    """A browser sends text/plain to anybody without asking: the door must know who wants it."""
    server = HttpServer(app(table()), host="127.0.0.1", port=0)
    await server.start()
    host = "{}:{}".format(*server.address)
    async with httpx.AsyncClient(base_url=f"http://{host}") as http:
        for headers, status in FOREIGN:
            sent = {name: value.replace("{host}", host) for name, value in headers.items()}
            answer = await http.post("/v1/raw", content=b"a", headers={"content-type": "text/plain", **sent})
            assert answer.status_code == status, (headers, answer.text)
            assert (await http.get("/openapi.json", headers=sent)).status_code == 200
    await server.close()
    assert answer.json()["code"] == 16


def test_pages() -> None:
    names = ["d", "b", "a", "c"]
    assert page_of(names, "", 2) == (["a", "b"], "b")
    assert page_of(names, "b", 2) == (["c", "d"], None)
    assert page_of(names, "z", 2) == ([], None)
    assert some_of([]) == "(known: none)" and some_of(["b", "a"]) == "(known: a, b)"
    assert some_of(f"t{each:02}" for each in range(12)).endswith("t09, ...)")
