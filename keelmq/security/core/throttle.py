"""Limits failed authentications, so that secrets cannot be guessed and checks cost little.

A token bucket for each user at each address: a failure takes a token, and time gives them back. Other users
of the address, which may be a proxy or a machine with many programs, are not affected. IPv6 counts by /64,
since one host has as many addresses as it likes. The table is bounded: the entry whose bucket will be full
soonest is removed first. Otherwise a guesser of secrets could have its failures forgotten by failing with
many names that do not exist.
"""

from typing import Final

from keelmq.security.core.address_patterns import peer_address

FAILURES_MAX: Final = 20
REFILL_MS: Final = 3_000
ADDRESSES_MAX: Final = 10_000
NAME_CHARS_MAX: Final = 64


class FailureThrottle:
    """failures_max: at once; refill_ms: until one of them is forgotten."""

    def __init__(
        self,
        *,
        failures_max: int = FAILURES_MAX,
        refill_ms: int = REFILL_MS,
        addresses_max: int = ADDRESSES_MAX,
    ) -> None:
        self._failures_max = failures_max
        self._refill_ms = refill_ms
        self._addresses_max = addresses_max
        self._full_at_ms: dict[str, int] = {}
        """Address and user -> when the bucket is full again."""

    def __len__(self) -> int:
        """How many have failed lately."""
        return len(self._full_at_ms)

    def wait_ms(self, peer_ip: str, now_ms: int, who: str = "") -> int:
        """Returns how long this user is refused at this address from now on; 0: it is not."""
        if not self._full_at_ms:
            return 0
        full_at_ms = self._full_at_ms.get(_key_of(peer_ip, who), 0)
        if self._is_of_another_time(full_at_ms, now_ms):
            return 0
        return max(0, full_at_ms - now_ms - (self._failures_max - 1) * self._refill_ms)

    def failed(self, peer_ip: str, now_ms: int, who: str = "") -> None:
        """Counts a failure."""
        key = _key_of(peer_ip, who)
        full_at_ms = max(self._full_at_ms.pop(key, 0), now_ms) + self._refill_ms
        if len(self._full_at_ms) >= self._addresses_max:
            self._make_room(now_ms)
        # Further failures while it is refused make it wait no longer.
        self._full_at_ms[key] = min(full_at_ms, now_ms + self._failures_max * self._refill_ms)

    def _is_of_another_time(self, full_at_ms: int, now_ms: int) -> bool:
        """The clock was ahead then."""
        return full_at_ms > now_ms + self._failures_max * self._refill_ms

    def _make_room(self, now_ms: int) -> None:
        """Forgets half of the table at once: to look for one that has failed least is as much work."""
        table = self._full_at_ms

        def full_at_ms(key: str) -> int:
            return 0 if self._is_of_another_time(table[key], now_ms) else table[key]

        for key in sorted(table, key=full_at_ms)[: (len(table) + 1) // 2]:
            del table[key]


def _key_of(peer_ip: str, who: str) -> str:
    return f"{_network_of(peer_ip)} {who[:NAME_CHARS_MAX]}"


def _network_of(peer_ip: str) -> str:
    address = peer_address(peer_ip)
    if address is None or address.version == 4:
        return str(address or peer_ip)
    return address.packed[:8].hex()
