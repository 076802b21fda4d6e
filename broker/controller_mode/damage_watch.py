"""DamageWatch: a master whose confirmed log is damaged and not healed in time hands over to a sound member.

The controllers know the damage by the heartbeats, and refuse a target that is damaged itself. If nobody can
take over, this broker stays master: it serves everything but the damaged records.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from broker.controller_mode.hand_over import HandOverError
from broker.store.message_store import MessageStore
from keelmq.runtime.clock import now_ms

logger = logging.getLogger(__name__)

HEAL_MS: Final = 5_000
"""Time for the damage to be healed, before the mastership is handed over."""
RETRY_MS: Final = 60_000
PERIOD_MS: Final = 500


class DamageWatch:
    """Owned by the event loop's thread."""

    def __init__(
        self,
        store: MessageStore,
        *,
        is_master: Callable[[], bool],
        has_target: Callable[[], bool],
        give: Callable[[], Awaitable[object]],
        clock: Callable[[], int] = now_ms,
    ) -> None:
        """has_target: another member of the SyncStateSet could take over. give: hands over, or raises
        HandOverError. clock: ms."""
        self._store, self._is_master, self._has_target, self._give = store, is_master, has_target, give
        self._clock = clock
        self._due_ms: int | None = None  # of the next attempt; None: there is no damage
        self._told = False

    async def run(self) -> None:
        """Runs for ever."""
        while True:
            await asyncio.sleep(PERIOD_MS / 1_000)
            await self.step()

    async def step(self) -> None:
        """Hands over if that is due."""
        damage, now = self._store.damage.first_unhealed(self._store.confirm_offset), self._clock()
        if damage is None or not self._is_master():
            self._due_ms, self._told = None, False
            return
        if self._due_ms is None:
            self._due_ms = now + HEAL_MS
        if now < self._due_ms:
            return
        where = f"the log of this master is damaged at {damage.start}..{damage.end} ({damage.reason})"
        if not self._has_target():
            if not self._told:
                logger.error("%s; no other member of the SyncStateSet can take over: it stays master", where)
            self._told = True
            return
        self._due_ms = now + RETRY_MS
        logger.warning("%s: it hands over", where)
        try:
            await self._give()
        except HandOverError as error:
            logger.error("%s, and it stays master: %s", where, error)
