"""Checks the signatures of many requests of one read, if their headers have the expected form. Pure.

The expected form is what most clients write: JSON without white space and in ASCII; the ext fields of the
form, in its order, and each of them a text; every other member an integer or a text without escapes. From
such a header msgspec's decoder reads the same values, so the answer is that of KnownKind.has(). Of other
headers nothing is said here.

A compiled leaf, for its loops over bytes. Interpreted, msgspec's decoder is faster, and no request is checked
here.
"""

from binascii import b2a_base64
from hmac import compare_digest
from typing import Any, Final

from keelmq.remoting.frame import Frame
from keelmq.runtime.compiled import is_compiled, prefer_twin
from keelmq.security.core.known_requests import SentForm
from keelmq.security.prepared_hmac import PreparedHmac

_IS_COMPILED: Final = is_compiled(__file__)
_EXT_FIELDS: Final = b"extFields"
_EXT_FIELDS_BYTES: Final = len(_EXT_FIELDS)
_BAD: Final = -1
_HEADER_BYTES_MAX: Final = 65_535
"""Positions are kept in two bytes."""
_DIGITS_MAX: Final = 18
_QUOTE, _COMMA, _MINUS, _ZERO, _NINE, _COLON, _BACKSLASH, _U = b'",-09:\\u'
_OPEN, _CLOSE, _EQUALS = b"{}="
_PLAIN: Final = bytes(0x20 <= each <= 0x7F and chr(each) not in '"\\' for each in range(256))
"""Of each byte: whether it is ASCII and stands for itself in a text."""
_DIGEST_BYTES: Final = 20
_PADDED_BYTES: Final = 21
"""A digest and a zero byte: base64 has four characters for three bytes."""
_SIGNATURE_BYTES: Final = 28
_LETTERS: Final = b'"\\/bfnrt'
"""What stands behind a backslash, and in _MEANT: the character that it means."""
_MEANT: Final = b'"\\/\b\f\n\r\t'
_LETTERS_COUNT: Final = len(_LETTERS)


def count_signed(frames: list[Frame], begin: int, form: SentForm, keys: dict[Any, Any], trusted: Any) -> int:
    """Returns how many frames are admitted from `begin` on: they have the expected form, their user and
    resources are among `keys`, and their signatures are right. 0 says nothing about the first of them.
    trusted: None, or a key; then requests with this key are admitted whatever their signature, and no others.
    """
    if _IS_COMPILED:
        return _count(frames, begin, form, keys, trusted)
    return 0


# -- compiled -------------------------------------------------------------------------------------------


def _count(frames: list[Frame], begin: int, form: SentForm, keys: dict[Any, Any], trusted: Any) -> int:
    between, count, runs, resources, signature = form
    runs_count = len(runs)
    same: tuple[bytes, ...] = ()
    key: Any = None
    digest_of: Any = None
    room, starts = bytearray(), bytearray(2 * count + 2)
    text, place = room, starts
    left = len(frames) - begin if trusted is None else 0
    all_digests, all_given = bytearray(_PADDED_BYTES * left), bytearray(_SIGNATURE_BYTES * left)
    digests, given = all_digests, all_given
    admitted = 0
    for index in range(begin, len(frames)):
        frame = frames[index]
        header, body = frame[1], frame[2]
        size = len(header)
        if size > _HEADER_BYTES_MAX:
            break
        # The values, and then the signed ones in their order, and the body.
        if len(room) < 2 * size + len(body):
            room = bytearray(2 * size + len(body))
            text = room
        if not _read(header, size, between, count, text, place):
            break
        if key is None or not _is_same(text, place, resources, same):
            same = tuple([_value(text, place, number) for number in resources])
            decided = [value.decode() for value in same]
            key = keys.get(decided[0] if len(decided) == 1 else tuple(decided))
            if key is None:
                break
            if key.prepared is None:
                key.prepared = PreparedHmac(key.blocks)
            digest_of = key.prepared.digest
        if trusted is None:
            at = _start(place, signature)
            if _start(place, signature + 1) - at != _SIGNATURE_BYTES:
                break
            _copy(given, _SIGNATURE_BYTES * admitted, text, at, at + _SIGNATURE_BYTES)
            begun = at = _start(place, count)
            for run in range(0, runs_count, 2):
                at = _copy(text, at, text, _start(place, runs[run]), _start(place, runs[run + 1]))
            at = _copy(text, at, body, 0, len(body))
            digest = digest_of(text[begun:at])
            _copy(digests, _PADDED_BYTES * admitted, digest, 0, _DIGEST_BYTES)
        elif key is not trusted:
            break
        admitted += 1
    return admitted if trusted is not None else _right(all_digests, all_given, admitted)


def _right(digests: bytearray, given: bytearray, count: int) -> int:
    """Returns how many of the signatures are those of the digests, from the first one on. All are compared at
    once, in constant time; one by one only if one of them is wrong."""
    # base64 of 20 bytes and a zero byte is that of the 20 bytes, but for the last character, which is "A".
    expected = bytearray(b2a_base64(digests[: _PADDED_BYTES * count], newline=False))
    target = expected
    for index in range(count):
        target[_SIGNATURE_BYTES * (index + 1) - 1] = _EQUALS
    if compare_digest(expected, given[: _SIGNATURE_BYTES * count]):
        return count
    for index in range(count):
        one = slice(_SIGNATURE_BYTES * index, _SIGNATURE_BYTES * (index + 1))
        if not compare_digest(expected[one], given[one]):
            return index
    return count


def _read(header: bytes, end: int, between: bytes, count: int, text: bytearray, place: bytearray) -> bool:
    """Writes the values of the ext fields to `text`, one after the other, and to `place` where each begins
    and the last one ends. Returns whether the header has the expected form."""
    raw, at, is_read = header, 1, False
    if end < 1 or raw[0] != _OPEN:
        return False
    while True:
        name_at = at + 1
        at = _skip_text(raw, at, end)
        if at == _BAD or at >= end or raw[at] != _COLON:
            return False
        if at - 1 - name_at == _EXT_FIELDS_BYTES and _is_at(raw, name_at, _EXT_FIELDS, 0, _EXT_FIELDS_BYTES):
            if is_read:
                return False
            at, is_read = _ext_fields(raw, at + 1, end, between, count, text, place), True
        else:
            at = _skip_value(raw, at + 1, end)
        if at == _BAD or at >= end:
            return False
        if raw[at] == _CLOSE:
            return is_read and at + 1 == end
        if raw[at] != _COMMA:
            return False
        at += 1


def _ext_fields(
    raw: bytes, at: int, end: int, between: bytes, count: int, text: bytearray, place: bytearray
) -> int:
    """Reads the object at `at`. between: of SentForm. Returns where it ends; _BAD: it is not as expected."""
    plain, total, before = _PLAIN, 0, 0
    for index in range(count + 1):
        length = between[before]
        before += 1
        if end - at < length or not _is_at(raw, at, between, before, length):
            return _BAD
        before += length
        at += length
        place[2 * index], place[2 * index + 1] = total >> 8, total & 0xFF
        if index == count:
            break
        while at < end:
            byte = raw[at]
            text[total] = byte
            if not plain[byte]:
                if byte != _BACKSLASH:
                    break
                byte = _escaped(raw, at + 1, end)
                if byte == _BAD:
                    return _BAD
                at += 5 if raw[at + 1] == _U else 1
                text[total] = byte
            at += 1
            total += 1
    return at


def _escaped(raw: bytes, at: int, end: int) -> int:
    """Returns the ASCII character of the escape that follows the backslash before `at`; _BAD: it is none."""
    if at >= end:
        return _BAD
    if raw[at] == _U:
        if end - at < 5 or raw[at + 1] != _ZERO or raw[at + 2] != _ZERO:
            return _BAD
        high, low = _hex(raw[at + 3]), _hex(raw[at + 4])
        return _BAD if high > 7 or low > 15 else high << 4 | low
    letters, meant = _LETTERS, _MEANT
    for index in range(_LETTERS_COUNT):
        if letters[index] == raw[at]:
            return meant[index]
    return _BAD


def _hex(byte: int) -> int:
    """Returns the value of a hex digit; 16: it is none."""
    if _ZERO <= byte <= _NINE:
        return byte - _ZERO
    byte |= 32  # a small letter
    return byte - 87 if 97 <= byte <= 102 else 16


def _skip_text(raw: bytes, at: int, end: int) -> int:
    """Returns where a text without escapes ends; _BAD: there is none."""
    if at >= end or raw[at] != _QUOTE:
        return _BAD
    plain = _PLAIN
    at += 1
    while at < end and plain[raw[at]]:
        at += 1
    return at + 1 if at < end and raw[at] == _QUOTE else _BAD


def _skip_value(raw: bytes, at: int, end: int) -> int:
    """Returns where an integer or a text without escapes ends; _BAD: there is neither."""
    if at < end and raw[at] == _QUOTE:
        return _skip_text(raw, at, end)
    if at < end and raw[at] == _MINUS:
        at += 1
    begin = at
    while at < end and _ZERO <= raw[at] <= _NINE:
        at += 1
    if at == begin or at - begin > _DIGITS_MAX or (raw[begin] == _ZERO and at - begin > 1):
        return _BAD
    return at


def _is_same(text: bytearray, place: bytearray, resources: tuple[int, ...], same: tuple[bytes, ...]) -> bool:
    """Whether the user and the resources are those of the request before."""
    for index in range(len(resources)):
        number = resources[index]
        at = _start(place, number)
        length = _start(place, number + 1) - at
        value = same[index]
        if length != len(value) or not _is_at(text, at, value, 0, length):
            return False
    return True


def _value(text: bytearray, place: bytearray, number: int) -> bytes:
    return bytes(text[_start(place, number) : _start(place, number + 1)])


def _start(place: bytearray, number: int) -> int:
    return place[2 * number] << 8 | place[2 * number + 1]


def _copy(target: bytearray, at: int, source: bytes | bytearray, begin: int, end: int) -> int:
    """Returns where the copy ends."""
    for index in range(begin, end):
        target[at] = source[index]
        at += 1
    return at


def _is_at(raw: bytes | bytearray, at: int, other: bytes, begin: int, count: int) -> bool:
    for index in range(count):  # noqa: SIM110 - a loop in C
        if raw[at + index] != other[begin + index]:
            return False
    return True


prefer_twin(__name__, globals(), "count_signed")
