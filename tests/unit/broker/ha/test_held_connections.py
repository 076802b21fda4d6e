"""HeldConnections: slaves that connect a moment before this broker is master."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import cast

import pytest
import uvloop

from broker.ha.core.frames import Ack, SlaveHandshake
from broker.ha.held_connections import HeldConnections
from tests.unit.broker.ha.test_ha_service import group, until

HOUR_MS = 3_600_000
Run = Callable[[Coroutine[object, object, None]], None]
EITHER_LOOP = pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
"""They differ in when they begin to read from a connection."""


class Echo(asyncio.Protocol):
    """What a connection is passed to."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's class is not a subclass of it

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


@asynccontextmanager
async def port(*, waiting_max: int = 4, hold_ms: int = HOUR_MS) -> AsyncIterator[tuple[HeldConnections, int]]:
    refused: list[str] = []
    held = HeldConnections(
        Echo, on_refused=lambda address, why: refused.append(why), waiting_max=waiting_max, hold_ms=hold_ms
    )
    listener = await asyncio.get_running_loop().create_server(held.accepted, "127.0.0.1", 0)
    try:
        yield held, listener.sockets[0].getsockname()[1]
    finally:
        held.close()
        listener.close()


async def end_of(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(10):
        with suppress(ConnectionError):
            return await reader.read()
    return b""


@EITHER_LOOP
def test_what_a_slave_sent_early_is_read_when_this_broker_is_master(run: Run) -> None:
    run(sent_early())


async def sent_early() -> None:
    async with asyncio.timeout(10), port() as (held, number):
        reader, writer = await asyncio.open_connection("127.0.0.1", number)
        await until(lambda: len(held) == 1, "waits")
        writer.write(b"early")
        await writer.drain()
        for _ in range(20):  # it is read, or would be
            await asyncio.sleep(0)
        held.serve(0)
        assert await reader.readexactly(5) == b"early" and not len(held)
        second, also = await asyncio.open_connection("127.0.0.1", number)
        also.write(b"later")
        assert await second.readexactly(5) == b"later"
        writer.close()
        also.close()


@EITHER_LOOP
def test_a_slave_that_is_accepted_while_this_broker_becomes_master_is_served(run: Run) -> None:
    """Accepted before it and made after it, a connection waited for HOLD_MS and was refused."""
    run(accepted_before_made_after())


async def accepted_before_made_after() -> None:
    async with accepted_before(lambda held: held.serve(0)) as (held, reader, writer):
        writer.write(b"early")
        assert await reader.readexactly(5) == b"early" and not len(held)


@EITHER_LOOP
def test_a_slave_that_is_accepted_while_this_broker_stops_is_closed(run: Run) -> None:
    """It stayed open for HOLD_MS, or until the loop ended."""
    run(accepted_before_closed_made_after())


async def accepted_before_closed_made_after() -> None:
    async with accepted_before(HeldConnections.close) as (held, reader, _):
        assert await end_of(reader) == b"" and not len(held)


@asynccontextmanager
async def accepted_before(
    act: Callable[[HeldConnections], None],
) -> AsyncIterator[tuple[HeldConnections, asyncio.StreamReader, asyncio.StreamWriter]]:
    """A slave's end of a connection; `act` is called when it is accepted, before it is made."""
    held = HeldConnections(Echo, on_refused=lambda address, why: None, waiting_max=4, hold_ms=HOUR_MS)

    def accepted() -> asyncio.Protocol:
        connection = held.accepted()
        act(held)
        return connection

    listener = await asyncio.get_running_loop().create_server(accepted, "127.0.0.1", 0)
    try:
        async with asyncio.timeout(10):
            reader, writer = await asyncio.open_connection(*listener.sockets[0].getsockname())
            yield held, reader, writer
            writer.close()
    finally:
        listener.close()
        held.close()


async def test_producers_may_come_first() -> None:
    async with asyncio.timeout(10), port() as (held, number):
        reader, writer = await asyncio.open_connection("127.0.0.1", number)
        writer.write(b"early")
        await until(lambda: len(held) == 1, "waits")
        held.serve(20)
        assert len(held) == 1 and not held.are_served
        assert await reader.readexactly(5) == b"early" and held.are_served
        writer.close()


async def test_a_role_that_is_lost_before_anybody_is_served_serves_nobody() -> None:
    async with asyncio.timeout(10), port(hold_ms=60) as (held, number):
        reader, writer = await asyncio.open_connection("127.0.0.1", number)
        writer.write(b"early")
        await until(lambda: len(held) == 1, "waits")
        held.serve(20)
        held.hold()
        assert await end_of(reader) == b"" and not held.are_served
        writer.close()


async def test_one_that_waits_too_long_is_closed() -> None:
    async with port(hold_ms=30) as (held, number):
        reader, writer = await asyncio.open_connection("127.0.0.1", number)
        writer.write(b"early")
        assert await end_of(reader) == b"" and not len(held)
        writer.close()


async def test_only_so_many_wait() -> None:
    async with port(waiting_max=1) as (held, number):
        _, first = await asyncio.open_connection("127.0.0.1", number)
        await until(lambda: len(held) == 1, "waits")
        reader, second = await asyncio.open_connection("127.0.0.1", number)
        assert await end_of(reader) == b"" and len(held) == 1
        first.close()
        second.close()


async def test_a_stop_closes_those_that_wait() -> None:
    async with port() as (held, number):
        reader, writer = await asyncio.open_connection("127.0.0.1", number)
        await until(lambda: len(held) == 1, "waits")
        held.close()
        assert await end_of(reader) == b"" and not len(held)
        writer.close()


@EITHER_LOOP
def test_a_slave_that_is_quicker_than_the_promotion_needs_no_second_connection(
    tmp_path: Path, run: Run
) -> None:
    run(quicker_than_the_promotion(tmp_path))


async def quicker_than_the_promotion(tmp_path: Path) -> None:
    async with asyncio.timeout(10), group(tmp_path, 1) as (master,):
        reader, writer = await asyncio.open_connection(*master.service.address)
        writer.write(SlaveHandshake(9).encode() + Ack(0).encode())
        await until(lambda: master.service.server.connection_count == 1, "waits")
        assert not master.service.links
        await master.lead(1)
        assert await reader.readexactly(20)
        await until(lambda: 9 in master.service.links, "its link")
        writer.close()


@pytest.mark.parametrize("role", ["slave", "none"])
async def test_a_broker_that_does_not_become_master_sends_nothing(tmp_path: Path, role: str) -> None:
    async with group(tmp_path, 2) as (one, two):
        await one.lead(1)
        reader, writer = await asyncio.open_connection(*two.service.address)
        writer.write(SlaveHandshake(9).encode() + Ack(0).encode())
        if role == "slave":
            await two.follow(one, 1)
        assert await end_of(reader) == b"" and not two.service.links
        writer.close()
