"""Somebody on the path between hosts: sees every request, and keeps copies. Delivers requests twice, late, in
another order, or altered; delivers copies of older ones again, to the same server or to another one.

Only requests with a proof are delivered again: what a client of RocketMQ signs may be repeated by whoever has
captured it. Answers are only seen, and so is what replicas say on HA links: without TLS nothing protects them
(docs/adr/0029, 0031).
"""

from collections import Counter, deque
from dataclasses import dataclass
from random import Random

from msgspec.structs import replace

from keelmq.remoting.command import RemotingCommand, decode, encode
from keelmq.remoting.frame import LENGTH_BYTES, frame_bytes
from keelmq.security.core.member_proof import PROOF
from tests.sim.secure.keys import ATTACKER
from tests.sim.whole.machines import MachineLoop
from tests.sim.whole.network import Network, Transport
from tests.sim.whole.programs import BROKER_PORT, CONTROLLER_PORT, NAMESRV_PORT

PORTS = frozenset({CONTROLLER_PORT, NAMESRV_PORT, BROKER_PORT})
HA_PORT = BROKER_PORT + 1
KEPT = 400
LATE_S = (0.001, 3.0)


@dataclass(frozen=True)
class Captured:
    """A request as it was on the wire. to: where it went; is_push: on a connection that its recipient had
    opened."""

    frame: bytes
    to: tuple[str, int]
    is_push: bool

    @property
    def command(self) -> RemotingCommand:
        return decode(self.frame[LENGTH_BYTES:])


class OnPath:
    """`rate`: how many of the requests are touched. counts: what was done, by kind."""

    def __init__(self, loop: MachineLoop, network: Network, dice: Random, rate: float) -> None:
        self.loop, self.dice, self.rate = loop, dice, rate
        self.requests: deque[Captured] = deque(maxlen=KEPT)
        self.hellos: deque[tuple[bytes, tuple[str, int]]] = deque(maxlen=KEPT)
        """What slaves began their HA links with, and where."""
        self.counts: Counter[str] = Counter()
        self._parts: dict[Transport, bytearray] = {}
        self._held: dict[Transport, bytes] = {}
        self._begun: set[Transport] = set()
        network.on_path = self.sent

    def end(self) -> None:
        """From now on everything arrives as it was sent."""
        self.rate = 0.0
        for transport, frame in self._held.items():
            transport.put(frame)
        self._held.clear()

    def sent(self, transport: Transport, data: bytes) -> None:
        """In the place of Transport.put()."""
        if transport.process.name.startswith(ATTACKER):
            return transport.put(data)
        here, there = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
        if there[1] == HA_PORT:
            if transport not in self._begun:
                self._begun.add(transport)
                self.hellos.append((data, there))
        elif {here[1], there[1]} & PORTS:
            self._frames(transport, data, there)
            return
        transport.put(data)

    def _frames(self, transport: Transport, data: bytes, there: tuple[str, int]) -> None:
        parts = self._parts.setdefault(transport, bytearray())
        parts += data
        while (size := frame_bytes(parts, 0, len(parts))) and size <= len(parts):
            frame = bytes(parts[:size])
            del parts[:size]
            self._frame(transport, frame, there)

    def _frame(self, transport: Transport, frame: bytes, there: tuple[str, int]) -> None:
        dice, held = self.dice, self._held.pop(transport, None)
        if PROOF.encode() not in frame:
            transport.put(frame)
        else:
            captured = Captured(frame, there, is_push=there[1] not in PORTS)
            self.requests.append(captured)
            if dice.random() >= self.rate:
                transport.put(frame)
            else:
                touch = dice.choice((self._twice, self._late, self._swapped, self._altered, self._again))
                touch(transport, captured)
        if held is not None:
            transport.put(held)

    def _later(self, transport: Transport, frame: bytes) -> None:
        self.loop.call_later(self.dice.uniform(*LATE_S), transport.put, frame)

    def _twice(self, transport: Transport, captured: Captured) -> None:
        self.counts["twice"] += 1
        transport.put(captured.frame)
        self._later(transport, captured.frame)

    def _late(self, transport: Transport, captured: Captured) -> None:
        self.counts["late"] += 1
        self._later(transport, captured.frame)

    def _swapped(self, transport: Transport, captured: Captured) -> None:
        self.counts["swapped"] += 1
        self._held[transport] = captured.frame

    def _altered(self, transport: Transport, captured: Captured) -> None:
        """Only what is pushed: who alters another request makes its sender believe that addresses are
        translated, and name no recipient any more (ADR 31, "What remains")."""
        if not captured.is_push:
            return self._again(transport, captured)
        self.counts["altered"] += 1
        transport.put(altered(captured.command, self.dice))

    def _again(self, transport: Transport, captured: Captured) -> None:
        """An older one, in front of this one: of any server, to whoever is at this end."""
        self.counts["again"] += 1
        kin = [each for each in self.requests if each.is_push == captured.is_push]
        transport.put(self.dice.choice(kin).frame)
        transport.put(captured.frame)


def altered(command: RemotingCommand, dice: Random) -> bytes:
    """The frame with another code, another value, two values cut in another place, or another body; signature
    and proof as they were."""
    fields = dict(command.ext_fields)
    names = sorted(set(fields) - {PROOF, "AccessKey", "Signature"})
    match dice.randrange(4):
        case 0:
            return encode(replace(command, code=dice.choice((1001, 1002, 1008, 1011, 1013, 17, 215, 3003))))
        case 1 if len(names) > 1:
            one, other = sorted(dice.sample(names, 2))
            joined = fields[one] + fields[other]
            cut = dice.randint(0, len(joined))
            if joined[:cut] != fields[one]:
                fields[one], fields[other] = joined[:cut], joined[cut:]
                return encode(replace(command, ext_fields=fields))
        case 2 if command.body:
            return encode(replace(command, body=command.body[:-1] + bytes((command.body[-1] ^ 1,))))
    name = dice.choice(names) if names else "masterEpoch"
    return encode(replace(command, ext_fields={**fields, name: fields.get(name, "") + "1"}))
