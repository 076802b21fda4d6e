"""CallLimits: how many calls one address may have at once, and how many bytes of requests are being handled.
Pure.

grpcio itself limits the calls of one connection and of all; the port limits the connections of one address.
Without this, one address with a few connections could have all calls."""

from collections import Counter
from typing import Final

CALLS: Final = "grpcMaxConcurrentCallsPerAddress"


class CallLimits:
    """per_address: calls. connection_bytes_max, bytes_max: of one connection, and of all. network: of a
    client's address, see addresses.network_of(). connection: its key."""

    def __init__(self, per_address: int, *, connection_bytes_max: int, bytes_max: int) -> None:
        self._per_address = per_address
        self._connection_bytes_max, self._bytes_max = connection_bytes_max, bytes_max
        self._calls: Counter[bytes] = Counter()
        self._bytes_of: Counter[str] = Counter()
        self._bytes = 0

    def __len__(self) -> int:
        """How many entries are kept; none without a call."""
        return len(self._calls) + len(self._bytes_of)

    def enter(self, network: bytes, connection: str, count: int) -> str | None:
        """A call whose request has `count` bytes begins. Returns why it is refused; None: it is not, and
        leave() must follow."""
        if self._calls[network] >= self._per_address:
            return f"{self._calls[network]} calls of its address are open, which is {CALLS}"
        if self._bytes_of[connection] + count > self._connection_bytes_max:
            return f"requests of this connection have {self._bytes_of[connection]} bytes"
        if self._bytes + count > self._bytes_max:
            return f"requests of all connections have {self._bytes} bytes"
        self._calls[network] += 1
        self._bytes_of[connection] += count
        self._bytes += count
        return None

    def leave(self, network: bytes, connection: str, count: int) -> None:
        """The call has ended."""
        self._calls[network] -= 1
        if not self._calls[network]:
            del self._calls[network]
        self._bytes_of[connection] -= count
        if not self._bytes_of[connection]:
            del self._bytes_of[connection]
        self._bytes -= count
