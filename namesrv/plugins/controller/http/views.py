"""What a controller adds to the HTTP door beside its operations: groups, elections, the controller itself,
and its state, out and in. Imported late: FastAPI.
"""

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response

from namesrv.plugins.controller.controller_view import controller_router
from namesrv.plugins.controller.election_views import elections_router
from namesrv.plugins.controller.group_view import groups_router
from remoting.command import body_bytes
from remoting.doors.http import ask
from remoting.doors.http_answers import BODY_REFUSED, JSON, REFUSED, as_json, refused_as_statuses
from remoting.operation import Empty
from remoting.operations.controller import EXPORT_STATE, IMPORT_STATE, ImportStateResponse
from remoting.operations.examples import EXAMPLES

if TYPE_CHECKING:
    from namesrv.plugins.controller.plugin import ControllerPlugin

STATE = EXAMPLES["exportState"][1]["body"]
STATE_CONTENT: dict[str, Any] = {JSON: {"schema": {"type": "object"}, "example": STATE}}


def controller_routers(plugin: "ControllerPlugin") -> APIRouter:
    router = APIRouter()
    for each in (groups_router, elections_router, controller_router, state_router):
        router.include_router(each(plugin))
    return router


def state_router(plugin: "ControllerPlugin") -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["controller"])

    @router.get(
        "/controller/state",
        summary="the replicated state, as it can be imported elsewhere (29013)",
        description="Every controller answers, also without a leader: one may have what a majority lost.",
        response_class=Response,
        responses={200: {"content": STATE_CONTENT, "description": "the state"}, **REFUSED},
    )
    @refused_as_statuses
    async def exported() -> Response:
        reply = await ask(plugin.table, EXPORT_STATE, Empty())
        return Response(body_bytes(reply.body), media_type=JSON)

    @router.post(
        "/controller/state",
        summary="imports an exported state into an empty cluster (29014)",
        description="At the controller that leads. Checked before anything is done; may be repeated.",
        response_model=ImportStateResponse,
        responses={
            200: {"content": {JSON: {"example": {"groups": 3}}}, "description": "how many groups it has"},
            **BODY_REFUSED,
        },
        openapi_extra={"requestBody": {"content": STATE_CONTENT, "required": True}},
    )
    @refused_as_statuses
    async def imported(request: Request) -> Response:
        reply = await ask(plugin.table, IMPORT_STATE, Empty(), await request.body())
        assert isinstance(reply.header, ImportStateResponse)
        return as_json(reply.header)

    return router
