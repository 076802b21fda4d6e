"""The console's API under /v1/console: the status, its events and history, the session. details_api.py has
the rest of what it shows, actions_api.py what it does.

Imported only where HTTP is served: it needs FastAPI.
"""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import Field

from keelmq.console.access import COOKIE, ConsoleAccess
from keelmq.console.console import Console
from keelmq.console.core.history import SERIES
from keelmq.console.events import LOCAL, TooManyPages, stream
from keelmq.health.status import ClusterStatus
from keelmq.remoting.operation import Role, Wire
from keelmq.remoting.servers.http_answers import (
    BODY_REFUSED,
    NOT_HERE,
    NotFound,
    Problem,
    answer_of,
    as_json,
    problem,
    refused_as_statuses,
    shown,
)
from keelmq.remoting.servers.http_call import call_of, needs
from keelmq.runtime.clock import wall_ms


class StatusView(Wire):
    """ageMs: how old the status is; nowMs: the server's clock, for the ages of other times in it."""

    age_ms: int
    now_ms: int
    poll_ms: int
    status: ClusterStatus


class HistoryView(Wire):
    """values[name][i] was seen at timesMs[i], the start of a step of stepMs; null: unknown then."""

    cluster: str
    broker_name: str
    step_ms: int
    times_ms: list[int]
    values: dict[str, list[float | None]]


class LogIn(Wire):
    """A user of the cluster, with the password that its clients sign with."""

    user: str = Field(min_length=1, max_length=256)
    password: str = Field(min_length=1, max_length=1_024)


class SessionView(Wire):
    """user: who is logged in, null: nobody. loginRequired: without a session everything else is refused.
    signsActions: the user's password is known here. readOnly: no action is carried out. endsMs: when the
    session ends if it is not used, wall clock."""

    user: str | None = None
    login_required: bool
    read_only: bool
    signs_actions: bool
    ends_ms: int | None = None


_SESSION = SessionView(
    user="alice", login_required=True, read_only=False, signs_actions=True, ends_ms=1_767_227_400_000
)
_HISTORY = HistoryView(
    cluster="DefaultCluster",
    broker_name="broker-a",
    step_ms=10_000,
    times_ms=[1_767_225_600_000, 1_767_225_610_000],
    values={"maxOffset": [1024, 2048], "lagBytes": [0, 512], "masterId": [1, None]},
)

EVENT_SCHEMA = {
    "type": "object",
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
    "required": ["event", "data"],
}
GroupName = Annotated[
    str, Query(description="cluster/brokerName", examples=["DefaultCluster/broker-a"], pattern="^[^/]+/.+$")
]
From = Annotated[int, Query(alias="from", ge=0, description="wall-clock ms; 0: an hour ago")]
To = Annotated[int, Query(ge=0, description="wall-clock ms; 0: now")]
Step = Annotated[int, Query(ge=0, description="ms between two values; 0: as fine as there is")]


def is_read_only(console: Console, request: Request) -> bool:
    """Returns whether no action is carried out here."""
    policy = call_of(request.scope).policy
    return console.sources.read_only or (policy is not None and policy.read_only)


def console_router(console: Console, access: ConsoleAccess) -> APIRouter:
    """Returns the router of status, events, history and session."""
    router = APIRouter(prefix="/v1/console", tags=["console"])
    _add_status(router, console, access)
    _add_history(router, console)
    _add_session(router, console, access)
    return router


def _add_status(router: APIRouter, console: Console, access: ConsoleAccess) -> None:
    from keelmq.console.examples import STATUS

    example = StatusView(age_ms=800, now_ms=STATUS.taken_ms + 800, poll_ms=2_000, status=STATUS)

    @router.get("/status", summary="the state of the cluster on one screen, and its age", **shown(example))
    @refused_as_statuses
    async def status() -> Response:
        newest = await console.current()
        return as_json(
            StatusView(
                age_ms=console.age_ms, now_ms=wall_ms(), poll_ms=console.sources.poll_ms, status=newest
            )
        )

    @router.get(
        "/events",
        summary="server-sent events: `status` (whole), `change` (what is different), `ping`, `end`",
        description="The first event is `status`. A page that reads too slowly gets `status` again. `ping` "
        "comes when there was nothing else for 10 s. After `end`, ask /v1/console/session.",
        response_class=Response,
        responses={
            200: {"content": {"text/event-stream": {"schema": EVENT_SCHEMA}}},
            503: {"model": Problem, "description": "Too many pages are open"},
        },
        openapi_extra=needs(Role.READ),
    )
    async def events(request: Request) -> Response:
        console.look()
        try:
            page = console.pages.open(request.client.host if request.client is not None else LOCAL)
        except TooManyPages as error:
            return problem(503, str(error), headers={"Retry-After": "10"})
        visitor = access.visitor(request)
        chunks = stream(console.pages, page, console.whole, lambda: access.is_still_in(visitor, request))
        return StreamingResponse(chunks, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


def _add_history(router: APIRouter, console: Console) -> None:
    @router.get(
        "/history",
        summary="a group's last ten hours, as far as this console has seen them",
        description=f"Series: {', '.join(SERIES)}. In memory, since the console was first used.",
        **shown(_HISTORY, NOT_HERE),
    )
    @refused_as_statuses
    async def history(
        group: GroupName,
        from_ms: From = 0,
        to: To = 0,
        step: Step = 0,
    ) -> Response:
        console.look()
        cluster, _, name = group.partition("/")
        end_ms = to or wall_ms()
        read = console.history.read((cluster, name), from_ms or end_ms - 3_600_000, end_ms, step)
        if read is None:
            raise NotFound(f"group {group} has no history here: see /v1/console/status for the groups")
        return as_json(
            HistoryView(
                cluster=cluster,
                broker_name=name,
                step_ms=read.step_ms,
                times_ms=read.times_ms,
                values=read.values,
            )
        )


def _add_session(router: APIRouter, console: Console, access: ConsoleAccess) -> None:
    def view(request: Request) -> SessionView:
        visitor = access.visitor(request)
        return SessionView(
            user=visitor.user or None,
            login_required=access.is_required,
            read_only=is_read_only(console, request),
            signs_actions=visitor.credentials is not None,
            ends_ms=None if visitor.session is None else wall_ms() + access.left_ms(visitor.session),
        )

    @router.get(
        "/session",
        summary="the logged-in user, and whether a log-in is required",
        responses=answer_of(_SESSION),
        openapi_extra=needs(None),
    )
    @refused_as_statuses
    async def session(request: Request) -> Response:
        return as_json(view(request))

    @router.post(
        "/login",
        summary="logs in with a user of the cluster: sets a cookie that scripts cannot read",
        responses={**answer_of(_SESSION), **BODY_REFUSED},
        openapi_extra=needs(None),
    )
    @refused_as_statuses
    async def login(request: Request, who: LogIn) -> Response:
        answer = Response()
        begun = await access.login(request, answer, who.user, who.password)
        shown_session = SessionView(
            user=begun.user,
            login_required=access.is_required,
            read_only=is_read_only(console, request),
            signs_actions=True,
            ends_ms=wall_ms() + access.left_ms(begun),
        )
        answer.body = shown_session.model_dump_json(by_alias=True).encode()
        answer.headers["content-type"] = "application/json"
        answer.headers["content-length"] = str(len(answer.body))
        return answer

    @router.post(
        "/logout",
        summary="ends the session",
        responses=answer_of(
            SessionView(user=None, login_required=True, read_only=False, signs_actions=False)
        ),
        openapi_extra=needs(None),
    )
    @refused_as_statuses
    async def logout(request: Request) -> Response:
        access.logout(request)
        answer = as_json(view(request))
        answer.delete_cookie(COOKIE, path="/")
        return answer
