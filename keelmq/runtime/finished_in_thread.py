"""finished_in_thread: runs a function in a thread, and never returns before it has ended."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


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
        work.exception()  # or asyncio would log that nobody has seen it
        raise cancelled
    return work.result()
