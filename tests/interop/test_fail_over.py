"""Real clients under traffic while the mastership moves, or a master is killed: nothing acknowledged is lost.

These clients read the route every 30 s, and a killed process cannot hand their messages on: for so long a
send may fail. A planned hand-over costs them nothing.
"""

import asyncio
import itertools
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.interop.drivers import CPP, NODE_JS, Client, need
from tests.interop.stage import Stage, staged
from tests.interop.traffic import Traffic

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

EACH = pytest.mark.parametrize("kind", [CPP, NODE_JS])
ROUTE_POLL_S = 30.0
FORWARD_S = 40.0
GAP_MS_MAX = 3_000
"""While the mastership moves: the slowest send, and the longest time without a message for a consumer. 0.3 s
on an idle machine; without forwarding 15 s and more."""
EARLY_POLL = 500
"""Messages, 5 s at least: the C++ client polls the route 3 s after its start for the first time."""


@pytest.fixture
async def stage(tmp_path: Path, kind: str) -> AsyncIterator[Stage]:
    need(kind)
    settings = {"shutdownForwardTimeout": str(int(FORWARD_S * 1_000))}
    async with staged(tmp_path, brokers=3, name_servers=3, more=settings) as stage:
        yield stage


async def all_arrive(consumer: Client, traffic: Traffic, timeout_s: float = 60.0) -> None:
    """At least once; a message whose send failed may have been stored all the same."""
    await consumer.until(lambda: set(traffic.sent) <= set(consumer.bodies), timeout_s)


@EACH
async def test_a_hand_over_fails_no_send(stage: Stage, kind: str) -> None:
    await stage.create("Moves")
    async with stage.producer(kind) as producer, stage.consumer(kind, "Moves", "Group") as consumer:
        traffic = Traffic(producer, "Moves")
        try:
            await traffic.more(100)
            await stage.hand_over()
            await traffic.more(100, ROUTE_POLL_S + 10)
        finally:
            await traffic.stop()
        assert traffic.failed == []
        await all_arrive(consumer, traffic)


@EACH
async def test_a_planned_stop_fails_no_send(stage: Stage, kind: str) -> None:
    """SIGTERM: the process outlives the route polls of its clients, consumers among them."""
    await stage.create("Stops")
    async with stage.producer(kind) as producer, stage.consumer(kind, "Stops", "Group") as consumer:
        traffic = Traffic(producer, "Stops")
        try:
            await traffic.more(EARLY_POLL)
            await all_arrive(consumer, traffic)
            master = await stage.running.master()
            assert master.process is not None
            began_ms = stage.wall_ms()
            master.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(master.process.wait, FORWARD_S + 10) == 0
            took_ms = stage.wall_ms() - began_ms
            master.process = None  # it ended because we asked
            await traffic.more(100)
        finally:
            await traffic.stop()
        assert traffic.failed == []
        assert took_ms >= 1_000 * ROUTE_POLL_S, "a client that polls the route was connected"
        await all_arrive(consumer, traffic)
        came = sorted(event["at"] for event in consumer.got if event["at"] >= began_ms)
        assert traffic.slowest_ms <= GAP_MS_MAX
        gaps_ms = [after - before for before, after in itertools.pairwise([began_ms, *came])]
        assert max(gaps_ms) <= GAP_MS_MAX


@EACH
async def test_a_killed_master_loses_nothing(stage: Stage, kind: str) -> None:
    await stage.create("Killed")
    running = stage.running
    async with stage.producer(kind) as producer, stage.consumer(kind, "Killed", "Group") as consumer:
        traffic = Traffic(producer, "Killed")
        try:
            await traffic.more(100)
            master = await running.master()
            running.cluster.kill(master)
            await running.new_master(master)
            await traffic.more(100, ROUTE_POLL_S + 20)
        finally:
            await traffic.stop()
        await all_arrive(consumer, traffic)
    assert len(traffic.sent) >= 200
