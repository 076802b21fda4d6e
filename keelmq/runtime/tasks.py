"""Supervised background tasks: one that ends with an error is logged, counted and started again.

`stop()` cancels and awaits all of them: no task outlives its owner.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable

from keelmq.runtime.clock import now_ms

logger = logging.getLogger(__name__)

BACKOFF_FIRST_MS = 100
BACKOFF_MAX_MS = 5_000
HEALTHY_AFTER_MS = 10_000
"""After a task ran this long, the next restart uses the first back-off."""


class Trouble(Exception):
    """Ends a task without being a bug, e.g. a full disk: logged as one line, without a traceback."""


async def supervise(
    name: str, factory: Callable[[], Awaitable[None]], deaths: Counter[str] | None = None
) -> None:
    """Runs `factory()` until it returns; each exception is logged, then it runs again."""
    backoff_ms = BACKOFF_FIRST_MS
    while True:
        started_ms = now_ms()
        try:
            return await factory()
        except Exception as error:
            if now_ms() - started_ms >= HEALTHY_AFTER_MS:
                backoff_ms = BACKOFF_FIRST_MS
            if deaths is not None:
                deaths[name] += 1
            if isinstance(error, Trouble):
                logger.error("%s: %s; again in %d ms", name, error, backoff_ms)
            else:
                logger.exception("background task %s died; it restarts in %d ms", name, backoff_ms)
        await asyncio.sleep(backoff_ms / 1000)
        backoff_ms = min(backoff_ms * 2, BACKOFF_MAX_MS)


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
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def wait_for_event(event: asyncio.Event, timeout_ms: int) -> bool:
    """Returns whether the event was set within timeout_ms; clears it then."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            await event.wait()
    except TimeoutError:
        return False
    event.clear()
    return True
