"""The FastAPI application of a program, with what all of them share: the check of every route, refusals as
statuses, and an OpenAPI document that says what each route needs. Imports FastAPI: see http_late.py."""

import asyncio
import threading
from collections.abc import Collection, Iterable
from typing import Any, Final

from fastapi import Depends, FastAPI, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic.json_schema import JsonSchemaMode, models_json_schema
from starlette.exceptions import HTTPException

from keelmq.remoting.operation import CommandError, Operation, OperationTable, Role
from keelmq.remoting.operations.examples import EXAMPLES
from keelmq.remoting.servers.http import RAW_TYPES, RoleOf, answer_model, http_router, request_model
from keelmq.remoting.servers.http_answers import (
    JSON,
    NOT_ALLOWED,
    PROBLEM_JSON,
    SCHEMAS,
    Problem,
    access_refused,
    input_refused,
    not_routed,
    unforeseen,
)
from keelmq.remoting.servers.http_call import OPEN, ROLE, SCHEMES, check_route, needs, operations_of

OPENAPI: Final = "/openapi.json"
OF_OPERATIONS: Final = "operations."
"""Prefix of the schemas of operations: a view may have a model of the same name."""
MODES: Final[tuple[JsonSchemaMode, ...]] = ("validation", "serialization")
RAW: Final[dict[str, Any]] = {each: {"schema": {"type": "string"}} for each in RAW_TYPES}


def add_operations(
    app: FastAPI, table: OperationTable, role_of: RoleOf, codes: Collection[int] | None = None
) -> None:
    """Adds the operations of a table, and where the guard finds their audit. codes: only these; None: all."""
    app.include_router(http_router(table, role_of, codes))
    operations = operations_of(app)
    for code, (operation, _) in table.handlers.items():
        if codes is None or code in codes:
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
    made, making = app.openapi, threading.Lock()

    def completed() -> dict[str, Any]:
        with making:  # another thread must not get the document before it is complete
            if app.openapi_schema is None:
                _add_security(document := made())
                operations = operations_of(app).items()
                _add_schemas(
                    document, [(path, table.handlers[code][0]) for path, (table, code) in operations]
                )
            return made()

    app.openapi = completed  # type: ignore[method-assign]

    @app.get(OPENAPI, include_in_schema=False, openapi_extra=needs(Role.READ))
    async def openapi() -> Response:
        # In a thread: it takes some hundred ms when it is asked first.
        return JSONResponse(await asyncio.to_thread(app.openapi))

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


def _add_schemas(document: dict[str, Any], operations: Iterable[tuple[str, Operation[Any, Any]]]) -> None:
    """Adds the schema of errors, and of the operations, by path, those of their bodies."""
    schemas = document["components"].setdefault("schemas", {})
    problem = Problem.model_json_schema(ref_template=f"{SCHEMAS}{{model}}")
    schemas |= {**problem.pop("$defs"), "Problem": problem}
    described = {
        path: (operation, request_model(operation), answer_model(operation)) for path, operation in operations
    }
    models = [
        (model, mode) for _, *pair in described.values() for model, mode in zip(pair, MODES, strict=True)
    ]
    refs, made = models_json_schema(models, ref_template=f"{SCHEMAS}{OF_OPERATIONS}{{model}}")
    schemas |= {OF_OPERATIONS + name: schema for name, schema in made.get("$defs", {}).items()}
    for path, (operation, request, answer) in described.items():
        route = document["paths"][path]["post"]
        shown = EXAMPLES.get(operation.name)
        needed = any(field.is_required() for field in request.model_fields.values())
        content: dict[str, Any] = {JSON: {"schema": refs[request, "validation"]}}
        if operation.request_body is bytes:
            content |= RAW
        route["requestBody"] = {"content": content, **({"required": True} if needed else {})}
        done = route["responses"]["200"]["content"] = {JSON: {"schema": refs[answer, "serialization"]}}
        if operation.response_body is bytes:
            done |= RAW
        if shown is not None:
            content[JSON]["example"], done[JSON]["example"] = shown
