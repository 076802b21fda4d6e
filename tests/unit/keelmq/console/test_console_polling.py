"""When a console asks the cluster: not before somebody looks, at once after an election, and not too much."""

import asyncio
import time
from collections.abc import Callable

from keelmq.console.console import CPU_SHARE_MAX, LOOKED_MS, Console
from keelmq.console.cpu_clock import CpuClock
from keelmq.console.examples import STATUS
from tests.support.console_parts import FakePoller, sources, with_group


async def until(condition: Callable[[], bool], what: str) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - the conditions are states of a console, not events
            await asyncio.sleep(0.005)
    assert condition(), what


async def test_nothing_is_asked_until_somebody_looks() -> None:
    asked = FakePoller()
    console = Console(sources(poll_ms=1), asked)
    for _ in range(20):
        await asyncio.sleep(0)
    assert asked.polls == 0
    assert await console.current() == STATUS
    assert asked.polls >= 1
    await console.stop()
    seen = asked.polls
    for _ in range(20):
        await asyncio.sleep(0)
    assert asked.polls == seen
    console.look()
    assert asked.polls == seen


async def test_an_election_is_seen_before_the_next_poll_is_due() -> None:
    asked = FakePoller(pulse_value=1)
    console = Console(sources(poll_ms=3_600_000), asked)
    await console.current()
    await until(lambda: asked.polls == 1, "the first poll")
    asked.status, before = with_group(STATUS, master_id=2), asked.polls
    asked.pulse_value = 2
    console.pages.open()

    def more() -> bool:
        # The first pulse is only something to compare with.
        asked.pulse_value = (asked.pulse_value, 1) if asked.polls == before else asked.pulse_value
        return asked.polls > before

    await until(more, "a poll because of the election")
    await console.stop()


async def test_an_expensive_poll_is_followed_by_a_longer_pause() -> None:
    """One second of CPU, and a share of a fifth: the next one is due after five seconds."""
    clock = [0]
    asked = FakePoller()

    class OneSecondEach(CpuClock):
        read_s = 0.0

        def seconds(self) -> float:
            self.read_s += 1.0
            return self.read_s

    console = Console(sources(poll_ms=100), asked, clock=lambda: clock[0], cpu=OneSecondEach())
    await console.current()
    due_ms = round(1_000 * (1 / CPU_SHARE_MAX - 1))
    clock[0] = due_ms - 1
    console.changed()
    for _ in range(50):
        await asyncio.sleep(0)
    assert asked.polls == 1
    clock[0] = due_ms
    console.changed()
    await until(lambda: asked.polls == 2, "the second poll")
    await console.stop()


async def test_the_cpu_time_of_other_threads_counts() -> None:
    def busy(seconds: float) -> str:
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            pass
        return "done"

    cpu = CpuClock()
    before = cpu.seconds()
    assert await cpu.in_thread(busy, 0.05) == "done"
    assert cpu.seconds() - before >= 0.05


async def test_nobody_looks_after_a_while() -> None:
    clock = [0]
    console = Console(sources(), FakePoller(), clock=lambda: clock[0])
    console.look()
    assert console.is_watched
    clock[0] = LOOKED_MS
    assert not console.is_watched
    page = console.pages.open()
    assert console.is_watched
    console.pages.close(page)
    assert not console.is_watched
    await console.stop()
