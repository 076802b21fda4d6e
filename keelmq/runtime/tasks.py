"""Supervised background tasks: one that ends with an error is logged, counted and started again. And calls in
a thread whose end is always awaited.

`stop()` cancels and awaits all of them: no task outlives its owner.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from keelmq.runtime.backoff import Backoff
from keelmq.runtime.clock import now_ms

logger = logging.getLogger(__name__)

T = TypeVar("T")

RESTART = Backoff(first_ms=100, max_ms=5_000)
HEALTHY_AFTER_MS = 10_000
"""After a task ran this long, the next restart uses the first back-off."""


class Trouble(Exception):
    """Ends a task without being a bug, e.g. a full disk: logged as one line, without a traceback."""


async def supervise(
    name: str, factory: Callable[[], Awaitable[None]], deaths: Counter[str] | None = None
) -> None:
    """Runs `factory()` until it returns; each exception is logged, then it runs again."""
    failures = 0
    while True:
        started_ms = now_ms()
        try:
            return await factory()
        except Exception as error:
            failures = 1 if now_ms() - started_ms >= HEALTHY_AFTER_MS else failures + 1
            pause_ms = RESTART.pause_ms(failures, random.random())
            if deaths is not None:
                deaths[name] += 1
            if isinstance(error, Trouble):
                logger.error("%s: %s; trying again in %d ms", name, error, pause_ms)
            else:
                logger.exception("background task %s failed; restarting it in %d ms", name, pause_ms)
        await asyncio.sleep(pause_ms / 1000)


class TaskSet:
    """The supervised tasks of one owner."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self.deaths: Counter[str] = Counter()
        """Failures by task name, for metrics; the log has the reasons."""

    def start(self, name: str, factory: Callable[[], Awaitable[None]]) -> None:
        """Starts a supervised task."""
        task = asyncio.create_task(supervise(name, factory, self.deaths), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Cancels all tasks and waits for them."""
        await cancel_all(self._tasks)


async def cancel_all(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancels the tasks and waits until all have ended. Their exceptions are dropped."""
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


async def wait_for_event(event: asyncio.Event, timeout_ms: int) -> bool:
    """Returns whether the event was set within timeout_ms; clears it then."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            await event.wait()
    except TimeoutError:
        return False
    event.clear()
    return True


async def finished_in_thread(function: Callable[[], T], *, on_cancel: Callable[[], None] = lambda: None) -> T:
    """Returns or raises what the function does. A cancellation is raised when the function has ended, for the
    caller may close what the function works on; asyncio.to_thread() would raise it at once. on_cancel: called
    then; it may tell the function to end."""
    work = asyncio.ensure_future(asyncio.to_thread(function))
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError as error:
            cancelled = error
            on_cancel()
    if cancelled is not None:
        work.exception()  # or asyncio would log that it was never retrieved
        raise cancelled
    return work.result()
