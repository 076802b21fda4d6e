"""Requests of one code that several connections send in one iteration of the event loop, served together.

With many connections, each iteration ("turn") brings a small read from each of them. While turns are full, a
connection does not serve such a request itself: it is collected, and all that a turn has brought are served
at the beginning of the next one, before anything else is read. Invariants: the requests of a connection are
served in the order in which they came, and all of them before the connection has gone.
"""

from collections.abc import Callable
from typing import Any, Final, Protocol

FULL_TURN: Final = 6
"""Requests in a turn; fewer are served faster one by one."""
TOGETHER_MIN: Final = 4
"""Requests in a run; a call for fewer costs more than it saves."""
COLLECTED_MAX: Final = 256
REQUEST_BYTES_MAX: Final = 16_384
"""Limit of header and body. A longer request is served at once, with what was collected before it. With
COLLECTED_MAX, it bounds the memory that is held."""
_IN_VAIN_MAX: Final = 2
"""Calls of one turn that may serve too few, before the rest is served one by one."""


class Collecting(Protocol):
    """A connection. `collected`: what holds requests of it."""

    collected: "TurnRequests | None"

    def send(self, frame: bytes) -> bool:
        """Queues a response. False: the connection is closing."""

    def serve_alone(self, header: bytes, body: bytes, failed: Exception | None = None) -> bool:
        """Serves a request as if it had not been collected, and sends the response. failed: what its handler
        has raised; it is answered with that. Never raises: a fault ends this connection alone. False: it has;
        what follows of it is not served."""


Frames = list[tuple[int, bytes, bytes, int]]
"""As whole_frames() returns them."""
ReadRequests = Callable[[Frames, bytes], list[Any]]
"""(frames, first bytes of the first header) -> the requests at the beginning that can be served together; it
never raises."""
ServeTurn = Callable[[list[Any], list[Any]], list[bytes | None]]
"""(requests, the connection of each) -> the responses of those that it has served, from the first one on;
None: sent later, or never."""


class TurnRequests:
    """Owned by the event loop's thread. key: what the headers begin with. call_soon: the event loop's."""

    __slots__ = ("_call_soon", "_collected", "_count", "_key", "_read", "_serve", "is_on")

    def __init__(
        self,
        read: ReadRequests,
        serve: ServeTurn,
        key: bytes,
        call_soon: Callable[[Callable[[], None]], object],
    ) -> None:
        self._read, self._serve, self._key, self._call_soon = read, serve, key, call_soon
        self.is_on = False
        """Whether connections collect. The handler sets it after a full turn; it ends by itself."""
        self._collected: list[tuple[bytes, bytes, Collecting]] = []
        self._count = 0  # in this turn

    def take(self, header: bytes, body: bytes, peer: Collecting) -> None:
        """Collects a request that begins with the key."""
        before = peer.collected
        if before is not None and before is not self:
            before.flush()
        peer.collected = self
        if not self._count:
            self._call_soon(self._end)
        self._count += 1
        self._collected.append((header, body, peer))
        if len(header) + len(body) > REQUEST_BYTES_MAX or len(self._collected) >= COLLECTED_MAX:
            self.flush()

    def _end(self) -> None:
        count, self._count = self._count, 0
        self.flush()
        self.is_on = count >= FULL_TURN

    def flush(self) -> None:
        """Serves what is collected."""
        collected, self._collected = self._collected, []
        if not collected:
            return
        frames = [(0, header, body, 0) for header, body, _ in collected]
        peers = [peer for _, _, peer in collected]
        for peer in peers:
            peer.collected = None
        is_on, self.is_on = self.is_on, False  # what is served alone must not be collected again
        try:
            self._serve_all(frames, peers)
        finally:
            self.is_on = is_on

    def _serve_all(self, frames: Frames, peers: list[Collecting]) -> None:
        """Serves runs of them together, and one by one what ends a run. Reads each at most twice."""
        at, end, in_vain = 0, len(frames), 0
        requests: list[Any] = []
        while at < end:
            if not requests and end - at >= TOGETHER_MIN and in_vain < _IN_VAIN_MAX:
                requests = self._read(frames[at:] if at else frames, self._key)
            if len(requests) >= TOGETHER_MIN and in_vain < _IN_VAIN_MAX:
                served = self._serve_together(requests, frames, peers, at)
                in_vain += served < TOGETHER_MIN
                at, requests = at + served, requests[served:]
            if at < end:
                (_, header, body, _), peer = frames[at], peers[at]
                at, requests = at + 1, requests[1:]
                if not peer.serve_alone(header, body):
                    left = [each for each in range(at, end) if peers[each] is not peer]
                    frames, peers = [frames[each] for each in left], [peers[each] for each in left]
                    at, end, requests = 0, len(left), []

    def _serve_together(
        self,
        requests: list[Any],
        frames: Frames,
        peers: list[Collecting],
        at: int,
    ) -> int:
        """Returns how many it has served. requests: those from `at` on."""
        end = at + len(requests)
        try:
            replies = self._serve(requests, peers[at:end])
        except Exception as error:  # noqa: BLE001 - answered, and logged with its traceback
            # It may have served some: none is repeated.
            for (_, header, body, _), peer in zip(frames[at:end], peers[at:end], strict=True):
                peer.serve_alone(header, body, error)
            return end - at
        _send(replies, peers[at:end])
        return len(replies)


def _send(replies: list[bytes | None], peers: list[Collecting]) -> None:
    """Sends the responses; those to requests of one read, which are adjacent, with one write."""
    waiting: list[bytes] = []
    last = peers[0]
    for reply, peer in zip(replies, peers, strict=False):
        if reply is None:
            continue
        if peer is not last and waiting:
            last.send(waiting[0] if len(waiting) == 1 else b"".join(waiting))
            waiting = []
        last = peer
        waiting.append(reply)
    if waiting:
        last.send(waiting[0] if len(waiting) == 1 else b"".join(waiting))
