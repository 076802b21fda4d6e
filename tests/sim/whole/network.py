"""TCP between hosts, on virtual time: what a socket promises, and everything that it does not.

Bytes of a connection arrive in order and once, but late, in any pieces, and perhaps never: while a direction
is cut (one way, too) they wait and are sent again, until their sender gives up. So a request may arrive long
after everybody has given up on it, an answer may be lost after the work was done, one end may know for a long
time nothing of the other's death, and the order of what goes over two connections is anybody's guess. A lost
packet is a late one. A message that arrives twice is one that was sent twice: clients do that.
"""

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

from tests.sim.whole.machines import PROCESS, MachineLoop, Process

RESEND_S = 0.2
GIVE_UP_S = 5.0
"""TCP_USER_TIMEOUT, as keelmq/remoting/client.py asks for it."""
SYN_AGAIN_S = 0.5
EPHEMERAL = 40_000
HIGH_BYTES, LOW_BYTES = 65_536, 16_384
_NOWHERE = contextvars.Context()
"""The network is no process."""


class Network:
    """`cuts`: pairs (from, to) of hosts between which nothing passes in that direction."""

    def __init__(self, loop: MachineLoop, dice: Random, *, loss: float, delay_max_s: float) -> None:
        self.loop, self.dice, self.loss, self.delay_max_s = loop, dice, loss, delay_max_s
        self.cuts: set[tuple[str, str]] = set()
        self.listeners: dict[tuple[str, int], Listener] = {}
        self.dark: set[str] = set()
        """Hosts without power: they answer nothing, until a process listens there again."""
        self.names: dict[str, str] = {}
        self.ends: dict[Process, list[Transport]] = {}
        self._port = EPHEMERAL
        self.on_path: Callable[[Transport, bytes], None] | None = None
        """Gets what an end sends, and calls its put() with what is to arrive."""
        loop.create_server = self._create_server  # type: ignore[assignment, method-assign]
        loop.create_connection = self._create_connection  # type: ignore[assignment, method-assign]

    # -- what the loop does with it ----------------------------------------------------------------------

    async def _create_server(
        self, factory: Callable[[], Any], host: str, port: int, **_more: Any
    ) -> "Listener":
        process = _mine()
        key = process.host, port
        if key in self.listeners:
            raise OSError(98, "Address already in use")
        listener = self.listeners[key] = Listener(self, process, factory, key)
        self.dark.discard(process.host)
        return listener

    async def _create_connection(
        self, factory: Callable[[], Any], host: str, port: int, **_more: Any
    ) -> tuple[Any, Any]:
        process = _mine()
        target = self.names.get(host, host)
        while True:  # the caller has a deadline
            await asyncio.sleep(2 * self.delay_s())
            is_reached = self.reaches(process.host, target) and self.reaches(target, process.host)
            if is_reached and target not in self.dark:
                break
            await asyncio.sleep(SYN_AGAIN_S)
        listener = self.listeners.get((target, port))
        if listener is None or not listener.process.alive or not process.alive:
            raise ConnectionRefusedError(111, f"nobody listens at {host}:{port}")
        self._port += 1
        mine = Transport(self, process, (process.host, self._port), (target, port))
        theirs = Transport(self, listener.process, (target, port), (process.host, self._port))
        mine.other, theirs.other = theirs, mine
        protocol = factory()
        mine.begin(protocol)
        protocol.connection_made(mine)
        theirs.call_soon(theirs.accepted, listener.factory)
        return mine, protocol

    # -- weather -----------------------------------------------------------------------------------------

    def delay_s(self) -> float:
        delay = self.dice.uniform(0.0001, self.delay_max_s)
        while self.loss and self.dice.random() < self.loss:
            delay += RESEND_S
        return delay

    def reaches(self, source: str, target: str) -> bool:
        return source == target or (source, target) not in self.cuts

    def cut(self, source: str, target: str, *, both: bool = True) -> None:
        self.cuts.add((source, target))
        if both:
            self.cuts.add((target, source))

    def mend(self, host: str | None = None) -> None:
        """Of one host, or all."""
        self.cuts = set() if host is None else {pair for pair in self.cuts if host not in pair}

    # -- deaths ------------------------------------------------------------------------------------------

    def died(self, process: Process, *, power: bool) -> None:
        """The system closes the sockets of a dead process; that of a machine without power does nothing."""
        for key in [key for key, each in self.listeners.items() if each.process is process]:
            del self.listeners[key]
        if power:
            self.dark.add(process.host)
        for end in self.ends.pop(process, []):
            end.died(power=power)


def _mine() -> Process:
    process = PROCESS.get()
    assert process is not None, "a socket outside of every process"
    return process


class Listener:
    """asyncio.Server, as far as the programs use it."""

    def __init__(
        self, network: Network, process: Process, factory: Callable[[], Any], key: tuple[str, int]
    ) -> None:
        self.network, self.process, self.factory, self.key = network, process, factory, key
        self.sockets = (SimpleNamespace(getsockname=lambda: key),)

    def close(self) -> None:
        if self.network.listeners.get(self.key) is self:
            del self.network.listeners[self.key]

    async def wait_closed(self) -> None: ...


class Transport(asyncio.Transport):
    """One end. `queue` holds what this end has sent and the other has not got; None in it is the end."""

    def __init__(
        self, network: Network, process: Process, here: tuple[str, int], there: tuple[str, int]
    ) -> None:
        super().__init__({"peername": there, "sockname": here})
        self.network, self.process = network, process
        self.here, self.there = here[0], there[0]
        self.other: Transport
        self.queue: deque[bytes | None] = deque()
        self.queued_bytes = 0
        self._protocol: Any = None
        self._buffered = False
        self._closing = self._lost = self._dead = self._half_closed = False
        self._flying = self._reading_paused = self._writing_paused = False
        self._stuck_since: float | None = None
        self._high, self._low = HIGH_BYTES, LOW_BYTES
        network.ends.setdefault(process, []).append(self)

    # -- asyncio.Transport -------------------------------------------------------------------------------

    def begin(self, protocol: Any) -> None:
        self._protocol = protocol
        self._buffered = isinstance(protocol, asyncio.BufferedProtocol)

    def set_protocol(self, protocol: Any) -> None:
        self.begin(protocol)

    def get_protocol(self) -> Any:
        return self._protocol

    def accepted(self, factory: Callable[[], Any]) -> None:
        protocol = factory()
        self.begin(protocol)
        protocol.connection_made(self)

    def write(self, data: Any) -> None:
        on_path = self.network.on_path
        if on_path is None or not data or self._closing or self._dead:
            self.put(bytes(data))
        else:
            on_path(self, bytes(data))

    def put(self, data: bytes) -> None:
        """Sends the bytes as they are, whoever is on the path."""
        if self._closing or self._dead or not data:
            return
        self.queue.append(data)
        self.queued_bytes += len(data)
        if self.queued_bytes > self._high and not self._writing_paused:
            self._writing_paused = True
            self._protocol.pause_writing()
        self._fly()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def is_closing(self) -> bool:
        return self._closing

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """The other end closes when it reads this, and so ends its own direction."""
        if not self._closing and not self._dead and not self._half_closed:
            self._half_closed = True
            self.queue.append(None)
            self._fly()

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            if not self._half_closed:
                self.queue.append(None)
                self._fly()
            self.call_soon(self._connection_lost, None)

    def abort(self) -> None:
        """What the system has taken already may still arrive."""
        if not self._closing:
            if self.queue and self.network.dice.random() < 0.5:
                self.queue.clear()
                self.queued_bytes = 0
            self.close()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high if high is not None else HIGH_BYTES
        self._low = low if low is not None else self._high // 4

    def get_write_buffer_size(self) -> int:
        return self.queued_bytes

    def is_reading(self) -> bool:
        return not self._reading_paused

    def pause_reading(self) -> None:
        self._reading_paused = True

    def resume_reading(self) -> None:
        self._reading_paused = False
        self.other._fly()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._extra.get(name, default)  # type: ignore[attr-defined]

    # -- the way to the other end ------------------------------------------------------------------------

    def call_soon(self, callback: Callable[..., None], *args: Any) -> None:
        self.network.loop.call_soon(callback, *args, context=self.process.context)

    def _fly(self, after_s: float | None = None) -> None:
        if not self._flying and self.queue and not self.other._reading_paused:
            self._flying = True
            delay = self.network.delay_s() if after_s is None else after_s
            self.network.loop.call_later(delay, self._arrive, context=_NOWHERE)

    def _arrive(self) -> None:
        """What was sent up to now is there, if it gets through."""
        self._flying = False
        network, now = self.network, self.network.loop.time()
        if not self.queue or (self._dead and not network.reaches(self.here, self.there)):
            return
        if not network.reaches(self.here, self.there):
            return self._stuck(now)
        if not network.reaches(self.there, self.here):
            self._wait_for_ack(now)
        else:
            self._stuck_since = None
        if self.other.process.is_paused or self.other._protocol is None:
            return self._fly(0.05)  # in the buffers of its system
        self._deliver()
        self._fly()

    def _deliver(self) -> None:
        pieces: list[bytes] = []
        end = False
        while self.queue and not end:
            piece = self.queue.popleft()
            if piece is None:
                end = True
            else:
                pieces.append(piece)
                self.queued_bytes -= len(piece)
        data = b"".join(pieces)
        if len(data) > 1 and not end and self.network.dice.random() < 0.1:
            kept = self.network.dice.randrange(1, len(data))
            self.queue.appendleft(data[kept:])
            self.queued_bytes += len(data) - kept
            data = data[:kept]
        other = self.other
        if other._dead or other._lost:  # nobody there: it says so
            if not self._closing and not self._dead:
                self.call_soon(self._broken, ConnectionResetError(104, "Connection reset by peer"))
            return
        if data:
            other.call_soon(other._received, data)
        if end:
            other.call_soon(other._ended)
        if self._writing_paused and self.queued_bytes <= self._low and not self._lost:
            self._writing_paused = False
            self.call_soon(self._resume_writing)

    def _stuck(self, now: float) -> None:
        if self._stuck_since is None:
            self._stuck_since = now
        if now - self._stuck_since < GIVE_UP_S:
            self._fly(RESEND_S)
            return
        self.queue.clear()
        self.queued_bytes = 0
        if not self._lost and not self._dead:
            self.call_soon(self._broken, TimeoutError(110, "Connection timed out"))

    def _wait_for_ack(self, now: float) -> None:
        """It arrived, but the other end cannot say so."""
        if self._stuck_since is None:
            self._stuck_since = now
            self.network.loop.call_later(GIVE_UP_S, self._never_acknowledged, now, context=_NOWHERE)

    def _never_acknowledged(self, since: float) -> None:
        if self._stuck_since == since and not self.network.reaches(self.there, self.here):
            if not self._lost and not self._dead:
                self.call_soon(self._broken, TimeoutError(110, "Connection timed out"))
        elif self._stuck_since == since:
            self._stuck_since = None

    # -- in this end's process ---------------------------------------------------------------------------

    def _received(self, data: bytes) -> None:
        if not self._buffered:
            if not self._lost and not self._closing:
                self._protocol.data_received(data)
            return
        left = memoryview(data)
        while len(left) and not self._lost and not self._closing:
            protocol = self._protocol  # it may be another one now
            buffer = protocol.get_buffer(-1)
            count = min(len(buffer), len(left))
            buffer[:count] = left[:count]
            protocol.buffer_updated(count)
            left = left[count:]

    def _resume_writing(self) -> None:
        if not self._lost and not self._closing:
            self._protocol.resume_writing()

    def _ended(self) -> None:
        """The other end has closed."""
        if not self._closing and not self._lost:
            self._closing = True
            if self.other._half_closed:
                self.queue.append(None)
                self._fly()
            self._connection_lost(None)

    def _broken(self, error: OSError) -> None:
        if not self._lost:
            self._closing = True
            self._connection_lost(error)

    def _connection_lost(self, error: OSError | None) -> None:
        if not self._lost:
            self._lost = True
            ends = self.network.ends.get(self.process)
            if ends is not None and self in ends:
                ends.remove(self)
            if self._protocol is not None:
                self._protocol.connection_lost(error)

    def died(self, *, power: bool) -> None:
        """Of kill -9: the system still sends what it has, and the end of the connection."""
        self._dead = True
        if power:
            self.queue.clear()
            self.queued_bytes = 0
        else:
            self.queue.append(None)
            self._fly()
        if not self._lost:
            self.call_soon(self._connection_lost, ConnectionResetError(104, "this process is dead"))
