"""Guessing: secrets, names of users, and locking others out by guessing in their name."""

import re
import statistics
import time
from typing import Final

from tests.attacks.attacker import Attacker, request_of
from tests.attacks.frames import Answer, Identity
from tests.attacks.http_ports import basic
from tests.attacks.judging import HTTP_REFUSED, carried_out, seen
from tests.attacks.model import Outcome, attack
from tests.attacks.stage import ADMIN, ALICE, ALICES, DISABLED, ORDERS, SECRET, UNKNOWN, pull_fields

GUESSES: Final = 60
PER_ADDRESS: Final = 10
SAMPLES: Final = 60
ROUNDS: Final = 4
SECRET_OF_ADMIN: Final = "the administrator's secret"
NAMES: Final = "which users exist"


@attack(
    "guess/secret",
    f"guesses the administrator's secret, {GUESSES} times from one address; the last guess is right",
    asset=SECRET_OF_ADMIN,
    success="the last guess is accepted",
    answer="too many failed authentications",
)
async def secret(attacker: Attacker) -> Outcome:
    answer = Answer(0)
    async with attacker.dial("broker") as line:
        for number in range(GUESSES):
            right = number == GUESSES - 1
            guess = ADMIN if right else Identity(ADMIN.name, f"guess-{number}")
            answer = await line.ask(request_of(26).signed(guess))
    return carried_out(answer)


@attack(
    "guess/secret-anew",
    "the same, with a connection for each guess",
    asset=SECRET_OF_ADMIN,
    success="the last guess is accepted",
    answer="too many failed authentications",
)
async def secret_anew(attacker: Attacker) -> Outcome:
    answer = Answer(0)
    for number in range(GUESSES):
        right = number == GUESSES - 1
        guess = ADMIN if right else Identity(ADMIN.name, f"guess-{number}")
        answer = await attacker.ask("broker", 26, by=guess)
    return carried_out(answer)


@attack(
    "guess/http",
    f"guesses the administrator's password over HTTP, {GUESSES} times; the last guess is right",
    asset=SECRET_OF_ADMIN,
    success="the last guess is accepted",
)
async def over_http(attacker: Attacker) -> Outcome:
    answer = Answer(0)
    for number in range(GUESSES):
        headers = basic(ADMIN, None if number == GUESSES - 1 else f"guess-{number}")
        answer = await attacker.http("namesrv", "GET", "/v1/config", headers=headers)
    return Outcome(answer.code not in HTTP_REFUSED, f"{answer.code}: {answer.remark[:100]}")


@attack(
    "guess/lock-out",
    "locks alice out: guesses wrong in her name until nobody is let in any more",
    asset="the service for alice",
    success="alice is refused at her own address",
    open=False,
)
async def lock_out(attacker: Attacker) -> Outcome:
    async with attacker.dial("broker") as line:
        for _ in range(GUESSES):
            await line.ask(request_of(26).signed(Identity(ALICE.name, "wrong")))
    attacker.move()
    answer = await attacker.ask("broker", 11, pull_fields(ORDERS, ALICES), by=ALICE)
    return Outcome(SECRET not in answer.body, str(answer))


@attack(
    "guess/usernames",
    "finds out by the text of the answer which users exist",
    asset=NAMES,
    success="the answers for an unknown, a disabled and an existing user differ",
    open=False,
)
async def usernames(attacker: Attacker) -> Outcome:
    texts = {}
    for who in (UNKNOWN, Identity(ADMIN.name, "wrong"), Identity(DISABLED.name, "wrong")):
        attacker.move()
        answer = await attacker.ask("broker", 26, by=who)
        texts[who.name] = re.sub(re.escape(who.name), "X", str(answer))
    return Outcome(len(set(texts.values())) > 1, "; ".join(sorted(set(texts.values()))))


@attack(
    "guess/usernames-http",
    "finds out by the answer of HTTP which users exist",
    asset=NAMES,
    success="the answers for an unknown, a disabled and an existing user differ",
    open=False,
)
async def usernames_http(attacker: Attacker) -> Outcome:
    texts = set()
    for who in (UNKNOWN, ADMIN, DISABLED):
        attacker.move()
        answer = await attacker.http("namesrv", "GET", "/v1/config", headers=basic(who, "wrong"))
        texts.add(f"{answer.code}: " + re.sub(re.escape(who.name), "X", answer.remark)[:80])
    return Outcome(len(texts) > 1, "; ".join(sorted(texts)))


@attack(
    "guess/timing",
    "finds out by the time of the answer which users exist",
    asset=NAMES,
    success="each time the same one is slower by half, and by 1 ms: an unknown user or an existing one",
    open=False,
)
async def timing(attacker: Attacker) -> Outcome:
    """The same user must be the slower one every time: a machine that does other things is slow by chance."""
    slower = set()
    for _ in range(ROUNDS):
        slower.add(await _slower(attacker))
        if len(slower) > 1 or "" in slower:
            return Outcome(False, "the times do not tell them apart")
    return Outcome(True, f"{slower.pop()} is slower")


async def _slower(attacker: Attacker) -> str:
    """Returns the name that is answered later; "": the times are the same. Requests alternate."""
    seconds: dict[str, list[float]] = {UNKNOWN.name: [], ADMIN.name: []}
    for _ in range(SAMPLES // PER_ADDRESS):
        attacker.move()
        async with attacker.dial("broker") as line:
            for _ in range(PER_ADDRESS // 2):
                for who in (UNKNOWN, Identity(ADMIN.name, "wrong")):
                    request = request_of(26).signed(who)
                    began = time.perf_counter()
                    await line.ask(request)
                    seconds[who.name].append(time.perf_counter() - began)
    medians = {name: statistics.median(each) * 1_000 for name, each in seconds.items()}
    fast, slow = sorted(medians, key=lambda name: medians[name])
    return slow if medians[slow] > max(1.5 * medians[fast], medians[fast] + 1.0) else ""


@attack(
    "guess/signature-length",
    "sends signatures of all lengths and kinds: empty, one byte, not base64, a megabyte",
    asset=SECRET_OF_ADMIN,
    success="one is accepted, or the server answers with an internal error",
    answer="check signature failed.",
)
async def signature_length(attacker: Attacker) -> Outcome:
    answer = Answer(0)
    for text in ("", "=", "A", "\u00e4" * 28, "null", "true", "A" * 1_000_000):
        attacker.move()
        request = request_of(26, {"AccessKey": ADMIN.name, "Signature": text})
        answer = await attacker.send("broker", request)
        if answer.code != 16:
            return seen(True, answer)
    return Outcome(False, str(answer))
