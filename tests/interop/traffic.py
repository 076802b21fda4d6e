"""Traffic of one producer, message by message, while a test moves or kills the master."""

import asyncio
import itertools

from keelmq.runtime.clock import now_ms
from tests.interop.drivers import Client

PAUSE_S = 0.01
STORED = ("SEND_OK", "OK")
"""Clients return a message that a replica did not confirm in time (code 12) as sent, with another status."""


class Traffic:
    """Numbered messages one after the other, until stop(); of each the time of its answer."""

    def __init__(self, producer: Client, topic: str, pause_s: float = PAUSE_S) -> None:
        """pause_s: between an answer and the next message."""
        self._producer, self._topic, self._pause_s = producer, topic, pause_s
        self.sent: list[str] = []
        self.failed: list[tuple[str, str]] = []
        self.answered_ms: list[int] = []
        self.slowest_ms = 0
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        for number in itertools.count():
            body, began_ms = f"m{number}", now_ms()
            event = await self._producer.send(self._topic, body)
            self.slowest_ms = max(self.slowest_ms, now_ms() - began_ms)
            if "sent" in event and event.get("status", STORED[0]) in STORED:
                self.sent.append(body)
                self.answered_ms.append(now_ms())
            else:
                self.failed.append((body, event.get("why") or event["status"]))
            await asyncio.sleep(self._pause_s)

    @property
    def longest_gap_ms(self) -> int:
        return max(after - before for before, after in itertools.pairwise(self.answered_ms))

    def __str__(self) -> str:
        return f"{len(self.sent)} sent, {len(self.failed)} failed, longest gap {self.longest_gap_ms} ms"

    async def more(self, count: int, timeout_s: float = 60.0) -> None:
        """So many more acknowledgements have come."""
        target = len(self.sent) + count
        await self._producer.until(lambda: len(self.sent) >= target or self._task.done(), timeout_s)
        if self._task.done():
            self._task.result()

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
