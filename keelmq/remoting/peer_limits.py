"""Bounds what one remote address may use of a program's remoting ports, and what all unauthenticated peers
may use together: connections, requests, and received bytes of frames that have not ended.

One PeerLimits for all ports of a program. An address is an IPv4 address, or the first 64 bits of an IPv6
address, since one host has as many addresses of those as it likes. A connection is admitted once the access
check has let one of its requests pass; without an access check every connection is.

Everything here runs once per connection, per request of a connection that is not admitted, or per read that
ends within a frame; never for a whole request of an admitted connection. Reads no clock: looks are counted,
so suspending this process makes no peer late.
"""

import sys
from collections import Counter
from collections.abc import Container, Sized
from typing import Final, Protocol

import msgspec

from keelmq.remoting.large_frames import NoRoomError
from keelmq.runtime.token_buckets import TokenBuckets

PER_ADDRESS: Final = "per_address"
TOTAL: Final = "total"
EVICTED: Final = "evicted"
FRAME_BYTES: Final = "frame_bytes"
SLOW_FRAME: Final = "slow_frame"
REASONS: Final = (PER_ADDRESS, TOTAL, EVICTED, FRAME_BYTES, SLOW_FRAME)


class Limited(Protocol):
    """A connection, or one that still waits for its TLS handshake. Hashable by identity."""

    @property
    def is_admitted(self) -> bool:
        """Returns whether the access check has let one of its requests pass."""

    def evict(self, problem: str) -> None:
        """Logs the problem and aborts the connection. Calls nothing of PeerLimits but leave() and
        release()."""


class Reader(Limited, Protocol):
    """A connection that frames come over. PeerLimits keeps the account of its unfinished frame in it."""

    network: bytes
    partial_bytes: int
    """Received bytes of the frame."""
    partial_looks: int
    """Looks that have seen it while it could grow."""

    def is_paused(self) -> bool:
        """Returns whether nothing is read from the connection, so that the frame cannot grow."""


class Limits(msgspec.Struct, frozen=True):
    """0 in the first four, and in frame_timeout_s: no limit."""

    connections: int = 0
    connections_per_address: int = 0
    unauthenticated_requests_per_s: int = 0
    """Of one address; twice as many at once."""
    unauthenticated_bytes_per_address: int = 0
    """Of unfinished frames on connections that are not admitted."""
    unauthenticated_bytes: int = sys.maxsize
    """The same, of all addresses together."""
    partial_bytes: int = sys.maxsize
    """Of all unfinished frames. Above it the connections with the oldest ones are closed."""
    frame_timeout_s: float = 0
    """A frame must end within this time, and a second more for every frame_bytes_per_s of it that came."""
    frame_bytes_per_s: int = 8_192


class PeerLimits:
    """Used only in the event loop's thread."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.closed: Counter[str] = Counter()
        """Connections that were refused or closed, by one of REASONS."""
        self.refused_requests = 0
        """Requests of connections that were not admitted, beyond unauthenticated_requests_per_s."""
        self.partial_bytes = 0
        self.unauthenticated_bytes = 0
        self._networks: dict[Limited, bytes] = {}
        self._connections: Counter[bytes] = Counter()
        self._not_admitted: dict[Limited, None] = {}
        """In the order of their arrival."""
        self._partial: dict[Reader, None] = {}
        """Connections with an unfinished frame, in the order in which these began."""
        self._unauthenticated: dict[Reader, int] = {}
        """The part of their bytes that came before the connection was admitted, in the order in which the
        frames began."""
        self._bytes_of: Counter[bytes] = Counter()
        self._requests = _buckets(self.limits)

    def change(self, limits: Limits) -> None:
        """Changes the limits. Connections that are open stay, even above the limits."""
        if limits.unauthenticated_requests_per_s != self.limits.unauthenticated_requests_per_s:
            self._requests = _buckets(limits)
        self.limits = limits

    # -- connections -------------------------------------------------------------------------------------

    @property
    def connection_count(self) -> int:
        """Returns how many connections are registered."""
        return len(self._networks)

    @property
    def remembered(self) -> int:
        """Returns how many entries all tables have, without the one of request rates, which has a bound."""
        tables: tuple[Sized, ...] = (
            self._networks, self._connections, self._not_admitted, self._partial, self._unauthenticated,
            self._bytes_of,
        )  # fmt: skip
        return sum(map(len, tables))

    def enter(self, connection: Limited, network: bytes) -> str | None:
        """Registers a connection. Returns why it is refused instead; None: it is not.

        At the limit of all connections, the one that has waited longest for its first admitted request is
        closed for the new one."""
        limits, count = self.limits, self._connections[network]
        if 0 < limits.connections_per_address <= count:
            self.closed[PER_ADDRESS] += 1
            return f"its address has {count} connections already, which is maxConnectionsPerAddress"
        if 0 < limits.connections <= len(self._networks):
            oldest = next(iter(self._not_admitted), None)
            problem = f"{len(self._networks)} connections are open, which is maxConnections"
            if oldest is None:
                self.closed[TOTAL] += 1
                return problem
            self.closed[EVICTED] += 1
            self.leave(oldest)
            oldest.evict(f"{problem}, and this one has not authenticated")
        self._networks[connection] = network
        self._connections[network] += 1
        if not connection.is_admitted:
            self._not_admitted[connection] = None
        return None

    def leave(self, connection: Limited) -> None:
        """Unregisters a connection. Safe to repeat."""
        network = self._networks.pop(connection, None)
        if network is None:
            return
        self._connections[network] -= 1
        if not self._connections[network]:
            del self._connections[network]
        self._not_admitted.pop(connection, None)

    def admitted(self, connection: Limited) -> None:
        """Called once, when the access check has let a first request of the connection pass."""
        self._not_admitted.pop(connection, None)

    # -- requests ----------------------------------------------------------------------------------------

    def take_request(self, network: bytes, now_ms: int) -> bool:
        """Counts a request of a connection that is not admitted. False: there were too many of its
        address."""
        if self._requests is None or self._requests.take(network, now_ms):
            return True
        self.refused_requests += 1
        return False

    # -- unfinished frames -------------------------------------------------------------------------------

    def hold(self, connection: Reader, count: int) -> None:
        """Adds bytes of a connection's unfinished frame. NoRoomError: it has to be closed."""
        if not connection.is_admitted:
            self._hold_unauthenticated(connection, count)
        if connection not in self._partial:
            self._partial[connection] = None
            connection.partial_looks = 0
        connection.partial_bytes += count
        self.partial_bytes += count
        while self.partial_bytes > self.limits.partial_bytes:
            oldest = next(iter(self._partial))
            problem = f"unfinished frames hold {self.partial_bytes} of {self.limits.partial_bytes} bytes"
            if oldest is connection:
                raise NoRoomError(problem)
            self.release(oldest)
            self.closed[FRAME_BYTES] += 1
            oldest.evict(f"{problem}, and its frame is the oldest one")

    def _hold_unauthenticated(self, connection: Reader, count: int) -> None:
        """At the limit of all addresses the oldest frame makes room: otherwise an anonymous client could hold
        the limit for long with frames that it does not end, and keep out peers whose first request is
        large."""
        limits, held = self.limits, self._bytes_of[connection.network] + count
        if 0 < limits.unauthenticated_bytes_per_address < held:
            raise NoRoomError(
                "unfinished frames of connections from its address that have not authenticated would hold "
                f"more than {limits.unauthenticated_bytes_per_address} bytes"
            )
        while self.unauthenticated_bytes + count > limits.unauthenticated_bytes:
            oldest = next(iter(self._unauthenticated), connection)
            problem = (
                "unfinished frames of connections that have not authenticated would hold more than "
                f"{limits.unauthenticated_bytes} bytes"
            )
            if oldest is connection:
                raise NoRoomError(problem)
            self.release(oldest)
            self.closed[FRAME_BYTES] += 1
            oldest.evict(f"{problem}, and its frame is the oldest one")
        self._bytes_of[connection.network] += count
        self.unauthenticated_bytes += count
        self._unauthenticated[connection] = self._unauthenticated.get(connection, 0) + count

    def release(self, connection: Reader) -> None:
        """The frame is complete, or will never be. Safe to repeat."""
        if not connection.partial_bytes:
            return
        self.partial_bytes -= connection.partial_bytes
        connection.partial_bytes = 0
        self._partial.pop(connection, None)
        if self._unauthenticated and (count := self._unauthenticated.pop(connection, 0)):
            self.unauthenticated_bytes -= count
            self._bytes_of[connection.network] -= count
            if not self._bytes_of[connection.network]:
                del self._bytes_of[connection.network]

    def look(self, connections: Container[Reader], period_s: float) -> None:
        """Closes those of the connections whose frame takes too long. Called every `period_s`."""
        timeout_s, rate = self.limits.frame_timeout_s, self.limits.frame_bytes_per_s
        if not timeout_s:
            return
        for connection in [each for each in self._partial if each in connections and not each.is_paused()]:
            count, seconds = connection.partial_bytes, connection.partial_looks * period_s
            connection.partial_looks += 1
            if seconds >= timeout_s + count / rate:
                self.release(connection)
                self.closed[SLOW_FRAME] += 1
                connection.evict(f"a frame has not ended in {seconds:g} s, {count} bytes of it have come")


def _buckets(limits: Limits) -> TokenBuckets[bytes] | None:
    rate = limits.unauthenticated_requests_per_s
    return TokenBuckets[bytes](rate, 2 * rate) if rate else None
