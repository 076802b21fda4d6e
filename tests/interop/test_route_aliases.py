"""Real producers with alias routes (routeAliasesEnable) through a kill -9 of the master, which stays down.

Their routes stay old for up to 30 s. Their own retry goes to another broker name: an alias, which is a slave.
"""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.interop.drivers import CPP, NODE_JS, need
from tests.interop.stage import Stage, staged
from tests.interop.traffic import Traffic

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

EACH = pytest.mark.parametrize("kind", [CPP, NODE_JS])
ALIASES = {"routeAliasesEnable": "true"}
FORWARD_S = 40.0
SETTLED = 400
"""Messages, some 4 s: the C++ client polls the route 3 s after its start for the first time."""
GAP_MS_MAX = {CPP: 5_000, NODE_JS: 2_000}
"""On an idle machine 0.2 s. The C++ client waits for an answer that was due when the connection closed, as
long as its timeout for a send is: 3 s."""


@pytest.fixture
async def stage(tmp_path: Path, kind: str) -> AsyncIterator[Stage]:
    need(kind)
    settings = {"shutdownForwardTimeout": str(int(FORWARD_S * 1_000))}
    async with staged(tmp_path, brokers=3, name_servers=3, more=settings, namesrv=ALIASES) as stage:
        yield stage


async def check_all_arrive(stage: Stage, kind: str, topic: str, sends: Traffic) -> None:
    async with stage.consumer(kind, topic, "Readers") as consumer:
        await consumer.until(lambda: set(sends.sent) <= set(consumer.bodies))


@EACH
async def test_a_killed_master_fails_no_send(stage: Stage, kind: str) -> None:
    await stage.create("Killed")
    running = stage.running
    async with stage.producer(kind) as producer:
        sends = Traffic(producer, "Killed")
        try:
            await sends.more(SETTLED)
            master = await running.master()
            running.cluster.kill(master)
            await running.new_master(master)
            await sends.more(300)
        finally:
            await sends.stop()
    print(f"{kind}, kill -9 of the master: {sends}")
    assert sends.failed == []
    assert sends.longest_gap_ms <= GAP_MS_MAX[kind]
    await check_all_arrive(stage, kind, "Killed", sends)


@EACH
async def test_a_planned_switch_fails_no_send(stage: Stage, kind: str) -> None:
    await stage.create("Moves")
    async with stage.producer(kind) as producer:
        sends = Traffic(producer, "Moves")
        try:
            await sends.more(SETTLED)
            await stage.hand_over()
            await sends.more(300)
        finally:
            await sends.stop()
    print(f"{kind}, planned switch: {sends}")
    assert sends.failed == []
    await check_all_arrive(stage, kind, "Moves", sends)


@pytest.mark.slow
@EACH
async def test_the_planned_stop_of_an_alias_fails_no_send(stage: Stage, kind: str) -> None:
    """SIGTERM to every slave, one after the other: each forwards until the route polls of its producers."""
    await stage.create("Stops")
    running = stage.running
    async with stage.producer(kind) as producer:
        sends = Traffic(producer, "Stops")
        try:
            await sends.more(SETTLED)
            master = await running.master()
            slaves = [each for each in running.cluster.brokers if each is not master]
            for slave in slaves[:1]:
                assert slave.process is not None
                slave.process.send_signal(signal.SIGTERM)
                assert await asyncio.to_thread(slave.process.wait, FORWARD_S + 10) == 0
                slave.process = None  # it ended because we asked
            await sends.more(300)
        finally:
            await sends.stop()
    print(f"{kind}, planned stop of an alias: {sends}")
    assert sends.failed == []
