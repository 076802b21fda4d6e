"""One connection of an attacker, or of the stage: frames out, answers and pushed requests in."""

import asyncio
import contextlib
import itertools
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Final

from tests.attacks.frames import CLOSED, SILENT, Answer, Request, answer_of

ANSWER_S: Final = 4.0
CONNECT_S: Final = 10.0
GONE: Final = (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError, OSError, EOFError)
"""What a closed or refused connection looks like."""

_opaques = itertools.count(1_000)


class Line:
    """A connection. `pushed`: the payloads of requests that the server sent."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.pushed: list[bytes] = []

    @property
    def binding(self) -> bytes:
        """What only the two ends of this TLS connection know (tls-unique); empty without TLS."""
        tls = self._writer.get_extra_info("ssl_object")
        return b"" if tls is None else tls.get_channel_binding("tls-unique") or b""

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def read(self, count: int, timeout_s: float = ANSWER_S) -> bytes:
        """Returns exactly `count` bytes. Raises TimeoutError, or one of GONE."""
        async with asyncio.timeout(timeout_s):
            return await self._reader.readexactly(count)

    async def payload(self, timeout_s: float = ANSWER_S) -> bytes:
        """Returns the next frame without its length. Raises as read() does."""
        async with asyncio.timeout(timeout_s):
            (length,) = struct.unpack(">I", await self._reader.readexactly(4))
            return await self._reader.readexactly(length)

    async def ask(self, request: Request | bytes, *, timeout_s: float = ANSWER_S) -> Answer:
        """Sends a request and returns its answer. Bytes: a whole frame; the next answer is taken for its."""
        opaque = None
        if isinstance(request, Request):
            opaque = next(_opaques)
            data = Request(
                request.code, request.fields, request.body, request.version, request.flag, opaque
            ).frame()
        else:
            data = request
        try:
            await self.send(data)
            return await self.answer(opaque, timeout_s=timeout_s)
        except TimeoutError:
            return Answer(SILENT, "no answer")
        except GONE:
            return Answer(CLOSED, "connection closed")

    async def answer(self, opaque: int | None = None, *, timeout_s: float = ANSWER_S) -> Answer:
        """Returns the next answer, with this opaque. Raises as read() does."""
        while True:
            payload = await self.payload(timeout_s)
            (word,) = struct.unpack_from(">I", payload)
            header = payload[4 : 4 + (word & 0xFFFFFF)]
            if b'"flag":1' not in header:
                self.pushed.append(payload)
            elif opaque is None or b'"opaque":%d' % opaque in header:
                return answer_of(payload)

    async def is_open(self, timeout_s: float = ANSWER_S) -> bool:
        """Whether the other side keeps the connection open, without sending anything, for this time."""
        try:
            async with asyncio.timeout(timeout_s):
                return bool(await self._reader.read(1))
        except TimeoutError:
            return True
        except GONE:
            return False

    async def close(self) -> None:
        self._writer.transport.abort()
        with contextlib.suppress(*GONE):
            await self._writer.wait_closed()


async def open_line(address: str, *, source: str, tls: ssl.SSLContext | None) -> Line:
    """Raises one of GONE, or TimeoutError."""
    host, _, port = address.rpartition(":")
    async with asyncio.timeout(CONNECT_S):
        reader, writer = await asyncio.open_connection(
            host, int(port), ssl=tls, local_addr=(source, 0), server_hostname="localhost" if tls else None
        )
    return Line(reader, writer)


@contextlib.asynccontextmanager
async def dialled(address: str, *, source: str, tls: ssl.SSLContext | None) -> AsyncIterator[Line]:
    """A line that is closed at the end."""
    line = await open_line(address, source=source, tls=tls)
    try:
        yield line
    finally:
        await line.close()


async def until(
    what: str, condition: Callable[[], Coroutine[Any, Any, bool]], *, timeout_s: float = 20.0
) -> None:
    """Raises TimeoutError, with `what` in its text."""
    try:
        async with asyncio.timeout(timeout_s):
            while not await condition():  # noqa: ASYNC110 - what it asks for is in another process
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise TimeoutError(f"not within {timeout_s:g} s: {what}") from None


async def happens(condition: Callable[[], Coroutine[Any, Any, bool]], timeout_s: float) -> bool:
    """Whether the condition becomes true within this time."""
    try:
        await until("", condition, timeout_s=timeout_s)
    except TimeoutError:
        return False
    return True
