"""The watch of the event loop: it measures every stall, and names only callbacks that used the CPU."""

import asyncio
import logging
import re
import threading
import time
from collections.abc import Callable

import pytest
import uvloop

from keelmq.remoting.servers.metrics import Scrape, Table, add_loop, loop_metrics
from keelmq.runtime import loop_watch
from keelmq.runtime.config import LOOP_BUDGET
from keelmq.runtime.loop_watch import (
    PERIOD_S,
    SLOW_TURN,
    WINDOW_S,
    WINDOWS,
    LoopWatch,
    budget_of,
    slow_turn_of,
)
from tests.support.server_parts import until

LOOPS = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
BUDGET_MS = 40.0


def burn(seconds: float) -> None:
    """A callback that works."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(100))


def hang(seconds: float) -> None:
    """A callback that waits, or a process that is stopped."""
    threading.Event().wait(seconds)


async def handler() -> None:
    await inner()


async def inner() -> None:
    burn(0.15)


def run(new_loop: Callable[[], asyncio.AbstractEventLoop], callback: Callable[[], object]) -> LoopWatch:
    """A loop that turns, then runs the callback, and turns again."""

    async def main() -> LoopWatch:
        watch = LoopWatch(asyncio.get_running_loop(), budget_ms=BUDGET_MS)
        watch.start()
        await until(lambda: sum(watch.lateness.counts) >= 2)
        before = sum(watch.lateness.counts)
        result = callback()
        if asyncio.iscoroutine(result):
            await asyncio.create_task(result)
        await until(lambda: sum(watch.lateness.counts) >= before + 3)
        watch.close()
        return watch

    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(main())


@LOOPS
def test_a_callback_that_works_is_named(
    new_loop: Callable[[], asyncio.AbstractEventLoop], caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(10):  # the thread that looks may be late on a busy machine, and find the callback ended
        caplog.clear()
        watch = run(new_loop, handler)
        assert watch.longest_s >= 0.1
        (line,) = [each.getMessage() for each in caplog.records if SLOW_TURN in each.getMessage()]
        if "at=burn" in line:
            break
    found = re.search(r"cpu_ms=(\d+) wall_ms=(\d+) gc_ms=\d+ at=burn \(.*/test_loop_watch.py:\d+\) ", line)
    assert found is not None and int(found[1]) >= 140 and int(found[2]) >= int(found[1]), line
    turn = slow_turn_of(f"2026-11-29 02:00:00,000 ERROR keelmq.runtime.loop_watch: {line}")
    assert turn is not None and turn.cpu_ms == int(found[1]) and turn.at.startswith("burn (")
    assert slow_turn_of("another line, at=burn") is None
    assert re.search(r"burn:\d+ < inner:\d+ < handler:\d+$", line), "the calls of the callback, and no more"


@LOOPS
def test_a_wait_is_measured_and_nobody_blamed(
    new_loop: Callable[[], asyncio.AbstractEventLoop], caplog: pytest.LogCaptureFixture
) -> None:
    watch = run(new_loop, lambda: hang(0.15))
    assert watch.longest_s >= 0.1 and watch.lateness.total >= 0.1
    assert SLOW_TURN not in caplog.text


async def test_the_longest_stall_is_that_of_the_last_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_000.0]
    monkeypatch.setattr("keelmq.runtime.loop_watch.time.monotonic", lambda: now[0])
    timers: list[Callable[[], None]] = []

    class Loop:
        def call_later(self, delay: float, callback: Callable[[], None]) -> None:
            assert delay == PERIOD_S
            timers.append(callback)

    watch = LoopWatch(Loop())  # type: ignore[arg-type]
    watch.start()
    for passed, longest in ((0.02, 0.0), (0.22, 0.2), (0.02, 0.2), (WINDOW_S, WINDOW_S - PERIOD_S)):
        now[0] += passed
        timers.pop()()
        assert watch.longest_s == pytest.approx(longest)
    for _ in range(WINDOWS):
        now[0] += WINDOW_S + PERIOD_S
        timers.pop()()
    assert watch.longest_s == pytest.approx(WINDOW_S)


async def test_the_metrics_of_the_running_watch() -> None:
    scrape = Scrape(Table("t", (), loop_metrics("rocketmq_t")), ())
    add_loop(scrape, "rocketmq_t", None)
    assert not list(scrape), "not every user's test has a watch"
    watch = loop_watch.start({})
    await until(lambda: sum(watch.lateness.counts) >= 2)
    assert loop_watch.running() is watch
    add_loop(scrape, "rocketmq_t", watch)
    names = {family.name for family in scrape}
    assert names == {"rocketmq_t_event_loop_lateness_seconds", "rocketmq_t_event_loop_longest_stall_seconds"}
    watch.close()


def test_the_budget_is_a_number() -> None:
    assert budget_of({}) is None and budget_of({LOOP_BUDGET: "50"}) == 50.0
    for bad in ("0", "-1", "nan", "inf", "much"):
        with pytest.raises(ValueError):
            budget_of({LOOP_BUDGET: bad})


def test_no_thread_is_left(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    run(asyncio.new_event_loop, lambda: None)
    assert "loop watch" not in [thread.name for thread in threading.enumerate()]
