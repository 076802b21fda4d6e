"""Brokers come and go beside one that serves, a thousand of them and thirty: nothing of them stays.

Counted are live things: files, tasks, threads, objects, blocks of Python's allocator, and bytes that malloc
has given out. The resident memory grows by more than that, because of malloc's free lists: after each cycle
some large buffers are freed, malloc then takes such buffers from its heaps (its mmap threshold moves up), and
pages between live blocks stay resident. In 1,000 cycles live bytes grew by 0.1 to 0.7 MiB, and the resident
memory by 5 to 21 MiB, nearly all of it in malloc's free lists; with MALLOC_MMAP_THRESHOLD_=131072 it was
2 MiB. Hence a limit for each.
"""

import asyncio
import ctypes
import gc
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from broker.app.broker import Broker
from keelmq.remoting.operation import Ok
from tests.bench.resident import own_kib
from tests.unit.broker.container.parts import broker_file, container_config
from tests.unit.broker.container.test_container_server import Asker, Starter, start

__all__ = ["start"]

BROKERS_MAX = 8
"""A stopped one lives as long as the timers of its last requests."""
ROUNDS_IN_BETWEEN = 10
SPARE = 3
"""Files, tasks and threads: the traffic's request may be under way, and a closed connection may wait for its
end."""
TIMERS_SECONDS_MAX = 15
MALLOC = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


class MallocInfo(ctypes.Structure):
    """struct mallinfo2. uordblks: bytes given out from heaps, hblkhd: from mmap."""

    _fields_ = [(name, ctypes.c_size_t) for name in MALLOC.split()]


def malloc_kib() -> float:
    """What malloc has given out and not got back, of all threads; 0 where it does not tell."""
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo is None:
        return 0
    mallinfo.restype = MallocInfo
    info = mallinfo()
    return float((info.uordblks + info.hblkhd) / 1_024)


class Held(NamedTuple):
    files: int
    tasks: int
    threads: int
    objects: int
    blocks: int
    malloc_kib: float
    own_kib: float
    brokers: int


def threads_outside_the_pool() -> int:
    """The pool of the container is bounded, and has as many threads as were ever busy at once."""
    return sum(not each.name.startswith("brokers_") for each in threading.enumerate())


def held() -> Held:
    gc.collect()
    return Held(
        len(os.listdir("/proc/self/fd")),
        len(asyncio.all_tasks()),
        threads_outside_the_pool(),
        len(gc.get_objects()),
        sys.getallocatedblocks(),
        malloc_kib(),
        own_kib(os.getpid()),
        sum(isinstance(each, Broker) for each in gc.get_objects()),
    )


@pytest.fixture
def unlogged() -> Iterator[None]:
    """pytest keeps the log lines of a test: 12 KiB in each cycle."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


async def cycles(asker: Asker, directory: Path, address: str, count: int) -> None:
    """Every other broker has the same name and store, the others each a new one."""
    for number in range(count):
        name = "b" if number % 2 else f"b-{len(list(directory.glob('b-*.conf')))}"
        outcome = await asker.add(broker_file(directory, name))
        assert isinstance(outcome, Ok), outcome
        if number % ROUNDS_IN_BETWEEN == 0:
            await asker.send(address, b"x")
        outcome = await asker.remove(name)
        assert isinstance(outcome, Ok), outcome


async def growth(
    tmp_path: Path,
    start: Starter,
    *,
    warm_up: int,
    count: int,
    enough: Callable[[Held], bool] = lambda _: True,
) -> Held:
    """How much more is held after `count` cycles than after the warm-up, in which caches fill, the allocators
    get their heaps. Waits some seconds until it is `enough`, because timers of the
    last requests hold some hundred objects until they end."""
    asker = await start(container_config(tmp_path, broker_file(tmp_path, "a")))
    address = (await asker.ready("c1_a_0")).address
    await cycles(asker, tmp_path, address, warm_up)
    before = held()
    await cycles(asker, tmp_path, address, count)
    deadline = time.monotonic() + TIMERS_SECONDS_MAX
    while True:
        after = held()
        grown = Held(*(now - was for was, now in zip(before, after, strict=True)))
        if enough(grown) or time.monotonic() > deadline:
            break
        await asyncio.sleep(0.2)
    print(f"before {before}\nafter  {after}")
    assert grown.brokers <= BROKERS_MAX, grown
    return grown


@pytest.mark.slow
@pytest.mark.usefixtures("unlogged")
async def test_thirty_brokers_come_and_go(tmp_path: Path, start: Starter) -> None:
    """One object of each broker would be 30. Bytes of malloc are left to the thousand, which run in a process
    of their own: here buffers of other tests come and go."""

    def enough(grown: Held) -> bool:
        few = max(grown.files, grown.tasks, grown.threads) <= SPARE + 3
        return few and grown.objects <= 1_500 and grown.blocks <= 5_000 and grown.brokers <= BROKERS_MAX

    grown = await growth(tmp_path, start, warm_up=10, count=30, enough=enough)
    assert enough(grown), grown


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.usefixtures("unlogged")
async def test_a_thousand_brokers_come_and_go(tmp_path: Path, start: Starter) -> None:
    """Seen: 969 objects, 2,386 blocks, 0.7 MiB of malloc, 21 MiB resident. A broker has thousands of objects,
    and buffers of more than 200 KiB: the limits are far below those of a thousand brokers."""
    grown = await growth(tmp_path, start, warm_up=100, count=1_000)
    assert max(grown.files, grown.tasks, grown.threads) <= SPARE, grown
    assert grown.objects <= 3_000, grown
    assert grown.blocks <= 7_500 and grown.malloc_kib <= 3_072, grown
    assert grown.own_kib <= 48 << 10, grown
