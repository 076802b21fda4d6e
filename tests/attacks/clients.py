"""Attacks on the clients of others through the broker: receipt handles, checks of transactions, replies,
pulls that wait. With the attacks of mismatch.py, in the same group."""

import asyncio
import base64
import json
import time
from typing import Final

from tests.attacks.attacker import Attacker, request_of
from tests.attacks.frames import Answer, Identity, properties
from tests.attacks.judging import admitted, carried_out, seen
from tests.attacks.line import GONE, Line, dialled, happens
from tests.attacks.mismatch import ALICES_PRODUCERS, CLIENTS, OFFSETS, READ, WRITE, half_message
from tests.attacks.model import Outcome, attack
from tests.attacks.stage import (
    ALICE,
    ALICES,
    BROKER_NAME,
    CLUSTER_NAME,
    HOST,
    MALLORY,
    ORDERS,
    OWN,
    OWN_GROUP,
    SECRET,
    pull_fields,
    send_fields,
)
from tests.attacks.topic import NO_RIGHTS

REPLIES: Final = f"{CLUSTER_NAME}_REPLY_TOPIC"
OFFSET_RESET: Final = 21
CHECKED_S: Final = 5.0
ANSWERED_S: Final = 5.0


async def heartbeat(line: Line, by: Identity, client_id: str, producers: tuple[str, ...]) -> Answer:
    """A producer's heartbeat on this connection."""
    body = {
        "clientID": client_id,
        "producerDataSet": [{"groupName": group} for group in producers],
        "consumerDataSet": [],
    }
    return await line.ask(request_of(34, {}, json.dumps(body).encode()).signed(by))


async def is_pushed(line: Line, timeout_s: float, what: bytes) -> bool:
    """Whether the broker sends a request with these bytes on this connection."""
    try:
        async with asyncio.timeout(timeout_s):
            while not any(what in each for each in line.pushed):
                line.pushed.append(await line.payload(timeout_s))
    except (*GONE, TimeoutError):
        return False
    return True


@attack(
    "mismatch/check-half",
    "heartbeats as a producer of alice's producer group, and waits for the check of a half message (39)",
    asset=READ,
    success="the broker sends it alice's half message",
)
async def check_half(attacker: Attacker) -> Outcome:
    async with attacker.dial("broker") as line:
        answer = await heartbeat(line, MALLORY, "mallory-1", (ALICES_PRODUCERS,))
        if answer.code:
            return seen(False, answer)
        await half_message(attacker)
        pushed = await is_pushed(line, CHECKED_S, SECRET)
    return Outcome(pushed, "alice's half message is sent to it" if pushed else "nothing is sent to it")


@attack(
    "mismatch/steal-replies",
    "heartbeats with the client id of alice's producer, to get the replies to her requests (326)",
    asset=READ,
    success="the broker sends it a reply for alice",
)
async def steal_replies(attacker: Attacker) -> Outcome:
    stage = attacker.stage
    async with (
        dialled(stage.addresses["broker"], source=HOST, tls=stage.client_tls()) as hers,
        attacker.dial("broker") as line,
    ):
        await heartbeat(hers, ALICE, "alices-client", (ALICES_PRODUCERS,))
        await heartbeat(line, MALLORY, "alices-client", ("mallory-producers",))
        await _reply(attacker, ALICE, REPLIES, "alices-client", SECRET)
        pushed = await is_pushed(line, 1.0, SECRET)
        arrived = await is_pushed(hers, 1.0, SECRET)
    return Outcome(
        pushed or not arrived, f"it goes to {'mallory' if pushed else 'alice' if arrived else 'nobody'}"
    )


async def _reply(attacker: Attacker, by: Identity, topic: str, client_id: str, body: bytes) -> Answer:
    """A reply (324) for this client."""
    fields = {
        "producerGroup": "g", "topic": topic, "defaultTopic": "", "defaultTopicQueueNums": 1, "queueId": 0,
        "sysFlag": 0, "bornTimestamp": 0, "flag": 0,
        "properties": properties(REPLY_TO_CLIENT=client_id, CORRELATION_ID="c", MSG_TYPE="reply"),
    }  # fmt: skip
    return await attacker.ask("broker", 324, fields, body, by=by, timeout_s=0.5)


@attack(
    "mismatch/squat-client",
    "heartbeats with a client id before alice's producer does, to get the replies to her requests (326)",
    asset=READ,
    success="the broker sends it a reply for alice",
)
async def squat_client(attacker: Attacker) -> Outcome:
    """With everything on, alice gets no replies then, either: her client has to take another id."""
    stage = attacker.stage
    async with (
        dialled(stage.addresses["broker"], source=HOST, tls=stage.client_tls()) as hers,
        attacker.dial("broker") as line,
    ):
        await heartbeat(line, MALLORY, "alices-next-client", ("mallory-producers",))
        await heartbeat(hers, ALICE, "alices-next-client", (ALICES_PRODUCERS,))
        await heartbeat(line, MALLORY, "alices-next-client", ("mallory-producers",))
        await _reply(attacker, ALICE, REPLIES, "alices-next-client", SECRET)
        pushed = await is_pushed(line, 1.0, SECRET)
    return Outcome(pushed, "it goes to mallory" if pushed else "it does not go to mallory")


@attack(
    "mismatch/push-reply",
    "pushes a forged reply into alice's client, under a topic of its own (324)",
    asset=CLIENTS,
    success="alice's client gets it",
)
async def push_reply(attacker: Attacker) -> Outcome:
    stage = attacker.stage
    async with dialled(stage.addresses["broker"], source=HOST, tls=stage.client_tls()) as hers:
        await heartbeat(hers, ALICE, "alices-other-client", (ALICES_PRODUCERS,))
        answer = await _reply(attacker, MALLORY, OWN, "alices-other-client", b"forged reply")
        arrived = await is_pushed(hers, 1.0, b"forged reply")
    return seen(arrived, answer)


@attack(
    "mismatch/unregister",
    "unregisters alice's producer by its client id (35): nobody answers the checks of her transactions",
    asset=CLIENTS,
    success="the broker no longer knows alice's producer",
    open=False,
)
async def unregister(attacker: Attacker) -> Outcome:
    stage = attacker.stage
    async with dialled(stage.addresses["broker"], source=HOST, tls=stage.client_tls()) as hers:
        await heartbeat(hers, ALICE, "alices-third-client", (ALICES_PRODUCERS,))
        fields = {"clientID": "alices-third-client", "producerGroup": ALICES_PRODUCERS}
        answer = await attacker.ask("broker", 35, fields, by=MALLORY)
        known = await stage.ask("broker", 204, {"producerGroup": ALICES_PRODUCERS})
    gone = b"alices-third-client" not in known.body
    return Outcome(gone, f"{answer}; {'gone' if gone else 'still known'}")


async def popped(attacker: Attacker, invisible_ms: int = 60_000) -> tuple[str, str]:
    """alice pops a message of a topic of her own; returns the topic and the receipt handle."""
    topic = f"alice-pop-{attacker.source.replace('.', '-')}"
    await attacker.stage.create_topic(topic)
    await attacker.stage.send(topic, SECRET)
    handle = ""

    async def got() -> bool:
        nonlocal handle
        answer = await _pop(attacker, topic, invisible_ms)
        if answer.code or not answer.body:
            return False
        fields = answer.fields
        offset = fields["msgOffsetInfo"].split(" ")[-1].split(",")[0]
        handle = " ".join(
            (
                "0",
                fields["popTime"],
                fields["invisibleTime"],
                fields["reviveQid"],
                "0",
                BROKER_NAME,
                "0",
                offset,
            )
        )
        return True

    assert await happens(got, ANSWERED_S), "alice pops nothing"
    return topic, handle


async def _pop(attacker: Attacker, topic: str, invisible_ms: int) -> Answer:
    fields = {
        "consumerGroup": ALICES, "topic": topic, "queueId": 0, "maxMsgNums": 1, "invisibleTime": invisible_ms,
        "pollTime": 0, "bornTime": int(time.time() * 1_000), "initMode": 0,
    }  # fmt: skip
    return await attacker.stage.ask("broker", 200050, fields, by=ALICE)


@attack(
    "mismatch/ack",
    "acknowledges a message that alice has popped, with her receipt handle (200051)",
    asset=OFFSETS,
    success="the broker lets it through",
    answer=NO_RIGHTS,
)
async def ack(attacker: Attacker) -> Outcome:
    topic, handle = await popped(attacker)
    answer = Answer(0)
    for named, group in ((topic, ALICES), (topic, OWN_GROUP), (OWN, ALICES)):
        fields = {"consumerGroup": group, "topic": named, "queueId": 0, "extraInfo": handle, "offset": 0}
        answer = await attacker.ask("broker", 200051, fields, by=MALLORY)
        if not answer.is_refusal:
            return Outcome(True, f"{named} by {group}: {answer}")
    return Outcome(False, str(answer))


@attack(
    "mismatch/ack-own",
    "acknowledges with alice's receipt handle under names of its own (200051)",
    asset=OFFSETS,
    success="alice never gets her message again",
    answer="alice gets it again",
    open=False,
)
async def ack_own(attacker: Attacker) -> Outcome:
    topic, handle = await popped(attacker, 1_000)
    fields = {"consumerGroup": OWN_GROUP, "topic": OWN, "queueId": 0, "extraInfo": handle, "offset": 0}
    await attacker.ask("broker", 200051, fields, by=MALLORY)

    async def again() -> bool:
        return SECRET in (await _pop(attacker, topic, 1_000)).body

    comes = await happens(again, CHECKED_S)
    return Outcome(not comes, "alice gets it again" if comes else "it is gone")


@attack(
    "mismatch/batch-ack",
    "acknowledges alice's popped message in a batch that begins with one of its own (200151)",
    asset=OFFSETS,
    success="the batch is carried out",
    answer=NO_RIGHTS,
)
async def batch_ack(attacker: Attacker) -> Outcome:
    def one(topic: str, group: str) -> dict[str, object]:
        bits = base64.b64encode(b"\1").decode()
        return {"c": group, "t": topic, "r": "0", "so": 0, "q": 0, "rq": 0, "pt": 1, "it": 1_000, "b": bits}

    body = {"brokerName": BROKER_NAME, "acks": [one(OWN, OWN_GROUP), one(ORDERS, ALICES)]}
    fields = {"topic": OWN, "consumerGroup": OWN_GROUP}
    return carried_out(await attacker.ask("broker", 200151, fields, json.dumps(body).encode(), by=MALLORY))


@attack(
    "mismatch/invisible",
    "makes a message that alice has popped visible, or invisible for long (200053)",
    asset=OFFSETS,
    success="the broker lets it through",
    answer=NO_RIGHTS,
)
async def invisible(attacker: Attacker) -> Outcome:
    topic, handle = await popped(attacker)
    answer = Answer(0)
    for named, group in ((topic, ALICES), (topic, OWN_GROUP), (OWN, ALICES)):
        fields = {
            "consumerGroup": group, "topic": named, "queueId": 0, "extraInfo": handle, "offset": 0,
            "invisibleTime": 3_600_000,
        }  # fmt: skip
        answer = await attacker.ask("broker", 200053, fields, by=MALLORY)
        if not answer.is_refusal:
            return Outcome(True, f"{named} by {group}: {answer}")
    return Outcome(False, str(answer))


@attack(
    "mismatch/recall",
    "recalls a timer message of alice by a handle that it has made (370)",
    asset=WRITE,
    success="the message is recalled",
    answer=NO_RIGHTS,
)
async def recall(attacker: Attacker) -> Outcome:
    sent = await attacker.stage.send(ORDERS, SECRET, text=properties(TIMER_DELAY_SEC="60"))
    handle = sent.fields["recallHandle"]
    answer = Answer(0)
    for topic in (OWN, ORDERS):
        answer = await attacker.ask(
            "broker", 370, {"topic": topic, "recallHandle": handle, "producerGroup": "g"}, by=MALLORY
        )
        if answer.code == 0:
            break
    return carried_out(answer)


@attack(
    "mismatch/running-info",
    "asks a consumer of alice for its stack and settings through the broker (307)",
    asset=CLIENTS,
    success="the broker lets it through",
    answer=NO_RIGHTS,
)
async def running_info(attacker: Attacker) -> Outcome:
    fields = {"consumerGroup": ALICES, "clientId": "x", "jstackEnable": True}
    return admitted(await attacker.ask("broker", 307, fields, by=MALLORY))


@attack(
    "mismatch/push-to-client",
    "sends the broker requests that only brokers send to clients: resets, notifications, pushed replies",
    asset=CLIENTS,
    success="one of them is carried out",
    open=False,
)
async def push_to_client(attacker: Attacker) -> Outcome:
    answer = Answer(0)
    for code in (39, 40, 220, 221, 326):
        fields = {"group": ALICES, "topic": ORDERS, "consumerGroup": ALICES, "timestamp": 0, "isForce": True}
        answer = await attacker.ask("broker", code, fields, by=MALLORY)
        if answer.code == 0:
            return Outcome(True, f"{code}: {answer}")
    return Outcome(False, str(answer))


@attack(
    "mismatch/waiting-pull",
    "a former user: pulls, and waits for messages while its rights are taken away (11)",
    asset=READ,
    success="it gets a message that is sent after that",
)
async def waiting_pull(attacker: Attacker) -> Outcome:
    stage, former = attacker.stage, Identity("former-colleague", "the-key-of-the-former")
    topic = "alice-of-late"
    await stage.create_topic(topic)
    await stage.must("broker", 200, {}, {"groupName": "alice-late-group"})
    if stage.is_closed:
        await _employ(attacker, former, topic)
    fields = pull_fields(topic, "alice-late-group") | {"sysFlag": 6, "suspendTimeoutMillis": 15_000}
    async with attacker.dial("broker") as line:
        # It waits as soon as it was read, and the answer to the second request shows that it was.
        await line.send(request_of(11, fields).signed(former).frame())
        await line.ask(request_of(30, {"topic": topic, "queueId": 0}).signed(former))
        if stage.is_closed:
            await stage.must("broker", 3008, {"subject": f"User:{former.name}"})
        await stage.send(topic, SECRET)
        try:
            answer = await line.answer(timeout_s=ANSWERED_S)
        except (*GONE, TimeoutError):
            return Outcome(False, "no message")
    return seen(SECRET in answer.body, answer)


async def _employ(attacker: Attacker, who: Identity, topic: str) -> None:
    info = {"username": who.name, "password": who.secret, "userType": "Normal", "userStatus": "enable"}
    entries = [
        {"resource": f"{kind}", "actions": ["All"], "decision": "Allow"}
        for kind in (f"Topic:{topic}", "Group:alice-late-group")
    ]
    acl = {"subject": f"User:{who.name}", "policies": [{"policyType": "Custom", "entries": entries}]}
    await attacker.stage.must("broker", 3001, {"username": who.name}, info)
    await attacker.stage.must("broker", 3006, {"subject": f"User:{who.name}"}, acl)


@attack(
    "mismatch/own-connection",
    "uses the connection that alice has signed on: sends unsigned requests over it",
    asset=READ,
    success="the answer has alice's messages",
    answer="username cannot be null.",
)
async def own_connection(attacker: Attacker) -> Outcome:
    """A proxy, or a pool of connections, between several users and the broker."""
    fields = pull_fields(ORDERS, ALICES)
    async with attacker.dial("broker") as line:
        first = await line.ask(request_of(11, fields).signed(ALICE))
        if first.code == OFFSET_RESET:  # told once, to the group whose offsets were reset
            first = await line.ask(request_of(11, fields).signed(ALICE))
        assert SECRET in first.body, str(first)
        answer = await line.ask(request_of(11, fields))
        if SECRET not in answer.body:
            answer = await line.ask(request_of(310, send_fields(ORDERS), b"forged"))
            return carried_out(answer)
    return seen(True, answer)
