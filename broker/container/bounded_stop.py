"""Bounds the stop of one broker, so that the others of its process can be stopped, too, whatever hangs."""

import asyncio
from collections.abc import Coroutine
from typing import Final

from keelmq.runtime.stop_steps import StopError

STOP_S_MAX: Final = 20.0
"""A stop needs less than a second; its longest step writes what the disk does not have yet."""
CANCELS_MAX: Final = 3
CANCELLED_S_MAX: Final = 2.0
"""A cancellation ends the step that hangs, and the stop goes on with the next one (StopSteps)."""


async def bounded_stop(name: str, stop: Coroutine[object, object, None], *, more_s: float = 0) -> None:
    """Runs the stop of the broker `name`. more_s: what its hand-over may take besides. Raises StopError: a
    step of it failed, or hung and was cancelled, or, as a thread that hangs, was left behind."""
    task = asyncio.create_task(stop, name=f"stop of {name}")
    hung = False
    try:
        await asyncio.wait([task], timeout=STOP_S_MAX + more_s)
        for _ in range(CANCELS_MAX):
            if task.done():
                break
            hung = True
            task.cancel()
            await asyncio.wait([task], timeout=CANCELLED_S_MAX)
    except BaseException:
        task.cancel()
        raise
    if not task.done():
        raise StopError(f"{name} hangs in its stop and was left as it is: end the process to free its files")
    if hung:
        await asyncio.gather(task, return_exceptions=True)  # it is seen; its steps are in the log
        raise StopError(
            f"{name} was not stopped within {STOP_S_MAX + more_s:g} s: a step that hung was cancelled"
        )
    task.result()
