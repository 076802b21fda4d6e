"""The FastAPI application of a program, with what all of them share: the check of every route, refusals as
statuses, and an OpenAPI document that says what each route needs. Imports FastAPI: see http_late.py."""

from typing import Any, Final

from fastapi import Depends, FastAPI, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from keelmq.remoting.operation import CommandError, OperationTable, Role
from keelmq.remoting.servers.http import RoleOf, http_router
from keelmq.remoting.servers.http_answers import (
    JSON,
    NOT_ALLOWED,
    PROBLEM_JSON,
    access_refused,
    input_refused,
    not_routed,
    unforeseen,
)
from keelmq.remoting.servers.http_call import OPEN, ROLE, SCHEMES, check_route, needs, operations_of

OPENAPI: Final = "/openapi.json"


def add_operations(app: FastAPI, table: OperationTable, role_of: RoleOf) -> None:
    """Adds the operations of a table, and where the guard finds their audit."""
    app.include_router(http_router(table, role_of))
    operations = operations_of(app)
    for code, (operation, _) in table.handlers.items():
        operations[f"/v1/{operation.name}"] = table, code
    app.state.operations = operations


def new_app(title: str) -> FastAPI:
    """Returns an application without routes, but with GET /openapi.json."""
    app = FastAPI(
        title=title,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        dependencies=[Depends(check_route)],
        responses=NOT_ALLOWED,
        exception_handlers={
            RequestValidationError: input_refused,
            CommandError: access_refused,
            HTTPException: not_routed,
            Exception: unforeseen,
        },
    )
    made = app.openapi

    def with_security() -> dict[str, Any]:
        if app.openapi_schema is None:
            _add_security(made())
        return made()

    app.openapi = with_security  # type: ignore[method-assign]

    @app.get(OPENAPI, include_in_schema=False, openapi_extra=needs(Role.READ))
    async def openapi() -> Response:
        return JSONResponse(app.openapi())

    return app


def _add_security(document: dict[str, Any]) -> None:
    """Adds the ways to authenticate, which routes need none of them, and the media type of errors."""
    document.setdefault("components", {})["securitySchemes"] = SCHEMES
    document["security"] = [{name: []} for name in SCHEMES]
    for methods in document["paths"].values():
        for operation in methods.values():
            if operation.get(ROLE) == OPEN:
                operation["security"] = []
            for status, answer in operation["responses"].items():
                if status[0] in "45" and JSON in answer.get("content", ()):
                    answer["content"] = {PROBLEM_JSON: answer["content"][JSON]}
