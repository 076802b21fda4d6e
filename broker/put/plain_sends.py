"""Reads the plain sends at the beginning of the frames of one read, for SendHandler.send_batched. Pure.

A compiled leaf: with Cython, a header of code 310 in the form that clients write is read character by
character. Any other header is decoded by msgspec, as all are where nothing is compiled: one with spaces
between its tokens, text outside ASCII, escapes other than those below 128 (\\u0001 is what stands between
properties), a negative number, a value that is not a text or a number.
"""

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import msgspec

from broker.message.property_scan import scan, scan_properties
from keelmq.remoting.frame import Frame
from keelmq.runtime.compiled import is_compiled, prefer_twin

_IS_COMPILED: Final = is_compiled(__file__)
_RESPONSE, _ONEWAY = 1, 2
"""Bits of a command's flag."""
_HEADER_BYTES_MAX: Final = 4_096
"""Longer headers are rare."""
_DIGITS_MAX: Final = 18
_OPAQUE_MAX: Final = 2**31 - 1
_QUOTE, _BACKSLASH, _COLON, _COMMA, _OPEN, _CLOSE, _ZERO, _NINE = b'"\\:,{}09'
_SEPARATOR: Final = 2
_IS_TEXT: Final = bytes(32 <= byte < 127 and byte not in b'"\\' for byte in range(256))
"""By byte: 1 for what may stand in a text as it is."""

PlainSend: TypeAlias = tuple[bytes, int, int, int, int, int, bytes, bytes, bool, int, bytes, bytes, int, bool]
"""(topic, queueId, flag, sysFlag, born timestamp in ms, reconsumeTimes, body, properties, waits, tags code,
UNIQ_KEY, KEYS, opaque, is_oneway); for five of them see ScannedProperties."""


def plain_sends(
    frames: list[Frame], key: bytes, decode: Callable[[bytes], Any], has_short_names: bool
) -> list[PlainSend]:
    """Returns the sends up to the first frame that is something else: another request, a batch, or a message
    that needs more than to be stored. key: what their headers begin with. decode: makes a SendCommand of a
    header, or raises what msgspec does. has_short_names: their code is 310."""
    found: list[PlainSend] = []
    is_fast, scratch = _IS_COMPILED and has_short_names, bytearray(_HEADER_BYTES_MAX + 1)
    for serialize_type, header, body, _ in frames:
        if serialize_type or not header.startswith(key):
            break
        send = _read(header, body, scratch) if is_fast else None
        if send is None:
            send = _decoded(header, body, decode)
        if send is None:
            break
        found.append(send)
    return found


def _decoded(header: bytes, body: bytes, decode: Callable[[bytes], Any]) -> PlainSend | None:
    try:
        command = decode(header)
        ext = command.ext
        properties, is_plain, waits, code, unique_key, keys = scan_properties(ext.properties)
        topic = ext.topic.encode()
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None  # the connection serves it by itself next
    if command.flag & _RESPONSE or not is_plain or ext.batch:
        return None
    return (
        topic, ext.queue_id, ext.flag, ext.sys_flag, ext.born_timestamp, ext.reconsume_times, body,
        properties, waits, code, unique_key, keys, command.opaque, command.flag & _ONEWAY != 0,
    )  # fmt: skip


# -- compiled -------------------------------------------------------------------------------------------


def _read(header: bytes, body: bytes, scratch: bytearray) -> PlainSend | None:
    """Returns None for a header in another form, and for what is not a plain send. What it accepts must mean
    the same to msgspec: names that occur twice count by their last value, others are checked in their form
    only."""
    raw, target, end = header, scratch, len(header)
    topic = properties = b""
    has_topic = has_fields = inside = False
    queue_id = opaque = -1
    flag = message_flag = sys_flag = born_timestamp = times = number = count = 0
    at = 1
    if end > _HEADER_BYTES_MAX or _at(raw, 0, end) != _OPEN:
        return None
    while True:
        if _at(raw, at, end) != _QUOTE:
            return None
        name_at = at + 1
        at = _text_end(raw, name_at, end)
        if at < 0 or _at(raw, at + 1, end) != _COLON:
            return None
        name_bytes = at - name_at
        name = raw[name_at] if name_bytes == 1 else 0
        at += 2
        if not inside and name_bytes == 9 and _is_at(raw, name_at, b"extFields", 9):
            if has_fields or _at(raw, at, end) != _OPEN:
                return None
            has_fields = inside = True
            at += 1
            continue
        is_text = _at(raw, at, end) == _QUOTE
        value_at = at + is_text
        if inside and name == 105:  # i
            at, count = _unescaped(raw, value_at, end, target)
            if not is_text or at < 0:
                return None
            properties = bytes(target[:count])
        else:
            at = _text_end(raw, value_at, end) if is_text else _digits_end(raw, value_at, end)
            if at < 0:
                return None
        value_end = at
        at += is_text
        if inside and name_bytes == 1:
            if name == 98:  # b
                if not is_text:
                    return None
                topic, has_topic = raw[value_at:value_end], True
            elif name == 97 or name == 99:  # a, c
                if not is_text:
                    return None
            elif name == 109:  # m
                if value_end != value_at + 5 or not _is_at(raw, value_at, b"false", 5):
                    return None
            elif 100 <= name <= 104 or name == 106 or name == 108:  # d to h, j, l
                if _digits_end(raw, value_at, end) != value_end:
                    return None
                number = _number(raw, value_at, value_end)
                if name == 101:  # e
                    queue_id = number
                elif name == 102:  # f
                    sys_flag = number
                elif name == 103:  # g
                    born_timestamp = number
                elif name == 104:  # h
                    message_flag = number
                elif name == 106:  # j
                    times = number
        elif not inside and name_bytes == 6 and _is_at(raw, name_at, b"opaque", 6):
            opaque = _number(raw, value_at, value_end)
            if is_text or opaque > _OPAQUE_MAX:
                return None
        elif not inside and name_bytes == 4 and _is_at(raw, name_at, b"flag", 4):
            flag = _number(raw, value_at, value_end)
            if is_text:
                return None
        if inside and _at(raw, at, end) == _CLOSE:
            inside = False
            at += 1
        byte = _at(raw, at, end)
        if byte == _COMMA:
            at += 1
        elif byte == _CLOSE and not inside and at + 1 == end:
            break
        else:
            return None
    if not has_topic or queue_id < 0 or opaque < 0 or flag & _RESPONSE:
        return None
    found = scan(properties)
    if not found[1]:
        return None
    return (
        topic, queue_id, message_flag, sys_flag, born_timestamp, times, body, properties,
        found[2], found[3], found[4], found[5], opaque, flag & _ONEWAY != 0,
    )  # fmt: skip


def _at(raw: bytes, at: int, end: int) -> int:
    return raw[at] if at < end else 0


def _text_end(raw: bytes, at: int, end: int) -> int:
    """Returns where the quote behind a text of printable ASCII is; -1: it is another text."""
    table = _IS_TEXT
    while at < end and table[raw[at]]:
        at += 1
    return at if at < end and raw[at] == _QUOTE else -1


def _unescaped(raw: bytes, at: int, end: int, target: bytearray) -> tuple[int, int]:
    """Writes properties, which may have escapes below 128, with a separator behind the last one. Returns
    where the quote behind them is, -1 for another text; and how many bytes it has written."""
    table, count = _IS_TEXT, 0
    while at < end:
        byte = raw[at]
        if not table[byte]:
            if byte == _QUOTE:
                if count and target[count - 1] != _SEPARATOR:
                    target[count] = _SEPARATOR
                    count += 1
                return at, count
            if byte != _BACKSLASH or at + 6 > end or not _is_at(raw, at + 1, b"u00", 3):
                break
            high, low = _digit(raw[at + 4]), _digit(raw[at + 5])
            if not 0 <= high < 8 or low < 0:
                break
            byte = high << 4 | low
            at += 5
        target[count] = byte
        count += 1
        at += 1
    return -1, 0


def _digits_end(raw: bytes, at: int, end: int) -> int:
    """Returns where a number without sign ends; -1: it is none, or it has digits that JSON does not allow."""
    begin = at
    while at < end and _ZERO <= raw[at] <= _NINE:
        at += 1
    if not 0 < at - begin <= _DIGITS_MAX or (raw[begin] == _ZERO and at > begin + 1):
        return -1
    return at


def _number(raw: bytes, at: int, end: int) -> int:
    number = 0
    while at < end:
        number = number * 10 + raw[at] - _ZERO
        at += 1
    return number


def _digit(byte: int) -> int:
    """Returns the value of a hexadecimal digit; -1: it is none."""
    if 48 <= byte <= 57:
        return byte - 48
    if 97 <= byte <= 102:
        return byte - 87
    if 65 <= byte <= 70:
        return byte - 55
    return -1


def _is_at(raw: bytes, at: int, name: bytes, count: int) -> bool:
    for index in range(count):  # noqa: SIM110 - a loop in C
        if raw[at + index] != name[index]:
            return False
    return True


prefer_twin(__name__, globals(), "plain_sends")
