"""Brokers come and go a thousand times beside one that serves: nothing of them stays."""

import asyncio
import gc
import os
import threading
from pathlib import Path
from typing import NamedTuple

import pytest

from broker.app.broker import Broker
from keelmq.remoting.operation import Ok
from tests.bench.resident import own_kib
from tests.unit.broker.container.parts import broker_file, container_config
from tests.unit.broker.container.test_container_server import Asker, Starter, start

__all__ = ["start"]

WARM_UP = 100
"""Until here memory grows: the allocator, caches with a limit, the thread pool."""
GROWTH_KIB_MAX = 48 << 10
"""Not zero: pytest keeps the log lines of a test, 12 MiB here. Brokers that stay would be 200 MiB, as the
buffers of each are more than 200 KiB."""
BROKERS_MAX = 8
"""A stopped one lives as long as the timers of its last requests."""
ROUNDS_IN_BETWEEN = 10
SPARE = 3
"""The traffic's request may be under way, and a closed connection may wait for its end."""


class Held(NamedTuple):
    files: int
    tasks: int
    threads: int
    own_kib: float


def held() -> Held:
    gc.collect()
    return Held(
        len(os.listdir("/proc/self/fd")),
        len(asyncio.all_tasks()),
        threading.active_count(),
        own_kib(os.getpid()),
    )


async def cycles(asker: Asker, path: Path, address: str, count: int) -> None:
    for number in range(count):
        outcome = await asker.add(path)
        assert isinstance(outcome, Ok), outcome
        if number % ROUNDS_IN_BETWEEN == 0:
            await asker.send(address, b"x")
        outcome = await asker.remove("b")
        assert isinstance(outcome, Ok), outcome


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_a_thousand_brokers_come_and_go(tmp_path: Path, start: Starter) -> None:
    asker = await start(container_config(tmp_path, broker_file(tmp_path, "a")))
    new = broker_file(tmp_path, "b")
    address = (await asker.ready("c1_a_0")).address
    await cycles(asker, new, address, WARM_UP)
    before = held()
    await cycles(asker, new, address, 1_000)
    after = held()
    print(f"before {before}, after {after}")
    assert all(now <= was + SPARE for was, now in zip(before[:3], after[:3], strict=True)), (before, after)
    assert sum(isinstance(each, Broker) for each in gc.get_objects()) <= BROKERS_MAX
    assert after.own_kib <= before.own_kib + GROWTH_KIB_MAX, (before, after)
