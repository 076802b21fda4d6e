"""Lifecycle: an asyncio client is opened once, and closed once, also if callers of close() are cancelled."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class ClientClosed(RuntimeError):
    """The client was closed before the call ended, perhaps by another thread or task."""


class Lifecycle:
    """The steps of close() run in a task of their own: a caller that is cancelled ends at once, the closing
    goes on, and later callers wait for its end. Otherwise a consumer would never stop if its `async with`
    block was cancelled twice, as anyio's cancel scopes do."""

    def __init__(self) -> None:
        self._opened = False
        self._closing: asyncio.Task[None] | None = None

    @property
    def is_closed(self) -> bool:
        """Returns whether close() was called."""
        return self._closing is not None

    def open(self) -> None:
        """RuntimeError: it was opened before."""
        if self._opened or self.is_closed:
            raise RuntimeError("this client was opened before: create another one for another `async with`")
        self._opened = True

    def check_open(self) -> None:
        """ClientClosed: close() was called. RuntimeError: open() was not."""
        if self.is_closed:
            raise ClientClosed("this client is closed")
        if not self._opened:
            raise RuntimeError("this client is not open: use it in an `async with` statement")

    async def close(self, steps: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Returns when the steps are done; the first caller's are used."""
        if self._closing is None:
            self._closing = asyncio.create_task(steps(), name="closing a client")
        await asyncio.shield(self._closing)
