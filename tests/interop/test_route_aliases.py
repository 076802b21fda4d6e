"""Real producers with alias routes through a kill -9 of the master, which is not restarted.

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
GAP_MS_MAX = 30_000
PAUSE_S = 0.005


class Sends:
    """Numbered messages one after the other, until stop(). Times of answers, so that gaps can be told."""

    def __init__(self, producer: Client, topic: str, **more: object) -> None:
        self._producer, self._topic, self._more = producer, topic, more
        self.sent: list[str] = []
        self.failed: list[tuple[str, str]] = []
        self.answered_ms: list[int] = []
        self.slowest_ms = 0
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        for number in itertools.count():
            body, began_ms = f"m{number}", now_ms()
            event = await self._producer.send(self._topic, body, **self._more)
            if now_ms() - began_ms > self.slowest_ms:
                self.slowest_ms, self.slowest_began = now_ms() - began_ms, began_ms
            if "sent" in event:
                self.sent.append(body)
                self.answered_ms.append(now_ms())
            else:
                self.failed.append((body, event["why"]))
            await asyncio.sleep(PAUSE_S)

    @property
    def longest_gap_ms(self) -> int:
        return max(after - before for before, after in itertools.pairwise(self.answered_ms))

    async def more(self, count: int, timeout_s: float = 30.0) -> None:
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
    async with staged(
        tmp_path, brokers=3, name_servers=3, namesrv=ALIASES, more={"logLevel": "DEBUG"} if 0 else None
    ) as stage:
        yield stage


@EACH
async def test_a_killed_master_fails_no_send(stage: Stage, kind: str) -> None:
    await stage.create("Killed")
    running = stage.running
    async with stage.producer(kind) as producer:
        sends = Sends(producer, "Killed")
        try:
            await sends.more(700)
            master = await running.master()
            running.cluster.kill(master)
            killed = now_ms()
            await running.new_master(master)
            await sends.more(400)
        finally:
            await sends.stop()
            print(
                f"\n{kind}: {len(sends.sent)} sent, {len(sends.failed)} failed {sends.failed[:3]}, "
                f"longest gap {sends.longest_gap_ms} ms, slowest send {sends.slowest_ms} ms, began {sends.slowest_began - killed} ms after the kill"
            )
        async with stage.consumer(kind, "Killed", "Readers") as consumer:
            await consumer.until(lambda: set(sends.sent) <= set(consumer.bodies))
    print(
        f"stored {len(consumer.bodies)}, per queue",
        {q: sum(e["queueId"] == q for e in consumer.got) for q in range(4)},
    )
    assert sends.failed == []
    assert sends.longest_gap_ms <= GAP_MS_MAX
