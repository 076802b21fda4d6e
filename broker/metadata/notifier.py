"""A condition of the event loop: notify_all() wakes every task that waits at that moment.

Unlike asyncio.Event it never stays set, so each waiter checks the state itself after it was woken.
"""

import asyncio


class Notifier:
    """Owned by the event loop's thread."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify_all(self) -> None:
        """Wakes all present waiters."""
        event, self._event = self._event, asyncio.Event()
        event.set()

    async def wait(self, timeout_ms: int) -> None:
        """Returns at the next notify_all(), or after timeout_ms; the caller cannot tell which."""
        try:
            async with asyncio.timeout(max(timeout_ms, 0) / 1000):
                await self._event.wait()
        except TimeoutError:
            pass
