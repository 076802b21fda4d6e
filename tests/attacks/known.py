"""Attacks on what a connection remembers: of a request like one that was admitted only the signature is
checked, and it is decoded in another way. With the attacks of replay.py, in the same group.

Each begins with requests of mallory that are admitted, on the same connection."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from tests.attacks.attacker import Attacker, request_of
from tests.attacks.frames import Answer, Identity, Request, json_frame, signature_of
from tests.attacks.judging import seen
from tests.attacks.line import GONE, Line
from tests.attacks.model import Outcome, attack
from tests.attacks.stage import ALICE, MALLORY, ORDERS, OWN, OWN_GROUP, SECRET, pull_fields, send_fields

WRITE: Final = "what is in alice's topic"
READ: Final = "alice's messages"
IN_ONE_READ: Final = 40
"""More frames than the broker handles one by one."""

OWN_SEND: Final = request_of(310, send_fields(OWN), b"own")
OWN_PULL: Final = request_of(11, pull_fields(OWN, OWN_GROUP))

Frame = Callable[[], bytes]


async def admitted(line: Line, *requests: Request) -> None:
    """Sends them, signed by mallory, until they are known."""
    for request in requests:
        for _ in range(3):
            answer = await line.ask(request.signed(MALLORY))
            assert answer.code in (0, 19, 21), str(answer)


async def sent_to_orders(attacker: Attacker, frames: list[bytes]) -> Outcome:
    """Sends these frames at once, behind requests that are admitted."""
    before = await attacker.stage.end_of(ORDERS)
    answer = Answer(0)
    async with attacker.dial("broker") as line:
        await admitted(line, OWN_SEND)
        try:
            await line.send(b"".join(frames))
            for _ in frames:
                got = await line.answer(timeout_s=2.0)
                answer = got if got.code else answer
        except (*GONE, TimeoutError):
            answer = answer if answer.code else Answer(-1, "connection closed")
    return seen(await attacker.stage.end_of(ORDERS) > before, answer)


def header_text(request: Request) -> str:
    return json.dumps(request.header(), separators=(",", ":"))


@attack(
    "replay/known-topic",
    f"sends {IN_ONE_READ} messages at once where its own were admitted; half are for alice's topic",
    asset=WRITE,
    success="alice's topic gets a message",
    answer="User:mallory has no permission to access",
)
async def known_topic(attacker: Attacker) -> Outcome:
    other = request_of(310, send_fields(ORDERS), b"forged").signed(MALLORY).frame()
    own = OWN_SEND.signed(MALLORY).frame()
    return await sent_to_orders(attacker, [own, other] * (IN_ONE_READ // 2))


@attack(
    "replay/known-duplicates",
    "the same with fields and extFields that are there twice, in all orders and spellings",
    asset=WRITE,
    success="alice's topic gets a message",
)
async def known_duplicates(attacker: Attacker) -> Outcome:
    own, other = OWN_SEND.signed(MALLORY), request_of(310, send_fields(ORDERS), b"own").signed(MALLORY)
    texts = []
    for request, name in ((own, OWN), (other, ORDERS)):
        text, field = header_text(request), f'"b":"{name}"'
        for extra in (
            f'"b":"{OWN}"',
            f'"b":"{ORDERS}"',
            f'"\\u0062":"{ORDERS}"',
            f'"B":"{ORDERS}"',
            f'"topic":"{ORDERS}"',
        ):
            texts += [text.replace(field, f"{field},{extra}"), text.replace(field, f"{extra},{field}")]
        fields = json.dumps(dict(other.fields), separators=(",", ":"))
        for member in (f'"extFields":{fields},', f'"\\u0065xtFields":{fields},', f'"ext":{fields},'):
            texts += [
                text.replace('"extFields":', member + '"extFields":', 1),
                text[:-1] + "," + member[:-1] + "}",
            ]
        texts.append(text.replace('{"code":310,', '{"code":310,"code":11,', 1))
    return await sent_to_orders(attacker, [json_frame(text.encode(), b"own") for text in texts])


@attack(
    "replay/known-types",
    "the same with values that are numbers, null, lists or escaped, which one decoder may read as text",
    asset=WRITE,
    success="alice's topic gets a message",
)
async def known_types(attacker: Attacker) -> Outcome:
    texts = []
    for request in (OWN_SEND.signed(MALLORY), request_of(310, send_fields(ORDERS), b"own").signed(MALLORY)):
        text = header_text(request)
        name = request.fields["b"]
        escaped = "".join(f"\\u{ord(each):04x}" for each in ORDERS)
        for value in (
            "null",
            "7",
            "true",
            f'["{ORDERS}"]',
            f'{{"b":"{ORDERS}"}}',
            f'"{escaped}"',
            '"orders\\u0000"',
        ):
            texts.append(text.replace(f'"b":"{name}"', f'"b":{value}'))
        texts += [text.replace('"e":"0"', '"e":0'), text.replace('"e":"0"', '"e":0.0')]
    return await sent_to_orders(attacker, [json_frame(text.encode(), b"own") for text in texts])


@attack(
    "replay/known-body",
    "puts another body behind the signed header of an admitted message, which it has captured",
    asset="what is in a topic",
    success="the message with the other body is stored",
    answer="check signature failed.",
)
async def known_body(attacker: Attacker) -> Outcome:
    request = OWN_SEND.signed(MALLORY)
    async with attacker.dial("broker") as line:
        await admitted(line, OWN_SEND)
        return _done(await line.ask(replace(request, body=b"other")))


def _done(answer: Answer) -> Outcome:
    return seen(answer.code == 0, answer)


@attack(
    "replay/known-unsigned",
    "leaves the signature out, empty, or as it was, once its messages are admitted",
    asset="what is in a topic",
    success="a message is stored",
    answer="check signature failed.",
)
async def known_unsigned(attacker: Attacker) -> Outcome:
    signed = OWN_SEND.signed(MALLORY)
    answer = Answer(0)
    for signature in (None, "", "null", signature_of("", signed.fields, b"own")):
        attacker.move()
        fields = {name: value for name, value in signed.fields.items() if name != "Signature"}
        if signature is not None:
            fields["Signature"] = signature
        async with attacker.dial("broker") as line:
            if attacker.stage.is_closed:
                await admitted(line, OWN_SEND)
            answer = await line.ask(replace(signed, fields=fields))
        if answer.code == 0:
            break
    return _done(answer)


@attack(
    "replay/known-user",
    "names alice as the sender, once its own requests are admitted, and signs as itself",
    asset=READ,
    success="the answer has alice's messages",
    answer="check signature failed.",
)
async def known_user(attacker: Attacker) -> Outcome:
    async with attacker.dial("broker") as line:
        await admitted(line, OWN_PULL)
        request = request_of(11, pull_fields(ORDERS, OWN_GROUP)).signed(Identity(ALICE.name, MALLORY.secret))
        answer = await line.ask(request)
    return seen(SECRET in answer.body, answer)


@attack(
    "replay/known-group",
    "pulls alice's messages at once with its own, on a connection where its own pulls are admitted",
    asset=READ,
    success="an answer has alice's messages",
    answer="User:mallory has no permission to access",
)
async def known_group(attacker: Attacker) -> Outcome:
    other = request_of(11, pull_fields(ORDERS, OWN_GROUP)).signed(MALLORY).frame()
    own = OWN_PULL.signed(MALLORY).frame()
    refusal = Answer(0)
    async with attacker.dial("broker") as line:
        await admitted(line, OWN_PULL)
        await line.send((own + other) * 10)
        for _ in range(20):
            answer = await line.answer()
            if SECRET in answer.body:
                return seen(True, answer)
            refusal = answer if answer.code == 16 else refusal
    return Outcome(False, str(refusal))


@attack(
    "replay/known-code",
    "sends another code with the fields of an admitted one: a batch (320), an old send (10), a pull (361)",
    asset=READ,
    success="the broker carries one of them out for alice's topic",
    answer="User:mallory has no permission to access",
)
async def known_code(attacker: Attacker) -> Outcome:
    answer = Answer(0)
    before = await attacker.stage.end_of(ORDERS)
    async with attacker.dial("broker") as line:
        await admitted(line, OWN_SEND, OWN_PULL)
        for code, fields in (
            (320, send_fields(ORDERS)),
            (10, {**send_fields(OWN), "topic": ORDERS, "queueId": 0, "bornTimestamp": 0, "sysFlag": 0}),
            (361, pull_fields(ORDERS, OWN_GROUP)),
        ):
            got = await line.ask(request_of(code, fields, b"forged").signed(MALLORY))
            if SECRET in got.body:
                return seen(True, got)
            answer = got if got.code else answer
    return seen(await attacker.stage.end_of(ORDERS) > before, answer)
