"""What a Java client gets of a pull body: after RocketMQ 5.3.3 MessageDecoder.decodes() and clientDecode().

It reads the fields one after the other, does not check BODYCRC, and does not look at TOTALSIZE. At the first
record that it cannot decode it gives up the rest of the body, silently, and goes on at nextBeginOffset.
"""

import struct
import zlib
from typing import NamedTuple

MAGICS = {-626843481: ">b", -626843477: ">h"}
"""MAGICCODE -> the topic's length."""
COMPRESSED, ZLIB_TYPES = 0x1, (0x000, 0x300)


class JavaMessage(NamedTuple):
    """The fields that tests compare."""

    queue_offset: int
    body: bytes
    topic: str


class _Buffer:
    """java.nio.ByteBuffer: every read moves the position; struct.error is its BufferUnderflowException."""

    def __init__(self, data: bytes) -> None:
        self.data, self.position = data, 0

    def get(self, form: str) -> int:
        (value,) = struct.unpack_from(form, self.data, self.position)
        self.position += struct.calcsize(form)
        return int(value)

    def take(self, count: int) -> bytes:
        if count < 0 or self.position + count > len(self.data):
            raise struct.error("BufferUnderflowException, or NegativeArraySizeException")
        self.position += count
        return self.data[self.position - count : self.position]


def java_decodes(body: bytes) -> list[JavaMessage]:
    """Returns the messages that a Java client delivers to its listener."""
    buffer, found = _Buffer(body), list[JavaMessage]()
    while buffer.position < len(body):
        try:
            found.append(_decode(buffer))
        except (struct.error, KeyError, zlib.error, UnicodeDecodeError):
            break
    return found


def _decode(buffer: _Buffer) -> JavaMessage:
    buffer.get(">i")  # TOTALSIZE
    topic_length = MAGICS[buffer.get(">i")]  # MessageVersion.valueOfMagicCode() throws for others
    buffer.take(12)  # BODYCRC, QUEUEID, FLAG
    queue_offset = buffer.get(">q")
    buffer.get(">q")  # PHYSICALOFFSET
    sys_flag = buffer.get(">i")
    buffer.get(">q")  # BORNTIMESTAMP
    buffer.take((16 if sys_flag & 0x10 else 4) + 4)
    buffer.get(">q")  # STORETIMESTAMP
    buffer.take((16 if sys_flag & 0x20 else 4) + 4)
    buffer.take(12)  # RECONSUMETIMES, PREPAREDTRANSACTIONOFFSET
    body = buffer.take(buffer.get(">i"))
    if sys_flag & COMPRESSED and sys_flag & 0x700 in ZLIB_TYPES:
        body = zlib.decompress(body)
    topic = buffer.take(buffer.get(topic_length)).decode()
    buffer.take(max(buffer.get(">h"), 0))
    return JavaMessage(queue_offset, body, topic)
