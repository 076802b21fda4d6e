"""Attacks on the HA port, over which replicas copy the log. With replica.py, in the same group."""

import json
import os
import ssl
import struct
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Final

from broker.ha.core.hello import CHALLENGE, HEAD, Group, SlaveHello
from tests.attacks.attacker import DEFAULT, Attacker, Tls
from tests.attacks.frames import Identity
from tests.attacks.line import GONE, Line, dialled, happens
from tests.attacks.model import How, Outcome, attack
from tests.attacks.replica import LOG
from tests.attacks.stage import ADMIN, BROKER_NAME, CLUSTER_NAME, HOST, MEMBER, MEMBER_NAME, SECRET, Stage
from tests.attacks.tls import showing

HA_S: Final = 3.0
TRIES: Final = 3
CLOSED: Final = "connection closed"


def ways(attacker: Attacker) -> tuple[Tls, ...]:
    """Without TLS, and with it where the port speaks it."""
    return (None, DEFAULT) if attacker.stage.is_closed else (None,)


async def shake_hands(line: Line, slave_id: int) -> int:
    """Sends RocketMQ's handshake; returns how many bytes of epochs the master has sent. Raises one of
    GONE, or TimeoutError."""
    await line.send(struct.pack(">ihhq", 1, 0, 2, slave_id))
    state, size, _, _ = struct.unpack(">iiqi", await line.read(20, HA_S))
    if state != 1 or size > 12_000:
        raise EOFError
    await line.read(size, HA_S)
    return int(size)


def refused(error: BaseException) -> Outcome:
    return Outcome(False, CLOSED if isinstance(error, GONE) else "no answer")


@attack(
    "replica/ha-handshake",
    "opens the HA port as replica 2",
    asset=LOG,
    success="the master answers the handshake with its epochs",
    answer=CLOSED,
)
async def ha_handshake(attacker: Attacker) -> Outcome:
    outcome = Outcome(False, "")
    for tls in ways(attacker):
        try:
            async with attacker.dial("ha", tls=tls) as line:
                return Outcome(True, f"epochs of {await shake_hands(line, 2)} bytes")
        except (*GONE, TimeoutError) as error:
            outcome = refused(error)
    return outcome


@attack(
    "replica/ha-read",
    "copies the log over the HA port of the master or the replica, with an id that nobody has",
    asset=LOG,
    success="the attacker has alice's messages",
    answer=CLOSED,
)
async def ha_read(attacker: Attacker) -> Outcome:
    outcome = Outcome(False, "")
    for server, tls in product(("ha", "ha-replica"), ways(attacker)):
        try:
            async with attacker.dial(server, tls=tls) as line:
                await shake_hands(line, 77)
                await line.send(struct.pack(">iq", 2, 0))
                while True:
                    state, size, *_ = struct.unpack(">iiqiqq", await line.read(36, HA_S))
                    if state == 2 and SECRET in await line.read(size, HA_S):
                        return Outcome(True, "alice's messages")
        except (*GONE, TimeoutError) as error:
            outcome = refused(error)
    return outcome


@attack(
    "replica/ha-ack",
    "acknowledges producers in the name of replica 2: HA acks for bytes that it does not have",
    asset="what acknowledged means",
    success="the master shows the attacker as a replica with these acks (907)",
    answer=CLOSED,
    ruins=True,
)
async def ha_ack(attacker: Attacker) -> Outcome:
    async def is_shown() -> bool:
        status = json.loads((await attacker.stage.must("broker", 907)).body)
        rows = status.get("haConnectionInfo") or []
        return any(row["addr"].startswith(attacker.source) and row["slaveAckOffset"] > 0 for row in rows)

    outcome = Outcome(False, "not listed")
    for _ in range(TRIES):  # the true replica 2 connects again, too
        try:
            async with attacker.dial("ha", tls=ways(attacker)[-1]) as line:
                await shake_hands(line, 2)
                status = json.loads((await attacker.stage.must("broker", 907)).body)
                await line.send(struct.pack(">iq", 2, status["masterCommitLogMaxOffset"]))
                if await happens(is_shown, HA_S / TRIES):
                    return Outcome(True, "listed as a replica")
        except (*GONE, TimeoutError) as error:
            outcome = refused(error)
    return outcome


# -- the hello, by which members prove that they have the secret -----------------------------------------


def hello_of(
    who: Identity, line_binding: bytes, *, broker_id: int = 2, broker_name: str = BROKER_NAME
) -> SlaveHello:
    """The hello of a replica with these credentials."""
    group = Group(CLUSTER_NAME, broker_name, who.name, who.secret.encode())
    return SlaveHello(group, broker_id, nonce=os.urandom(32), binding=line_binding, now_ms=0)


async def challenge(line: Line) -> bytes:
    """Returns the CHALLENGE. Raises one of GONE, or TimeoutError."""
    head = await line.read(HEAD.size, HA_S)
    _, _, kind, size = HEAD.unpack(head)
    if kind != CHALLENGE:
        raise EOFError
    return head + await line.read(size, HA_S)


async def proves_membership(stage: Stage) -> bytes:
    """A member's hello, as it is: what the attacks below lack. Returns the bytes that the member has sent."""
    async with dialled(stage.addresses["ha"], source=HOST, tls=stage.client_tls()) as line:
        hello = hello_of(MEMBER, line.binding, broker_id=99)
        sent = hello.start()
        await line.send(sent)
        proof = hello.receive_data(await challenge(line))
        assert proof is not None
        return sent + proof


async def with_hello(attacker: Attacker, make: Callable[[Line], bytes], tls: Tls = DEFAULT) -> Outcome:
    """Sends these bytes; the attack succeeds if the master answers. With everything off there is no hello to
    send: the handshake of RocketMQ is enough."""
    try:
        async with attacker.dial("ha", tls=tls) as line:
            if not attacker.stage.is_closed:
                return Outcome(True, f"epochs of {await shake_hands(line, 2)} bytes")
            await line.send(make(line))
            return Outcome(True, f"{len(await line.read(1, HA_S))} bytes or more")
    except (*GONE, TimeoutError) as error:
        return refused(error)


def at_ha_port(id: str, name: str) -> Callable[[How], How]:
    """Declares an attack after which the master must not answer."""
    return attack(f"replica/{id}", name, asset=LOG, success="the master answers", answer=CLOSED)


async def proving(attacker: Attacker, hello: Callable[[bytes], SlaveHello]) -> Outcome:
    return await with_hello(attacker, lambda line: hello(line.binding).start())


HELLOS: Final[tuple[tuple[str, str, Callable[[bytes], SlaveHello]], ...]] = (
    (
        "ha-wrong-secret",
        "proves its membership at the HA port with a secret that it has guessed",
        lambda binding: hello_of(Identity(MEMBER.name, "guessed"), binding),
    ),
    (
        "ha-administrator",
        "proves its membership at the HA port with the administrator's credentials",
        lambda binding: hello_of(ADMIN, binding),
    ),
    (
        "ha-other-group",
        "has the secret, but is of another broker group, and copies this one's log",
        lambda binding: hello_of(MEMBER, binding, broker_name="broker-b"),
    ),
    (
        "ha-relay",
        "ends the TLS of a replica, and passes its hello on over a connection of its own",
        lambda binding: hello_of(MEMBER, b"of another connection"),
    ),
)
for id, name, hello in HELLOS:
    at_ha_port(id, name)(partial(proving, hello=hello))


@at_ha_port("ha-plain-hello", "has a replica's hello cross the network without TLS")
async def ha_plain_hello(attacker: Attacker) -> Outcome:
    return await with_hello(attacker, lambda line: hello_of(MEMBER, line.binding).start(), None)


@at_ha_port("ha-replay", "sends the hello and the proof of a replica again, which it has captured")
async def ha_replay(attacker: Attacker) -> Outcome:
    captured = await proves_membership(attacker.stage) if attacker.stage.is_closed else b""
    return await with_hello(attacker, lambda line: captured)


@at_ha_port("ha-certificate", "shows the HA port a member's certificate of another CA")
async def ha_certificate(attacker: Attacker) -> Outcome:
    context: ssl.SSLContext | None = None
    if attacker.stage.is_closed:
        context = showing(attacker.stage.foreign.issue(MEMBER_NAME, stem="for-ha"))
    return await with_hello(attacker, lambda line: struct.pack(">ihhq", 1, 0, 2, 2), context)
