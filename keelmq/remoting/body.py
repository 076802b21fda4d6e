"""The body of a frame: bytes are sent unchanged, everything else as JSON."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, Protocol

import msgspec
from pydantic import TypeAdapter, ValidationError
from pydantic_core import SchemaValidator, core_schema

from keelmq.remoting.operation import Wire

ALL_ERRORS_BYTES_MAX: Final = 65_536
_SEQUENCES: Final = ("list", "tuple", "set", "frozenset")


class Validator(Protocol):
    """Of one type. Both raise ValidationError."""

    def validate_json(self, raw: bytes, /) -> Any:
        """Returns the value of this JSON text."""

    def validate_python(self, value: Any, /) -> Any:
        """Returns the value for parsed JSON."""


@lru_cache(maxsize=256)
def validator_of(type_: Any, *, first_error_only: bool) -> Validator:
    """Returns the validator of a body. first_error_only: of a list or a map only the first wrong item is
    told. All of them, in a body as large as a frame, would take gigabytes and a minute."""
    adapter: TypeAdapter[Any] = TypeAdapter(type_)
    return _FirstErrorValidator(adapter.core_schema) if first_error_only else adapter


class _Ended(Exception):
    """Pydantic lets it through, and so it ends the whole validation."""

    def __init__(self, error: ValidationError) -> None:
        self.error = error


class _FirstErrorValidator:
    def __init__(self, schema: Any) -> None:
        changed = _with_first_error(schema)
        try:
            self._validator = SchemaValidator(changed, _use_prebuilt=False)
        except TypeError:  # before pydantic 2.11, which has no validators of models that are made already
            self._validator = SchemaValidator(changed)

    def validate_json(self, raw: bytes, /) -> Any:
        try:
            return self._validator.validate_json(raw)
        except _Ended as ended:
            raise ended.error from None

    def validate_python(self, value: Any, /) -> Any:
        try:
            return self._validator.validate_python(value)
        except _Ended as ended:
            raise ended.error from None


def _with_first_error(node: Any) -> Any:
    """Returns the core schema in which lists end at their first wrong item, and maps end everything."""
    if isinstance(node, list):
        return [_with_first_error(each) for each in node]
    if not isinstance(node, dict):
        return node
    kept = ("metadata", "serialization")
    made = {name: each if name in kept else _with_first_error(each) for name, each in node.items()}
    kind = node.get("type")
    if isinstance(kind, str) and kind in _SEQUENCES:
        made["fail_fast"] = True
    elif kind == "dict":
        for part in ("keys_schema", "values_schema"):
            if part in made:
                made[part] = core_schema.no_info_wrap_validator_function(_ending, made[part])
    return made


def _ending(value: Any, handler: core_schema.ValidatorFunctionWrapHandler) -> Any:
    try:
        return handler(value)
    except ValidationError as error:
        raise _Ended(error) from None


def body_bytes(body: object) -> bytes:
    """Returns the body's bytes: bytes unchanged; a model by alias without None, members sorted; any other
    value as JSON; None as empty."""
    if body is None:
        return b""
    if isinstance(body, bytes):
        return body
    if isinstance(body, (bytearray, memoryview)):
        return bytes(body)
    return msgspec.json.encode(_plain(body), order="sorted")


def _plain(value: object) -> object:
    if isinstance(value, Wire):
        return value.model_dump(by_alias=True, exclude_none=True, mode="json")
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    return value
