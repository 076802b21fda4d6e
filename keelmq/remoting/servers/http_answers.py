"""HTTP responses of all routes: errors as statuses, models as JSON.

    Unauthenticated 401  no credentials, or wrong ones; WWW-Authenticate has the accepted kinds
    Forbidden       403  not for this sender, or not at this port
    TooManyFailures 429  too many wrong credentials from this address
    CommandError    409  understood and refused, with the code that the TCP server would send
    BadRequest      422  the input does not fit
    NotFound        404  a read of something that does not exist here
    NotYet          503  the answer is not known yet; repeat it soon
    UnknownOutcome  504  it may or may not have happened; safe to repeat
    anything else   500  a bug, and logged as one

Every error has one form, that of RFC 9457: see Problem. Imports FastAPI: see http_late.py.
"""

import functools
import heapq
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Annotated, Any, ParamSpec

from fastapi import Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.command import BadRequest
from keelmq.remoting.operation import CommandError, Role, UnknownOutcome, Wire
from keelmq.remoting.servers.http_access import Forbidden, TooManyFailures, Unauthenticated
from keelmq.remoting.servers.http_call import needs

logger = logging.getLogger(__name__)

P = ParamSpec("P")
Answers = dict[int | str, dict[str, Any]]

PAGE_MAX = 500
NAMES_SHOWN = 10
"""The largest number of known names in a remark about an unknown one."""
JSON = "application/json"
PROBLEM_JSON = "application/problem+json"


class NotFound(Exception):
    """A read of something that does not exist. The remark lists what exists."""


class NotYet(Exception):
    """The answer is not known yet; it will be soon."""


class InputProblem(BaseModel):
    """One part of the input that does not fit. loc: where it is; type: pydantic's name of the problem."""

    type: str
    loc: list[int | str]
    msg: str


class Problem(BaseModel):
    """Every answer with an error (RFC 9457). title: of the status; detail: what is wrong and what to do.
    code: of 401, 403, 409, 429 and 500, the code that the TCP server would send. problems: of 422, where the
    input does not fit."""

    title: str
    status: int
    detail: str
    code: int | None = None
    problems: list[InputProblem] | None = None


def problem(
    status: int,
    detail: str,
    *,
    code: int | None = None,
    problems: list[dict[str, Any]] | None = None,
    headers: Mapping[str, str] | None = None,
    more: Mapping[str, Any] | None = None,
) -> JSONResponse:
    """Returns the answer to a request that failed. See Problem. `more`: additional members."""
    content = {"title": HTTPStatus(status).phrase, "status": status, "detail": detail, **(more or {})}
    optional = {"code": code, "problems": problems}
    content |= {name: value for name, value in optional.items() if value is not None}
    return JSONResponse(content, status, headers=headers, media_type=PROBLEM_JSON)


def bad_input(errors: Iterable[Any]) -> JSONResponse:
    """Returns the answer to input that pydantic refused."""
    problems = problems_of(errors)
    places = (".".join(map(str, each["loc"])) for each in problems)
    detail = "; ".join(f"{at}: {each['msg']}" for at, each in zip(places, problems, strict=True))
    return problem(422, detail or "the input does not fit", problems=problems)


SCHEMAS = "#/components/schemas/"
IS_PROBLEM: dict[str, Any] = {"content": {PROBLEM_JSON: {"schema": {"$ref": f"{SCHEMAS}Problem"}}}}
"""The content of an error in OpenAPI. No model of it: FastAPI would make a validator for each status of each
route, which is most of what a route costs. http_app.py adds the schema."""

NOT_ALLOWED: Answers = {
    401: {**IS_PROBLEM, "description": "No credentials, or wrong ones"},
    403: {**IS_PROBLEM, "description": "Not for this user or token; the detail says what to do"},
    429: {**IS_PROBLEM, "description": "Too many wrong credentials from this address"},
}
"""Error answers of every route."""
REFUSED: Answers = {
    409: {**IS_PROBLEM, "description": "Understood and refused"},
    422: {**IS_PROBLEM, "description": "The input does not fit"},
    504: {**IS_PROBLEM, "description": "It may or may not have happened: repeat it"},
}
BODY_REFUSED: Answers = {
    400: {**IS_PROBLEM, "description": "The body is not text or not JSON"},
    413: {**IS_PROBLEM, "description": "The body is too large"},
    **REFUSED,
}
NOT_HERE: Answers = {404: {**IS_PROBLEM, "description": "Not found; the detail lists what exists"}}

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
            return problem(404, str(error))
        case NotYet():
            return problem(503, str(error), headers={"Retry-After": "2"})
        case BadRequest():
            return problem(422, error.remark)
        case UnknownOutcome():
            return problem(504, error.remark)
        case Unauthenticated() | Forbidden() | TooManyFailures():
            return _not_allowed(error)
        case CommandError():
            return problem(409, error.remark, code=error.code)
        case HTTPException():
            return problem(error.status_code, error.detail, headers=error.headers)
        case ClientDisconnect():
            return problem(400, "the connection was closed before the end of the body")
        case TimeoutError():
            return problem(504, str(error) or "no outcome in time")
    logger.error("http: %s failed", name, exc_info=error)
    return _bug(error)


def _bug(error: Exception) -> JSONResponse:
    detail = f"internal error: {type(error).__name__}: {error}"
    return problem(500, detail, code=int(ResponseCode.SYSTEM_ERROR))


def _not_allowed(error: Unauthenticated | Forbidden | TooManyFailures) -> JSONResponse:
    if isinstance(error, TooManyFailures):
        wait = {"Retry-After": str(error.wait_ms // 1_000 + 1)}
        return problem(429, error.remark, code=error.code, headers=wait)
    status = 401 if isinstance(error, Unauthenticated) else 403
    response = problem(status, error.remark, code=error.code)
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
    return bad_input(error.errors())


async def not_routed(request: Request, error: Exception) -> Response:
    """Handles what the router and FastAPI itself refuse: no such path, another method, a body that is no
    JSON."""
    assert isinstance(error, HTTPException)
    detail = str(error.detail)
    if detail == HTTPStatus.NOT_FOUND.phrase:
        detail = "no such path; /openapi.json lists those that there are"
    elif detail == HTTPStatus.METHOD_NOT_ALLOWED.phrase:
        detail = f"not with {request.method}: {(error.headers or {}).get('Allow', 'see /openapi.json')}"
    return problem(error.status_code, detail, headers=error.headers)


async def unforeseen(_request: Request, error: Exception) -> Response:
    """Handles what a route does not; Starlette raises it again afterwards, and uvicorn logs the traceback."""
    return _bug(error)


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
