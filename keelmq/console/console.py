"""Console: the newest status of the cluster, its history, and the pages that follow it.

Polling starts with the first request. It polls every poll_ms while the console is in use, and every IDLE_MS
otherwise, for the history. A poll may use a part of the processor at most: after an expensive one (a thousand
groups) the pause is longer.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from keelmq.console.core.changes import changes
from keelmq.console.core.history import History
from keelmq.console.cpu_clock import CpuClock
from keelmq.console.events import Pages, encoded
from keelmq.console.sources import ConsoleSources
from keelmq.health.status import ClusterStatus
from keelmq.remoting.servers.http_answers import NotYet
from keelmq.runtime.clock import now_ms
from keelmq.runtime.tasks import TaskSet

log = logging.getLogger(__name__)

IDLE_MS: Final = 10_000
LOOKED_MS: Final = 15_000
"""The console counts as in use for this long after a request."""
PULSE_MS: Final = 400
"""While the console is in use, one controller is asked this often whether there was an election."""
SOON_MS: Final = 400
"""The pause between polls while a fail-over is in progress."""
SOON_FOR_MS: Final = 5_000
CPU_SHARE_MAX: Final = 0.2
"""The part of the time of one core that polls may take."""
FIRST_S: Final = 12.0
"""How long a request waits for the first status."""


class Poller(Protocol):
    """Asks the cluster; poller.py."""

    async def take(self) -> ClusterStatus:
        """Returns the status now. Never fails because a server does not answer."""
        ...

    async def pulse(self) -> object:
        """Returns a value that changes with each election; None: unknown."""
        ...

    async def close(self) -> None:
        """Closes the connections."""
        ...


class Console:
    """Owned by the event loop's thread. `clock`: monotonic ms; `cpu`: of the polls."""

    def __init__(
        self,
        sources: ConsoleSources,
        poller: Poller,
        *,
        clock: Callable[[], int] = now_ms,
        cpu: CpuClock | None = None,
    ) -> None:
        self.sources, self._cluster = sources, poller
        self._clock, self._cpu = clock, cpu or CpuClock()
        self.status: ClusterStatus | None = None
        """The newest one; None: not yet."""
        self.taken_ms = 0
        """When the newest status was taken, by `clock`."""
        self.history = History()
        self.pages = Pages(self._wake_up)
        self.changes = 0
        """Actions that were carried out."""
        self._tasks = TaskSet()
        self._wake, self._first = asyncio.Event(), asyncio.Event()
        self._looked_ms, self._soon_until_ms = -LOOKED_MS, 0
        self._is_running = self._is_over = False
        self._pulse: object = None

    async def stop(self) -> None:
        """Ends all streams and stops polling. Safe to repeat."""
        self._is_over = True
        self.pages.end()
        await self._tasks.stop()
        await self._cluster.close()

    def look(self) -> None:
        """Notes that the console is in use. The first call starts polling."""
        is_back = self._clock() - self._looked_ms >= LOOKED_MS
        self._looked_ms = self._clock()
        if not self._is_running and not self._is_over:
            self._is_running = True
            self._tasks.start("console", self._run)
        elif is_back and self.age_ms > self.sources.poll_ms:
            self._wake_up()

    @property
    def is_watched(self) -> bool:
        """Returns whether the console is in use."""
        return len(self.pages) > 0 or self._clock() - self._looked_ms < LOOKED_MS

    @property
    def age_ms(self) -> int:
        """The age of the newest status."""
        return self._clock() - self.taken_ms

    async def current(self) -> ClusterStatus:
        """Returns the newest status. Raises NotYet: there is none, even after FIRST_S."""
        self.look()
        if self.status is None:
            try:
                async with asyncio.timeout(FIRST_S):
                    await self._first.wait()
            except TimeoutError:
                raise NotYet("the cluster is being asked for the first time; try again") from None
        assert self.status is not None
        return self.status

    def changed(self) -> None:
        """Notes that an action has just changed something: polls now, and often for some seconds."""
        self.changes += 1
        self._soon_until_ms = self._clock() + SOON_FOR_MS
        self._wake_up()

    def whole(self) -> bytes | None:
        """Returns the newest status as an event; None: there is none yet."""
        return None if self.status is None else encoded("status", self.status)

    # -- polling -----------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            began_ms, began_cpu_s = self._clock(), self._cpu.seconds()
            status = await self._cluster.take()
            await self._publish(status, began_ms)
            cpu_ms = (self._cpu.seconds() - began_cpu_s) * 1_000
            rest_ms = cpu_ms * (1 / CPU_SHARE_MAX - 1)
            await self._pause(began_ms, not_before_ms=self._clock() + round(rest_ms))

    async def _publish(self, status: ClusterStatus, began_ms: int) -> None:
        before, self.status, self.taken_ms = self.status, status, began_ms
        self.history.add(status.taken_ms, status.groups)
        if before is not None and _masters(before) != _masters(status):
            self._soon_until_ms = self._clock() + SOON_FOR_MS
        self._first.set()
        if len(self.pages):
            # Comparing and encoding a thousand groups takes longer than this loop may be blocked.
            change = None if before is None else await self._cpu.in_thread(_encoded_change, before, status)
            whole = await self._cpu.in_thread(encoded, "status", status)
            self.pages.send(lambda: change or whole, lambda: whole)

    async def _pause(self, began_ms: int, *, not_before_ms: int) -> None:
        """Returns when the next poll is due."""
        while True:
            now = self._clock()
            due_ms = max(began_ms + self._interval_ms(now), not_before_ms)
            if now >= due_ms:
                return
            is_pulse = self.is_watched and due_ms - now > PULSE_MS
            wait_ms = min(due_ms - now, PULSE_MS) if self.is_watched else due_ms - now
            if await self._woken(wait_ms) and self._clock() >= not_before_ms:
                return
            if is_pulse and await self._has_changed():
                self._soon_until_ms = self._clock() + SOON_FOR_MS

    def _interval_ms(self, now: int) -> int:
        if not self.is_watched:
            return max(IDLE_MS, self.sources.poll_ms)
        return min(SOON_MS, self.sources.poll_ms) if now < self._soon_until_ms else self.sources.poll_ms

    async def _has_changed(self) -> bool:
        pulse = await self._cluster.pulse()
        if pulse is None:
            return False
        before, self._pulse = self._pulse, pulse
        return before is not None and before != pulse

    async def _woken(self, wait_ms: int) -> bool:
        try:
            async with asyncio.timeout(wait_ms / 1_000):
                await self._wake.wait()
        except TimeoutError:
            return False
        self._wake.clear()
        return True

    def _wake_up(self) -> None:
        self._wake.set()


def _masters(status: ClusterStatus) -> list[tuple[str, str, int | None, int | None]]:
    return [(each.cluster, each.broker_name, each.master_id, each.master_epoch) for each in status.groups]


def _encoded_change(before: ClusterStatus, after: ClusterStatus) -> bytes:
    return encoded("change", changes(before, after))
