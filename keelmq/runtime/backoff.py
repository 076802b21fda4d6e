"""The pause before the next attempt: exponential, with full jitter.

Every loop that repeats a failed attempt takes its pauses from here; a period that a protocol or the
configuration fixes stays one. Full jitter spreads the clients of one broker evenly over the pause, so they do
not all return at once. Pure: the caller counts the failures and draws the random number, from `random`, which
the simulator seeds.
Source: "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
"""

import msgspec


class Backoff(msgspec.Struct, frozen=True):
    """A back-off policy. `first_ms`: the longest pause after the first failure. It grows by `factor` with
    each further failure, up to `max_ms`. ValueError: a policy that never pauses, or that shrinks."""

    first_ms: int
    max_ms: int
    factor: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.first_ms <= self.max_ms:
            raise ValueError(f"a back-off from {self.first_ms} to {self.max_ms} ms: 0 < first <= max")
        if self.factor < 1:
            raise ValueError(f"the factor of a back-off is {self.factor}: it must be at least 1")

    def limit_ms(self, failures: int) -> float:
        """Returns the longest pause after this many failures in a row (1 or more)."""
        limit_ms = float(self.first_ms)
        for _ in range(failures - 1):
            if limit_ms >= self.max_ms:
                break
            limit_ms *= self.factor
            if self.factor == 1:
                break
        return min(limit_ms, float(self.max_ms))

    def pause_ms(self, failures: int, draw: float) -> float:
        """Returns the pause after this many failures in a row; 0 without a failure. `draw`: a random number
        from 0 up to 1."""
        return draw * self.limit_ms(failures) if failures > 0 else 0.0
