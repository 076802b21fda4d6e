"""A limit of bytes per second: a token bucket that one packet may overdraw. Pure.

Overdrawing keeps packets large. If the tokens had to cover a packet before it is sent, packets would be tiny,
or wait for tokens that a small limit never collects.
"""

BURST_MS = 200
"""Unused tokens are kept for this time only."""

PACKET_BYTES_MIN = 4_096


class Throttle:
    """A token bucket; bytes_per_second 0: no limit. Times are of one monotonic clock."""

    __slots__ = ("_balance", "_burst", "_now_ms", "bytes_per_second")

    def __init__(self, bytes_per_second: int, *, now_ms: int) -> None:
        self.bytes_per_second = bytes_per_second
        self._burst = self._balance = bytes_per_second * BURST_MS  # in thousandths of a byte
        self._now_ms = now_ms

    @property
    def packet_bytes_max(self) -> int | None:
        """The largest packet whose debt is paid within BURST_MS, or soon; None: any size."""
        return max(self._burst // 1000, PACKET_BYTES_MIN) if self.bytes_per_second else None

    def is_open(self, now_ms: int) -> bool:
        """Returns whether a packet may be sent now."""
        if not self.bytes_per_second:
            return True
        gained = (now_ms - self._now_ms) * self.bytes_per_second
        self._balance, self._now_ms = min(self._balance + gained, self._burst), now_ms
        return self._balance > 0

    def limit(self, bytes_per_second: int, now_ms: int) -> None:
        """Sets another limit. A debt stays, unless the limit is 0."""
        if self.bytes_per_second:
            self.is_open(now_ms)
        self.bytes_per_second, self._burst = bytes_per_second, bytes_per_second * BURST_MS
        self._balance, self._now_ms = min(self._balance, self._burst), now_ms

    def spend(self, count: int) -> None:
        """Removes the tokens of a packet that is sent."""
        if self.bytes_per_second:
            self._balance -= count * 1000
