"""Reads the plain sends at the beginning of the frames of one read, or of one turn, and makes messages of
those that can be stored together. Pure.

A compiled leaf: with Cython, a header of code 310 in the form that clients write is read character by
character. Any other header is decoded by msgspec, as are all in an interpreted module: one with spaces
between its tokens, text outside ASCII, escapes other than those below 128 (\\u0001 separates properties), a
negative number, a value that is not a text or a number.
"""

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import msgspec

from broker.message.inner_batch import INNER_BATCH
from broker.message.property_scan import scan, scan_properties
from broker.message.record import TRANSACTION_BITS
from broker.message.record_bytes import Message, QueueCursor
from broker.put.success_frames import Answered, key_text
from keelmq.remoting.frame import Frame
from keelmq.runtime.compiled import is_compiled, prefer_twin

_IS_COMPILED: Final = is_compiled(__file__)
_RESPONSE, _ONEWAY = 1, 2
"""Bits of a command's flag."""
_HEADER_BYTES_MAX: Final = 4_096
"""Longer headers are rare."""
_DIGITS_MAX: Final = 18
_INT32_MIN, _INT32_MAX = -(2**31), 2**31 - 1
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_QUOTE, _BACKSLASH, _COLON, _COMMA, _OPEN, _CLOSE, _ZERO, _NINE = b'"\\:,{}09'
_SEPARATOR: Final = 2
_BAD: Final = -1
_LETTER_A, _LETTER_M = b"am"
_A, _B, _C, _D, _E, _F, _G, _H, _I, _J, _, _L, _M, _OPAQUE, _FLAG = range(15)
"""Fields of extFields, by their letters, and two of the header itself."""
_PLACE_BYTES: Final = 5
_PLACES_BYTES: Final = 15 * _PLACE_BYTES
_SCRATCH_BYTES: Final = _PLACES_BYTES + _HEADER_BYTES_MAX + 1
"""For the places of the values, and for the properties behind them."""
_EXT_FIELDS: Final = 15
_IS_TEXT: Final = bytes(32 <= byte < 127 and byte not in b'"\\' for byte in range(256))
"""By byte: 1 if it may be in a text unescaped."""

PlainSend: TypeAlias = tuple[bytes, int, int, int, int, int, bytes, bytes, bool, int, bytes, bytes, int, bool]
"""(topic, queueId, flag, sysFlag, born timestamp in ms, reconsumeTimes, body, properties, waits, tags code,
UNIQ_KEY, KEYS, opaque, is_oneway); for five of them see ScannedProperties."""
WAITS: Final = 8
"""In a PlainSend."""
Limits: TypeAlias = tuple[int, int, bytes]
"""Limits of the bytes of a body and of properties, and the text added to the properties of each message."""
UNIQUE_KEY: Final = b"UNIQ_KEY\x01%b\x02"
"""The property, to format with a key."""
SLOW_PATH_BITS: Final = TRANSACTION_BITS | INNER_BATCH
"""Of a sysFlag: a message with one of them is not plain."""


def plain_sends(
    frames: list[Frame], key: bytes, decode: Callable[[bytes], Any], has_short_names: bool
) -> list[PlainSend]:
    """Returns the sends up to the first frame that is something else: another request, a batch, a message
    that needs more than to be stored, or one with a number that does not fit into its record. key: the
    beginning of their headers. decode: makes a SendCommand of a header, or raises msgspec's errors.
    has_short_names: their code is 310."""
    found: list[PlainSend] = []
    is_fast, scratch = _IS_COMPILED and has_short_names, bytearray(_SCRATCH_BYTES)
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


def messages_of(
    sends: list[PlainSend],
    born_hosts: list[bytes],
    cursor_of: Callable[[bytes, int], QueueCursor | None],
    new_unique_key: Callable[[], bytes],
    limits: Limits,
) -> tuple[list[Message], list[Answered], int]:
    """Returns the sends that can be stored together, from the first one on: the messages, the answer to each,
    and the number that are not oneway.

    born_hosts: one for each. cursor_of: (topic, queueId) -> the cursor of the queue, called once for each;
    None ends them. new_unique_key: for a message without one.
    """
    body_bytes_max, properties_bytes_max, suffix = limits
    messages: list[Message] = []
    answered: list[Answered] = []
    cursors: dict[tuple[bytes, int], QueueCursor] = {}
    cursor: QueueCursor | None = None
    last_topic, last_queue_id = b"", -1
    two_way = 0
    all_wait = len(sends) > 0 and sends[0][WAITS]
    for index in range(len(sends)):
        send = sends[index]
        (
            topic, queue_id, flag, sys_flag, born_timestamp, times, body, properties, waits, code, key, keys,
            opaque, is_oneway,
        ) = send  # fmt: skip
        if (
            waits != all_wait
            or sys_flag & SLOW_PATH_BITS
            or len(body) > body_bytes_max
            or len(properties) > properties_bytes_max
        ):
            break
        if cursor is None or queue_id != last_queue_id or topic != last_topic:
            last_topic, last_queue_id = topic, queue_id
            cursor = cursors.get((topic, queue_id)) or cursor_of(topic, queue_id)
            if cursor is None:
                break
            cursors[topic, queue_id] = cursor
        if not key:
            key = new_unique_key()
            properties += UNIQUE_KEY % key
        message = (
            cursor, flag, sys_flag, born_timestamp, born_hosts[index], times, body, properties + suffix, code,
            key, keys,
        )  # fmt: skip
        messages.append(message)
        answered.append((queue_id, key if key.isalnum() else key_text(key), opaque, is_oneway))
        two_way += not is_oneway
    return messages, answered, two_way


def _decoded(header: bytes, body: bytes, decode: Callable[[bytes], Any]) -> PlainSend | None:
    try:
        command = decode(header)
        ext = command.ext
        properties, is_plain, waits, code, unique_key, keys = scan_properties(ext.properties)
        topic = ext.topic.encode()
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None  # the connection serves it alone next
    if command.flag & _RESPONSE or not is_plain or ext.batch:
        return None
    if not _fits(ext.born_timestamp, ext.queue_id, ext.flag, ext.sys_flag, ext.reconsume_times):
        return None
    return (
        topic, ext.queue_id, ext.flag, ext.sys_flag, ext.born_timestamp, ext.reconsume_times, body,
        properties, waits, code, unique_key, keys, command.opaque, command.flag & _ONEWAY != 0,
    )  # fmt: skip


def _fits(born_timestamp: int, *numbers: int) -> bool:
    """Returns whether a record has room for them."""
    return _INT64_MIN <= born_timestamp <= _INT64_MAX and all(
        _INT32_MIN <= each <= _INT32_MAX for each in numbers
    )


# -- compiled -------------------------------------------------------------------------------------------


def _read(header: bytes, body: bytes, scratch: bytearray) -> PlainSend | None:
    """Returns None for a header in another form, and for a request that is not a plain send. An accepted
    header must mean the same to msgspec."""
    raw, where, end = header, scratch, len(header)
    for index in range(_PLACES_BYTES):
        where[index] = 0
    if end > _HEADER_BYTES_MAX or not _find(raw, end, where):
        return None
    queue_id, sys_flag = _number_of(raw, where, _E, _BAD), _number_of(raw, where, _F, 0)
    born_timestamp, message_flag = _number_of(raw, where, _G, 0), _number_of(raw, where, _H, 0)
    times, opaque = _number_of(raw, where, _J, 0), _number_of(raw, where, _OPAQUE, _BAD)
    flag = _number_of(raw, where, _FLAG, 0)
    if queue_id < 0 or sys_flag < 0 or born_timestamp < 0 or message_flag < 0 or times < 0:
        return None
    if queue_id > _INT32_MAX or sys_flag > _INT32_MAX or message_flag > _INT32_MAX or times > _INT32_MAX:
        return None
    if not 0 <= opaque <= _INT32_MAX or flag < 0 or flag & _RESPONSE:
        return None
    if _number_of(raw, where, _D, 0) < 0 or _number_of(raw, where, _L, 0) < 0:
        return None
    if not _is_text_at(where, _B):
        return None
    if not (_may_be_text(where, _A) and _may_be_text(where, _C) and _may_be_text(where, _I)):
        return None
    at, value_end = _begin(where, _M), _end(where, _M)
    if at and (value_end != at + 5 or not _is_at(raw, at, b"false", 5)):
        return None
    topic = raw[_begin(where, _B) : _end(where, _B)]
    properties = bytes(where[_begin(where, _I) : _end(where, _I)])
    found = scan(properties)
    if not found[1]:
        return None
    return (
        topic, queue_id, message_flag, sys_flag, born_timestamp, times, body, properties,
        found[2], found[3], found[4], found[5], opaque, flag & _ONEWAY != 0,
    )  # fmt: skip


def _find(raw: bytes, end: int, place: bytearray) -> bool:
    """Writes the positions of the relevant values to `place`. Returns whether the header has the form that
    clients write: no relevant name occurs twice, because msgspec refuses a wrong first value as well."""
    at, field = 1, 0
    inside = has_fields = False
    if _at(raw, 0, end) != _OPEN:
        return False
    while True:
        if _at(raw, at, end) != _QUOTE:
            return False
        name_at = at + 1
        at = _text_end(raw, name_at, end)
        if at < 0 or _at(raw, at + 1, end) != _COLON:
            return False
        field = _field(raw, name_at, at - name_at, inside)
        at += 2
        if field == _EXT_FIELDS:
            if has_fields or _at(raw, at, end) != _OPEN:
                return False
            has_fields = inside = True
            at += 1
            continue
        if field >= 0 and _begin(place, field):
            return False
        is_text = _at(raw, at, end) == _QUOTE
        value_at = at + is_text
        if field == _I and is_text:
            at, field = _unescape(raw, value_at, end, place), _BAD  # its place is written
        else:
            at = _text_end(raw, value_at, end) if is_text else _digits_end(raw, value_at, end)
        if at < 0:
            return False
        if field >= 0:
            _put_place(place, field, value_at, at, is_text)
        at += is_text
        if inside and _at(raw, at, end) == _CLOSE:
            inside = False
            at += 1
        byte = _at(raw, at, end)
        if byte == _CLOSE and not inside and at + 1 == end:
            return True
        if byte != _COMMA:
            return False
        at += 1


def _field(raw: bytes, at: int, count: int, inside: bool) -> int:
    """Returns the number of the field with this name; _BAD: not a relevant one. inside: extFields."""
    if inside:
        return raw[at] - _LETTER_A if count == 1 and _LETTER_A <= raw[at] <= _LETTER_M else _BAD
    if count == 6 and _is_at(raw, at, b"opaque", 6):
        return _OPAQUE
    if count == 4 and _is_at(raw, at, b"flag", 4):
        return _FLAG
    if count == 9 and _is_at(raw, at, b"extFields", 9):
        return _EXT_FIELDS
    return _BAD


def _put_place(place: bytearray, field: int, begin: int, end: int, is_text: bool) -> None:
    at = field * _PLACE_BYTES
    place[at], place[at + 1] = begin >> 8, begin & 0xFF
    place[at + 2], place[at + 3] = end >> 8, end & 0xFF
    place[at + 4] = is_text


def _begin(place: bytearray, field: int) -> int:
    """Returns where its value begins; 0: the header does not have it."""
    at = field * _PLACE_BYTES
    return place[at] << 8 | place[at + 1]


def _end(place: bytearray, field: int) -> int:
    at = field * _PLACE_BYTES
    return place[at + 2] << 8 | place[at + 3]


def _is_text_at(place: bytearray, field: int) -> bool:
    return place[field * _PLACE_BYTES + 4] != 0


def _may_be_text(place: bytearray, field: int) -> bool:
    return _is_text_at(place, field) or not _begin(place, field)


def _number_of(raw: bytes, place: bytearray, field: int, default: int) -> int:
    """Returns its value; _BAD: it is not a number. default: for a header that does not have it."""
    at, end = _begin(place, field), _end(place, field)
    if not at:
        return default
    if _digits_end(raw, at, end) != end:
        return _BAD
    number = 0
    while at < end:
        number = number * 10 + raw[at] - _ZERO
        at += 1
    return number


def _at(raw: bytes, at: int, end: int) -> int:
    return raw[at] if at < end else 0


def _text_end(raw: bytes, at: int, end: int) -> int:
    """Returns the position of the quote behind a text of printable ASCII; _BAD: it is another text."""
    table = _IS_TEXT
    while at < end and table[raw[at]]:
        at += 1
    return at if at < end and raw[at] == _QUOTE else _BAD


def _unescape(raw: bytes, at: int, end: int, place: bytearray) -> int:
    """Writes the properties behind the places, with a separator behind the last one, and the place of the
    written text. Returns where the quote behind them is; _BAD: there are other escapes than those below
    128."""
    table, to = _IS_TEXT, _PLACES_BYTES
    while at < end:
        byte = raw[at]
        if not table[byte]:
            if byte == _QUOTE:
                if to > _PLACES_BYTES and place[to - 1] != _SEPARATOR:
                    place[to] = _SEPARATOR
                    to += 1
                _put_place(place, _I, _PLACES_BYTES, to, True)
                return at
            if byte != _BACKSLASH or at + 6 > end or not _is_at(raw, at + 1, b"u00", 3):
                return _BAD
            high, low = _digit(raw[at + 4]), _digit(raw[at + 5])
            if not 0 <= high < 8 or low < 0:
                return _BAD
            byte = high << 4 | low
            at += 5
        place[to] = byte
        to += 1
        at += 1
    return _BAD


def _digits_end(raw: bytes, at: int, end: int) -> int:
    """Returns where a number without sign ends; _BAD: it is not a number, or has digits that JSON does not
    allow."""
    begin = at
    while at < end and _ZERO <= raw[at] <= _NINE:
        at += 1
    if not 0 < at - begin <= _DIGITS_MAX or (raw[begin] == _ZERO and at > begin + 1):
        return _BAD
    return at


def _digit(byte: int) -> int:
    """Returns the value of a hexadecimal digit; _BAD: it is not one."""
    if 48 <= byte <= 57:
        return byte - 48
    if 97 <= byte <= 102:
        return byte - 87
    if 65 <= byte <= 70:
        return byte - 55
    return _BAD


def _is_at(raw: bytes, at: int, name: bytes, count: int) -> bool:
    for index in range(count):  # noqa: SIM110 - a loop in C
        if raw[at + index] != name[index]:
            return False
    return True


prefer_twin(__name__, globals(), "plain_sends", "messages_of")
