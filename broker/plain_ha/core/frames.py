"""The packets of the HA stream between a master and its slaves without controllers: bytes <-> values.

All integers are big-endian. A slave only sends reports; a master sends packets. The stream has no
handshake, no magic and no checksum, so every length is checked before it is used. Source: RocketMQ 5.3.3
DefaultHAClient, DefaultHAConnection.
"""

import struct
from typing import Final

from broker.ha.core.frames import JAVA_BUFFER_BYTES
from keelmq.remoting.operation import RemoteProtocolError

REPORT: Final = struct.Struct(">q")
"""Slave -> master: maxOffset(8) of its log. The first one asks for the bytes from there on."""

HEADER: Final = struct.Struct(">qi")
"""Master -> slave: offset(8) | bodySize(4) | body. No body: a heartbeat."""

REPORT_BYTES: Final = REPORT.size  # 8
HEADER_BYTES: Final = HEADER.size  # 12
BODY_BYTES_MAX: Final = JAVA_BUFFER_BYTES - HEADER_BYTES
"""A Java slave never completes a larger packet, so no master sends one."""


def parse_header(head: bytes | bytearray | memoryview) -> tuple[int, int]:
    """Returns offset and body size of 12 bytes. Raises RemoteProtocolError for values that no master
    sends."""
    offset, body_bytes = HEADER.unpack(head)
    if offset < 0 or not 0 <= body_bytes <= BODY_BYTES_MAX:
        raise RemoteProtocolError(f"HA packet at offset {offset} with a body of {body_bytes} bytes")
    return int(offset), int(body_bytes)
