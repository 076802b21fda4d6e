"""HandOverWatch: a master that cannot serve as one hands over to a member of the SyncStateSet that can.

There is one for each such reason: a damaged confirmed log that is not healed in time, and a full disk. The
controllers know damage and full disks from the heartbeats, and refuse such a target. If no member can take
over, this broker stays master. It makes at most one attempt in RETRY_MS, also over several terms, so brokers
with full disks do not hand the mastership back and forth.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from broker.controller_mode.hand_over import HandOver, HandOverError
from keelmq.runtime.clock import now_ms

logger = logging.getLogger(__name__)

HEAL_MS: Final = 5_000
"""Time for damage to be healed, before the mastership is handed over."""
ROOM_MS: Final = 300
"""Time for retention to make room. Sends wait meanwhile: it is below the time after which clients repeat
them."""
RETRY_MS: Final = 60_000
PERIOD_MS: Final = 100


class HandOverWatch:
    """Owned by the event loop's thread."""

    def __init__(
        self,
        reason: Callable[[], str],
        hand_over: HandOver,
        *,
        grace_ms: int,
        for_room: bool = False,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        """reason: returns why this broker should not be master; empty: it may. grace_ms: how long the reason
        may last. for_room: only a member whose disk is not full can take over. clock: ms."""
        self._reason, self._hand_over, self._grace_ms = reason, hand_over, grace_ms
        self._for_room, self._clock = for_room, clock
        self._since_ms: int | None = None  # of the reason; None: there is none
        self._next_ms = 0  # no attempt before
        self._logged = ""  # why it stays master

    @property
    def is_due(self) -> bool:
        """Whether this master hands over in a moment: there is a reason, and no attempt has failed lately."""
        can_begin = self._next_ms <= self._clock() + self._grace_ms
        return can_begin and bool(self._reason()) and self._hand_over.is_master and self._hand_over.has_target

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            await asyncio.sleep(PERIOD_MS / 1_000)
            await self.step()

    async def step(self) -> None:
        """Hands over if that is due."""
        reason, now = self._reason(), self._clock()
        if not reason or not self._hand_over.is_master:
            self._since_ms, self._logged = None, ""
            return
        if self._since_ms is None:
            self._since_ms = now
        if now < max(self._since_ms + self._grace_ms, self._next_ms):
            return
        if not self._hand_over.has_target:
            self._stay(reason, "no other member of the SyncStateSet can take over")
            return
        self._next_ms = now + RETRY_MS
        if not self._logged:
            logger.warning("%s: it hands over", reason)
        try:
            await self._hand_over.give(for_room=self._for_room, quiet=bool(self._logged))
        except HandOverError as error:
            self._stay(reason, str(error))

    def _stay(self, reason: str, why: str) -> None:
        """Logs why this broker stays master, once."""
        if why != self._logged:
            logger.error("%s, and this broker stays master: %s", reason, why)
        self._logged = why
