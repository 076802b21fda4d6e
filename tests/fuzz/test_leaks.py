"""Connections that come and go with garbage leave nothing behind: no task, no descriptor, no table entry."""

import asyncio
import gc
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from keelmq.remoting.connection import Connection
from namesrv.app import Namesrv, PluginChoice
from namesrv.config import NamesrvConfig
from tests.fuzz.corpus import Corpus
from tests.fuzz.http import HOST, InMemory, free_port
from tests.fuzz.mutate import Mutator
from tests.support.controller_fakes import config
from tests.support.server_parts import until

AT_ONCE = 50
FEW, MANY = 600, 10_000


class Visitor(asyncio.Protocol):
    """Connects, says what it has to say, and leaves in one of several ways."""

    def __init__(self, data: bytes, how: int) -> None:
        self.data, self.how = data, how
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(self.data)
        match self.how:
            case 0:
                transport.abort()
            case 1:
                transport.close()
            case 2:
                transport.write_eof()  # and reads what comes
            case _:
                asyncio.get_running_loop().call_later(0.02, transport.abort)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.gone.done():
            self.gone.set_result(None)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def connections() -> int:
    gc.collect()
    return sum(isinstance(each, Connection) for each in gc.get_objects())


async def visit(address: tuple[str, int], random: Random, corpus: Corpus, mutator: Mutator) -> None:
    frames = [mutator.frame(corpus.request()) for _ in range(random.choice((0, 1, 3)))]
    data = b"".join(frames)[: random.choice((7, 200, 100_000))] + random.randbytes(random.choice((0, 0, 5)))
    try:
        async with asyncio.timeout(10):
            _, visitor = await asyncio.get_running_loop().create_connection(
                lambda: Visitor(data, random.randrange(4)), *address
            )
            try:
                await asyncio.wait_for(visitor.gone, 5)
            except TimeoutError:  # half a frame and an open end: the server waits, and so could we
                visitor.transport.abort()
    except ConnectionError:
        pass


async def come_and_go(path: Path, count: int) -> None:
    random = Random(11)
    controller = config(
        controllerDLegerPeers=f"n0-{HOST}:{free_port()}", controllerStorePath=path, telemetryEnable=False
    )
    namesrv_config = NamesrvConfig.model_validate(
        {
            "listenPort": 0,
            "bindAddress": HOST,
            "httpPort": -1,
            "kvConfigPath": path / "kv.json",
            "notifyMinBrokerIdChanged": False,
        }
    )
    connections_before = connections()
    async with Namesrv(namesrv_config, [PluginChoice(InMemory, (controller,))]) as server:
        (plugin,) = server.plugins
        assert isinstance(plugin, InMemory)
        servers = [(server.address, server.table), (plugin.address, plugin.table)]
        guests = []
        for address, table in servers:
            codes = [*table.handlers]
            guests.append((address, Corpus(table, random), Mutator(random, codes)))
        await visit(guests[0][0], random, *guests[0][1:])
        tasks, files = len(asyncio.all_tasks()), descriptors()
        left = count
        while left > 0:
            await asyncio.gather(
                *(visit(address, random, *rest) for address, *rest in random.choices(guests, k=AT_ONCE))
            )
            left -= AT_ONCE
        listener = plugin._server
        await until(
            lambda: server.connection_count == listener.connection_count == 0, "every connection is gone"
        )
        await until(lambda: len(asyncio.all_tasks()) <= tasks, "no task is left")
        opened = 3  # the lock of kv.json, and the two files of the audit log
        await until(lambda: descriptors() <= files + opened, "no descriptor is left")
        await until(lambda: not any(server.routes.counts().values()), "no route is left")
        server.liveness.check_invariants()
        assert not server.liveness._keys_of_connection
        groups = plugin.machine.state.brokers.values()
        registered = {key for group in groups for key in group.keys()}  # noqa: SIM118 - its method
        await until(lambda: set(server.liveness.keys()) <= registered, "no heartbeat is left")
        assert connections() <= connections_before, "no connection is left"


@pytest.fixture(autouse=True)
def silence() -> Iterator[None]:
    """pytest keeps what is logged, and with the errors in it their frames, and with those the connections."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


async def test_connections_come_and_go(tmp_path: Path) -> None:
    await come_and_go(tmp_path, FEW)


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_ten_thousand_connections_come_and_go(tmp_path: Path) -> None:
    await come_and_go(tmp_path, MANY)


async def test_a_connection_that_is_kept_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Test the tester."""
    kept: list[object] = []
    lost = Connection.connection_lost

    def keeping(connection: Connection, error: Exception | None) -> None:
        kept.append(connection)
        lost(connection, error)

    monkeypatch.setattr(Connection, "connection_lost", keeping)
    with pytest.raises(AssertionError):
        await come_and_go(tmp_path, 1)
    kept.clear()
