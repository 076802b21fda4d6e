"""Stops a program, or a part of one, step by step: a step that fails does not prevent the later ones.

    steps = StopSteps("broker")
    steps.add("the clients' port", server.close)
    steps.add("the store", close_store)
    await steps.run()

Each failure is logged where it happens. run() raises StopError at the end, so the exit code reports it.
"""

import inspect
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

logger = logging.getLogger(__name__)

Step = Callable[[], Awaitable[object] | None]


class StopError(Exception):
    """Some steps of a stop failed; all others ran. The log has a traceback for each."""


class StopSteps:
    """Runs steps in the order in which they were added. `owner`: for log lines and the error."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.failed: list[str] = []
        """Names of the steps that failed so far; later steps may read it."""
        self._steps: list[tuple[str, Step]] = []

    def add(self, name: str, step: Step) -> None:
        """Adds a step: a function or a coroutine function without arguments."""
        self._steps.append((name, step))

    async def run(self) -> None:
        """Runs all steps. Raises StopError if some failed. A cancellation ends the current step, and is
        raised after the others."""
        async with AsyncExitStack() as stack:
            for name, step in reversed(self._steps):
                stack.push_async_callback(self._do, name, step)
        if self.failed:
            raise StopError(f"{self.owner}: could not stop {', '.join(self.failed)}; the log has the reasons")

    async def _do(self, name: str, step: Step) -> None:
        try:
            result = step()
            if inspect.isawaitable(result):
                await result
        except StopError as error:  # its own steps are logged already
            self.failed.append(name)
            logger.error("stopping: %s", error)
        except Exception:
            self.failed.append(name)
            logger.exception("stopping: %s: %s failed; continuing with the next step", self.owner, name)
        except BaseException:
            self.failed.append(name)
            raise


async def stop_after(stop: Callable[[], Awaitable[None]], error: BaseException | None) -> None:
    """Calls stop() at the end of a block. `error`: the exception that ended the block, None if there is none.
    A StopError does not replace that exception, which says more."""
    try:
        await stop()
    except StopError:
        if error is None:
            raise


class AsyncLife:
    """The block of `async with`: _start(), and _stop() at its end, also if the start fails."""

    async def _start(self) -> None:
        raise NotImplementedError

    async def _stop(self) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException as error:
            await stop_after(self._stop, error)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await stop_after(self._stop, error)
