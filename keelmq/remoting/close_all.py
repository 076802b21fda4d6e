"""Closes many connections at once, at the end of a server or client."""

import asyncio
from collections.abc import Iterable
from typing import Final

from keelmq.remoting.connection import Connection

CLOSE_FLUSH_MS: Final = 200
"""How long close_all() waits for queued bytes to leave."""


async def close_all(connections: Iterable[Connection]) -> None:
    """Closes connections and returns when all are gone; bytes that a peer does not accept within
    CLOSE_FLUSH_MS are lost."""
    leaving = list(connections)
    for connection in leaving:
        connection.close()
    if not leaving:
        return
    _, slow = await asyncio.wait([connection.lost for connection in leaving], timeout=CLOSE_FLUSH_MS / 1000)
    if slow:
        for connection in leaving:
            if not connection.lost.done():
                connection.abort()
        await asyncio.wait(slow)
