"""Attacks on the topics and groups of others: reading, writing, resetting, deleting. Each by somebody without
credentials, and by a user who has rights to other topics only."""

import json
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

from tests.attacks.attacker import Attacker
from tests.attacks.frames import Identity
from tests.attacks.judging import carried_out, seen
from tests.attacks.model import Outcome, attack
from tests.attacks.stage import (
    ALICES,
    BROKER_NAME,
    MALLORY,
    ORDERS,
    ORDERS_KEY,
    OWN_GROUP,
    SECRET,
    TRACES,
    pull_fields,
    send_fields,
)

UNSIGNED: Final = "username cannot be null."
NO_RIGHTS: Final = "User:mallory has no permission to access"

Who = tuple[str, str, Identity | None, str]
"""Suffix of the id, start of the sentence, the identity, the answer with everything on."""
NOBODY: Final[Who] = ("", "", None, UNSIGNED)
USER: Final[Who] = ("-as-user", "a user with rights to other topics: ", MALLORY, NO_RIGHTS)

How = Callable[[Attacker, Identity | None], Coroutine[Any, Any, Outcome]]


def by_both(id: str, name: str, *, asset: str, success: str, open: bool = True) -> Callable[[How], How]:
    """Declares two attacks of one function: by nobody, and by mallory."""

    def declare(how: How) -> How:
        for suffix, start, identity, answer in (NOBODY, USER):

            async def done(attacker: Attacker, identity: Identity | None = identity) -> Outcome:
                return await how(attacker, identity)

            attack(id + suffix, start + name, asset=asset, success=success, answer=answer, open=open)(done)
        return how

    return declare


def requests(
    id: str, name: str, server: str, code: int, fields: dict[str, object], body: object = None, *, asset: str
) -> None:
    """Declares two attacks of one request."""
    raw = b"" if body is None else json.dumps(body).encode()

    @by_both(id, name, asset=asset, success=f"{code} is carried out")
    async def how(attacker: Attacker, by: Identity | None) -> Outcome:
        return carried_out(await attacker.ask(server, code, fields, raw, by=by))


READ: Final = "alice's messages"
WRITE: Final = "what is in alice's topic"
OFFSETS: Final = "what alice's consumers get"
NAMES: Final = "topics and groups"


# -- reading ---------------------------------------------------------------------------------------------


@by_both("topic/pull", "pulls alice's messages (11)", asset=READ, success="the answer has a message")
async def pull(attacker: Attacker, by: Identity | None) -> Outcome:
    answer = await attacker.ask("broker", 11, pull_fields(ORDERS, OWN_GROUP), by=by)
    return seen(SECRET in answer.body, answer)


@by_both(
    "topic/pull-at-replica",
    "pulls alice's messages from the replica (11)",
    asset=READ,
    success="the answer has a message",
)
async def pull_at_replica(attacker: Attacker, by: Identity | None) -> Outcome:
    answer = await attacker.ask("replica", 11, pull_fields(ORDERS, OWN_GROUP), by=by)
    return seen(SECRET in answer.body, answer)


@by_both("topic/lite-pull", "the same with code 361", asset=READ, success="the answer has a message")
async def lite_pull(attacker: Attacker, by: Identity | None) -> Outcome:
    answer = await attacker.ask("broker", 361, pull_fields(ORDERS, OWN_GROUP), by=by)
    return seen(SECRET in answer.body, answer)


@by_both("topic/query", "finds alice's messages by key (12)", asset=READ, success="the answer has a message")
async def query(attacker: Attacker, by: Identity | None) -> Outcome:
    fields = {
        "topic": ORDERS, "key": ORDERS_KEY, "maxNum": 32, "beginTimestamp": 0, "endTimestamp": 2**63 - 1,
    }  # fmt: skip
    answer = await attacker.ask("broker", 12, fields, by=by)
    return seen(SECRET in answer.body, answer)


@by_both(
    "topic/view",
    "reads a message of alice by its offset (33)",
    asset=READ,
    success="the answer has a message",
)
async def view(attacker: Attacker, by: Identity | None) -> Outcome:
    answer = await attacker.ask("broker", 33, {"offset": attacker.stage.offsets[0]}, by=by)
    return seen(SECRET in answer.body, answer)


@by_both("topic/pop", "pops alice's messages (200050)", asset=READ, success="the answer has a message")
async def pop(attacker: Attacker, by: Identity | None) -> Outcome:
    fields = {
        "consumerGroup": OWN_GROUP, "topic": ORDERS, "queueId": 0, "maxMsgNums": 1, "invisibleTime": 10_000,
        "pollTime": 0, "bornTime": int(time.time() * 1_000), "initMode": 0,
    }  # fmt: skip
    answer = await attacker.ask("broker", 200050, fields, by=by)
    return seen(SECRET in answer.body, answer)


@by_both("topic/peek", "peeks at alice's messages (200052)", asset=READ, success="the answer has a message")
async def peek(attacker: Attacker, by: Identity | None) -> Outcome:
    fields = {"consumerGroup": OWN_GROUP, "topic": ORDERS, "queueId": 0, "maxMsgNums": 1}
    answer = await attacker.ask("broker", 200052, fields, by=by)
    return seen(SECRET in answer.body, answer)


requests(
    "topic/queue-entries",
    "reads the entries of alice's queue (321)",
    "broker",
    321,
    {"topic": ORDERS, "queueId": 0, "index": 0, "count": 10},
    asset=READ,
)
requests(
    "topic/max-offset",
    "reads how much alice sends (30)",
    "broker",
    30,
    {"topic": ORDERS, "queueId": 0},
    asset=READ,
)
requests(
    "topic/route", "reads the route of alice's topic (105)", "namesrv", 105, {"topic": ORDERS}, asset=NAMES
)
requests("topic/list", "reads the names of all topics (206)", "namesrv", 206, {}, asset=NAMES)
requests("topic/configs", "reads the configuration of all topics (21)", "broker", 21, {}, asset=NAMES)
requests("topic/groups", "reads the configuration of all groups (201)", "broker", 201, {}, asset=NAMES)
requests(
    "topic/stats",
    "reads the statistics of alice's topic (202)",
    "broker",
    202,
    {"topic": ORDERS},
    asset=NAMES,
)
requests(
    "topic/consumers", "reads who consumes alice's topic (300)", "broker", 300, {"topic": ORDERS}, asset=NAMES
)
requests(
    "topic/cluster", "reads all brokers of the cluster (106)", "namesrv", 106, {}, asset="the cluster's form"
)
requests("topic/settings", "reads the settings of the broker (26)", "broker", 26, {}, asset="settings")
requests(
    "topic/namesrv-settings",
    "reads the settings of the name server (319)",
    "namesrv",
    319,
    {},
    asset="settings",
)
requests(
    "topic/controller-settings",
    "reads the settings of the controller (1010)",
    "controller",
    1010,
    {},
    asset="settings",
)


# -- writing ---------------------------------------------------------------------------------------------


@by_both("topic/send", "sends to alice's topic (310)", asset=WRITE, success="the topic has one message more")
async def send(attacker: Attacker, by: Identity | None) -> Outcome:
    before = await attacker.stage.end_of(ORDERS)
    answer = await attacker.ask("broker", 310, send_fields(ORDERS), b"forged", by=by)
    return seen(await attacker.stage.end_of(ORDERS) > before, answer)


@by_both(
    "topic/send-at-replica",
    "sends to alice's topic over the replica, which forwards (310)",
    asset=WRITE,
    success="the topic has one message more",
)
async def send_at_replica(attacker: Attacker, by: Identity | None) -> Outcome:
    before = await attacker.stage.end_of(ORDERS)
    answer = await attacker.ask("replica", 310, send_fields(ORDERS), b"forged", by=by)
    return seen(await attacker.stage.end_of(ORDERS) > before, answer)


@by_both("topic/send-old", "the same with code 10", asset=WRITE, success="the topic has one message more")
async def send_old(attacker: Attacker, by: Identity | None) -> Outcome:
    fields = {
        "producerGroup": "g", "topic": ORDERS, "defaultTopic": "TBW102", "defaultTopicQueueNums": 1,
        "queueId": 0, "sysFlag": 0, "bornTimestamp": 0, "flag": 0, "properties": "", "reconsumeTimes": 0,
    }  # fmt: skip
    before = await attacker.stage.end_of(ORDERS)
    answer = await attacker.ask("broker", 10, fields, b"forged", by=by)
    return seen(await attacker.stage.end_of(ORDERS) > before, answer)


@by_both(
    "topic/create",
    "creates a topic by sending to it (310)",
    asset=NAMES,
    success="the broker stores the message",
)
async def create(attacker: Attacker, by: Identity | None) -> Outcome:
    topic = f"planted-{attacker.source.replace('.', '-')}"
    return carried_out(await attacker.ask("broker", 310, send_fields(topic), b"planted", by=by))


requests(
    "topic/configure",
    "makes alice's topic unreadable and unwritable (17)",
    "broker",
    17,
    {"topic": "alice-open", "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 0},
    asset=WRITE,
)


@by_both("topic/delete", "deletes a topic of alice (215)", asset=WRITE, success="215 is carried out")
async def delete(attacker: Attacker, by: Identity | None) -> Outcome:
    topic = f"alice-{attacker.source.replace('.', '-')}"
    await attacker.stage.create_topic(topic)
    return carried_out(await attacker.ask("broker", 215, {"topic": topic}, by=by))


@by_both(
    "topic/delete-route",
    "deletes the route of a topic of alice (216)",
    asset=WRITE,
    success="216 is carried out",
)
async def delete_route(attacker: Attacker, by: Identity | None) -> Outcome:
    topic = f"alice-{attacker.source.replace('.', '-')}"
    await attacker.stage.create_topic(topic)
    return carried_out(await attacker.ask("namesrv", 216, {"topic": topic}, by=by))


# -- groups ----------------------------------------------------------------------------------------------

requests(
    "topic/commit",
    "moves the offset of alice's group (15)",
    "broker",
    15,
    {"consumerGroup": ALICES, "topic": ORDERS, "queueId": 0, "commitOffset": 0},
    asset=OFFSETS,
)
requests(
    "topic/reset",
    "resets the offsets of alice's group (222)",
    "broker",
    222,
    {"topic": ORDERS, "group": ALICES, "timestamp": -1, "isForce": True, "offset": 0, "queueId": 0},
    asset=OFFSETS,
)
requests(
    "topic/clone-offsets",
    "copies offsets onto alice's group (314)",
    "broker",
    314,
    {"srcGroup": OWN_GROUP, "destGroup": ALICES, "topic": ORDERS, "offline": True},
    asset=OFFSETS,
)
requests(
    "topic/forbid",
    "forbids alice's group to read her topic (353)",
    "broker",
    353,
    {"group": ALICES, "topic": ORDERS, "readable": True},
    asset=OFFSETS,
)
requests(
    "topic/lock",
    "locks alice's queue in the name of her group (41)",
    "broker",
    41,
    {},
    {
        "consumerGroup": ALICES,
        "clientId": "mallory",
        "mqSet": [{"topic": ORDERS, "brokerName": BROKER_NAME, "queueId": 0}],
    },
    asset=OFFSETS,
)
requests(
    "topic/mode",
    "switches alice's group to pop (401)",
    "broker",
    401,
    {},
    {"topic": ORDERS, "consumerGroup": ALICES, "mode": "PULL"},
    asset=OFFSETS,
)
requests(
    "topic/configure-group",
    "changes the configuration of alice's group (200)",
    "broker",
    200,
    {},
    {"groupName": ALICES, "consumeEnable": True},
    asset=OFFSETS,
)
requests(
    "topic/delete-group",
    "deletes a group of alice, with its offsets (207)",
    "broker",
    207,
    {"groupName": "alice-old-group", "cleanOffset": True},
    asset=OFFSETS,
)


@by_both(
    "topic/traces", "reads the message traces of everybody (11)", asset=READ, success="the answer has a trace"
)
async def traces(attacker: Attacker, by: Identity | None) -> Outcome:
    """Everybody may write traces: here alice has."""
    await attacker.stage.send(TRACES, b"trace of alice")
    answer = await attacker.ask("broker", 11, pull_fields(TRACES, OWN_GROUP), by=by)
    return seen(b"trace of alice" in answer.body, answer)
