"""POST /v1/console/actions/NAME: one route for each action, with its role. Without confirm it answers the
preview; with confirm the action is carried out, and each server's answer is in the result.

Imported only where HTTP is served: it needs FastAPI.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import ConfigDict, Field, create_model

from keelmq.console.access import ConsoleAccess
from keelmq.console.actions.action import Acting, Action, Parameters, Preview, ServerOutcome
from keelmq.console.api import is_read_only
from keelmq.console.console import Console
from keelmq.console.data.servers import leader_first
from keelmq.remoting.codes import VERSION, ResponseCode
from keelmq.remoting.command import RemotingCommand
from keelmq.remoting.operation import OUTCOME_UNKNOWN, Audit, Role, Wire
from keelmq.remoting.servers.http_access import Forbidden
from keelmq.remoting.servers.http_answers import (
    BODY_REFUSED,
    JSON,
    NOT_HERE,
    answer_of,
    as_json,
    problem,
    refused_as_statuses,
    shown,
)
from keelmq.remoting.servers.http_call import call_of, needs

log = logging.getLogger(__name__)

UNSIGNED = (
    "nobody is logged in with a password here: the requests are not signed, and servers with security on "
    "refuse them"
)


class ActionView(Wire):
    """An action, as a page shows it: parameters is a JSON schema."""

    name: str
    title: str
    description: str
    role: str
    parameters: dict[str, Any]


class ActionsView(Wire):
    """All actions. readOnly: none of them is carried out here."""

    read_only: bool
    actions: list[ActionView]


class ActionResult(Wire):
    """confirmed false: `preview` is what would happen. true: `results` is what each server answered, and done
    whether all of them did it."""

    action: str
    confirmed: bool
    done: bool = False
    preview: Preview | None = None
    results: list[ServerOutcome] = Field(default_factory=list)
    remark: str = ""


class ActionProblem(ActionResult):
    """The result of an action that no server is known to have done, as a problem (see Problem)."""

    title: str
    status: int
    detail: str


_PREVIEW = Preview(
    what="Broker 2 at 10.0.0.2:10911 becomes the master of broker-a instead of broker 1.",
    servers=["10.0.0.1:9878"],
    warnings=[],
    command="mqadmin electMaster -a 10.0.0.1:9878 -c DefaultCluster -bn broker-a -b 2",
)


class _Body(Wire):
    model_config = ConfigDict(extra="forbid")


def actions_router(
    console: Console,
    access: ConsoleAccess,
    actions: Iterable[Action[Any]],
    *,
    audit: Callable[[], Audit | None] = lambda: None,
) -> APIRouter:
    """Returns the router of all actions. `audit`: of this program; the servers that are asked have theirs."""
    router = APIRouter(prefix="/v1/console/actions", tags=["console"])
    table = {each.name: each for each in actions}
    views = [_view(each) for each in table.values()]

    @router.get(
        "",
        summary="what can be done from the console, with the parameters of each",
        **shown(ActionsView(read_only=False, actions=views[:1])),
    )
    @refused_as_statuses
    async def all_actions(request: Request) -> Response:
        return as_json(ActionsView(read_only=is_read_only(console, request), actions=views))

    for action in table.values():
        _add(router, console, access, action, audit)
    return router


def _add(
    router: APIRouter,
    console: Console,
    access: ConsoleAccess,
    action: Action[Any],
    audit: Callable[[], Audit | None],
) -> None:
    model = create_model(
        action.name[0].upper() + action.name[1:] + "Action",
        __base__=_Body,
        parameters=(action.parameters, ...),
        confirm=(bool, Field(default=False, description="false: only the preview")),
    )
    example = {"parameters": dict(action.example), "confirm": False}

    async def carry_out(request: Request, body: Any) -> Response:
        return await _answer(request, console, access, action, body, audit())

    carry_out.__annotations__["body"] = model
    router.add_api_route(
        f"/{action.name}",
        refused_as_statuses(carry_out),
        methods=["POST"],
        name=action.name,
        summary=action.title,
        description=f"{action.description} 207: some servers did it; 409: none did.",
        response_model=None,
        responses={
            **answer_of(ActionResult(action=action.name, confirmed=False, preview=_PREVIEW)),
            **BODY_REFUSED,
            **NOT_HERE,
            207: {"model": ActionResult, "description": "Some servers did it, others did not"},
            409: {"model": ActionProblem, "description": "Refused: no server did it"},
            504: {"model": ActionProblem, "description": "Nobody knows whether it was done"},
        },
        openapi_extra={
            **needs(action.role),
            "requestBody": {"content": {JSON: {"example": example}}},
        },
    )


async def _answer(
    request: Request,
    console: Console,
    access: ConsoleAccess,
    action: Action[Any],
    body: Any,
    audit: Audit | None,
) -> Response:
    visitor = access.visitor(request)
    status = await console.current()
    async with access.admin_of(request) as admin:
        acting = Acting(
            admin,
            tuple(each.address for each in status.name_servers) or console.sources.name_servers(),
            _controllers(console),
            status,
            visitor.user,
        )
        if not body.confirm:
            preview = await action.preview(acting, body.parameters)
            if visitor.credentials is None and access.is_required:
                preview = preview.model_copy(update={"warnings": [UNSIGNED, *preview.warnings]})
            return as_json(ActionResult(action=action.name, confirmed=False, preview=preview))
        if is_read_only(console, request):
            raise Forbidden("this console carries out nothing (consoleReadOnly, httpReadOnly or --read-only)")
        results = await action.run(acting, body.parameters)
    console.changed()
    _record(request, action, body.parameters, results, visitor.user, audit)
    return _result(action, results)


def _controllers(console: Console) -> tuple[str, ...]:
    """Returns those that are given, else those of the newest status: the leader first."""
    given = console.sources.controllers()
    status = console.status
    if given or status is None:
        return given
    return tuple(each.address for each in leader_first(status) if each.role != "silent")


def _result(action: Action[Any], results: list[ServerOutcome]) -> Response:
    kinds = {each.outcome for each in results}
    done = kinds == {"ok"}
    code = 200 if done else 207 if "ok" in kinds else 504 if "unknown" in kinds else 409
    remark = "; ".join(f"{each.server}: {each.remark or each.outcome}" for each in results if each.remark)
    result = ActionResult(action=action.name, confirmed=True, done=done, results=results, remark=remark)
    if code >= 400:
        detail = remark or ", ".join(f"{each.server}: {each.outcome}" for each in results)
        return problem(code, detail, more=result.model_dump(by_alias=True, mode="json"))
    answer = as_json(result)
    answer.status_code = code
    return answer


def _record(
    request: Request,
    action: Action[Any],
    parameters: Parameters,
    results: list[ServerOutcome],
    user: str,
    audit: Audit | None,
) -> None:
    """Records each server in this program's audit log, and all of them in one line of its log."""
    call = call_of(request.scope)
    log.info(
        "%s by %s at %s: %s",
        action.name,
        user or "nobody who is logged in",
        call.peer.address,
        ", ".join(f"{each.server} {each.outcome}" for each in results),
    )
    if audit is None:
        return
    values = parameters.model_dump(by_alias=True, exclude_none=True, mode="json")
    fields = {**_fields(values), **action.fields}
    for each in results:
        command = RemotingCommand(action.code, 0, version=VERSION, ext_fields=fields)
        code = {"ok": ResponseCode.SUCCESS, "unknown": OUTCOME_UNKNOWN}.get(each.outcome)
        answer = (each.code or ResponseCode.SYSTEM_ERROR) if code is None else code
        remark = f"console, at {each.server}: {each.remark or each.outcome}"
        audit.record(command, call.peer, call.caller, code=int(answer), remark=remark, changes={})


def _fields(parameters: Mapping[str, Any]) -> dict[str, str]:
    return {key: str(value) for key, value in parameters.items() if isinstance(value, str | int | bool)}


def _view(action: Action[Any]) -> ActionView:
    return ActionView(
        name=action.name,
        title=action.title,
        description=action.description,
        role=Role(action.role).name.lower(),
        parameters=action.parameters.model_json_schema(by_alias=True),
    )
