"""The HTTP routers of a controller in addition to its operations: groups, elections, itself, its state.

Imported only when HTTP is enabled: it needs FastAPI.
"""

from typing import Any

from fastapi import APIRouter, Request, Response

from keelmq.remoting.body import body_bytes
from keelmq.remoting.operation import Empty, OperationTable, Role
from keelmq.remoting.operations.controller import EXPORT_STATE, IMPORT_STATE, ImportStateResponse
from keelmq.remoting.operations.examples import EXAMPLES
from keelmq.remoting.servers.http import ask
from keelmq.remoting.servers.http_answers import BODY_REFUSED, JSON, REFUSED, as_json, refused_as_statuses
from keelmq.remoting.servers.http_call import needs
from namesrv.plugins.controller.http.controller_view import controller_router
from namesrv.plugins.controller.http.election_views import elections_router
from namesrv.plugins.controller.http.group_view import groups_router
from namesrv.plugins.controller.http.sources import GroupSources

STATE = EXAMPLES["exportState"][1]["body"]
STATE_CONTENT: dict[str, Any] = {JSON: {"schema": {"type": "object"}, "example": STATE}}


def controller_routers(sources: GroupSources, table: OperationTable) -> APIRouter:
    """Returns all of them. `table`: the controller's operations, which elect, export and import."""
    router = APIRouter()
    router.include_router(groups_router(sources))
    router.include_router(elections_router(sources.controller, table))
    router.include_router(controller_router(sources.controller))
    router.include_router(state_router(table))
    return router


def state_router(table: OperationTable) -> APIRouter:
    """Returns the router of /v1/controller/state: export (29013) and import (29014)."""
    router = APIRouter(prefix="/v1", tags=["controller"])

    @router.get(
        "/controller/state",
        summary="the replicated state, for an import into another cluster (29013)",
        description="Every controller responds, even without a leader: it may know what a majority lost.",
        response_class=Response,
        responses={200: {"content": STATE_CONTENT, "description": "the state"}, **REFUSED},
        openapi_extra=needs(Role.ADMINISTER, code=EXPORT_STATE.code),
    )
    @refused_as_statuses
    async def exported(request: Request) -> Response:
        reply = await ask(request, table, EXPORT_STATE, Empty())
        return Response(body_bytes(reply.body), media_type=JSON)

    @router.post(
        "/controller/state",
        summary="imports an exported state into an empty cluster (29014)",
        description="Only at the leader. Everything is checked before the first change; safe to repeat.",
        response_model=ImportStateResponse,
        responses={
            200: {"content": {JSON: {"example": {"groups": 3}}}, "description": "number of imported groups"},
            **BODY_REFUSED,
        },
        openapi_extra={
            "requestBody": {"content": STATE_CONTENT, "required": True},
            **needs(Role.ADMINISTER, code=IMPORT_STATE.code),
        },
    )
    @refused_as_statuses
    async def imported(request: Request) -> Response:
        reply = await ask(request, table, IMPORT_STATE, Empty(), await request.body())
        assert isinstance(reply.header, ImportStateResponse)
        return as_json(reply.header)

    return router
