"""How far the clocks of brokers are from ours, from the sending times in their heartbeats. Pure.

A heartbeat contains its sending time by the broker's clock. Its time of receipt by our clock is later by the
difference of the clocks plus the transmission time, which is never negative. So the least difference of many
heartbeats is closest to that of the clocks.
"""

from typing import Final, NamedTuple

from namesrv.core.liveness import BrokerKey

KEYS_MAX: Final = 10_000
"""Brokers that are compared at a time; a client can send heartbeats under any name."""
TIME_MAX: Final = 253_402_300_800_000  # ms since 1970 of the year 10000


class ClockOffset(NamedTuple):
    """offset_ms: the broker's clock is behind ours by this much; below 0: ahead. heartbeats: their number."""

    offset_ms: int
    heartbeats: int


class ClockOffsets:
    """Owned by the event loop's thread. `left_out`: heartbeats of brokers beyond KEYS_MAX since the last
    take()."""

    def __init__(self, keys_max: int = KEYS_MAX) -> None:
        self.left_out = 0
        self._keys_max = keys_max
        self._found: dict[BrokerKey, ClockOffset] = {}

    def add(self, key: BrokerKey, *, sent_ms: int, received_ms: int) -> None:
        """Takes a heartbeat: ms since 1970 by the broker's clock and by ours. Ignores impossible times."""
        if not 0 <= sent_ms < TIME_MAX:
            return
        offset_ms = received_ms - sent_ms
        known = self._found.get(key)
        if known is not None:
            self._found[key] = ClockOffset(min(known.offset_ms, offset_ms), known.heartbeats + 1)
        elif len(self._found) < self._keys_max:
            self._found[key] = ClockOffset(offset_ms, 1)
        else:
            self.left_out += 1

    def take(self) -> dict[BrokerKey, ClockOffset]:
        """Returns the offsets since the last call, which then start again."""
        found, self._found, self.left_out = self._found, {}, 0
        return found
