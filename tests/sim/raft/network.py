"""Links between simulated processes: ordered, delayed, broken, cut in one direction or both.

What raft.links promises is kept: one connection for each pair, frames in order, a new connection replaces the
old one, pings, a silent link is closed. Loss shows as a link that breaks, as with TCP. Late duplicates
(`duplicates`) are worse than TCP with our links: the guard must bear them all the same.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from hashlib import sha256
from random import Random
from typing import TYPE_CHECKING

from namesrv.plugins.controller.raft.codec import Ping, encode
from namesrv.plugins.controller.raft.transport.links import DIAL_ANYWAY_S
from tests.sim.raft.virtual import VirtualLoop

if TYPE_CHECKING:
    from tests.sim.raft.process import SimProcess

CONNECTION_TIMEOUT_S, RETRY_S = 1.5, 0.3
PING = encode(Ping())


@dataclass(eq=False)
class Connection:
    ends: tuple[SimProcess, SimProcess]
    heard: dict[str, float]
    sent: dict[str, float]
    arrival: dict[str, float] = field(default_factory=dict)  # at this end, of the last frame on its way
    stalled: dict[str, list[bytes | None]] = field(default_factory=dict)  # for this end; None: closed

    def other(self, process: SimProcess) -> SimProcess:
        return self.ends[1] if self.ends[0] is process else self.ends[0]


class Network:
    def __init__(self, loop: VirtualLoop, random: Random, *, delay_max_s: float, duplicates: float) -> None:
        self.loop, self.random = loop, random
        self.delay_max_s, self.duplicates = delay_max_s, duplicates
        self.running: dict[str, SimProcess] = {}
        self.blocked: set[tuple[str, str]] = set()
        self.frames = 0
        self.trace = sha256()
        self._dialing: set[tuple[str, str]] = set()
        self._connections: list[Connection] = []

    # ------------------------------------------------------------------ faults
    def cut(self, one: str, other: str, *, both: bool = True) -> None:
        self.blocked.add((one, other))
        if both:
            self.blocked.add((other, one))

    def heal(self) -> None:
        self.blocked.clear()
        for connection in list(self._connections):
            for end in connection.ends:
                for frame in connection.stalled.pop(end.name, []):
                    self._transmit(connection, end, frame)

    def reset(self, one: str, other: str) -> None:
        for connection in list(self._connections):
            if {end.name for end in connection.ends} == {one, other}:
                self._connections.remove(connection)
                for end in connection.ends:
                    end.arrived(connection, None)

    def ended(self, process: SimProcess, *, silently: bool) -> None:
        """The process is gone; its kernel says so, unless the power is gone too."""
        for connection in [each for each in self._connections if process in each.ends]:
            self._connections.remove(connection)
            if not silently:
                self._transmit(connection, connection.other(process), None)

    # ------------------------------------------------------------------ called by SimLinks
    def delay(self) -> float:
        return 0.0005 + self.random.random() * self.delay_max_s

    def send(self, connection: Connection, receiver: SimProcess, frame: bytes) -> None:
        self.frames += 1
        sender = connection.other(receiver)
        connection.sent[sender.name] = self.loop.time()
        self.trace.update(f"{self.loop.time():.6f} {sender.name} {receiver.name} ".encode() + frame)
        self._transmit(connection, receiver, frame)
        if self.duplicates and self.random.random() < self.duplicates:
            late = self.random.uniform(0.02, 0.35)
            self.loop.call_later(late, receiver.arrived, None, frame, sender.name)

    def close(self, connection: Connection, process: SimProcess) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
            self._transmit(connection, connection.other(process), None)

    def dial(self, process: SimProcess, peer: str) -> None:
        pair = (process.name, peer)
        if pair not in self._dialing:
            self._dialing.add(pair)
            self.loop.call_later(3 * self.delay(), self._connect, process, peer)

    def _connect(self, process: SimProcess, peer: str) -> None:
        pair = (process.name, peer)
        self._dialing.discard(pair)
        other = self.running.get(peer)
        if other is None or other.paused or not process.alive or {pair, pair[::-1]} & self.blocked:
            return
        now = self.loop.time()
        both = {process.name: now, peer: now}
        connection = Connection((process, other), dict(both), dict(both))
        self._connections.append(connection)
        for end in connection.ends:
            end.arrived(connection, b"")

    def _transmit(self, connection: Connection, receiver: SimProcess, frame: bytes | None) -> None:
        at = max(self.loop.time() + self.delay(), connection.arrival.get(receiver.name, 0.0))
        connection.arrival[receiver.name] = at
        self.loop.call_at(at, self._arrive, connection, receiver, frame)

    def _arrive(self, connection: Connection, receiver: SimProcess, frame: bytes | None) -> None:
        sender = connection.other(receiver)
        stalled = connection.stalled.get(receiver.name)
        if (sender.name, receiver.name) in self.blocked or stalled:
            connection.stalled.setdefault(receiver.name, []).append(frame)
        else:
            receiver.arrived(connection, frame)


class SimLinks:
    """In the place of raft.links.Links."""

    def __init__(self, network: Network, process: SimProcess, members: frozenset[str]) -> None:
        self._network, self._process, self.members = network, process, members
        self.up: dict[str, Connection] = {}
        self._retry_at: dict[str, float] = {}
        self._missing_since: dict[str, float] = {}
        self.refused: Counter[str] = Counter()
        self.differing_lists: set[str] = set()

    def send(self, member: str, frame: bytes) -> bool:
        connection = self.up.get(member)
        if connection is None:
            return False
        self._network.send(connection, connection.other(self._process), frame)
        return True

    def connected(self) -> list[str]:
        return sorted(self.up)

    def tick(self) -> None:
        now, name = self._network.loop.time(), self._process.name
        for peer, connection in list(self.up.items()):
            if now - connection.heard[name] > CONNECTION_TIMEOUT_S:
                self._network.close(connection, self._process)
                self._down(peer)
            elif now - connection.sent[name] > CONNECTION_TIMEOUT_S / 4:
                self.send(peer, PING)
        for peer in sorted(self.members - self.up.keys() - {name}):
            missing_since = self._missing_since.setdefault(peer, now)
            ours = peer < name or now - missing_since > DIAL_ANYWAY_S
            if ours and now >= self._retry_at.get(peer, 0.0):
                self._retry_at[peer] = now + RETRY_S
                self._network.dial(self._process, peer)

    def close(self) -> None: ...

    def set_members(self, members: dict[str, object]) -> None:
        self.members = frozenset(members)
        for peer in sorted(self.up.keys() - self.members):
            self.drop(peer, "")

    def drop(self, member: str, _reason: str) -> None:
        connection = self.up.get(member)
        if connection is not None:
            self._network.close(connection, self._process)
            self._down(member)

    def received(self, connection: Connection | None, frame: bytes | None, sender: str) -> None:
        """In the poll: b"" is a new connection, None the end of one."""
        current = self.up.get(sender)
        if connection is None:  # a late duplicate
            if current is not None and frame is not None:
                self._process.member.link_frame(sender, frame)
                self._process.member.frames_end()
        elif frame == b"":
            if current is not None:
                self._down(sender)
            self.up[sender] = connection
            self._missing_since.pop(sender, None)
            self._process.member.link_up(sender)
        elif current is connection:
            connection.heard[self._process.name] = self._network.loop.time()
            if frame is None:
                self._down(sender)
            else:
                self._process.member.link_frame(sender, frame)
                self._process.member.frames_end()

    def _down(self, peer: str) -> None:
        del self.up[peer]
        self._process.member.link_down(peer)
