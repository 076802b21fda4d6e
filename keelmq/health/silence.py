"""Silence: whether a peer has sent nothing for longer than its past explains. Pure.

The threshold follows the peer: one and a half times the longest gap of the last minute, and never below a
minimum. So a peer on a quiet machine is found silent after the minimum, one whose machine pauses now and then
after longer, and one that sends every five seconds after seven and a half.
"""

from typing import Final

import msgspec

BUCKET_MS: Final = 10_000
BUCKETS: Final = 6
"""The past is the longest gaps of six times ten seconds."""


class Silence(msgspec.Struct):
    """Of a peer that sends something regularly. Times in ms of one monotonic clock; they never go back.

    min_ms: no shorter gap is a silence. heard_ms: when the peer was heard last, or the watch began.
    """

    min_ms: int
    heard_ms: int
    _longest: list[int] = msgspec.field(default_factory=lambda: [0] * BUCKETS)
    _bucket: int = 0

    def heard(self, now_ms: int) -> None:
        """The peer has sent something: the gap before it belongs to its past."""
        gap_ms = now_ms - self.heard_ms
        self.begin(now_ms)
        place = self._bucket % BUCKETS
        self._longest[place] = max(self._longest[place], gap_ms)

    def begin(self, now_ms: int) -> None:
        """The watch begins again, because the peer could not be heard before: its connection is new, or this
        process was stopped. The past remains."""
        self.heard_ms = now_ms
        bucket = now_ms // BUCKET_MS
        for each in range(max(self._bucket + 1, bucket - BUCKETS + 1), bucket + 1):
            self._longest[each % BUCKETS] = 0
        self._bucket = bucket

    @property
    def has_past(self) -> bool:
        """Returns whether the peer was heard again after a gap, in the last minute."""
        return any(self._longest)

    @property
    def threshold_ms(self) -> int:
        """The length from which on a gap is a silence."""
        return max(self.min_ms, max(self._longest) * 3 // 2)

    def is_silent(self, now_ms: int) -> bool:
        """Returns whether the present gap is a silence."""
        return now_ms - self.heard_ms >= self.threshold_ms
