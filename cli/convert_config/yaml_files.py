"""YAML of RocketMQ's deployments: plain_acl.yml, compose files, manifests of Kubernetes, values of charts.

Environment variables become files that a container engine reads (`env_file`, `--from-env-file`); a
configuration file inside of a ConfigMap, or of values, becomes a file. Pure.
"""

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any, Final, NamedTuple

import yaml

from cli.convert_config.lines import MODELS, RENAMED, Row, Verdict, convert, convert_line, settings_of
from cli.doctor.files import Kind, kind_of
from keelmq.runtime.config import Config

_PROGRAM: Final = re.compile(r"\bmq(namesrv|broker|controller|proxy)")
ACL_KEYS: Final = {"accounts", "globalWhiteRemoteAddresses"}
ALL_MODELS: Final[Sequence[type[Config]]] = tuple(
    dict.fromkeys(model for of_kind in MODELS.values() for model in of_kind)
)
_FILE: Final = re.compile(r"[\w.-]+\.(conf|properties)")
_TEMPLATE: Final = re.compile(r"\$\{?\w|\{\{|\n")


class NewFile(NamedTuple):
    """kind: the program that reads it; None: environment variables."""

    name: str
    text: str
    kind: Kind | None


class Deployment(NamedTuple):
    """What a YAML file has of RocketMQ. is_known: its form is one of those that are read, even if it has no
    settings."""

    rows: list[Row]
    files: list[NewFile]
    is_known: bool


def convert_yaml(documents: Sequence[object]) -> Deployment:
    """Returns the rows and the new files of all documents of a YAML file."""
    found = Deployment([], [], any(_is_known(each) for each in documents))
    for document in documents:
        if isinstance(document, dict) and ACL_KEYS & document.keys():
            found.rows.extend(convert_acl(document))
        for name, mapping in _mappings(document, "", set()):
            _add_files(mapping, found)
            _add_environment(name, mapping, found)
    return found._replace(is_known=found.is_known or bool(found.rows))


def _is_known(document: object) -> bool:
    return isinstance(document, dict) and bool({"services", *ACL_KEYS} & document.keys())


def _mappings(node: object, name: str, seen: set[int]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields each mapping once, with the name of its service or container. seen: an alias may repeat a node
    without end."""
    if not isinstance(node, dict | list) or id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, list):
        for each in node:
            yield from _mappings(each, name, seen)
        return
    name = str(node["name"]) if isinstance(node.get("name"), str) else name
    yield name, {str(key): value for key, value in node.items()}
    for key, value in node.items():
        yield from _mappings(value, str(key) if isinstance(value, dict) else name, seen)


def _add_files(mapping: Mapping[str, Any], found: Deployment) -> None:
    for name, text in mapping.items():
        if not isinstance(text, str):
            continue
        if name.endswith("acl.yml"):
            content = yaml.safe_load(text)
            found.rows.extend(convert_acl(content if isinstance(content, dict) else {}))
        elif _FILE.fullmatch(name) and "=" in text:
            settings = settings_of(text)
            kind = kind_of({RENAMED.get(key, key): value for key, value in settings.items()})
            if kind is None:
                found.rows.append(
                    Row(0, name, Verdict.UNKNOWN, "its keys do not show which program it is for")
                )
                continue
            new, rows = convert(text, kind)
            found.rows.extend(rows)
            found.files.append(NewFile(_free_name(name, found), new, kind))


def _free_name(name: str, found: Deployment) -> str:
    """Returns the name with a number if another file has it, as of a master's and a slave's ConfigMap."""
    taken, number, path = {each.name for each in found.files}, 1, PurePath(name)
    while name in taken:
        number += 1
        name = f"{path.stem}-{number}{path.suffix}"
    return name


def convert_acl(content: Mapping[str, object]) -> list[Row]:
    """Returns the rows of a plain_acl.yml, which programs here read as it is."""
    accounts = content.get("accounts")
    listed = accounts if isinstance(accounts, list) else []
    names = [str(each.get("accessKey", "")) for each in listed if isinstance(each, dict)]
    note = "aclEnable=true reads this file; migrateAuthFromV1Enabled=true makes users and ACLs 2.0 of it"
    rows = [Row(0, f"account {name}", Verdict.KEPT, note) for name in names]
    if content.get("globalWhiteRemoteAddresses"):
        note = "ACL 1.0 admits these addresses without an account; users and ACLs 2.0 have nothing like it"
        rows.insert(0, Row(0, "globalWhiteRemoteAddresses", Verdict.KEPT, note))
    return rows


def _add_environment(service: str, mapping: Mapping[str, Any], found: Deployment) -> None:
    """Adds what a service, or a container, that runs RocketMQ has: a proxy, and the environment variables."""
    given = mapping.get("environment") or mapping.get("env") or {}
    variables = dict(_variables(given))
    image, command = str(mapping.get("image", "")).lower(), str(mapping.get("command", ""))
    is_rocketmq = "rocketmq" in image or "NAMESRV_ADDR" in variables or _PROGRAM.search(command)
    if image and not is_rocketmq:
        return  # a database, a cache: whatever else the file starts
    if "mqproxy" in command or "--enable-proxy" in command:
        note = "mqproxy, and brokers with enableProxy=true, serve gRPC at grpcServerPort"
        found.rows.append(Row(0, f"{service} proxy", Verdict.KEPT, note))
    if "dashboard" in image or "console" in image:
        note = "a setting of RocketMQ's dashboard, which works with name servers and brokers here"
        found.rows.extend(Row(0, f"{service} {name}", Verdict.KEPT, note) for name in variables)
        return
    lines = list[str]()
    for name, value in variables.items():
        row, new = _variable(f"{service} {name}", name, value)
        found.rows.append(row)
        lines += new
    if lines:
        text = "".join(f"{line}\n" for line in lines)
        name = re.sub(r"[^\w.-]", "_", service) or "service"
        found.files.append(NewFile(_free_name(f"{name}.env", found), text, None))


def _variables(given: object) -> Iterator[tuple[str, str | None]]:
    """Yields (name, value) of a mapping, of a list of NAME=VALUE, or of Kubernetes' list of name and value.
    None: the value is not in the file."""
    if isinstance(given, dict):
        yield from ((str(name), _text(value)) for name, value in given.items())
    for each in given if isinstance(given, list) else []:
        if isinstance(each, dict) and "name" in each:
            yield str(each["name"]), _text(each.get("value"))
        elif not isinstance(each, dict):
            name, has_value, value = str(each).partition("=")
            yield name, value if has_value else None


def _text(value: object) -> str | None:
    """Returns a value as a program gets it."""
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None or isinstance(value, dict | list) else str(value)


def _variable(shown: str, name: str, value: str | None) -> tuple[Row, Sequence[str]]:
    """Returns the row of a variable, and its lines in the new file."""
    line = f"{name}={' '.join((value or '').split())}"
    key = _keys_by_variable().get(name.replace("_", "").replace(".", "").lower())
    verdict, note = Verdict.UNKNOWN, "no program reads it"
    if name == "NAMESRV_ADDR":
        verdict, note = Verdict.KEPT, "mqbroker and mqadmin read it, too"
    elif name == "TZ":
        verdict, note = Verdict.KEPT, ""
    elif name.startswith(("JAVA_", "JDK_", "JVM_", "MAX_HEAP", "MAX_POSSIBLE_HEAP", "HEAP_")):
        verdict, note = Verdict.NO_EFFECT, "there is no Java"
    elif key is not None and value is None:
        note = f"its value is not in this file; it is KEELMQ_{key} here"
    elif key is not None and _TEMPLATE.search(value or ""):
        note = f"its value is a template; it is KEELMQ_{key} here"
    elif key is not None:
        row, lines = convert_line(0, f"{key}={value}", ALL_MODELS, {})
        new = [each if each.startswith("#") else f"KEELMQ_{each}" for each in lines]
        if row.verdict in (Verdict.KEPT, Verdict.CHANGED):
            note = "; ".join(filter(None, (f"is KEELMQ_{key} here", row.note)))
            return Row(0, shown, Verdict.CHANGED, note), [f"# changed, {note}: {line}", *new]
        return Row(0, shown, row.verdict, row.note), new
    if verdict is Verdict.KEPT and value is not None and "\n" not in value:
        return Row(0, shown, verdict, note), [line]
    return Row(0, shown, verdict, note), [f"# {verdict}{f', {note}' if note else ''}: {line}"]


@functools.cache
def _keys_by_variable() -> Mapping[str, str]:
    """Returns the keys of all programs by the name that a variable for them would have, without
    underscores."""
    keys = [field.alias or name for model in ALL_MODELS for name, field in model.model_fields.items()]
    return {"clustername": "brokerClusterName", **{key.lower(): key for key in keys}}
