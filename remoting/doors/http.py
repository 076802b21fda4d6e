"""An OperationTable served over HTTP: POST /v1/{operation.name}, for administration and for people with curl.

Request: the header fields and, if the operation has one, "body". Answer: the response's header fields and
"body". Raw bodies are base64 text. Refused: 409 {code, remark}; bad input: 422; may or may not have
happened: 504. Data-path (hot) operations are not served here. Imports FastAPI, and only late: http_late.py.
"""

import asyncio
import base64
import logging
import socket
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import fastapi
import uvicorn
from fastapi.responses import JSONResponse
from pydantic import BaseModel, create_model

from remoting.codes import VERSION, ResponseCode
from remoting.command import BadRequest, body_bytes, decode_body, header_fields, parse_header
from remoting.config import ConfigError
from remoting.dispatch import as_reply
from remoting.doors.http_late import BACKLOG, listening_socket
from remoting.frame import FRAME_BYTES_MAX
from remoting.operation import Call, CommandError, Handler, Operation, OperationTable, Reply, Unknown

logger = logging.getLogger(__name__)

GRACEFUL_SHUTDOWN_S = 1
CONCURRENCY_MAX = 256


class HttpPeer:
    """What handlers see as the other end of an HTTP request: nothing can be pushed to it."""

    connection_id = 0
    address = "http"

    def is_closing(self) -> bool:
        return False

    def send(self, frame: bytes) -> bool:
        return False


class Refusal(BaseModel):
    """409: understood and refused, with the code that the TCP door would answer."""

    code: int
    remark: str


class BadBody(BaseModel):
    """400: the body is no text or no JSON; 413: it is too large."""

    detail: str


class BadInput(BaseModel):
    """422: one text, or the place and the text of each problem."""

    detail: str | list[dict[str, Any]]


class NoOutcome(BaseModel):
    """504: nobody knows whether it happened. It is safe to repeat."""

    remark: str


_ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": BadBody, "description": "The body is no text or no JSON"},
    409: {"model": Refusal, "description": "Understood and refused"},
    413: {"model": BadBody, "description": "The body is too large"},
    422: {"model": BadInput, "description": "The input does not fit"},
    504: {"model": NoOutcome, "description": "It may or may not have happened"},
}


def http_router(table: OperationTable) -> fastapi.APIRouter:
    """One POST route per coroutine operation; the OpenAPI text comes from the operations' models."""
    router = fastapi.APIRouter(prefix="/v1")
    for operation, handler in table.handlers.values():
        router.add_api_route(
            f"/{operation.name}",
            _endpoint(operation, handler),
            methods=["POST"],
            name=operation.name,
            summary=f"{operation.name} (request code {operation.code})",
            response_model=None,
            responses={
                200: {
                    "model": _with_body(
                        operation.name + "Response", operation.response, operation.response_body
                    )
                },
                **_ERRORS,
            },
        )
    return router


def _with_body(name: str, header: type[BaseModel], body: Any) -> type[BaseModel]:
    """The header model with the body beside its fields, for validation and for OpenAPI."""
    model_name = name[0].upper() + name[1:]
    if body is None:
        return create_model(model_name, __base__=header)
    shown: Any = str if body is bytes else body
    optional: Any = (shown | None, None)
    return create_model(model_name, __base__=header, body=optional)


def _endpoint(operation: Operation[Any, Any], handler: Handler) -> Callable[..., Any]:
    model = _with_body(operation.name + "Request", operation.request, operation.request_body)

    async def endpoint(request: BaseModel) -> JSONResponse:
        try:
            reply = await _handled(operation, handler, request)
        except BadRequest as error:
            return JSONResponse({"detail": error.remark}, 422)
        except CommandError as error:
            return JSONResponse({"code": error.code, "remark": error.remark}, 409)
        except TimeoutError as error:
            return JSONResponse({"remark": str(error) or "no outcome in time"}, 504)
        except Exception as error:
            logger.exception("http: handler of code %d failed", operation.code)
            remark = f"internal error: {type(error).__name__}: {error}"
            return JSONResponse({"code": int(ResponseCode.SYSTEM_ERROR), "remark": remark}, 500)
        return _response(operation, reply)

    endpoint.__annotations__["request"] = model
    return endpoint


async def _handled(operation: Operation[Any, Any], handler: Handler, request: BaseModel) -> object:
    """Takes the same way as a TCP request: extFields and body bytes, so that both doors accept the same."""
    fields = operation.request.model_validate(request.model_dump(exclude={"body"}, exclude_unset=True))
    ext_fields = header_fields(fields)
    raw = _raw_body(operation, getattr(request, "body", None))
    header = parse_header(operation.request, ext_fields)
    body = decode_body(operation.request_body, raw)
    return await handler(header, Call(HttpPeer(), body, VERSION, ext_fields, raw))


def _raw_body(operation: Operation[Any, Any], body: Any) -> bytes:
    if operation.request_body is bytes and isinstance(body, str):
        try:
            return base64.b64decode(body, validate=True)
        except ValueError:
            raise BadRequest("body is not base64") from None
    return body_bytes(body)


def _response(operation: Operation[Any, Any], result: object) -> JSONResponse:
    if isinstance(result, Unknown):
        return JSONResponse({"remark": result.remark}, 504)
    assert result is None or isinstance(result, (Reply, BaseModel))
    reply = as_reply(result)  # type: ignore[arg-type]
    if reply is None:
        return JSONResponse({}, 202)
    if reply.code != ResponseCode.SUCCESS:
        return JSONResponse({"code": int(reply.code), "remark": reply.remark or ""}, 409)
    content = (
        {} if reply.header is None else reply.header.model_dump(by_alias=True, exclude_none=True, mode="json")
    )
    if operation.response_body is bytes and isinstance(reply.body, (bytes, bytearray, memoryview)):
        content["body"] = base64.b64encode(reply.body).decode()
    elif reply.body is not None:
        content["body"] = decode_body(Any, body_bytes(reply.body))
    return JSONResponse(content)


# ---- server ----

_Receive = Callable[[], Any]
_Send = Callable[[MutableMapping[str, Any]], Any]


def _body_limit(app: Any) -> Any:
    """An ASGI app in front of `app` that refuses bodies above the frame limit of the TCP door."""

    async def limited(scope: MutableMapping[str, Any], receive: _Receive, send: _Send) -> None:
        left = FRAME_BYTES_MAX

        async def counted() -> Any:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            return message if left >= 0 else {"type": "http.disconnect"}

        declared = dict(scope.get("headers", ())).get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > FRAME_BYTES_MAX:
            await JSONResponse({"detail": f"body above {FRAME_BYTES_MAX} bytes"}, 413)(scope, receive, send)
            return
        await app(scope, counted, send)

    return limited


class _Server(uvicorn.Server):
    """uvicorn without signal handlers (the program has its own), that says when it is up."""

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

    def __init__(self, app: Any, *, host: str, port: int, sock: socket.socket | None = None) -> None:
        """`sock`: already listening; else host and port are bound by start()."""
        self._app, self._host, self._port, self._socket = app, host, port, sock
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None
        self._address = (host, port)

    async def start(self) -> None:
        """Binds and serves. Raises ConfigError: uvicorn itself would end the process on a taken port."""
        sock = self._socket or listening_socket(self._host, self._port)
        self._address = sock.getsockname()[:2]
        config = uvicorn.Config(
            _body_limit(self._app),
            log_config=None,
            access_log=False,
            lifespan="off",
            backlog=BACKLOG,
            limit_concurrency=CONCURRENCY_MAX,
            timeout_graceful_shutdown=GRACEFUL_SHUTDOWN_S,
        )
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
        """(host, port) as bound. Only after start()."""
        return self._address

    async def close(self) -> None:
        """Ends running requests (GRACEFUL_SHUTDOWN_S at most) and stops. May be called twice."""
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            await asyncio.wait((self._task,))
