"""The process in which clients measure: it ends with its input, and says why it failed."""

import asyncio

import pytest

from tests.bench.measuring_process import measuring
from tests.bench.native import BenchError


async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.read(65_536):
        pass
    writer.close()
    await writer.wait_closed()


async def test_it_measures_while_the_body_runs() -> None:
    """The broker takes requests and answers none."""
    server = await asyncio.start_server(take, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        async with measuring("ages", f"127.0.0.1:{port}", "T", "2") as figures:
            assert figures == {}
        assert figures == {"ages": []}


async def test_it_says_why_the_client_failed() -> None:
    with pytest.raises(BenchError, match=r"ages: ValueError: .*'two'"):
        async with measuring("ages", "127.0.0.1:1", "T", "two"):
            pass
