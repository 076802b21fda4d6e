"""ElectionWait: how long a follower waits for a silent leader, and between the rounds of a pre-vote. No I/O.

A leader that is silent for 0.4 s hangs where its appends come every 0.1 s, and merely has a slow disk where
gaps of 0.3 s are usual. So the wait is a multiple of the longest gap between two appends of the last minutes,
within bounds. It is never below `shortest_s`: one stalled fsync of a quiet leader must not cost an election.
Safety does not depend on the wait: a wrong guess costs an election, not data.

The followers take turns by `rank`, the number of other followers with a smaller id: the first asks without a
random delay, the next one soon after it, because the first may be down or lack entries. A refused round is
repeated soon: the other may have heard the leader a moment later, or may not have noticed its end yet.
"""

import random
from collections import deque

LONGEST_S = 1.0
FACTOR = 3.0
MARGIN_S = 0.01  # the other has heard the last append a moment later, and refuses before its own wait is over
RANK_S, FAST_RANK_S = 0.05, 0.01
BUCKET_S, BUCKETS = 10.0, 60  # the longest gap of each 10 s, for 10 minutes
FAST_MIN_S = 0.001
FAST_ROUNDS_MAX = 20
AGAIN_S = 0.03  # at most, after the first round without a majority; each further wait is twice as long
SPREAD = 1.5  # the longest of them, as a multiple of the wait for a silent leader


class ElectionWait:
    """`shortest_s`: the least wait. `fast_s`: the longest delay after the link to the leader broke; 0: as
    long as for a silent one. Times are seconds of one clock."""

    def __init__(self, shortest_s: float, fast_s: float) -> None:
        self._shortest_s, self._fast_s = shortest_s, fast_s
        self._last: tuple[int, float] | None = None  # term and time of the last append
        self._bucket_ends: float | None = None
        self._longest_now = 0.0
        self._longest: deque[float] = deque(maxlen=BUCKETS)
        self._fast_rounds, self._again_s = 0, AGAIN_S

    def appended(self, term: int, now: float) -> None:
        """Notes an append. The gap between two leaders does not count."""
        self._fast_rounds, self._again_s = 0, AGAIN_S
        if self._last is not None and self._last[0] == term:
            self._longest_now = max(self._longest_now, now - self._last[1])
        self._last = term, now
        if self._bucket_ends is None:
            self._bucket_ends = now + BUCKET_S
        elif now >= self._bucket_ends:
            self._longest.append(self._longest_now)
            self._bucket_ends, self._longest_now = now + BUCKET_S, 0.0

    def link_lost(self, rank: int) -> float:
        """Returns the time until the first round after the link to the leader broke, as at the end of its
        process. The next rounds come soon: another member that has not noticed it yet refuses the first."""
        if not self._fast_s:
            return self.timeout_s(rank)
        self._fast_rounds = FAST_ROUNDS_MAX
        return min(FAST_MIN_S + rank * FAST_RANK_S, self._fast_s)

    @property
    def silence_s(self) -> float:
        """How long a leader may be silent."""
        longest = max((self._longest_now, *self._longest))
        return min(max(FACTOR * longest, self._shortest_s), max(LONGEST_S, self._shortest_s))

    def timeout_s(self, rank: int) -> float:
        """Returns the time from the last append until the first round."""
        return self.silence_s + MARGIN_S + rank * RANK_S

    def next_round_s(self) -> float:
        """Returns a random time until the next round: two members seldom ask at once."""
        if self._fast_rounds:
            self._fast_rounds -= 1
            return random.uniform(FAST_MIN_S, self._fast_s)
        longest = min(self._again_s, self.silence_s * SPREAD)
        self._again_s = 2 * longest
        return random.uniform(longest / 2, longest)
