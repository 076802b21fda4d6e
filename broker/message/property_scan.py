"""Finds the properties of a message that the fast path needs, without splitting the text.

The text is `key \\x01 value \\x02 ...`. A property that decides something (WAIT, TAGS, UNIQ_KEY, KEYS) is
compared exactly, by name and value. Names that only choose the slow path (is_plain) are searched as
substrings: a name that merely ends like one of them takes the slow path, which compares exactly. If a key
occurs twice, the last one counts, as in a map; of TAGS the first one counts. Pure; a compiled leaf.
"""

from typing import Final, TypeAlias

from broker.message.record import tag_code
from keelmq.runtime.compiled import is_compiled, prefer_twin

_IS_COMPILED: Final = is_compiled(__file__)
_SEPARATOR: Final = "\x02"
_WORD: Final = 0xFFFFFFFF
_SIGN: Final = 0x80000000
_WAIT_NAME_BYTES: Final = len("WAIT\x01")
_NAME_END, _VALUE_END, _UNDERSCORE = 1, 2, ord("_")
_OTHER, _TAGS, _UNIQ_KEY, _KEYS, _WAIT = range(5)

ScannedProperties: TypeAlias = tuple[bytes, bool, bool, int, bytes, bytes]
"""(properties, is_plain, waits, tags code, UNIQ_KEY, KEYS). properties: with a separator behind the last one.
is_plain: the message only needs to be stored. waits: the producer waits for replicas. Keys: b"" if
absent."""


def scan_properties(text: str) -> ScannedProperties:
    """Scans the properties of a message that is sent."""
    if text and text[-1] != _SEPARATOR:
        text += _SEPARATOR
    properties = text.encode()
    if _IS_COMPILED:
        return scan(properties)
    is_plain = not (
        "DELAY\x01" in text
        or "TIMER_" in text
        or "TRAN_MSG\x01" in text
        or "POP_CK\x01" in text
        or "PRIORITY_" in text
        or "\0" in text
    )
    waits = "WAIT\x01false" not in text or waits_for_replicas(properties)
    text = _SEPARATOR + text
    tag = text.partition("\x02TAGS\x01")[2].partition(_SEPARATOR)[0]
    _, has_unique, unique = text.rpartition("\x02UNIQ_KEY\x01")
    _, has_keys, keys = text.rpartition("\x02KEYS\x01")
    return (
        properties,
        is_plain,
        waits,
        tag_code(tag),
        unique.partition(_SEPARATOR)[0].encode() if has_unique else b"",
        keys.partition(_SEPARATOR)[0].encode() if has_keys else b"",
    )


def waits_for_replicas(properties: bytes) -> bool:
    """Whether the producer waits for replicas: the last WAIT with a value is not "false". scan() applies the
    same rule."""
    if b"WAIT\x01false" not in properties:
        return True
    waits = True
    for segment in properties.split(b"\x02"):
        if segment.startswith(b"WAIT\x01") and len(segment) > _WAIT_NAME_BYTES:
            waits = segment != b"WAIT\x01false"
    return waits


# -- compiled --------------------------------------------------------------------------------------


def scan(properties: bytes) -> ScannedProperties:
    """Scans the bytes once, and returns them unchanged. A name is compared where it ends, by its last letter
    first."""
    raw, count = properties, len(properties)
    is_plain = waits = True
    has_tags = False
    code, unique_key, keys = 0, b"", b""
    segment_at = value_at = at = 0
    name = _OTHER
    for at in range(count):
        byte = raw[at]
        if byte > _VALUE_END and byte != _UNDERSCORE:
            continue
        if byte == _UNDERSCORE:
            last = raw[at - 1] if at else 0
            if (last == 82 and at >= 5 and _is_at(raw, at - 5, b"TIMER", 5)) or (
                last == 89 and at >= 8 and _is_at(raw, at - 8, b"PRIORITY", 8)
            ):
                is_plain = False
        elif byte == _NAME_END:
            if at == 0:
                continue
            last = raw[at - 1]
            if last == 89:  # Y
                if at >= 5 and _is_at(raw, at - 5, b"DELAY", 5):
                    is_plain = False
                elif at == segment_at + 8 and _is_at(raw, segment_at, b"UNIQ_KEY", 8):
                    name, value_at = _UNIQ_KEY, at + 1
            elif last == 83 and at == segment_at + 4:  # S
                if _is_at(raw, segment_at, b"TAGS", 4):
                    name, value_at = _TAGS, at + 1
                elif _is_at(raw, segment_at, b"KEYS", 4):
                    name, value_at = _KEYS, at + 1
            elif last == 84:  # T
                if at == segment_at + 4 and _is_at(raw, segment_at, b"WAIT", 4):
                    name, value_at = _WAIT, at + 1
            elif (last == 71 and at >= 8 and _is_at(raw, at - 8, b"TRAN_MSG", 8)) or (
                last == 75 and at >= 6 and _is_at(raw, at - 6, b"POP_CK", 6)
            ):
                is_plain = False
        elif byte == _VALUE_END:
            if name == _UNIQ_KEY:
                unique_key = raw[value_at:at]
            elif name == _KEYS:
                keys = raw[value_at:at]
            elif name == _TAGS and not has_tags:
                code, has_tags = _tag_code(properties, value_at, at), True
            elif name == _WAIT and at > value_at:
                waits = at != value_at + 5 or not _is_at(raw, value_at, b"false", 5)
            segment_at, name = at + 1, _OTHER
        else:  # a zero
            is_plain = False
    if name == _UNIQ_KEY:
        unique_key = raw[value_at:count]
    elif name == _KEYS:
        keys = raw[value_at:count]
    elif name == _TAGS and not has_tags:
        code = _tag_code(properties, value_at, count)
    elif name == _WAIT and count > value_at:
        waits = count != value_at + 5 or not _is_at(raw, value_at, b"false", 5)
    return properties, is_plain, waits, code, unique_key, keys


def _is_at(raw: bytes, at: int, name: bytes, count: int) -> bool:
    for index in range(count):  # noqa: SIM110 - a loop in C
        if raw[at + index] != name[index]:
            return False
    return True


def _tag_code(properties: bytes, begin: int, end: int) -> int:
    """record.tag_code(), character by character."""
    raw, value = properties, 0
    for at in range(begin, end):
        if raw[at] > 127:
            return tag_code(properties[begin:end].decode("utf-8", "replace"))
        value = (value * 31 + raw[at] + _SIGN & _WORD) - _SIGN  # 32 bits with a sign, as in Java
    return value


prefer_twin(__name__, globals(), "scan_properties", "scan")
