"""GET and PATCH /v1/config: the settings in force, their sources, and their change at run time.

PATCH uses the operations of the program (25 of a broker, 318 of a name server) and of its plugins (1009).
Imported only when HTTP is enabled: it needs FastAPI.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Request, Response
from pydantic import Field

from keelmq.remoting.command import BadRequest
from keelmq.remoting.config_store import Settings
from keelmq.remoting.operation import Role, Wire
from keelmq.remoting.servers.http import ask
from keelmq.remoting.servers.http_answers import (
    BODY_REFUSED,
    REFUSED,
    answer_of,
    as_json,
    refused_as_statuses,
)
from keelmq.remoting.servers.http_call import needs
from keelmq.runtime.config import Config, ConfigError, parse_settings

Value = str | bool | int | float | None
SETTINGS_MAX = 100
"""Maximum number of keys in one change; fewer keys exist."""


class SettingView(Wire):
    """One key with the value in force; secrets are masked."""

    program: str = Field(description="mqnamesrv, or the plugin that knows the key")
    key: str
    value: Value
    default: Value = Field(description="null: none, or the key is required")
    description: str
    source: str = Field(description="file and line, environment, flag, a change at run time, or `default`")
    at_run_time: bool = Field(description="true: PATCH can change it; false: it is read at the start")


class ConfigView(Wire):
    """Every setting, by program and key."""

    settings: list[SettingView]


class ChangedView(Wire):
    """What was changed, as key=value texts."""

    program: str
    changed: dict[str, str]
    remark: str | None = Field(default=None, description="a hint for the operator")


_EXAMPLE = SettingView(
    program="mqnamesrv",
    key="supportActingMaster",
    value=True,
    default=False,
    description="show the slave with the lowest id as master while there is no master",
    source="/etc/keelmq/namesrv.conf line 4",
    at_run_time=True,
)
_CHANGED = ChangedView(program="mqnamesrv", changed={"supportActingMaster": "true"})
_CHANGE = {"supportActingMaster": True}

Changed = Annotated[
    bool, Query(description="only settings that do not have their default value", examples=[True])
]


def config_router(parts: Sequence[Settings], *, note: str) -> APIRouter:
    """Returns the router of GET and PATCH /v1/config. parts: the program itself, then its plugins. note: how
    changes are stored, for the OpenAPI text."""
    router = APIRouter(prefix="/v1", tags=["config"])

    @router.get(
        "/config",
        summary="effective settings, and their sources",
        responses={**answer_of(ConfigView(settings=[_EXAMPLE])), **REFUSED},
        openapi_extra=needs(Role.READ),
    )
    @refused_as_statuses
    async def config(changed: Changed = False) -> Response:
        found = [each for part in parts for each in settings_of(part)]
        return as_json(
            ConfigView(settings=[each for each in found if not changed or each.value != each.default])
        )

    @router.patch(
        "/config",
        summary="changes settings at run time: all of them, or none",
        description=note,
        responses={**answer_of(_CHANGED), **BODY_REFUSED},
        openapi_extra=needs(Role.ADMINISTER, code=parts[0].update.code),
    )
    @refused_as_statuses
    async def change(
        request: Request, settings: Annotated[dict[str, Value], Body(examples=[_CHANGE])]
    ) -> Response:
        part = _part_of(parts, settings)
        texts = {key: _text(value) for key, value in settings.items()}
        reply = await ask(request, part.table, part.update, part.update.request(), _lines(texts))
        return as_json(ChangedView(program=part.program, changed=texts, remark=reply.remark))

    return router


def settings_of(part: Settings) -> Iterator[SettingView]:
    """Yields every setting of one program, sorted by key."""
    config = part.current()
    sources = part.sources()
    values = config.model_dump(by_alias=True, mode="json")
    for name, field in sorted(type(config).model_fields.items(), key=lambda each: each[1].alias or each[0]):
        key = field.alias or name
        default = None if field.is_required() else _plain(field.get_default(call_default_factory=True))
        value = _plain(values[key])
        yield SettingView(
            program=part.program,
            key=key,
            value=value,
            default=default,
            description=field.description or "",
            source=sources.get(key) or ("default" if value == default else "the program"),
            at_run_time=key in part.at_run_time,
        )


def _plain(value: Any) -> Value:
    return value if value is None or isinstance(value, str | bool | int | float) else str(value)


def _part_of(parts: Sequence[Settings], settings: Mapping[str, Value]) -> Settings:
    """Returns the program that has the keys. If none has them, the first one: its refusal names similar keys.

    Raises BadRequest: keys of two programs, or too many.
    """
    if not 0 < len(settings) <= SETTINGS_MAX:
        raise BadRequest(f'the body is an object of 1 to {SETTINGS_MAX} settings: {{"key": value}}')
    known = {part.program: settings.keys() & _keys(part.current()) for part in parts}
    named = [part for part in parts if known[part.program]]
    if len(named) > 1:
        shares = "; ".join(f"{part.program}: {', '.join(sorted(known[part.program]))}" for part in named)
        raise BadRequest(f"keys of two programs cannot be changed together: {shares}")
    return (named or list(parts))[0]


def _keys(config: Config) -> set[str]:
    return {field.alias or name for name, field in type(config).model_fields.items()}


def _text(value: Value) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _lines(texts: Mapping[str, str]) -> bytes:
    """Encodes key=value lines. Raises BadRequest: a key or value would be read as other settings."""
    lines = "".join(f"{key}={text}\n" for key, text in texts.items())
    try:
        read, raw = parse_settings(lines, "the request"), lines.encode()
    except (ConfigError, UnicodeEncodeError) as error:
        raise BadRequest(f"no settings: {error}") from None
    if read != texts:
        raise BadRequest("keys and values are single lines without blanks at their ends; a key has no '='")
    return raw
