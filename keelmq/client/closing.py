"""Closing: runs close() of an asyncio client once, whatever happens to its callers."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Closing:
    """The steps run in a task of their own: a caller that is cancelled ends at once, the closing goes on, and
    later callers wait for its end. Otherwise a consumer would never stop if its `async with` block was
    cancelled twice, as anyio's cancel scopes do."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    async def run(self, steps: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Returns when the steps are done; the first caller's are used."""
        if self._task is None:
            self._task = asyncio.create_task(steps(), name="closing a client")
        await asyncio.shield(self._task)
