"""The routes of docs/reference/http.md, from the OpenAPI text."""

import json
import tempfile
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import ModuleInfo, iter_modules
from typing import Any
from urllib.parse import quote, urlencode

from broker.admin.http_operations import HTTP_OPERATIONS
from keelmq.remoting import operations as operations_package
from keelmq.remoting.operation import Call, Operation, OperationTable
from keelmq.remoting.servers.http_app import add_operations, new_app
from keelmq.security.core.rules import role_of
from namesrv.app import Namesrv, PluginChoice
from namesrv.config import NamesrvConfig
from namesrv.plugins.controller.config import ControllerConfig
from namesrv.plugins.controller.plugin import ControllerPlugin

BASE = "http://127.0.0.1:19876"
JSON = "application/json"
LINE_MAX = 100
TITLES = {
    "groups": "Groups",
    "elections": "Elections",
    "controller": "Controllers",
    "routes": "Routes, clusters, brokers",
    "config": "Settings",
    "console": "The console",
    "health": "Health",
    "analytics": "Analytics",
}
OTHER_ANSWERS = {
    "/metrics": "# HELP rocketmq_ready 1 while /readyz answers 200, else 0\n"
    "# TYPE rocketmq_ready gauge\nrocketmq_ready 1.0\n...",
    "/console/": "<!doctype html>\n...",
    "/v1/console/events": 'event: status\ndata: {"takenMs": 1767225600000, ...}\n\nevent: change\n...',
    "/dashboard": "<!doctype html>\n...",
    "/v1/analytics/fleet": '{"v": 1, "generated_ts": 1767225600000, "groups": [], ...}',
    "/v1/analytics/groups/{cluster}/{group}": '{"v": 1, "group": {...}, "series": {...}}',
}
"""Of routes whose answer is no JSON value of a model."""


def openapi() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        controller = ControllerConfig.model_validate(
            {
                "controllerDLegerGroup": "keelmq",
                "controllerDLegerPeers": "n0-127.0.0.1:9878",
                "controllerDLegerSelfId": "n0",
                "controllerStorePath": directory,
                "telemetryEnable": False,
            }
        )
        config = NamesrvConfig(kv_config_path=Path(directory, "kvConfig.json"))
        app = Namesrv(config, [PluginChoice(ControllerPlugin, (controller,))]).http_app()
        return app.openapi()


def broker_openapi() -> dict[str, Any]:
    """Of the operations of brokers alone: their views are few, and docs/http.md says what they are."""
    table = OperationTable()
    for operation in all_operations():
        if operation.code in HTTP_OPERATIONS:
            table.bind(operation, unserved)
    app = new_app("KeelMQ broker")
    add_operations(app, table, role_of, HTTP_OPERATIONS)
    return app.openapi()


def all_operations() -> Iterator[Operation[Any, Any]]:
    """Of every program, in the order of their codes."""
    modules = (
        import_module(f"{operations_package.__name__}.{each.name}") for each in modules_of_operations()
    )
    found = {
        each.code: each for module in modules for each in vars(module).values() if isinstance(each, Operation)
    }
    yield from (found[code] for code in sorted(found))


def modules_of_operations() -> Iterable[ModuleInfo]:
    return iter_modules(operations_package.__path__)


async def unserved(header: Any, call: Call) -> None:
    raise AssertionError("these routes are described, and never asked")


def routes(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(method, path, operation)."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def curl(method: str, path: str, operation: dict[str, Any]) -> str:
    query = {}
    for parameter in operation.get("parameters", ()):
        examples = parameter["schema"].get("examples") or parameter.get("examples")
        if parameter["in"] == "path":
            path = path.replace("{" + parameter["name"] + "}", quote(str(examples[0])))
        elif examples:
            query[parameter["name"]] = str(examples[0]).lower() if examples[0] is True else examples[0]
    url = BASE + path + ("?" + urlencode(query) if query else "")
    parts = ["curl"] if method in ("GET", "POST") else ["curl", "-X", method]
    body = request_example(operation)
    if body is not None:
        parts += ["-H", "'content-type: application/json'", "-d", f"'{compact(body)}'"]
    elif method == "POST":
        parts += ["-X", "POST"]
    return " ".join([*parts, f"'{url}'" if "?" in url else url])


def request_example(operation: dict[str, Any]) -> Any:
    content = operation.get("requestBody", {}).get("content", {}).get(JSON, {})
    examples = content.get("examples") or content.get("schema", {}).get("examples")
    return content["example"] if "example" in content else examples[0] if examples else None


def answer_example(path: str, operation: dict[str, Any]) -> str:
    content = operation["responses"]["200"].get("content", {}).get(JSON, {})
    if "example" in content:
        return pretty(content["example"])
    return OTHER_ANSWERS[path]


def compact(value: Any) -> str:
    return json.dumps(value)


def pretty(value: Any, indent: str = "") -> str:
    """What fits into a line is one."""
    line = compact(value)
    if len(indent) + len(line) <= LINE_MAX or not isinstance(value, dict | list):
        return line
    inner = indent + "  "
    if isinstance(value, list):
        parts, ends = [pretty(each, inner) for each in value], "[]"
    else:
        parts, ends = [f"{compact(key)}: {pretty(each, inner)}" for key, each in value.items()], "{}"
    body = ",\n".join(f"{inner}{part}" for part in parts)
    return f"{ends[0]}\n{body}\n{indent}{ends[1]}"


def section(method: str, path: str, operation: dict[str, Any]) -> str:
    rows = [f"### {method} {path}", "", operation["summary"][0].upper() + operation["summary"][1:] + "."]
    role = operation["x-keelmq-role"]
    rows[-1] += " Needs no credentials." if role == "open" else f" Role: {role}."
    if "description" in operation:
        rows += ["", operation["description"]]
    queries = [each for each in operation.get("parameters", ()) if each["in"] == "query"]
    if queries:
        rows += ["", "| query | default | meaning |", "|---|---|---|"]
        for each in queries:
            default = each["schema"].get("default")
            text = "" if default in (None, "") else f"{compact(default)}"
            rows.append(f"| `{each['name']}` | {text} | {each.get('description', '')} |")
    rows += ["", "```", f"$ {curl(method, path, operation)}", answer_example(path, operation), "```"]
    return "\n".join(rows)


def operations(document: dict[str, Any], title: str) -> str:
    rows = [f"## {title}", "", "| path | role | request | answer |", "|---|---|---|---|"]
    for _, path, operation in routes(document):
        if operation["tags"] == ["operations"]:
            answer = operation["responses"]["200"]["content"][JSON]["example"]
            request = compact(request_example(operation))
            rows.append(f"| {path} | {operation['x-keelmq-role']} | `{request}` | `{compact(answer)}` |")
    return "\n".join(rows)


def tables() -> dict[str, str]:
    """Returns the sections of all routes, with the name of their marker."""
    document, parts = openapi(), []
    for tag, title in TITLES.items():
        parts.append(f"## {title}")
        parts += [section(*each) for each in routes(document) if each[2]["tags"] == [tag]]
    parts += [operations(document, "Operations"), operations(broker_openapi(), "Operations of brokers")]
    return {"routes": "\n\n".join(parts)}
