"""Serves an OperationTable over HTTP: POST /v1/{operation.name}, for administration and for people with curl.

Request: the header fields and, if the operation has one, "body". Response: the response's header fields,
"body", and "remark" where a success has one. Errors: http_answers.py. A raw body is base64 text in JSON. A
request of type text/plain or application/octet-stream is the raw body itself (header fields are then the
query), and a request that accepts such a type gets the raw body as the response. Fast-path operations are not
served here. Imports FastAPI: see http_late.py.
"""

import asyncio
import base64
import functools
import json
import socket
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import fastapi
import uvicorn
from fastapi import Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from msgspec.structs import replace
from pydantic import BaseModel, ValidationError, create_model
from starlette.exceptions import HTTPException

from keelmq.remoting.body import body_bytes
from keelmq.remoting.codes import VERSION, ResponseCode
from keelmq.remoting.command import BadRequest, RemotingCommand, decode_body, header_fields, parse_header
from keelmq.remoting.dispatch import SUCCESS, answer_of, as_reply, record
from keelmq.remoting.operation import (
    OUTCOME_UNKNOWN,
    Call,
    Changes,
    CommandError,
    Handler,
    Operation,
    OperationTable,
    Reply,
    Role,
    UnknownOutcome,
    Wire,
)
from keelmq.remoting.operation import Unknown as UnknownReply
from keelmq.remoting.queue_map import load_standard
from keelmq.remoting.servers.http_answers import BODY_REFUSED, JSON, bad_input, refusal
from keelmq.remoting.servers.http_call import call_of, needs, sessions_of
from keelmq.remoting.servers.http_guard import HttpGuard
from keelmq.remoting.servers.http_limits import CONNECTIONS_MAX, LimitedHttp, limit_warnings
from keelmq.remoting.servers.http_port import BACKLOG, listening_socket
from keelmq.remoting.servers.http_settings import HttpPolicy
from keelmq.runtime.config import ConfigError
from keelmq.runtime.tls.contexts import PortTls
from keelmq.runtime.tls.port import TlsPort
from keelmq.runtime.tls.transport import AnyProtocol

GRACEFUL_SHUTDOWN_S = 1
RAW_TYPES = ("text/plain", "application/octet-stream")


RoleOf = Callable[[int], Role]
"""Request code -> the role that it needs."""


def http_router(
    table: OperationTable, role_of: RoleOf | None = None, codes: Collection[int] | None = None
) -> fastapi.APIRouter:
    """Returns a router with one POST route per coroutine operation; http_app.py adds what OpenAPI says of
    their bodies. role_of None: no route declares a role, so a port with an access check refuses
    all of them. codes: only these operations; None: all."""
    router = fastapi.APIRouter(prefix="/v1", tags=["operations"])
    for operation, handler in table.handlers.values():
        if codes is not None and operation.code not in codes:
            continue
        router.add_api_route(
            f"/{operation.name}",
            _endpoint(_Bound(table, operation, handler)),
            methods=["POST"],
            name=operation.name,
            summary=f"{operation.name} (request code {operation.code})",
            response_model=None,
            responses=BODY_REFUSED,
            openapi_extra={} if role_of is None else needs(role_of(operation.code), code=operation.code),
        )
    return router


def _with_body(name: str, header: type[BaseModel], body: Any) -> type[BaseModel]:
    """Returns the header model with the body beside its fields, for validation and for OpenAPI."""
    model_name = name[0].upper() + name[1:]
    if body is None:
        return create_model(model_name, __base__=header)
    shown: Any = str if body is bytes else body
    optional: Any = (shown | None, None)
    return create_model(model_name, __base__=header, body=optional)


@functools.cache
def request_model(operation: Operation[Any, Any]) -> type[BaseModel]:
    """Returns the model of an operation's JSON request: made when it is used first, since a broker has some
    sixty operations, of which few are requested over HTTP."""
    return _with_body(operation.name + "Request", operation.request, operation.request_body)


@functools.cache
def answer_model(operation: Operation[Any, Any]) -> type[BaseModel]:
    """Returns the model of an operation's JSON answer."""
    body = dict[str, Any] if operation.body_is_json else operation.response_body
    return _with_body(operation.name + "Response", operation.response, body)


class _Bound(NamedTuple):
    """An operation of a table, and its handler as it was when the router was made."""

    table: OperationTable
    operation: Operation[Any, Any]
    handler: Handler


def _endpoint(bound: _Bound) -> Callable[..., Any]:
    """Returns the route's function. It reads the body itself: FastAPI would make validators and schemas of
    all operations at the start, 130 KiB and 10 ms of CPU each."""
    operation = bound.operation

    async def handled(request: fastapi.Request) -> object:
        type_ = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
        raw = await request.body()
        if operation.request_body is bytes and type_ in RAW_TYPES:
            query = dict(request.query_params)
            return await _called(request, bound, query, raw, partial(_check_names, operation.request, query))
        if type_ != JSON and raw:
            bare = (
                f", or for the bare body {' or '.join(RAW_TYPES)}" if operation.request_body is bytes else ""
            )
            raise BadRequest(f"content type {type_}: {JSON}{bare}")
        model, value = request_model(operation), _json(raw)
        found = model.model_validate(value)
        return await _handled(request, bound, found, partial(_check_names, model, value))

    async def endpoint(request: fastapi.Request) -> Response:
        accept = request.headers.get("accept", "") if operation.response_body is bytes else ""
        bare_type = next((each for each in RAW_TYPES if each in accept), None)
        return await _answered(operation, bare_type, lambda: handled(request))

    return endpoint


def _check_names(model: type[BaseModel], given: Collection[str]) -> None:
    """Raises BadRequest if there is a name that the model does not have. On the wire it is ignored, since
    another version may know it; here a person has misspelled it, and would not notice."""
    known = {name: field.alias or name for name, field in model.model_fields.items()}
    unknown = sorted(set(given) - known.keys() - set(known.values()))
    if unknown:
        raise BadRequest(f"no field {', '.join(unknown)}; there are: {', '.join(known.values()) or 'none'}")


def _json(raw: bytes) -> Any:
    """Returns the JSON value of a body; an empty one is an empty object. Raises RequestValidationError, and
    HTTPException, as FastAPI does."""
    try:
        return json.loads(raw) if raw else {}
    except json.JSONDecodeError as error:
        where = {"type": "json_invalid", "loc": ("body", error.pos), "msg": f"JSON decode error: {error.msg}"}
        raise RequestValidationError([where]) from None
    except (ValueError, RecursionError) as error:  # no text, nested too deeply, a number that is too long
        raise HTTPException(400, f"the body cannot be read as JSON: {error}") from None


async def _answered(
    operation: Operation[Any, Any], bare_type: str | None, handled: Callable[[], Awaitable[object]]
) -> Response:
    try:
        return _response(operation, await handled(), bare_type)
    except ValidationError as error:
        return bad_input([{**each, "loc": ("body", *each["loc"])} for each in error.errors()])
    except RequestValidationError as error:
        return bad_input(error.errors())
    except Exception as error:  # noqa: BLE001 - answered, and a bug is logged with its traceback
        return refusal(error, operation.name)


async def _handled(
    http: fastapi.Request, bound: _Bound, request: BaseModel, check_names: Callable[[], None]
) -> object:
    fields = bound.operation.request.model_validate(request.model_dump(exclude={"body"}, exclude_unset=True))
    ext_fields = header_fields(fields)
    try:
        raw = _raw_body(bound.operation, getattr(request, "body", None))
        for text in ext_fields.values():
            text.encode()
    except UnicodeEncodeError:  # "\ud800" is JSON
        raise BadRequest("the input is not valid text: it has a lone surrogate") from None
    return await _called(http, bound, ext_fields, raw, check_names)


async def _called(
    http: fastapi.Request,
    bound: _Bound,
    ext_fields: Mapping[str, str],
    raw: bytes,
    check_names: Callable[[], None] = lambda: None,
) -> object:
    """Checks access, and calls a handler with extFields and body bytes, as for a TCP request, so both servers
    accept the same input. Every outcome is audited as there (dispatch.py)."""
    table, operation, handler = bound
    call, changes = call_of(http.scope), Changes()
    caller, peer = call.caller, call.peer
    request = RemotingCommand(operation.code, 0, version=VERSION, ext_fields=dict(ext_fields), body=raw)

    def answer(code: int, remark: str | None) -> None:
        record(table, request, peer, caller, code, remark, changes)

    try:
        caller = call.admitted(table, request)
        check_names()
        header = parse_header(operation.request, ext_fields)
        body = decode_body(operation.request_body, raw)
        result = await handler(
            header, Call(peer, body, VERSION, ext_fields, raw, caller=caller, changes=changes)
        )
    except asyncio.CancelledError:
        answer(OUTCOME_UNKNOWN, "the server stopped meanwhile")
        raise
    except Exception as error:
        answer(*answer_of(error, ResponseCode.SYSTEM_ERROR))
        raise
    if isinstance(result, UnknownReply):
        answer(OUTCOME_UNKNOWN, result.remark)
    else:
        reply = as_reply(result) or SUCCESS
        answer(reply.code, reply.remark)
    return result


async def ask(
    request: fastapi.Request,
    table: OperationTable,
    operation: Operation[Any, Any],
    header: Wire,
    raw: bytes = b"",
) -> Reply:
    """Serves an operation for another route, with the same handler and the same checks. Raises the handler's
    errors."""
    bound = _Bound(table, operation, table.handlers[operation.code][1])
    return _reply_of(await _called(request, bound, header_fields(header), raw)) or Reply()


def _reply_of(result: object) -> Reply | None:
    if isinstance(result, UnknownReply):
        raise UnknownOutcome(ResponseCode.SYSTEM_ERROR, result.remark)
    assert result is None or isinstance(result, Reply | Wire)
    return as_reply(result)


def _raw_body(operation: Operation[Any, Any], body: Any) -> bytes:
    if operation.request_body is bytes and isinstance(body, str):
        try:
            return base64.b64decode(body, validate=True)
        except ValueError:
            raise BadRequest("body is not base64") from None
    return body_bytes(body)


def _response(operation: Operation[Any, Any], result: object, bare_type: str | None) -> Response:
    reply = _reply_of(result)
    if reply is None:
        return JSONResponse({}, 202)
    if reply.code != ResponseCode.SUCCESS:
        raise CommandError(reply.code, reply.remark or "")
    if bare_type is not None:
        return Response(body_bytes(reply.body), media_type=bare_type)
    content = (
        {} if reply.header is None else reply.header.model_dump(by_alias=True, exclude_none=True, mode="json")
    )
    if reply.remark:
        content["remark"] = reply.remark
    if operation.body_is_json:
        if raw := body_bytes(reply.body):
            content["body"] = _standard_json(raw)
    elif operation.response_body is bytes and isinstance(reply.body, (bytes, bytearray, memoryview)):
        content["body"] = base64.b64encode(reply.body).decode()
    elif reply.body is not None:
        content["body"] = decode_body(Any, body_bytes(reply.body))
    return JSONResponse(content)


def _standard_json(raw: bytes) -> Any:
    try:
        return load_standard(raw)
    except ValueError as error:  # a consumer has made it (307, 309)
        remark = f"the answer is not JSON: {error}; a request with `accept: text/plain` gets it as it is"
        raise CommandError(ResponseCode.SYSTEM_ERROR, remark) from None


# ---- server ----


class _Server(uvicorn.Server):
    """uvicorn without signal handlers (the program has its own); `up` is set once it serves."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self.up.set()


class HttpServer:
    """Runs an ASGI app in the running loop, from start() to close()."""

    def __init__(
        self,
        app: Any,
        *,
        host: str,
        port: int,
        sock: socket.socket | None = None,
        tls: PortTls | None = None,
        policy: HttpPolicy | None = None,
    ) -> None:
        """`sock`: already listening; without it start() binds host and port. `tls`: https on the same
        port; None is "disabled". `policy` None: no access check, only the names of this machine. The app's
        sessions, if it has a page with a log-in, are added to it."""
        policy = policy if policy is not None else HttpPolicy()
        self._policy = replace(policy, sessions=sessions_of(app))
        self._app, self._host, self._port, self._socket = HttpGuard(app, self._policy), host, port, sock
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None
        self._address = (host, port)
        self._tls = tls if tls is not None and tls.mode != "disabled" else None
        self._tls_ports: list[TlsPort] = []

    async def start(self) -> None:
        """Binds and serves. Raises ConfigError: uvicorn itself would end the process if the port is taken."""
        sock = self._socket or listening_socket(self._host, self._port)
        self._address = sock.getsockname()[:2]
        config = uvicorn.Config(
            self._app,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            # The sender's address is that of the connection: any client can write X-Forwarded-For.
            proxy_headers=False,
            server_header=False,
            backlog=BACKLOG,
            http=LimitedHttp if self._tls is None else self._gated,  # type: ignore[arg-type]
            limit_concurrency=CONNECTIONS_MAX + 1,
            timeout_graceful_shutdown=GRACEFUL_SHUTDOWN_S,
        )
        limit_warnings()
        self._policy.hosts.look_up()
        self._server = _Server(config)
        self._task = asyncio.get_running_loop().create_task(self._server.serve(sockets=[sock]))
        up = asyncio.get_running_loop().create_task(self._server.up.wait())
        await asyncio.wait((self._task, up), return_when=asyncio.FIRST_COMPLETED)
        up.cancel()
        if self._task.done():
            self._task.result()
            raise ConfigError(f"http: the server at {self._host}:{self._port} ended at once")

    @property
    def address(self) -> tuple[str, int]:
        """Returns (host, port) as bound. Only after start()."""
        return self._address

    def _gated(self, **options: Any) -> AnyProtocol:
        """uvicorn calls it for each connection, always with the same options."""
        assert self._tls is not None
        if not self._tls_ports:
            made = partial(LimitedHttp, **options)
            self._tls_ports.append(TlsPort(self._tls, made, name="httpPort", waiting_max=CONNECTIONS_MAX))
        return self._tls_ports[0].accepted()

    async def close(self) -> None:
        """Waits for running requests (GRACEFUL_SHUTDOWN_S at most) and stops. May be called twice."""
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            for port in self._tls_ports:
                port.close()
            await asyncio.wait((self._task,))
