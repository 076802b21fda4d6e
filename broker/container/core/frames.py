"""The stream between a container's supervisor and a worker: frames of four bytes of length and a payload.

    0        4
    | length | payload, `length` bytes of UTF-8 JSON |

The length is big endian and counts the payload only. Frames are bounded: without a bound, four bytes from a
faulty process would make the other one reserve gigabytes.
"""

import struct

LENGTH_BYTES = 4
FRAME_BYTES_MAX = 32 * 1024 * 1024
"""The largest payload. The largest message is the metrics text: about 200 kB for each broker of a worker."""

_LENGTH = struct.Struct(">I")


class FrameError(Exception):
    """The peer sent an invalid length, or a payload does not fit into a frame."""


def encode_frame(payload: bytes, bytes_max: int = FRAME_BYTES_MAX) -> bytes:
    """Returns the payload as a frame. Raises FrameError if it is empty or too large."""
    _check(len(payload), bytes_max)
    return _LENGTH.pack(len(payload)) + payload


class FrameDecoder:
    """receive_data() stores bytes; next_frame() returns one payload, or None if it needs more bytes. It
    stores at most one frame and the rest of one read."""

    def __init__(self, bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._buffer = bytearray()
        self._bytes_max = bytes_max

    def receive_data(self, data: bytes) -> None:
        """Stores what was read."""
        self._buffer += data

    def next_frame(self) -> bytes | None:
        """Returns the next payload. Raises FrameError if the length is 0 or above the bound; the stream has
        no further frames then."""
        if len(self._buffer) < LENGTH_BYTES:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        _check(length, self._bytes_max)
        if len(self._buffer) < LENGTH_BYTES + length:
            return None
        payload = bytes(self._buffer[LENGTH_BYTES : LENGTH_BYTES + length])
        del self._buffer[: LENGTH_BYTES + length]
        return payload

    @property
    def stored_bytes(self) -> int:
        """Returns how much was received and not returned: not 0 at the end of a stream means that its last
        frame is cut."""
        return len(self._buffer)


def _check(length: int, bytes_max: int) -> None:
    if not 0 < length <= bytes_max:
        raise FrameError(f"a frame of {length} bytes: it must have 1 to {bytes_max}")
