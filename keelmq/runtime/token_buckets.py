"""TokenBuckets: how often something may happen for each key, for example for each remote address.

A bucket is stored as the time at which it is full again, so time needs no timer. The table is bounded: the
least recently used key is removed first, and its bucket is full when it comes back. Pure.
"""

from typing import Final, Generic, TypeVar

KEYS_MAX: Final = 10_000

Key = TypeVar("Key")


class TokenBuckets(Generic[Key]):
    """rate: tokens per second; burst: how many a full bucket has, at least 1."""

    def __init__(self, rate: float, burst: int, *, keys_max: int = KEYS_MAX) -> None:
        if rate <= 0 or burst < 1:
            raise ValueError(f"a rate of {rate} with a burst of {burst}")
        self._token_ms, self._burst, self._keys_max = 1_000 / rate, burst, keys_max
        self._full_at_ms: dict[Key, float] = {}

    def __len__(self) -> int:
        """Returns how many keys are remembered."""
        return len(self._full_at_ms)

    def take(self, key: Key, now_ms: int) -> bool:
        """Takes a token of this key. False: there is none, and nothing was changed."""
        full_at_ms = max(self._full_at_ms.pop(key, 0.0), now_ms) + self._token_ms
        is_taken = full_at_ms - now_ms <= self._burst * self._token_ms + 1e-6
        if len(self._full_at_ms) >= self._keys_max:
            del self._full_at_ms[next(iter(self._full_at_ms))]
        self._full_at_ms[key] = full_at_ms if is_taken else full_at_ms - self._token_ms
        return is_taken
