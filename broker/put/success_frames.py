"""Frames of successful plain sends that were stored together: the same JSON except for five values. Pure.

A compiled leaf: with Cython, a frame is written without Python objects.
"""

import struct
from typing import Final, TypeAlias

import msgspec

from keelmq.runtime.compiled import is_compiled, prefer_twin

_IS_COMPILED: Final = is_compiled(__file__)
_PREFIX = struct.Struct(">II").pack
_PREFIX_BYTES: Final = 8
_LENGTH_BYTES: Final = 4
_OFFSET_DIGITS: Final = 16

Texts: TypeAlias = tuple[bytes, bytes, bytes, bytes, bytes, bytes]
"""The texts before the CommitLog offset (16 hex digits), the queueId, the queue offset, the key and the
opaque, and the text behind the opaque."""
Answered: TypeAlias = tuple[int, bytes, int, bool]
"""queueId, key (see key_text), opaque, is_oneway: a oneway send gets no frame."""


def key_text(key: bytes) -> bytes:
    """Returns the key as a JSON string, without the quotation marks."""
    if key.isalnum():  # of bytes: that of str looks up every character
        return key
    return msgspec.json.encode(key.decode("utf-8", "replace"))[1:-1]


def success_frames(
    texts: Texts, offsets: list[int], queue_offsets: list[int], answered: list[Answered]
) -> bytes:
    """Returns the frames of all answers, joined. offsets: in the CommitLog. The lists have an item for each
    message."""
    if _IS_COMPILED:
        return _written(texts, offsets, queue_offsets, answered)
    frames = success_frame_list(texts, offsets, queue_offsets, answered)
    return b"".join([frame for frame in frames if frame is not None])


def success_frame_list(
    texts: Texts, offsets: list[int], queue_offsets: list[int], answered: list[Answered]
) -> list[bytes | None]:
    """Returns the frame of each message; None: it was oneway."""
    if _IS_COMPILED:
        return _each_written(texts, offsets, queue_offsets, answered)
    one, two, three, four, five, six = texts
    headers = [
        None
        if is_oneway
        else b"%b%016X%b%d%b%d%b%b%b%d%b"
        % (one, offset, two, queue_id, three, queue_offset, four, key, five, opaque, six)
        for offset, queue_offset, (queue_id, key, opaque, is_oneway) in zip(
            offsets, queue_offsets, answered, strict=True
        )
    ]
    return [
        None if header is None else _PREFIX(len(header) + _LENGTH_BYTES, len(header)) + header
        for header in headers
    ]


# -- compiled -------------------------------------------------------------------------------------------


def _each_written(
    texts: Texts, offsets: list[int], queue_offsets: list[int], answered: list[Answered]
) -> list[bytes | None]:
    fixed = _OFFSET_DIGITS + sum(map(len, texts))
    frames: list[bytes | None] = []
    for index in range(len(answered)):
        queue_id, key, opaque, is_oneway = answered[index]
        if is_oneway:
            frames.append(None)
            continue
        offset, queue_offset = offsets[index], queue_offsets[index]
        size = fixed + len(key) + _decimals(queue_id) + _decimals(queue_offset) + _decimals(opaque)
        whole = bytearray(_PREFIX_BYTES + size)
        target = whole
        _frame(target, 0, size, texts, offset, queue_id, queue_offset, key, opaque)
        frames.append(bytes(whole))
    return frames


def _written(texts: Texts, offsets: list[int], queue_offsets: list[int], answered: list[Answered]) -> bytes:
    fixed = _OFFSET_DIGITS + sum(map(len, texts))
    total = 0
    for index in range(len(answered)):
        queue_id, key, opaque, is_oneway = answered[index]
        if not is_oneway:
            queue_offset = queue_offsets[index]
            total += _PREFIX_BYTES + fixed + len(key)
            total += _decimals(queue_id) + _decimals(queue_offset) + _decimals(opaque)
    whole = bytearray(total)
    target, at = whole, 0
    for index in range(len(answered)):
        queue_id, key, opaque, is_oneway = answered[index]
        if not is_oneway:
            offset, queue_offset = offsets[index], queue_offsets[index]
            size = fixed + len(key) + _decimals(queue_id) + _decimals(queue_offset) + _decimals(opaque)
            at = _frame(target, at, size, texts, offset, queue_id, queue_offset, key, opaque)
    return bytes(whole)


def _frame(
    target: bytearray,
    at: int,
    size: int,
    texts: Texts,
    offset: int,
    queue_id: int,
    queue_offset: int,
    key: bytes,
    opaque: int,
) -> int:
    """Writes one frame; returns where it ends. size: of its header."""
    before_offset, before_queue_id, before_queue_offset, before_key, before_opaque, last = texts
    _put(target, at, size + _LENGTH_BYTES)
    _put(target, at + 4, size)
    at = _copy(target, at + _PREFIX_BYTES, before_offset, len(before_offset))
    at = _hex(target, at, offset)
    at = _copy(target, at, before_queue_id, len(before_queue_id))
    at = _decimal(target, at, queue_id)
    at = _copy(target, at, before_queue_offset, len(before_queue_offset))
    at = _decimal(target, at, queue_offset)
    at = _copy(target, at, before_key, len(before_key))
    at = _copy(target, at, key, len(key))
    at = _copy(target, at, before_opaque, len(before_opaque))
    at = _decimal(target, at, opaque)
    return _copy(target, at, last, len(last))


def _decimals(number: int) -> int:
    """Returns the number of characters of its decimal text."""
    count = 1
    if number < 0:
        count, number = 2, -number
    while number > 9:
        number //= 10
        count += 1
    return count


def _put(target: bytearray, at: int, value: int) -> None:
    """Writes four bytes, big endian."""
    target[at] = value >> 24
    target[at + 1] = value >> 16 & 0xFF
    target[at + 2] = value >> 8 & 0xFF
    target[at + 3] = value & 0xFF


def _hex(target: bytearray, at: int, number: int) -> int:
    """Writes 16 hex digits; returns where they end."""
    for index in range(_OFFSET_DIGITS):
        digit = number >> (60 - 4 * index) & 15
        target[at + index] = digit + (48 if digit < 10 else 55)
    return at + _OFFSET_DIGITS


def _decimal(target: bytearray, at: int, number: int) -> int:
    """Writes the decimal text; returns where it ends."""
    end = at + _decimals(number)
    if number < 0:
        target[at] = 45
        number = -number
    place = end
    while True:
        place -= 1
        target[place] = 48 + number % 10
        number //= 10
        if number == 0:
            return end


def _copy(target: bytearray, at: int, source: bytes, count: int) -> int:
    """Copies `count` bytes; returns where they end."""
    for index in range(count):
        target[at + index] = source[index]
    return at + count


prefer_twin(__name__, globals(), "success_frame_list", "success_frames")
