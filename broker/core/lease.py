"""The isolation lease: until when a master may acknowledge, whatever the others are doing (design S2).

A master that is cut off is deposed after controllerHeartBeatTimeoutMills, and does not hear of it. So it
stops acknowledging before, unless it knows that nobody can have been elected. It knows it in one of two ways:

    the controllers hear it    the one that led when it was asked has answered each heartbeat since then: it
                               waits a whole timeout after the last, and a later leader its grace window
    the heirs are its slaves   every other member of the SyncStateSet, in force or proposed, has spoken lately
                               over a link that is open; a slave that is elected closes it first

Either is enough: with the controllers down the slaves are, and with a slave lost the controllers are (and
take it out of the set). A master that is the whole SyncStateSet has no heir. All times are of this machine's
monotonic clock and count from when we *sent* what was answered: no clock is compared with another, only their
rates, and MARGIN is for these.

Invariant (property test): while controllers_end_ms() is ahead, no controller has deposed us.
"""

from collections.abc import Collection, Mapping
from typing import Protocol

MARGIN = 10
"""A tenth of each term: clocks that run at different rates, and the way from the check to the socket."""
GRACE_MS = 3_000
"""controllerGraceMs, its default: so long a new leader presumes a master alive that timed out before."""


class Speaker(Protocol):
    """What is known of a slave's open link (MasterLink)."""

    @property
    def read_ms(self) -> int:
        """When the last byte came."""
        ...


class Lease:
    """Facts in, the end of the lease out."""

    def __init__(self, *, timeout_ms: int, witness_ms: int) -> None:
        """timeout_ms: what our heartbeats tell the controllers; witness_ms: a slave speaks that often."""
        self._timeout_ms = timeout_ms - timeout_ms // MARGIN
        grace_ms = min(timeout_ms, GRACE_MS)
        self._grace_ms = grace_ms - grace_ms // MARGIN
        self._witness_ms = witness_ms
        self._heard: dict[str, tuple[int, int]] = {}  # since when without a break, and the latest
        self._proof: tuple[str, int] | None = None

    def beat_answered(self, controller: str, sent_ms: int, now_ms: int) -> None:
        """This controller has heard us, at sent_ms or later. If a whole timeout may have passed for it since
        the heartbeat before, it may have deposed us in between, and only what it says later counts."""
        since_ms, latest_ms = self._heard.get(controller, (now_ms, 0))
        if now_ms >= latest_ms + self._timeout_ms:
            since_ms = now_ms
        self._heard[controller] = (since_ms, max(sent_ms, latest_ms))

    def confirmed(self, controller: str, asked_ms: int) -> None:
        """It led, and we were its master, at asked_ms or later."""
        self._proof = (controller, asked_ms)

    def connection_lost(self, controller: str) -> None:
        """It suspects us from the moment at which it sees that."""
        self._heard.pop(controller, None)
        if self._proof is not None and self._proof[0] == controller:
            self._proof = None

    def controllers_end_ms(self) -> int:
        """0: nothing is known of the one that leads."""
        if self._proof is None or self._proof[0] not in self._heard:
            return 0
        controller, asked_ms = self._proof
        since_ms, latest_ms = self._heard[controller]
        if asked_ms < since_ms:
            return 0
        return min(latest_ms + self._timeout_ms, asked_ms + self._grace_ms)

    def is_over(self, now_ms: int, heirs: Collection[int], links: Mapping[int, Speaker]) -> bool:
        """Nothing may be acknowledged. links: of each connected slave. Asked for every acknowledgement, so
        the heirs come first: while they are heard, nothing hangs on the controllers."""
        for heir in heirs:
            link = links.get(heir)
            if link is None or now_ms >= link.read_ms + self._witness_ms:
                return now_ms >= self.controllers_end_ms()
        return False
