"""docs/http.md and the OpenAPI text: every route, its examples, and that the examples fit."""

import base64
import re
from typing import Any

import fastapi
import pytest
from fastapi.exceptions import RequestValidationError
from pydantic import TypeAdapter

from keelmq.remoting.operation import Call, OperationTable, Reply
from keelmq.remoting.operations import examples
from keelmq.remoting.servers.http import http_router
from keelmq.remoting.servers.http_answers import input_refused
from namesrv.app import Namesrv
from namesrv.config import NamesrvConfig
from tests.support.http_parts import app_client
from tests.unit.docs.test_documentation import ROOT
from tools import http_tables as tables

OPERATIONS = {each.name: each for each in tables.all_operations()}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    found: dict[str, Any] = tables.openapi()
    return found


@pytest.fixture(scope="module")
def of_brokers() -> dict[str, Any]:
    found: dict[str, Any] = tables.broker_openapi()
    return found


@pytest.mark.slow
def test_every_route_is_in_the_document(document: dict[str, Any]) -> None:
    text = tables.tables()["routes"] + "\n"
    for method, path, operation in tables.routes(document):
        assert len(operation["tags"]) == 1, path
        if operation["tags"] == ["operations"]:
            assert f"| {path} | " in text
        else:
            assert f"\n### {method} {path}\n" in text
            assert operation["summary"]
    headings = set(re.findall(r"^### (\w+ \S+)$", text, re.MULTILINE))
    views = {
        f"{method} {path}"
        for method, path, operation in tables.routes(document)
        if operation["tags"] != ["operations"]
    }
    assert headings == views


def test_every_query_and_every_view_is_described(document: dict[str, Any]) -> None:
    for _, path, operation in tables.routes(document):
        for parameter in operation.get("parameters", ()):
            assert parameter.get("description"), (path, parameter["name"])


def test_the_examples_fit_their_schemas(document: dict[str, Any], of_brokers: dict[str, Any]) -> None:
    """Of requests and of answers, as OpenAPI shows them."""
    assert count_of_examples(document) > 100
    assert count_of_examples(of_brokers) > 115


def count_of_examples(document: dict[str, Any]) -> int:
    import jsonschema  # a second of CPU time, which every worker would spend on collecting this file

    count = 0
    for _, path, operation in tables.routes(document):
        for where in (operation.get("requestBody", {}), operation["responses"]["200"]):
            content = where.get("content", {}).get("application/json", {})
            if "example" in content and content.get("schema"):
                schema = {**content["schema"], "components": document["components"]}
                jsonschema.validate(content["example"], schema)
                count += 1
        assert operation["tags"] != ["operations"] or "example" in content, path
    return count


def test_every_operation_that_is_served_has_an_example(
    document: dict[str, Any], of_brokers: dict[str, Any]
) -> None:
    served = {
        path.removeprefix("/v1/")
        for _, path, operation in (*tables.routes(document), *tables.routes(of_brokers))
        if operation["tags"] == ["operations"]
    }
    assert served == set(examples.EXAMPLES)


@pytest.mark.parametrize("name", sorted(examples.EXAMPLES))
async def test_the_server_takes_and_gives_the_examples(name: str) -> None:
    """The request reaches a handler, and an answer made of the models comes back as the example shows it."""
    operation, (request, answer) = OPERATIONS[name], examples.EXAMPLES[name]
    seen: list[Any] = []

    async def handler(header: Any, call: Call) -> Reply:
        seen.append(header.model_dump(by_alias=True, mode="json"))
        header_fields = {key: value for key, value in answer.items() if key != "body"}
        body = answer.get("body")
        if operation.response_body is bytes and body is not None and not operation.body_is_json:
            body = base64.b64decode(body)
        return Reply(operation.response.model_validate(header_fields), body)

    table = OperationTable()
    table.bind(operation, handler)
    app = fastapi.FastAPI(exception_handlers={RequestValidationError: input_refused})
    app.include_router(http_router(table))
    async with app_client(app) as http:
        found = await http.post(f"/v1/{name}", json=request)
    assert (found.status_code, found.json()) == (200, answer), found.text
    assert {key: value for key, value in request.items() if key != "body"}.items() <= seen[0].items()
    if operation.response_body not in (None, bytes) and "body" in answer:
        TypeAdapter(operation.response_body).validate_python(answer["body"])


def test_statuses_of_the_document_are_those_of_the_routes(document: dict[str, Any]) -> None:
    page = (ROOT / "docs" / "http.md").read_text(encoding="utf-8")
    told = set(re.findall(r"^\| (\d{3}) \|", page, re.MULTILINE))
    used = {status for _, _, operation in tables.routes(document) for status in operation["responses"]}
    assert used <= told, used - told


@pytest.mark.slow
async def test_every_get_of_a_fresh_program_is_no_error(document: dict[str, Any]) -> None:
    """A name server without brokers: nothing is there, and nothing breaks. /metrics needs its port, and
    events never end. Routes that need a query are left out."""
    app = Namesrv(NamesrvConfig(listen_port=0, http_port=-1)).http_app()
    async with app_client(app) as http:
        for method, path, operation in tables.routes(app.openapi()):
            needs_query = any(
                each["in"] == "query" and each["required"] for each in operation.get("parameters", ())
            )
            if method == "GET" and not needs_query and path not in ("/metrics", "/v1/console/events"):
                answer = await http.get(path.replace("{topic}", "T").replace("{brokerName}", "b"))
                assert answer.status_code in (200, 404, 503), (path, answer.text)
