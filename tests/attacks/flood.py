"""Flooding: connections, frames and requests of anonymous clients, until others are not served. Small floods:
they show that there is a limit, and not how much a machine can take."""

import asyncio
import contextlib
import json
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Final

from tests.attacks.attacker import Attacker, request_of
from tests.attacks.frames import Answer, json_frame
from tests.attacks.line import GONE, Line
from tests.attacks.model import Outcome, attack
from tests.attacks.stage import CONNECTIONS_MAX, ORDERS, send_fields

OTHERS: Final = "the service for others"
CONNECTIONS: Final = 300
SERVED_S: Final = 3.0
FRAME_BYTES: Final = 16 * 1024 * 1024

Flood = Callable[[Attacker], Awaitable[Answer]]


def flood(
    id: str, name: str, *, success: str = "others are not served within 3 s"
) -> Callable[[Flood], Flood]:
    """Declares an attack, during and after which others must be served. The flood returns what it saw."""

    def declare(how: Flood) -> Flood:
        async def done(attacker: Attacker) -> Outcome:
            try:
                saw = await how(attacker)
            except (*GONE, TimeoutError) as error:
                saw = Answer(-1, f"connection closed: {type(error).__name__}")
            began = time.monotonic()
            served = await attacker.stage.ask("broker", 30, {"topic": ORDERS, "queueId": 0})
            late = time.monotonic() - began > SERVED_S
            return Outcome(saw.code == -3 or served.code != 0 or late, f"others are served; it: {saw}")

        attack(id, name, asset=OTHERS, success=success, open=False)(done)
        return how

    return declare


NOT_SERVED: Final = Answer(-3, "others are not served")


async def served_meanwhile(attacker: Attacker) -> bool:
    """Whether others are served while the attacker holds what it has."""
    began = time.monotonic()
    answer = await attacker.stage.ask("broker", 30, {"topic": ORDERS, "queueId": 0})
    return answer.code == 0 and time.monotonic() - began <= SERVED_S


@contextlib.asynccontextmanager
async def many(attacker: Attacker, server: str, count: int, first: bytes = b"") -> AsyncIterator[int]:
    """Opens connections without TLS that send these bytes; yields how many the server has let open."""
    async with contextlib.AsyncExitStack() as stack:
        opened: list[Line] = []
        for _ in range(count):
            with contextlib.suppress(*GONE, TimeoutError):
                line = await stack.enter_async_context(attacker.dial(server, tls=None))
                await line.send(first)
                opened.append(line)
        yield len(opened)


async def held(attacker: Attacker, server: str, first: bytes = b"", count: int = CONNECTIONS) -> Answer:
    async with many(attacker, server, count, first) as opened:
        if not await served_meanwhile(attacker):
            return NOT_SERVED
        return Answer(0, f"{opened} connections")


HELD: Final = (
    (
        "connections",
        f"opens {CONNECTIONS} connections to the broker and sends nothing",
        "broker",
        b"",
        CONNECTIONS,
    ),
    ("ha-connections", "opens 100 connections to the HA port and sends nothing", "ha", b"", 100),
    (
        "half-frames",
        "announces frames of 16 MiB on 100 connections and sends a byte of each",
        "broker",
        struct.pack(">II", FRAME_BYTES - 8, 100) + b"{",
        100,
    ),
    (
        "half-hello",
        "begins TLS on 200 connections and stays there",
        "broker",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
        200,
    ),
)
for id, name, server, first, count in HELD:
    flood(f"flood/{id}", name)(partial(held, server=server, first=first, count=count))


@attack(
    "flood/per-address",
    f"opens {CONNECTIONS} connections from one address to each remoting port",
    asset=OTHERS,
    success=f"more than {CONNECTIONS_MAX} stay open at a port (maxConnectionsPerAddress)",
    answer="stay open",
)
async def per_address(attacker: Attacker) -> Outcome:
    most = 0
    for server in ("broker", "vip", "namesrv", "controller"):
        async with contextlib.AsyncExitStack() as stack:
            lines = []
            for _ in range(CONNECTIONS):
                with contextlib.suppress(*GONE, TimeoutError):
                    lines.append(await stack.enter_async_context(attacker.dial(server, tls=None)))
            still = await asyncio.gather(*(line.is_open(0.5) for line in lines))
            most = max(most, sum(still))
    return Outcome(most > CONNECTIONS_MAX, f"{most} stay open")


@flood("flood/controller-connections", f"opens {CONNECTIONS} connections to the controller and sends nothing")
async def controller_connections(attacker: Attacker) -> Answer:
    answer = await held(attacker, "controller")
    await attacker.stage.sync_state()
    return answer


@flood("flood/http-connections", f"opens {CONNECTIONS} connections to an HTTP port and sends nothing")
async def http_connections(attacker: Attacker) -> Answer:
    attacker.stage.addresses["http of broker"] = attacker.stage.http_addresses["broker"]
    async with many(attacker, "http of broker", CONNECTIONS):
        answer = await attacker.http("broker", "GET", "/livez")
    return answer if answer.code == 200 else NOT_SERVED


@flood("flood/large-frame", "announces a frame of 2 GiB")
async def large_frame(attacker: Attacker) -> Answer:
    return await attacker.send("broker", struct.pack(">II", 0x7FFFFFFF, 100) + b"{")


@flood("flood/large-body", "sends 15 MiB without credentials, five times")
async def large_body(attacker: Attacker) -> Answer:
    answer = Answer(0)
    for _ in range(5):
        request = request_of(310, send_fields(ORDERS), b"x" * (15 << 20))
        answer = await attacker.send("broker", request, timeout_s=10.0)
    return answer


@flood("flood/requests", "sends 20,000 unsigned requests at once and reads no answer")
async def requests(attacker: Attacker) -> Answer:
    frame = request_of(26).frame()
    async with attacker.dial("broker") as line:
        with contextlib.suppress(TimeoutError):
            for _ in range(20):
                await line.send(frame * 1_000)
        if not await served_meanwhile(attacker):
            return NOT_SERVED
        return Answer(0, "20,000 requests sent")


@flood("flood/nested", "sends a JSON header, and a JSON body, that are nested 100,000 deep")
async def nested(attacker: Attacker) -> Answer:
    deep = b"[" * 100_000 + b"]" * 100_000
    await attacker.send("broker", json_frame(b'{"code":26,"extFields":{"a":' + deep + b"}}"))
    return await attacker.ask("broker", 34, {}, deep)


@flood("flood/fields", "sends a header with 100,000 fields")
async def many_fields(attacker: Attacker) -> Answer:
    header = {
        "code": 26,
        "opaque": 1,
        "flag": 0,
        "extFields": {f"k{number}": "" for number in range(100_000)},
    }
    return await attacker.send("broker", json_frame(json.dumps(header).encode()))


@flood("flood/members", "subscribes 20,000 groups in one heartbeat without credentials")
async def members(attacker: Attacker) -> Answer:
    groups = [{"groupName": f"flood-{number}", "subscriptionDataSet": []} for number in range(20_000)]
    body = {"clientID": "flood", "producerDataSet": [], "consumerDataSet": groups}
    return await attacker.ask("broker", 34, {}, json.dumps(body).encode())


@flood("flood/garbage", "sends random bytes, HTTP, a PROXY header and a negative length to each port")
async def garbage(attacker: Attacker) -> Answer:
    answer = Answer(0)
    for server in ("namesrv", "controller", "broker", "ha"):
        for data in (
            b"\xff" * 64,
            b"GET / HTTP/1.1\r\n\r\n",
            b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2\r\n",
            b"\x80\0\0\0\0\0\0\0",
        ):
            answer = await attacker.send(server, data, tls=None, timeout_s=1.0)
    return answer
