"""HTTP responses of all routes: errors as statuses, models as JSON.

    Unauthenticated 401  no credentials, or wrong ones: {code, remark}, and WWW-Authenticate
    Forbidden       403  not for this sender, or not at this port
    TooManyFailures 429  too many wrong credentials from this address
    CommandError    409  understood and refused: {code, remark}, with the code that the TCP server would send
    BadRequest      422  the input does not fit
    NotFound        404  a read of something that does not exist here: {remark}
    UnknownOutcome  504  it may or may not have happened: {remark}; safe to repeat
    anything else   500  a bug, and logged as one

Imports FastAPI: see http_late.py.
"""

import functools
import heapq
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Annotated, Any, ParamSpec

from fastapi import Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.command import BadRequest
from keelmq.remoting.http_access import Forbidden, TooManyFailures, Unauthenticated
from keelmq.remoting.operation import CommandError, Role, UnknownOutcome, Wire
from keelmq.remoting.servers.http_call import needs

logger = logging.getLogger(__name__)

P = ParamSpec("P")
Answers = dict[int | str, dict[str, Any]]

PAGE_MAX = 500
NAMES_SHOWN = 10
"""The largest number of known names in a remark about an unknown one."""
JSON = "application/json"


class NotFound(Exception):
    """A read of something that does not exist. The remark lists what exists."""


class Refusal(BaseModel):
    """401, 403, 409, 429: understood and refused, with the code that the TCP server would send."""

    code: int
    remark: str


class NothingHere(BaseModel):
    """404: the remark lists what exists instead."""

    remark: str


class BadBody(BaseModel):
    """400: the body is not text or not JSON; 413: it is too large."""

    detail: str


class BadInput(BaseModel):
    """422: a text, or the location and the text of each problem."""

    detail: str | list[dict[str, Any]]


class NoOutcome(BaseModel):
    """504: the outcome is unknown. The request is safe to repeat."""

    remark: str


NOT_ALLOWED: Answers = {
    401: {"model": Refusal, "description": "No credentials, or wrong ones"},
    403: {"model": Refusal, "description": "Not for this user or token; the remark says what to do"},
    429: {"model": Refusal, "description": "Too many wrong credentials from this address"},
}
"""Of every route."""
REFUSED: Answers = {
    409: {"model": Refusal, "description": "Understood and refused"},
    422: {"model": BadInput, "description": "The input does not fit"},
    504: {"model": NoOutcome, "description": "It may or may not have happened: repeat it"},
}
BODY_REFUSED: Answers = {
    400: {"model": BadBody, "description": "The body is not text or not JSON"},
    413: {"model": BadBody, "description": "The body is too large"},
    **REFUSED,
}
NOT_HERE: Answers = {404: {"model": NothingHere, "description": "Not found; the remark lists what exists"}}

After = Annotated[str, Query(description="names after this one: `nextAfter` of the previous page")]
Limit = Annotated[int, Query(ge=1, le=PAGE_MAX, description="the largest number of entries", examples=[100])]


def answer_of(example: BaseModel) -> Answers:
    """Returns the 200 entry of a route, with an example that is a value of the model, and so fits it."""
    shown = example.model_dump(by_alias=True, mode="json")
    return {200: {"model": type(example), "content": {JSON: {"example": shown}}}}


def shown(example: BaseModel, *answers: Answers) -> dict[str, Any]:
    """Returns the options of a route that shows something: its example, other answers, and the role read."""
    responses = {**answer_of(example), **REFUSED}
    for each in answers:
        responses |= each
    return {"responses": responses, "openapi_extra": needs(Role.READ)}


def refused_as_statuses(endpoint: Callable[P, Awaitable[Response]]) -> Callable[P, Awaitable[Response]]:
    """Wraps a GET route: the errors of handlers, and NotFound, become responses."""

    @functools.wraps(endpoint)
    async def answered(*args: P.args, **kwargs: P.kwargs) -> Response:
        try:
            return await endpoint(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - answered, and a bug is logged with its traceback
            return refusal(error, endpoint.__name__)

    return answered


def refusal(error: Exception, name: str) -> JSONResponse:
    """Returns the response for an error; called inside the except block. `name`: of the route, for the
    log."""
    match error:
        case NotFound():
            return JSONResponse({"remark": str(error)}, 404)
        case BadRequest():
            return JSONResponse({"detail": error.remark}, 422)
        case UnknownOutcome():
            return JSONResponse({"remark": error.remark}, 504)
        case Unauthenticated() | Forbidden() | TooManyFailures():
            return _not_allowed(error)
        case CommandError():
            return JSONResponse({"code": error.code, "remark": error.remark}, 409)
        case TimeoutError():
            return JSONResponse({"remark": str(error) or "no outcome in time"}, 504)
    logger.error("http: %s failed", name, exc_info=error)
    remark = f"internal error: {type(error).__name__}: {error}"
    return JSONResponse({"code": int(ResponseCode.SYSTEM_ERROR), "remark": remark}, 500)


def _not_allowed(error: Unauthenticated | Forbidden | TooManyFailures) -> JSONResponse:
    content = {"code": error.code, "remark": error.remark}
    if isinstance(error, TooManyFailures):
        return JSONResponse(content, 429, headers={"Retry-After": str(error.wait_ms // 1_000 + 1)})
    response = JSONResponse(content, 401 if isinstance(error, Unauthenticated) else 403)
    if isinstance(error, Unauthenticated):
        for challenge in error.challenges:
            response.headers.append("WWW-Authenticate", challenge)
    return response


async def access_refused(request: Request, error: Exception) -> Response:
    """Handles the refusals of http_access.py that a dependency raises."""
    return refusal(error, repr(request.scope["path"]))


async def input_refused(_request: Request, error: Exception) -> Response:
    """Handles an app's RequestValidationError: returns locations and texts, without the input. FastAPI's own
    handler repeats the input, and fails if that is not text (a lone surrogate) or not JSON (NaN)."""
    assert isinstance(error, RequestValidationError)
    return JSONResponse({"detail": problems_of(error.errors())}, 422)


def problems_of(errors: Iterable[Any]) -> list[dict[str, Any]]:
    """Returns type, location and message of each validation error, as JSON values."""
    return [
        {"type": each["type"], "loc": [_printable(part) for part in each["loc"]], "msg": each["msg"]}
        for each in errors
    ]


def as_json(view: Wire) -> Response:
    """Returns a response with a model that is encoded once: FastAPI would validate and encode it a second
    time."""
    return Response(view.model_dump_json(by_alias=True), media_type=JSON)


def page_of(names: Iterable[str], after: str, limit: int) -> tuple[list[str], str | None]:
    """Returns the first `limit` names after `after`, sorted, and the `after` of the next page, None if this
    is the last."""
    found = heapq.nsmallest(limit + 1, (name for name in names if name > after))
    return found[:limit], found[limit - 1] if len(found) > limit else None


def some_of(names: Iterable[str]) -> str:
    """Returns "(known: a, b)" for a remark, with at most NAMES_SHOWN names."""
    found = heapq.nsmallest(NAMES_SHOWN + 1, names)
    more = ", ..." if len(found) > NAMES_SHOWN else ""
    return f"(known: {', '.join(found[:NAMES_SHOWN]) or 'none'}{more})"


def _printable(part: object) -> int | str:
    return part if isinstance(part, int) else str(part).encode(errors="replace").decode()
