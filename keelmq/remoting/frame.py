"""Splits a byte stream into frames. Knows nothing of headers, bodies or sockets.

     0        4        8          8+H       4+L
     +--------+--------+-----------+---------+
     | L i32  | T8 H24 | header    | body    |     L counts everything after itself: L = 4 + H + body
     +--------+--------+-----------+---------+     T: 0 JSON header, 1 ROCKETMQ (binary) header

Invariant: a frame is checked as soon as its 8 prefix bytes have arrived, before any of it is buffered.
Source: RocketMQ 5.3.3 NettyDecoder, RemotingCommand.decode.
"""

import struct
from dataclasses import dataclass, field
from typing import TypeAlias

from keelmq.remoting.operation import RemoteProtocolError
from keelmq.runtime.compiled import is_compiled, prefer_twin

FRAME_BYTES_MAX = 16_777_216
"""Includes the 4 length bytes, as in RocketMQ."""

LENGTH_BYTES = 4
PREFIX_BYTES = 8
SERIALIZE_TYPE_MAX = 1
HEADER_BYTES_MASK = 0xFFFFFF
_IS_COMPILED = is_compiled(__file__)
_TYPES_END = (SERIALIZE_TYPE_MAX + 1) << 24

unpack_prefix = struct.Struct(">ii").unpack_from
pack_prefix = struct.Struct(">II").pack

_unpack_length = struct.Struct(">i").unpack_from

_OTHER_PROTOCOLS = (
    (b"\x16\x03", "a TLS hello; TLS is not served here"),
    (b"GET ", "an HTTP request"),
    (b"POST", "an HTTP request"),
    (b"PUT ", "an HTTP request"),
    (b"HEAD", "an HTTP request"),
    (b"HTTP", "the answer of an HTTP port"),
    (b"PROX", "a PROXY protocol header; it is not served here"),
    (b"\r\n\r\n", "a PROXY protocol header; it is not served here"),
)


def frame_bytes(data: bytes | bytearray | memoryview, at: int, end: int) -> int:
    """Returns the whole size of the frame that begins at `at`, length field included; 0: fewer than 8 bytes
    before `end`, so the size is not known yet. Raises RemoteProtocolError for bytes that no correct peer
    sends."""
    have = end - at
    if have < PREFIX_BYTES:
        if have >= LENGTH_BYTES:
            _check_length(_unpack_length(data, at)[0], data, at)
        return 0
    length, word = unpack_prefix(data, at)
    if not LENGTH_BYTES <= length <= FRAME_BYTES_MAX - LENGTH_BYTES:
        _check_length(length, data, at)
    # A negative word has a type byte above 127.
    if word >> 24 > SERIALIZE_TYPE_MAX or word < 0:
        raise RemoteProtocolError(f"unknown serialize type {(word >> 24) & 0xFF}")
    if word & HEADER_BYTES_MASK > length - LENGTH_BYTES:
        raise RemoteProtocolError(f"header of {word & HEADER_BYTES_MASK} bytes in a frame of {length}")
    return LENGTH_BYTES + int(length)


Frame: TypeAlias = tuple[int, bytes, bytes, int]
"""Serialize type, header, body, and the position of its end."""


def whole_frames(data: bytes) -> list[Frame]:
    """Returns all frames before the first that is incomplete or illegal; frame_bytes() distinguishes the
    two."""
    if _IS_COMPILED:
        return _whole_frames(data)
    frames: list[Frame] = []
    at, end = 0, len(data)
    while end - at >= PREFIX_BYTES:
        length, word = unpack_prefix(data, at)
        header_at = at + PREFIX_BYTES
        body_at, at = header_at + (word & HEADER_BYTES_MASK), at + LENGTH_BYTES + length
        if not body_at <= at <= end or not 0 <= word < _TYPES_END:
            break
        frames.append((word >> 24, data[header_at:body_at], data[body_at:at], at))
    return frames


def _whole_frames(data: bytes) -> list[Frame]:
    """As whole_frames(), in the form that is fastest when compiled."""
    frames: list[Frame] = []
    raw, at, end = data, 0, len(data)
    while end - at >= PREFIX_BYTES:
        length = raw[at] << 24 | raw[at + 1] << 16 | raw[at + 2] << 8 | raw[at + 3]
        header_bytes = raw[at + 5] << 16 | raw[at + 6] << 8 | raw[at + 7]
        serialize_type, header_at = raw[at + 4], at + PREFIX_BYTES
        body_at, at = header_at + header_bytes, at + LENGTH_BYTES + length
        if length < 0 or not body_at <= at <= end or serialize_type > SERIALIZE_TYPE_MAX:
            break
        frames.append((serialize_type, raw[header_at:body_at], raw[body_at:at], at))
    return frames


def large_frame(buffer: bytearray) -> list[Frame]:
    """Returns the one frame that fills the buffer exactly (frame_bytes() has checked it); the body is copied
    once."""
    view = memoryview(buffer)
    body_at = PREFIX_BYTES + (unpack_prefix(view, 0)[1] & HEADER_BYTES_MASK)
    return [(view[LENGTH_BYTES], bytes(view[PREFIX_BYTES:body_at]), bytes(view[body_at:]), len(view))]


def _check_length(length: int, data: bytes | bytearray | memoryview, at: int) -> None:
    if LENGTH_BYTES <= length <= FRAME_BYTES_MAX - LENGTH_BYTES:
        return
    first = bytes(data[at : at + LENGTH_BYTES])
    for start, name in _OTHER_PROTOCOLS:
        if first.startswith(start):
            raise RemoteProtocolError(f"frame length {length}: looks like {name}")
    raise RemoteProtocolError(f"frame length {length}")


@dataclass(slots=True)
class FrameDecoder:
    """Decodes a stream: receive_data() stores bytes; next_frame() returns one frame, None if it is
    incomplete."""

    _buffer: bytearray = field(default_factory=bytearray)
    _at: int = 0

    def receive_data(self, data: bytes | bytearray | memoryview) -> None:
        """Stores received bytes."""
        if self._at:
            del self._buffer[: self._at]
            self._at = 0
        self._buffer += data

    def next_frame(self) -> bytes | None:
        """Returns the next frame without its 4-byte length, the input of command.decode(); None: more bytes
        are needed. RemoteProtocolError."""
        size = frame_bytes(self._buffer, self._at, len(self._buffer))
        if size == 0 or self._at + size > len(self._buffer):
            return None
        payload = bytes(memoryview(self._buffer)[self._at + LENGTH_BYTES : self._at + size])
        self._at += size
        return payload

    @property
    def pending_bytes(self) -> int:
        """Returns the number of received bytes that are not part of a returned frame."""
        return len(self._buffer) - self._at


prefer_twin(__name__, globals(), "whole_frames")
