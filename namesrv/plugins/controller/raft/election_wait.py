"""ElectionWait: how long a follower waits for a silent leader, and between the rounds of a pre-vote. No I/O.

A leader that is silent for 0.4 s hangs where its appends come every 0.1 s, and merely has a slow disk where
gaps of 0.3 s are usual. So the wait is a multiple of the longest gap between two appends of the last minutes,
within bounds. It is never below `shortest_s`: one stalled fsync of a quiet leader must not cost an election.
Safety does not depend on the wait: a wrong guess costs an election, not data.
"""

import random
from collections import deque

LONGEST_S = 0.8
SPREAD = 1.5  # a timeout is up to this multiple of the wait: two members seldom ask at once
FACTOR = 2.5
BUCKET_S, BUCKETS = 10.0, 60  # the longest gap of each 10 s, for 10 minutes
FAST_MIN_S = 0.002
FAST_ROUNDS_MAX = 20


class ElectionWait:
    """`shortest_s`: the least wait. `fast_s`: the longest delay after the link to the leader broke; 0: as
    long as for a silent one. Times are seconds of one clock."""

    def __init__(self, shortest_s: float, fast_s: float) -> None:
        self._shortest_s, self._fast_s = shortest_s, fast_s
        self._last: tuple[int, float] | None = None  # term and time of the last append
        self._bucket_ends: float | None = None
        self._longest_now = 0.0
        self._longest: deque[float] = deque(maxlen=BUCKETS)
        self._fast_rounds = 0

    def appended(self, term: int, now: float) -> None:
        """Notes an append. The gap between two leaders is not one of a leader: it does not count."""
        self._fast_rounds = 0
        if self._last is not None and self._last[0] == term:
            self._longest_now = max(self._longest_now, now - self._last[1])
        self._last = term, now
        if self._bucket_ends is None:
            self._bucket_ends = now + BUCKET_S
        elif now >= self._bucket_ends:
            self._longest.append(self._longest_now)
            self._bucket_ends, self._longest_now = now + BUCKET_S, 0.0

    def link_lost(self) -> None:
        """The link to the leader broke, as at the end of its process. The next rounds come soon: another
        member that has not noticed it yet refuses the first."""
        self._fast_rounds = FAST_ROUNDS_MAX if self._fast_s else 0

    @property
    def silence_s(self) -> float:
        """How long a leader may be silent."""
        longest = max((self._longest_now, *self._longest))
        return min(max(FACTOR * longest, self._shortest_s), max(LONGEST_S, self._shortest_s))

    def timeout_s(self) -> float:
        """Returns a random time from the last append until the first round."""
        return random.uniform(self.silence_s, self.silence_s * SPREAD)

    def next_round_s(self) -> float:
        """Returns a random time until the next round."""
        if not self._fast_rounds:
            return self.timeout_s()
        self._fast_rounds -= 1
        return random.uniform(FAST_MIN_S, self._fast_s)
