"""The body of a frame: bytes are sent unchanged, everything else as JSON."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any

import msgspec
from pydantic import GetPydanticSchema, TypeAdapter

from keelmq.remoting.operation import Wire, first_error_only


@lru_cache(maxsize=256)
def adapter_of(type_: Any) -> TypeAdapter[Any]:
    """Returns the adapter that reads a body of this type."""
    if isinstance(type_, type) and issubclass(type_, Wire):
        return TypeAdapter(type_)
    return TypeAdapter(Annotated[type_, GetPydanticSchema(first_error_only)])


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
