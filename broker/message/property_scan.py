"""What the data path must know of a message's properties, without taking them apart.

The text is `key \\x01 value \\x02 ...`. Names are searched as parts of it: a name that only ends like a
special one costs the longer way, and nothing else. Of keys that come twice the last one counts, as in a
reader's map; of tags the first one. Pure.
"""

from typing import Final, TypeAlias

from broker.store.record import tag_code
from remoting.compiled import is_compiled, prefer_twin

_IS_COMPILED: Final = is_compiled(__file__)
_SEPARATOR: Final = "\x02"
_WORD: Final = 0xFFFFFFFF
_SIGN: Final = 0x80000000
_NAME_END, _VALUE_END, _UNDERSCORE = 1, 2, ord("_")
_OTHER, _TAGS, _UNIQ_KEY, _KEYS = range(4)

Look: TypeAlias = tuple[bytes, bool, bool, int, bytes, bytes]
"""The properties with a separator behind the last one; nothing in them asks for more than to store the
message; the producer waits for replicas; tags code, UNIQ_KEY, KEYS (b"" where there is none)."""


def look(text: str) -> Look:
    """Of a message that is sent."""
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
        or "\0" in text
    )
    waits = "WAIT\x01false" not in text
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


# -- the twin's way --------------------------------------------------------------------------------------


def scan(properties: bytes) -> Look:
    """One walk over the bytes, which are given back as they are. A name is looked at where it ends, and told
    by its last letter first."""
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
            if at >= 5 and _is_at(raw, at - 5, b"TIMER", 5):
                is_plain = False
        elif byte == _NAME_END:
            if at == 0:
                continue
            letter = raw[at - 1]
            if letter == 89:  # Y
                if at >= 5 and _is_at(raw, at - 5, b"DELAY", 5):
                    is_plain = False
                elif at == segment_at + 8 and _is_at(raw, segment_at, b"UNIQ_KEY", 8):
                    name, value_at = _UNIQ_KEY, at + 1
            elif letter == 83 and at == segment_at + 4:  # S
                if _is_at(raw, segment_at, b"TAGS", 4):
                    name, value_at = _TAGS, at + 1
                elif _is_at(raw, segment_at, b"KEYS", 4):
                    name, value_at = _KEYS, at + 1
            elif letter == 84:  # T
                has_room = at >= 4 and at + 5 < count
                if has_room and _is_at(raw, at - 4, b"WAIT", 4) and _is_at(raw, at + 1, b"false", 5):
                    waits = False
            elif (letter == 71 and at >= 8 and _is_at(raw, at - 8, b"TRAN_MSG", 8)) or (
                letter == 75 and at >= 6 and _is_at(raw, at - 6, b"POP_CK", 6)
            ):
                is_plain = False
        elif byte == _VALUE_END:
            if name == _UNIQ_KEY:
                unique_key = properties[value_at:at]
            elif name == _KEYS:
                keys = properties[value_at:at]
            elif name == _TAGS and not has_tags:
                code, has_tags = _tag_code(properties, value_at, at), True
            segment_at, name = at + 1, _OTHER
        else:  # a zero
            is_plain = False
    if name == _UNIQ_KEY:
        unique_key = properties[value_at:]
    elif name == _KEYS:
        keys = properties[value_at:]
    elif name == _TAGS and not has_tags:
        code = _tag_code(properties, value_at, count)
    return properties, is_plain, waits, code, unique_key, keys


def _is_at(raw: bytes, at: int, name: bytes, count: int) -> bool:
    for index in range(count):  # noqa: SIM110 - a loop in C
        if raw[at + index] != name[index]:
            return False
    return True


def _tag_code(properties: bytes, begin: int, end: int) -> int:
    """record.tag_code() character by character."""
    raw, value = properties, 0
    for at in range(begin, end):
        if raw[at] > 127:
            return tag_code(properties[begin:end].decode("utf-8", "replace"))
        value = (value * 31 + raw[at] + _SIGN & _WORD) - _SIGN  # 32 bits with a sign, as Java has it
    return value


prefer_twin(__name__, globals(), "look", "scan")
