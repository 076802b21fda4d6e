"""Encodes and decodes RemotingCommands: JSON and ROCKETMQ (binary) headers, header models, JSON bodies.

Opens no socket. A receiver accepts both header types at any time; the sender of a response ignores the type
of the request (Java peers use the type that their own process is configured for). KeelMQ writes JSON by
default. Source: RocketMQ 5.3.3 RemotingCommand, RocketMQSerializable; fastjson 1.2.83 for the form of bodies.
"""

import struct
from collections.abc import Mapping
from enum import IntEnum
from typing import Any, TypeVar

import msgspec
from pydantic import ValidationError

from keelmq.remoting.body import adapter_of, body_bytes
from keelmq.remoting.codes import VERSION, LanguageCode, ResponseCode
from keelmq.remoting.frame import FRAME_BYTES_MAX, HEADER_BYTES_MASK, LENGTH_BYTES, pack_prefix
from keelmq.remoting.lenient_json import REWRITTEN_BYTES_MAX, is_too_dense, load_lenient, without_nulls
from keelmq.remoting.operation import (
    CommandError,
    FrameTooLarge,
    LocalProtocolError,
    Operation,
    RemoteProtocolError,
    Wire,
)

FLAG_RESPONSE = 1
FLAG_ONEWAY = 2

INT16_MAX, INT32_MAX, INT64_MAX = 2**15 - 1, 2**31 - 1, 2**63 - 1

REMARK_CHARS_MAX = 65_536
HEADER_BYTES_MAX = 1_048_576
"""Limit of a received header: it is decoded before any access check. Properties of a message have 32 KiB."""
# code, language u8, version, opaque, flag, remark length; then remark, ext length i32, entries
_BINARY_HEAD = struct.Struct(">hBhiii")
_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")

W = TypeVar("W", bound=Wire)


class SerializeType(IntEnum):
    """The header's encoding: the top byte of a frame's second word."""

    JSON = 0
    ROCKETMQ = 1


class BadRequest(CommandError):
    """The header or body does not fit the Operation's model. Each server answers it with its own code."""

    def __init__(self, remark: str) -> None:
        super().__init__(ResponseCode.SYSTEM_ERROR, remark)


class RemotingCommand(msgspec.Struct):
    """One request or response. ext_fields: text to text, without None."""

    code: int
    opaque: int = 0
    flag: int = 0
    remark: str | None = None
    ext_fields: dict[str, str] = msgspec.field(default_factory=dict)
    body: bytes = b""
    language: str = "PYTHON"
    version: int = VERSION
    serialize_type: SerializeType = SerializeType.JSON

    @property
    def is_response(self) -> bool:
        """Returns whether the flag marks a response."""
        return bool(self.flag & FLAG_RESPONSE)

    @property
    def is_oneway(self) -> bool:
        """Returns whether the sender expects no response."""
        return bool(self.flag & FLAG_ONEWAY)


class _Header(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """The JSON header; members in Java's order. Written without None and without an empty extFields."""

    code: int
    extFields: dict[str, str] | None = None
    flag: int
    language: str
    opaque: int
    remark: str | None = None
    serializeTypeCurrentRPC: str
    version: int


class _ReceivedHeader(msgspec.Struct, gc=False):
    """A JSON header for fast, strict decoding; _lenient_header decodes what this refuses."""

    code: int
    extFields: dict[str, str] | None = None
    flag: int = 0
    language: str = "JAVA"
    opaque: int = 0
    remark: str | None = None
    version: int = 0


_encode_json = msgspec.json.Encoder().encode
_decode_header = msgspec.json.Decoder(_ReceivedHeader, strict=False).decode


# ---- frames ----


def encode(command: RemotingCommand) -> bytes:
    """Returns the whole frame. FrameTooLarge: it is. LocalProtocolError: a ROCKETMQ header cannot hold its
    code."""
    if command.serialize_type is SerializeType.ROCKETMQ:
        header = _encode_binary_header(command)
    else:
        header = _encode_json_header(command)
    return _frame(command.serialize_type, header, command.body)


def _cut(remark: str | None) -> str | None:
    """Remarks quote names of the request, which may have 16 MiB, and JSON makes six characters of some."""
    if remark is None or len(remark) <= REMARK_CHARS_MAX:
        return remark
    return f"{remark[:REMARK_CHARS_MAX]}... ({len(remark)} characters)"


def _frame(serialize_type: int, header: bytes, body: bytes) -> bytes:
    if len(header) > HEADER_BYTES_MASK:
        raise LocalProtocolError(f"header of {len(header)} bytes")
    length = LENGTH_BYTES + len(header) + len(body)
    if length > FRAME_BYTES_MAX - LENGTH_BYTES:
        raise FrameTooLarge(length + LENGTH_BYTES, FRAME_BYTES_MAX)
    return b"".join((pack_prefix(length, serialize_type << 24 | len(header)), header, body))


def decode(payload: bytes) -> RemotingCommand:
    """Returns the command in one frame without its 4-byte length. Raises RemoteProtocolError."""
    if len(payload) < LENGTH_BYTES:
        raise RemoteProtocolError(f"frame of {len(payload)} bytes")
    (word,) = _INT32.unpack_from(payload)
    end = LENGTH_BYTES + (word & HEADER_BYTES_MASK)
    if end > len(payload):
        raise RemoteProtocolError(f"header of {end - LENGTH_BYTES} bytes in a frame of {len(payload)}")
    return decode_parts(word >> 24, payload[LENGTH_BYTES:end], payload[end:])


def decode_parts(serialize_type: int, header: bytes, body: bytes) -> RemotingCommand:
    """As decode(), for a header and a body that are split already."""
    if len(header) > HEADER_BYTES_MAX:
        raise RemoteProtocolError(f"header of {len(header)} bytes; {HEADER_BYTES_MAX} is the limit")
    if serialize_type == SerializeType.JSON:
        command = _decode_json_header(header)
    elif serialize_type == SerializeType.ROCKETMQ:
        command = _decode_binary_header(header)
    else:
        raise RemoteProtocolError(f"unknown serialize type {serialize_type & 0xFF}")
    command.body = body
    return command


# ---- JSON header ----


def _encode_json_header(command: RemotingCommand) -> bytes:
    return _encode_json(
        _Header(
            code=command.code,
            extFields=command.ext_fields or None,
            flag=command.flag,
            language=command.language,
            opaque=command.opaque,
            remark=_cut(command.remark),
            serializeTypeCurrentRPC="JSON",
            version=command.version,
        )
    )


def _decode_json_header(header: bytes) -> RemotingCommand:
    try:
        received = _decode_header(header)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        received = _lenient_header(header)
    _check_int32(received.code, "code")
    _check_int32(received.opaque, "opaque")
    _check_int32(received.flag, "flag")
    return RemotingCommand(
        received.code,
        received.opaque,
        received.flag,
        received.remark,
        received.extFields or {},
        b"",
        received.language,
        received.version,
    )


def _lenient_header(header: bytes) -> _ReceivedHeader:
    """Decodes what a Java reader accepts: null members, numbers as text, bare keys, numbers in extFields."""
    try:
        raw = load_lenient(header, floats_as_text=True)  # signatures are over the text
    except ValueError as error:
        raise RemoteProtocolError(f"header is not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise RemoteProtocolError("header is not a JSON object")
    if raw.get("code") is None:
        raise RemoteProtocolError("header without a code")
    ext_fields = raw.get("extFields")
    if ext_fields is not None and not isinstance(ext_fields, dict):
        raise RemoteProtocolError("extFields is not a JSON object")
    remark = raw.get("remark")
    return _ReceivedHeader(
        code=_lenient_int(raw, "code"),
        extFields={str(key): _text(value) for key, value in (ext_fields or {}).items() if value is not None},
        flag=_lenient_int(raw, "flag"),
        language=_language_name(raw.get("language")),
        opaque=_lenient_int(raw, "opaque"),
        remark=None if remark is None else _text(remark),
        version=_lenient_int(raw, "version"),
    )


def _lenient_int(raw: Mapping[str, object], name: str) -> int:
    value = raw.get(name)
    if value is None:
        return 0
    if isinstance(value, (int, str)) and not isinstance(value, bool):
        try:
            return int(value)
        except ValueError:
            pass
    raise RemoteProtocolError(f"header member {name} is not a number")


def _language_name(value: object) -> str:
    """Returns the name for a name or a number; JAVA if it is absent, as Java readers assume."""
    if value is None:
        return LanguageCode.JAVA.name
    if isinstance(value, int):
        return LanguageCode(value).name if value in LanguageCode.__members__.values() else "OTHER"
    return str(value)


def _check_int32(value: int, name: str) -> None:
    if not -INT32_MAX - 1 <= value <= INT32_MAX:
        raise RemoteProtocolError(f"{name} {value} is not a 32-bit number")


# ---- ROCKETMQ header ----


def _encode_binary_header(command: RemotingCommand) -> bytes:
    if not -INT16_MAX - 1 <= command.code <= INT16_MAX:
        raise LocalProtocolError(f"code {command.code} does not fit a ROCKETMQ header; use JSON")
    remark = (command.remark or "").encode()
    entries: list[bytes] = []
    for key, value in command.ext_fields.items():
        key_bytes, value_bytes = key.encode(), value.encode()
        if len(key_bytes) > INT16_MAX:
            raise LocalProtocolError(f"header field name of {len(key_bytes)} bytes")
        entries += (_INT16.pack(len(key_bytes)), key_bytes, _INT32.pack(len(value_bytes)), value_bytes)
    ext_bytes = b"".join(entries)
    known = command.language in LanguageCode.__members__
    language = LanguageCode[command.language] if known else LanguageCode.OTHER
    head = _BINARY_HEAD.pack(
        command.code, language, command.version, command.opaque, command.flag, len(remark)
    )
    return b"".join((head, remark, _INT32.pack(len(ext_bytes)), ext_bytes))


def _decode_binary_header(header: bytes) -> RemotingCommand:
    try:
        code, language, version, opaque, flag, remark_bytes = _BINARY_HEAD.unpack_from(header)
        remark, at = _take(header, _BINARY_HEAD.size, remark_bytes, len(header))
        (ext_bytes,) = _INT32.unpack_from(header, at)
        at += _INT32.size
        if not 0 <= ext_bytes <= len(header) - at:
            raise RemoteProtocolError(f"extFields of {ext_bytes} bytes in a header of {len(header)}")
        ext_fields = _decode_entries(header, at, at + ext_bytes)
    except (struct.error, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"binary header: {error}") from None
    name = _language_name(language)
    return RemotingCommand(
        code, opaque, flag, remark or None, ext_fields, b"", name, version, SerializeType.ROCKETMQ
    )


def _decode_entries(header: bytes, at: int, end: int) -> dict[str, str]:
    """Decodes extFields. Fast headers of Java peers write a key twice: the last one counts. Empty text means
    null, and is left out."""
    fields: dict[str, str] = {}
    while at < end:
        (key_bytes,) = _INT16.unpack_from(header, at)
        key, at = _take(header, at + _INT16.size, key_bytes, end)
        (value_bytes,) = _INT32.unpack_from(header, at)
        value, at = _take(header, at + _INT32.size, value_bytes, end)
        if key and value:
            fields[key] = value
    return fields


def _take(header: bytes, at: int, count: int, end: int) -> tuple[str, int]:
    if not 0 <= count <= end - at:
        raise RemoteProtocolError(f"text of {count} bytes where {max(end - at, 0)} are left")
    return header[at : at + count].decode("utf-8", "replace"), at + count


# ---- header models ----


def request_command(
    operation: Operation[Any, Any], header: Wire, body: object = None, *, oneway: bool = False
) -> RemotingCommand:
    """Returns a request without an opaque; the client assigns one."""
    flag = FLAG_ONEWAY if oneway or operation.oneway else 0
    return RemotingCommand(operation.code, flag=flag, ext_fields=header_fields(header), body=body_bytes(body))


def response_frame(
    opaque: int, code: int, remark: str | None = None, header: Wire | None = None, body: object = None
) -> bytes:
    """Returns the whole frame of a response."""
    fields = header_fields(header) if header is not None else {}
    return encode(RemotingCommand(int(code), opaque, FLAG_RESPONSE, remark, fields, body_bytes(body)))


def header_fields(wire: Wire) -> dict[str, str]:
    """Returns the extFields of a header model: true/false, decimal text; None is left out."""
    fields = wire.model_dump(by_alias=True, exclude_none=True)
    return {key: value if type(value) is str else _text(value) for key, value in fields.items()}


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (dict, list)):
        return _encode_json(value).decode()
    return str(value)


def parse_header(type_: type[W], ext_fields: Mapping[str, str]) -> W:
    """Returns the header model for extFields. Empty text counts as absent, since binary headers cannot tell
    them apart. Raises BadRequest with a remark that names the field."""
    try:
        wire = type_.model_validate({key: value for key, value in ext_fields.items() if value != ""})
    except ValidationError as error:
        raise BadRequest(_remark(error, "header field")) from None
    for name, value in wire:
        if type(value) is int and not -INT64_MAX - 1 <= value <= INT64_MAX:
            raise BadRequest(f"header field {name} is not a 64-bit number")
    return wire


def _remark(error: ValidationError, what: str) -> str:
    """Returns one line with every field that is missing or wrong, in the wire's spelling."""
    parts = []
    for detail in error.errors(include_url=False):
        name = ".".join(str(part) for part in detail["loc"]) or "(whole)"
        if detail["type"] == "missing":
            parts.append(f"{what} {name} is missing")
        else:
            parts.append(f"{what} {name}: {detail['msg']}")
    return "; ".join(parts)


# ---- bodies ----


def decode_body(type_: Any, raw: bytes) -> Any:
    """Returns a body as `type_` (an Operation's request_body or response_body); None for empty JSON.

    Accepts what fastjson writes: bare number keys, null members, numbers as text; above REWRITTEN_BYTES_MAX
    it must be standard JSON of the type, and not too dense. Raises BadRequest.
    """
    if type_ is None:
        return None
    if type_ is bytes:
        return raw
    if not raw:
        return None
    is_large = len(raw) > REWRITTEN_BYTES_MAX
    if is_large and is_too_dense(raw):
        raise BadRequest("body has more lists and objects than anything that is sent")
    try:
        return adapter_of(type_).validate_json(raw)
    except ValidationError as error:
        if is_large:
            raise BadRequest(_remark(error, "body member")) from None
    try:
        value = load_lenient(raw)
    except ValueError as error:
        raise BadRequest(f"body is not JSON: {error}") from None
    try:
        return adapter_of(type_).validate_python(without_nulls(value))
    except ValidationError as error:
        raise BadRequest(_remark(error, "body member")) from None
    except RecursionError:
        raise BadRequest("body is nested too deeply") from None
