"""Real producers with alias routes (routeAliasesEnable) through a kill -9 of the master, which stays down.

Their routes stay old for up to 30 s. Their own retry goes to another broker name: an alias, which is a slave.
"""

import asyncio
import itertools
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from keelmq.runtime.clock import now_ms
from tests.interop.drivers import CPP, NODE_JS, Client, need
from tests.interop.stage import Stage, staged

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

EACH = pytest.mark.parametrize("kind", [CPP, NODE_JS])
ALIASES = {"routeAliasesEnable": "true"}
FORWARD_S = 40.0
PAUSE_S = 0.005
SETTLED = 400
"""Messages, some 3 s: the C++ client polls the route 3 s after its start for the first time."""
GAP_MS_MAX = {CPP: 5_000, NODE_JS: 2_000}
"""On an idle machine 0.2 s. The C++ client waits for an answer that was due when the connection closed, as
long as its timeout for a send is: 3 s."""


class Sends:
    """Numbered messages one after the other, until stop(); of each the time of its answer."""

    def __init__(self, producer: Client, topic: str) -> None:
        self._producer, self._topic = producer, topic
        self.sent: list[str] = []
        self.failed: list[tuple[str, str]] = []
        self.answered_ms: list[int] = []
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        for number in itertools.count():
            body = f"m{number}"
            event = await self._producer.send(self._topic, body)
            if "sent" in event:
                self.sent.append(body)
                self.answered_ms.append(now_ms())
            else:
                self.failed.append((body, event["why"]))
            await asyncio.sleep(PAUSE_S)

    @property
    def longest_gap_ms(self) -> int:
        return max(after - before for before, after in itertools.pairwise(self.answered_ms))

    def __str__(self) -> str:
        return f"{len(self.sent)} sent, {len(self.failed)} failed, longest gap {self.longest_gap_ms} ms"

    async def more(self, count: int, timeout_s: float = 60.0) -> None:
        """So many more acknowledgements have come."""
        target = len(self.sent) + count
        await self._producer.until(lambda: len(self.sent) >= target or self._task.done(), timeout_s)
        if self._task.done():
            self._task.result()

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@pytest.fixture
async def stage(tmp_path: Path, kind: str) -> AsyncIterator[Stage]:
    need(kind)
    settings = {"shutdownForwardTimeout": str(int(FORWARD_S * 1_000))}
    async with staged(tmp_path, brokers=3, name_servers=3, more=settings, namesrv=ALIASES) as stage:
        yield stage


async def check_all_arrive(stage: Stage, kind: str, topic: str, sends: Sends) -> None:
    async with stage.consumer(kind, topic, "Readers") as consumer:
        await consumer.until(lambda: set(sends.sent) <= set(consumer.bodies))


@EACH
async def test_a_killed_master_fails_no_send(stage: Stage, kind: str) -> None:
    await stage.create("Killed")
    running = stage.running
    async with stage.producer(kind) as producer:
        sends = Sends(producer, "Killed")
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
        sends = Sends(producer, "Moves")
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
        sends = Sends(producer, "Stops")
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
