"""Bounds the write buffers of all connections of a server: bytes that were sent, but not read by the peer.

A peer that does not read costs memory while its connection is open. `look()` finds the peers that have read
nothing during STALLED_LOOKS looks in a row (looks are counted, not time, so suspending this process makes no
peer late). `paused()` and `has_room()` keep the sum while a buffer is above the pause mark. Above `bytes_max`
the connections with the largest buffers are closed until three quarters are left: their peers are the
furthest behind, and lose the least by connecting again. Nothing here runs for a message to a peer that reads.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

import msgspec

WRITE_HIGH_BYTES: Final = 1_048_576
"""Unsent bytes above which the peer counts as not reading: its requests are no longer read."""
WRITE_LOW_BYTES: Final = 262_144
WRITE_BYTES_MAX: Final = 67_108_864
"""Unsent bytes (pushed frames and late replies) above which the connection is aborted."""
STALLED_LOOKS: Final = 6
STALLED: Final = "stalled"
OVER_LIMIT: Final = "over_limit"
SLOW_CLOSE: Final = "slow_close"


class Buffered(Protocol):
    """A connection. Hashable by identity."""

    activity: int
    """Reads and writes so far."""

    def unsent_bytes(self) -> int:
        """Returns the bytes that wait in the write buffer."""

    def is_paused(self) -> bool:
        """Returns whether the buffer is above the pause mark."""

    def is_closing(self) -> bool:
        """Returns whether the connection is closing or closed."""

    def give_up(self, kind: str, problem: str) -> None:
        """Counts, logs and aborts the connection. Calls nothing of WriteBuffers but `given_up`."""


class _Mark(msgspec.Struct):
    """One connection's state. `unsent`: its buffer when last seen, an upper bound of the present one."""

    unsent: int
    activity: int
    looks: int = 0  # in a row during which the peer read nothing


class WriteBuffers:
    """The write buffers of one server's connections, on all its ports. Used only in the event loop's
    thread."""

    def __init__(self, bytes_max: int = sys.maxsize) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0
        """Unsent bytes, as last seen."""
        self.given_up: Counter[str] = Counter()
        """Aborted connections by reason: STALLED, OVER_LIMIT, SLOW_CLOSE."""
        self._marks: dict[Buffered, _Mark] = {}

    @staticmethod
    def write_pieces(transport: asyncio.WriteTransport, pieces: Sequence[bytes | memoryview]) -> None:
        """Queues one message given in pieces, which uvloop does not join. asyncio's own writelines() does not
        call pause_writing() before Python 3.12.9 and 3.13.2, and not all releases expect a lost
        connection."""
        if isinstance(transport, asyncio.WriteTransport):  # uvloop's is none by class
            transport.write(b"".join(pieces))
        else:
            transport.writelines(pieces)

    def paused(self, connection: Buffered) -> None:
        """Registers a connection whose buffer is above the pause mark."""
        self._see(connection, connection.unsent_bytes())
        self._keep_bound()

    def has_room(self, connection: Buffered, count: int) -> bool:
        """Counts `count` more bytes of a paused connection. False: it was aborted instead."""
        unsent = connection.unsent_bytes()
        if unsent + count > WRITE_BYTES_MAX:
            connection.give_up(OVER_LIMIT, f"{unsent} bytes unsent, and {count} more to send")
            return False
        mark = self._see(connection, unsent)
        mark.unsent += count
        self.held_bytes += count
        self._keep_bound(connection)
        return not connection.is_closing()

    def forget(self, connection: Buffered) -> None:
        """Unregisters a connection: its buffer is below the pause mark again, or it is gone."""
        mark = self._marks.pop(connection, None)
        if mark is not None:
            self.held_bytes -= mark.unsent

    def look(self, connections: Iterable[Buffered], period_s: float) -> None:
        """Aborts connections whose peers read nothing for too long. Called every `period_s` with all
        connections."""
        for connection in list(connections):
            unsent = connection.unsent_bytes()
            if not unsent:
                self.forget(connection)
                continue
            mark = self._see(connection, unsent)
            mark.looks += 1
            if mark.looks > STALLED_LOOKS:
                seconds = STALLED_LOOKS * period_s
                self.forget(connection)
                connection.give_up(STALLED, f"{unsent} bytes unsent, none of them read for {seconds:g} s")
        self._keep_bound()

    def _see(self, connection: Buffered, unsent: int) -> _Mark:
        """Updates a connection's mark. has_room() adds the writes of a paused connection to its mark, so a
        smaller buffer was read from. For other connections any activity counts as progress: bytes that the
        peer does not read collect in the buffer until it is paused."""
        mark = self._marks.get(connection)
        if mark is None:
            mark = self._marks[connection] = _Mark(unsent, connection.activity)
            self.held_bytes += unsent
            return mark
        moved = connection.activity != mark.activity and not connection.is_paused()
        if unsent < mark.unsent or moved:
            mark.looks = 0
        self.held_bytes += unsent - mark.unsent
        mark.unsent, mark.activity = unsent, connection.activity
        return mark

    def _keep_bound(self, growing: Buffered | None = None) -> None:
        """Aborts the largest buffers while the sum is above the bound. `growing`: a connection whose mark is
        ahead of its buffer."""
        if self.held_bytes <= self.bytes_max:
            return
        for connection in self._marks:
            if connection is not growing:
                self._see(connection, connection.unsent_bytes())
        if self.held_bytes <= self.bytes_max:
            return
        held = self.held_bytes
        for connection, mark in sorted(self._marks.items(), key=lambda item: -item[1].unsent):
            if self.held_bytes <= self.bytes_max * 3 // 4:
                return
            self.forget(connection)
            connection.give_up(
                OVER_LIMIT,
                f"{mark.unsent} bytes unsent; all connections hold {held} of {self.bytes_max} bytes",
            )
