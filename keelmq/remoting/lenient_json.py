"""JSON as fastjson 1.2.83 writes and reads it, for texts that a strict parser refuses.

Bare and single-quoted keys, a leading Set/TreeSet word, raw control characters and halves of surrogate pairs
inside strings. The text is rewritten to standard JSON in one linear pass and then parsed strictly.
"""

import re
from typing import Any

import msgspec

REWRITTEN_BYTES_MAX = 1_048_576
"""Rewriting is linear but slow, and the event loop waits for it: 16 MiB would take seconds."""

_TOKEN = re.compile(
    rb"""
    "(?:[^"\\]|\\.)*(?:"|\\?\Z)          # an unterminated string runs to the end, else each quote
                                          # in it would begin another search of the whole rest
    | '(?P<single>(?:[^'\\]|\\.)*)(?:'|\\?\Z)
    | (?P<before>[{,]\s*)(?P<key>-?[A-Za-z0-9_$]+)(?=\s*:)
    | \b(?:Tree)?Set\s*(?=\[)
    """,
    re.VERBOSE | re.DOTALL,
)
_CONTROL = re.compile(rb"[\x00-\x1f]")
_ESCAPE = re.compile(
    rb"""\\(?:
    u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}
    | (?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})
    | .)""",
    re.VERBOSE | re.DOTALL,
)
_SINGLE_SPECIAL = re.compile(rb"""\\'|"|\\.""", re.DOTALL)


_decode_with_texts = msgspec.json.Decoder(float_hook=str).decode


def load_lenient(raw: bytes, *, floats_as_text: bool = False) -> Any:
    """Returns the JSON value in `raw`. floats_as_text: 1.50 is "1.50", as it is written there. Bytes that are
    not UTF-8 are read as U+FFFD, as Java does: a C++ client sends its properties as they are. Half of a
    surrogate pair (\\ud800) is read as "?", which is what Java stores and signs. Raises ValueError."""
    decode = _decode_with_texts if floats_as_text else msgspec.json.decode
    try:
        return decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        if len(raw) > REWRITTEN_BYTES_MAX:
            raise ValueError(f"{error} (more than {REWRITTEN_BYTES_MAX} bytes are read strictly)") from None
    try:
        return decode(to_standard_json(raw.decode("utf-8", "replace").encode()))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ValueError(str(error)) from None


def is_too_dense(raw: bytes) -> bool:
    """Returns whether a JSON text has more lists and objects than one for eight bytes. An error repeats the
    wrong value as Python has it, and an empty list of three bytes takes a hundred there."""
    return raw.count(b"[") + raw.count(b"{") > len(raw) // 8


def without_nulls(value: Any) -> Any:
    """Returns the value without null members: fastjson's readers treat them as absent."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def to_standard_json(raw: bytes) -> bytes:
    """Returns standard JSON: quotes bare keys and undoes fastjson's other deviations; standard JSON without
    halves of surrogate pairs stays unchanged."""
    return _TOKEN.sub(_standard_token, raw)


def _standard_token(match: re.Match[bytes]) -> bytes:
    key = match["key"]
    if key is not None:
        return match["before"] + b'"' + key + b'"'
    single = match["single"]
    if single is not None:
        return b'"' + _standard_text(_SINGLE_SPECIAL.sub(_standard_quote, single)) + b'"'
    text = match[0]
    return _standard_text(text) if text.startswith(b'"') else b""


def _standard_quote(match: re.Match[bytes]) -> bytes:
    text = match[0]
    if text == b"\\'":
        return b"'"
    return b'\\"' if text == b'"' else text


def _standard_text(text: bytes) -> bytes:
    whole = _ESCAPE.sub(lambda match: match[0] if match["half"] is None else b"?", text)
    return _CONTROL.sub(lambda match: b"\\u%04x" % match[0][0], whole)
