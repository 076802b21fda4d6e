"""Limits failed authentications, so that secrets cannot be guessed and checks cost little.

A token bucket for each user at each address: a failure takes a token, and time gives them back. Other users
of the address, which may be a proxy or a machine with many programs, are not affected. IPv6 counts by /64,
since one host has as many addresses as it likes. The table is bounded; who failed the longest time ago goes
first.
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
        if full_at_ms > now_ms + self._failures_max * self._refill_ms:
            return 0  # the clock was ahead then
        return max(0, full_at_ms - now_ms - (self._failures_max - 1) * self._refill_ms)

    def failed(self, peer_ip: str, now_ms: int, who: str = "") -> None:
        """Counts a failure."""
        key = _key_of(peer_ip, who)
        full_at_ms = max(self._full_at_ms.pop(key, 0), now_ms) + self._refill_ms
        if len(self._full_at_ms) >= self._addresses_max:
            del self._full_at_ms[next(iter(self._full_at_ms))]
        # Further failures while it is refused make it wait no longer.
        self._full_at_ms[key] = min(full_at_ms, now_ms + self._failures_max * self._refill_ms)


def _key_of(peer_ip: str, who: str) -> str:
    return f"{_network_of(peer_ip)} {who[:NAME_CHARS_MAX]}"


def _network_of(peer_ip: str) -> str:
    address = peer_address(peer_ip)
    if address is None or address.version == 4:
        return str(address or peer_ip)
    return address.packed[:8].hex()
