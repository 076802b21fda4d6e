"""SendGaps: how long sends to a broker group were not acknowledged, as one producer sees it. Pure.

A gap begins with the first send that failed or got no answer: when that send started, or when the group
acknowledged its last send, if that was later. It ends with the first acknowledgement of a send that started
after the beginning. A group that has acknowledged nothing yet has no gap: its master was never there.
"""

from typing import Final, NamedTuple

GROUPS_MAX: Final = 1_024
"""Groups that are watched; more are a mistake, and are ignored."""


class Gap(NamedTuple):
    """ms of the monotonic clock."""

    started_ms: int
    ended_ms: int


class SendGaps:
    """Times are ms of one monotonic clock. Names are broker names."""

    def __init__(self, groups_max: int = GROUPS_MAX) -> None:
        self._groups_max = groups_max
        self._acknowledged_ms: dict[str, int] = {}
        self._started_ms: dict[str, int] = {}

    def failed(self, broker_name: str, *, started_ms: int) -> None:
        """A send that started then failed, got no answer, or found no master."""
        acknowledged_ms = self._acknowledged_ms.get(broker_name)
        if acknowledged_ms is not None and broker_name not in self._started_ms:
            self._started_ms[broker_name] = max(started_ms, acknowledged_ms)

    def acknowledged(self, broker_name: str, *, started_ms: int, now_ms: int) -> Gap | None:
        """A send that started then was acknowledged now. Returns the gap that it ends."""
        if broker_name not in self._acknowledged_ms and len(self._acknowledged_ms) >= self._groups_max:
            return None
        self._acknowledged_ms[broker_name] = now_ms
        began_ms = self._started_ms.get(broker_name)
        if began_ms is None or started_ms <= began_ms:
            return None
        del self._started_ms[broker_name]
        return Gap(began_ms, now_ms)
