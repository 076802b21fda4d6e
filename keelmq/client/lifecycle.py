"""Lifecycle: an asyncio client is opened once, and closed once, also if callers of close() are cancelled."""

import asyncio
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class ClientClosed(RuntimeError):
    """The client was closed before the call ended, perhaps by another thread or task."""


class Lifecycle(ABC):
    """The base of the asyncio clients: `async with` opens a client and closes it.

    The steps of close() run in a separate task: a caller that is cancelled ends at once, the closing
    goes on, and later callers wait for its end. Otherwise a consumer would never stop if its `async with`
    block was cancelled twice, as anyio's cancel scopes do."""

    def __init__(self) -> None:
        self._opened = False
        self._closing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Opens the client. RuntimeError: it was opened before, or is closed."""
        if self._opened or self._is_closed:
            raise RuntimeError("this client was opened before: create another one for another `async with`")
        self._opened = True
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the client. May be called twice. If the caller is cancelled, the closing goes on in the
        background."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="closing a client")
        await asyncio.shield(self._closing)

    async def _start(self) -> None:  # noqa: B027 - most clients need no step
        """The work of opening the client."""

    @abstractmethod
    async def _close(self) -> None:
        """The work of closing the client; called once."""

    @property
    def _is_closed(self) -> bool:
        """Returns whether close() was called."""
        return self._closing is not None

    def _check_open(self) -> None:
        """ClientClosed: close() was called. RuntimeError: the client was not opened."""
        if self._is_closed:
            raise ClientClosed("this client is closed")
        if not self._opened:
            raise RuntimeError("this client is not open: use it in an `async with` statement")
