"""Compresses the bodies of messages, as RocketMQ's producers do: zlib, from a size on."""

import asyncio
import zlib

from keelmq.client.message import COMPRESSED_FLAG, ZLIB_LEVEL

COMPRESS_OVER_BYTES = 4_096
"""Default size from which a body is compressed."""
OFF_LOOP_BYTES = 65_536
"""A body of this size takes about a millisecond: a thread compresses it and larger ones."""


async def compressed(body: bytes, over_bytes: int | None) -> tuple[bytes, int]:
    """Returns the body to send and its sys_flag. It is compressed from over_bytes on (None: never), if that
    makes it shorter: a body that does not get shorter could exceed the broker's maxMessageSize."""
    if over_bytes is None or len(body) < over_bytes:
        return body, 0
    packed = deflated(body) if len(body) < OFF_LOOP_BYTES else await asyncio.to_thread(deflated, body)
    return (packed, COMPRESSED_FLAG) if len(packed) < len(body) else (body, 0)


def deflated(body: bytes) -> bytes:
    """Returns the body as zlib, at RocketMQ's level."""
    return zlib.compress(body, ZLIB_LEVEL)
