"""Every request code at every port, from everybody who may not: one attack for each kind of sender.

A request names alice's topic and group in all fields and body members that any request has, so that none is
refused for a missing one. With everything off an attack stops at the first code that is carried out."""

import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Final

from keelmq.remoting.codes import RequestCode
from tests.attacks.attacker import Attacker
from tests.attacks.frames import CLOSED, Answer, Identity, Request
from tests.attacks.line import Line
from tests.attacks.model import Outcome, attack
from tests.attacks.stage import (
    ADMIN,
    ALICES,
    BROKER_NAME,
    CLUSTER_NAME,
    DISABLED,
    MALLORY,
    MEMBER,
    ORDERS,
    UNKNOWN,
    send_fields,
)

SERVERS: Final = ("broker", "vip", "replica", "namesrv", "controller", "follower", "container")
BENIGN: Final = (
    RequestCode.GET_BROKER_CONFIG,
    RequestCode.GET_NAMESRV_CONFIG,
    RequestCode.GET_CONTROLLER_CONFIG,
)
"""Carried out without any effect: the first ones that are tried."""
NOT_REQUESTS: Final = (4_711, 29_099, 0, -1)
"""Codes that nobody has: to be refused like the others, or they could be told from those that are served."""
CODES: Final = tuple(dict.fromkeys(map(int, (*BENIGN, *RequestCode, *NOT_REQUESTS))))
ANSWER_S: Final = 2.0
FAILURES_PER_ADDRESS: Final = 10
"""Fewer than an address may have at once: each request is refused for what it is."""

FIELDS: Final[dict[str, str]] = {
    **{name: str(value).lower() for name, value in send_fields(ORDERS).items()},
    **dict.fromkeys(("topic", "originTopic"), ORDERS),
    **dict.fromkeys(("group", "consumerGroup", "groupName", "srcGroup", "destGroup", "compareGroup"), ALICES),
    **dict.fromkeys(("offset", "commitLogOffset", "tranStateTableOffset", "queueId", "queueOffset"), "0"),
    **dict.fromkeys(("namespace", "key", "value", "username", "resource", "clientID", "clientId"), "x"),
    **dict.fromkeys(("brokerId", "masterBrokerId", "masterEpoch", "appliedBrokerId"), "1"),
    "clusterName": CLUSTER_NAME,
    "brokerName": BROKER_NAME,
    "subject": "User:mallory",
    "recallHandle": "djEgb3JkZXJzIGJyb2tlci1hIDk5OTk5OTk5OTk5OTkgeA==",
    "msgId": "7F00000100002A9F0000000000000000",
}
QUEUE: Final = {"topic": ORDERS, "brokerName": BROKER_NAME, "queueId": 0}
BODY: Final = json.dumps(
    {
        "topic": ORDERS,
        "consumerGroup": ALICES,
        "groupName": ALICES,
        "group": ALICES,
        "clientID": "x",
        "clientId": "x",
        "producerDataSet": [{"groupName": "g"}],
        "consumerDataSet": [{"groupName": ALICES, "subscriptionDataSet": [{"topic": ORDERS}]}],
        "subscriptionData": {"topic": ORDERS},
        "mqSet": [QUEUE],
        "acks": [{"c": ALICES, "t": ORDERS, "so": 0, "q": 0, "rq": 0, "pt": 0}],
        "groupConfigList": [{"groupName": ALICES}],
        "topicConfigList": [{"topicName": ORDERS}],
        "groupNameList": [ALICES],
        "topicList": [ORDERS],
        "mode": "PULL",
        "username": "mallory",
        "password": "x",
        "userType": "Super",
    }
).encode()

Forge = Callable[[Request], Request]


def every_code(id: str, name: str, forge: Forge, *, answer: str) -> None:
    """Declares an attack that sends every code to every port, as `forge` makes them."""

    async def how(attacker: Attacker) -> Outcome:
        taken: list[str] = []
        shown = ""
        for server, codes in product(SERVERS, batched(CODES, FAILURES_PER_ADDRESS)):
            attacker.move()
            if server == "container":
                await attacker.stage.open_container()
            for code, got in await _ask(attacker, server, codes, forge):
                if got.is_refusal and answer in str(got):
                    shown = shown or str(got)
                elif attacker.stage.is_closed:
                    taken.append(f"{code} at {server}: {got}"[:120])
                elif got.code == 0:
                    return Outcome(True, f"{code} at {server}: {got}")
        return Outcome(bool(taken), f"{len(taken)} of them: {'; '.join(taken[:40])}" if taken else shown)

    success = "with everything on: any code is answered with anything but the refusal"
    attack(id, name, asset="everything", success=success, answer=answer)(how)


async def _ask(
    attacker: Attacker, server: str, codes: tuple[int, ...], forge: Forge
) -> list[tuple[int, Answer]]:
    """Sends these codes over one connection, while it is open. Each is answered: oneway is what the sender
    says, not the code."""
    answers = []
    async with contextlib.AsyncExitStack() as stack:
        line: Line | None = None
        for code in codes:
            if line is None:
                line = await stack.enter_async_context(attacker.dial(server))
            got = await line.ask(forge(Request(code, FIELDS, BODY)), timeout_s=ANSWER_S)
            answers.append((code, got))
            if got.code == CLOSED:
                line = None
    return answers


def batched(codes: tuple[int, ...], count: int) -> list[tuple[int, ...]]:
    return [codes[at : at + count] for at in range(0, len(codes), count)]


def signed_by(identity: Identity, *, proof: bool = False) -> Forge:
    return lambda request: request.signed(identity, proof=proof)


def with_fields(**fields: str) -> Forge:
    return lambda request: replace(request, fields={**request.fields, **fields})


def other_fields(request: Request) -> Request:
    """A right signature of the administrator, for a request with other values."""
    before = replace(request, fields={**request.fields, "topic": "another"}).signed(ADMIN)
    return replace(before, fields={**before.fields, "topic": ORDERS})


def stripped(request: Request) -> Request:
    """No ext fields at all: RocketMQ lets some codes through then."""
    return replace(request, fields={})


UNSIGNED: Final = "username cannot be null."
WRONG: Final = "check signature failed."

every_code("code/unsigned", "without credentials", lambda request: request, answer=UNSIGNED)
every_code("code/no-fields", "without credentials, and without any field", stripped, answer=UNSIGNED)
every_code(
    "code/empty-key",
    "with an empty AccessKey and the signature of an empty secret, as RocketMQ's C++ client",
    lambda request: request.signed(Identity("", "")),
    answer=UNSIGNED,
)
every_code("code/unknown-user", "by a user that does not exist", signed_by(UNKNOWN), answer="")
every_code("code/disabled-user", "by a Super user that is disabled", signed_by(DISABLED), answer="")
every_code(
    "code/wrong-secret",
    "in the administrator's name, signed with another secret",
    signed_by(Identity(ADMIN.name, "guessed")),
    answer=WRONG,
)
every_code(
    "code/no-signature",
    "in the administrator's name, without a signature",
    with_fields(AccessKey=ADMIN.name),
    answer=WRONG,
)
every_code(
    "code/other-fields", "with the administrator's signature of a request with other values", other_fields,
    answer=WRONG,
)  # fmt: skip
every_code(
    "code/other-rights",
    "by a user with rights to other topics and groups",
    signed_by(MALLORY),
    answer="",
)
every_code(
    "code/member-without-proof",
    "in a member's name and with its secret, without the proof that the request is new",
    signed_by(MEMBER),
    answer="the proof of a member is missing",
)
every_code(
    "code/old-version",
    "in the administrator's name, as a client of 2015 that signs less",
    lambda request: replace(request, version=1).signed(Identity(ADMIN.name, "guessed")),
    answer=WRONG,
)
