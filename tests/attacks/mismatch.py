"""Attacks by requests that name one thing to the check and mean another one: offsets, handles, message ids,
properties, other spellings of a field."""

import json
import struct
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from tests.attacks.attacker import Attacker, request_of
from tests.attacks.frames import ONEWAY, Answer, properties
from tests.attacks.judging import carried_out, seen
from tests.attacks.line import Line, happens
from tests.attacks.model import Outcome, attack
from tests.attacks.stage import (
    ALICE,
    ALICES,
    BROKER_NAME,
    CLUSTER_NAME,
    MALLORY,
    ORDERS,
    OWN,
    OWN_GROUP,
    SECRET,
    TRACES,
    pull_fields,
    send_fields,
)
from tests.attacks.topic import NO_RIGHTS

READ: Final = "alice's messages"
WRITE: Final = "what is in alice's topic"
OFFSETS: Final = "what alice's consumers get"
CLIENTS: Final = "alice's clients"
ALICES_PRODUCERS: Final = "alice-producers"
PREPARED: Final = 4
COMMIT: Final = 8
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
INNER_TOPICS: Final = (
    "SCHEDULE_TOPIC_XXXX",
    "rmq_sys_wheel_timer",
    HALF_TOPIC,
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    f"rmq_sys_REVIVE_LOG_{CLUSTER_NAME}",
)
GIVEN_UP_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
PHYSICAL_OFFSET_AT: Final = 28
"""In a record."""
SOON_S: Final = 3.0
GIVEN_UP_S: Final = 8.0
QUEUE: Final = {"topic": ORDERS, "brokerName": BROKER_NAME, "queueId": 0}


async def grows(attacker: Attacker, before: int, timeout_s: float = SOON_S) -> bool:
    """Whether alice's topic gets another message."""

    async def grown() -> bool:
        return await attacker.stage.end_of(ORDERS) > before

    return await happens(grown, timeout_s)


async def as_mallory(
    attacker: Attacker, code: int, fields: Mapping[str, object] | None = None, body: object = None
) -> Answer:
    """A request of mallory to the master."""
    raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    return await attacker.ask("broker", code, fields, raw, by=MALLORY)


async def half_message(attacker: Attacker, *, born_ms: int | None = None) -> dict[str, object]:
    """Stores a half message of alice; returns the fields of its commit (37). born_ms 0: it is so old that the
    broker gives it up as soon as it looks at it."""
    text = properties(TRAN_MSG="true", PGROUP=ALICES_PRODUCERS, UNIQ_KEY=f"half{time.time_ns()}")
    now_ms = int(time.time() * 1_000)
    answer = await attacker.stage.send(
        ORDERS, SECRET, text=text, sys_flag=PREPARED, born_ms=now_ms if born_ms is None else born_ms
    )
    return {
        "producerGroup": ALICES_PRODUCERS,
        "tranStateTableOffset": answer.fields["queueOffset"],
        "commitLogOffset": int(answer.fields["msgId"][16:], 16),
        "commitOrRollback": COMMIT,
        "msgId": answer.fields["msgId"],
    }


# -- messages by their offset ----------------------------------------------------------------------------

for name, more in (("none", {}), ("own", {"topic": OWN})):
    title = "names no topic" if name == "none" else "names a topic of its own"

    @attack(
        f"mismatch/commit-{name}",
        f"commits a half message of alice (37) and {title}",
        asset=WRITE,
        success="the message is in alice's topic",
        answer=NO_RIGHTS,
    )
    async def commit(attacker: Attacker, more: Mapping[str, object] = more) -> Outcome:
        fields = await half_message(attacker)
        before = await attacker.stage.end_of(ORDERS)
        answer = await as_mallory(attacker, 37, {**fields, **more})
        return seen(answer.code == 0 or await grows(attacker, before, 0.5), answer)

    @attack(
        f"mismatch/view-{name}",
        f"reads a message of alice by its offset (33) and {title}",
        asset=READ,
        success="the answer has the message",
        answer=NO_RIGHTS,
    )
    async def view(attacker: Attacker, more: Mapping[str, object] = more) -> Outcome:
        answer = await as_mallory(attacker, 33, {"offset": attacker.stage.offsets[1], **more})
        return seen(SECRET in answer.body, answer)


@attack(
    "mismatch/rollback-oneway",
    "rolls a half message of alice back with a oneway request (37), which nothing answers",
    asset=WRITE,
    success="alice's own commit comes too late",
    answer="alice's commit: 0",
)
async def rollback_oneway(attacker: Attacker) -> Outcome:
    fields = await half_message(attacker)
    request = request_of(37, {**fields, "commitOrRollback": 12}).signed(MALLORY)
    async with attacker.dial("broker") as line:
        await line.send(replace(request, flag=ONEWAY).frame())
        await line.ask(request_of(30, {"topic": OWN, "queueId": 0}).signed(MALLORY))
    before = await attacker.stage.end_of(ORDERS)
    answer = await attacker.stage.ask("broker", 37, fields, by=ALICE)
    return Outcome(not await grows(attacker, before), f"alice's commit: {answer}")


@attack(
    "mismatch/send-back",
    "has a message of alice sent to the dead letters of its own group (36), where it may read it",
    asset=READ,
    success="36 is carried out",
    answer=NO_RIGHTS,
)
async def send_back(attacker: Attacker) -> Outcome:
    fields = {
        "offset": attacker.stage.offsets[0], "group": OWN_GROUP, "delayLevel": -1, "originTopic": OWN,
        "originMsgId": "x", "maxReconsumeTimes": 0,
    }  # fmt: skip
    return carried_out(await as_mallory(attacker, 36, fields))


@attack(
    "mismatch/resume",
    "has a half message of alice that was given up checked again (323), with a topic of its own",
    asset=WRITE,
    success="323 is carried out",
    answer=NO_RIGHTS,
)
async def resume(attacker: Attacker) -> Outcome:
    before = await attacker.stage.end_of(GIVEN_UP_TOPIC)
    await half_message(attacker, born_ms=0)

    async def is_given_up() -> bool:
        return await attacker.stage.end_of(GIVEN_UP_TOPIC) > max(before, 0)

    assert await happens(is_given_up, GIVEN_UP_S), "the half message is not given up"
    record = await attacker.stage.bodies_of(GIVEN_UP_TOPIC, start=max(before, 0))
    (offset,) = struct.unpack_from(">q", record, PHYSICAL_OFFSET_AT)
    host, _, port = attacker.stage.addresses["broker"].partition(":")
    message_id = struct.pack(">4BIq", *map(int, host.split(".")), int(port), offset).hex().upper()
    return carried_out(await as_mallory(attacker, 323, {"topic": OWN, "msgId": message_id}))


@attack(
    "mismatch/consume-directly",
    "has a message of alice pushed to its own consumer (309)",
    asset=READ,
    success="the consumer gets the message",
    answer=NO_RIGHTS,
)
async def consume_directly(attacker: Attacker) -> Outcome:
    message = await attacker.stage.send(ORDERS, SECRET)
    async with attacker.dial("broker") as line:
        await _heartbeat(line, "mallorys-consumer", consumers=(OWN_GROUP,))
        fields = {
            "consumerGroup": OWN_GROUP,
            "clientId": "mallorys-consumer",
            "msgId": message.fields["msgId"],
        }
        answer = await line.ask(request_of(309, fields).signed(MALLORY), timeout_s=2.0)
        return seen(any(SECRET in each for each in line.pushed), answer)


async def _heartbeat(
    line: Line,
    client_id: str,
    *,
    producers: tuple[str, ...] = (),
    consumers: tuple[str, ...] = (),
    topic: str = OWN,
) -> Answer:
    body = {
        "clientID": client_id,
        "producerDataSet": [{"groupName": group} for group in producers],
        "consumerDataSet": [
            {"groupName": group, "subscriptionDataSet": [{"topic": topic, "subString": "*"}]}
            for group in consumers
        ],
    }
    request = request_of(34, {}, json.dumps(body).encode())
    return await line.ask(request.signed(MALLORY))


@attack(
    "mismatch/heartbeat-topic",
    "subscribes its own group to alice's topic by a heartbeat (34)",
    asset=READ,
    success="the heartbeat is taken",
    answer=NO_RIGHTS,
)
async def heartbeat_topic(attacker: Attacker) -> Outcome:
    async with attacker.dial("broker") as line:
        return carried_out(await _heartbeat(line, "m1", consumers=(OWN_GROUP,), topic=ORDERS))


@attack(
    "mismatch/heartbeat-group",
    "joins alice's group with a topic of its own (34): her consumers lose queues, or all",
    asset=OFFSETS,
    success="the heartbeat is taken",
    answer=NO_RIGHTS,
)
async def heartbeat_group(attacker: Attacker) -> Outcome:
    async with attacker.dial("broker") as line:
        return carried_out(await _heartbeat(line, "m2", consumers=(OWN_GROUP, ALICES)))


# -- properties ------------------------------------------------------------------------------------------


@attack(
    "mismatch/real-topic",
    "sends delayed and timer messages to its own topic whose properties name alice's as the real one",
    asset=WRITE,
    success="alice's topic gets a message",
    open=False,
)
async def real_topic(attacker: Attacker) -> Outcome:
    before = await attacker.stage.end_of(ORDERS)
    answer = Answer(0)
    for more in (
        {"DELAY": "1"},
        {"TIMER_DELAY_MS": "300"},
        {"TIMER_DELAY_SEC": "1"},
        {"RETRY_TOPIC": ORDERS},
    ):
        text = properties(REAL_TOPIC=ORDERS, REAL_QID="0", **more)
        answer = await as_mallory(attacker, 310, send_fields(OWN, text), b"smuggled")
    return seen(await grows(attacker, before, 2.5), answer)


@attack(
    "mismatch/half-real-topic",
    "sends a half message to its own topic that names alice's as the real one, and commits it",
    asset=WRITE,
    success="alice's topic gets a message",
    open=False,
)
async def half_real_topic(attacker: Attacker) -> Outcome:
    before = await attacker.stage.end_of(ORDERS)
    text = properties(
        TRAN_MSG="true", PGROUP="mallory-producers", REAL_TOPIC=ORDERS, REAL_QID="0", UNIQ_KEY="k"
    )
    sent = await as_mallory(attacker, 310, send_fields(OWN, text, 0, PREPARED), b"smuggled")
    fields = {
        "producerGroup": "mallory-producers", "tranStateTableOffset": sent.fields.get("queueOffset", 0),
        "commitLogOffset": int(sent.fields.get("msgId", "0" * 32)[16:], 16), "commitOrRollback": COMMIT,
        "msgId": sent.fields.get("msgId", ""),
    }  # fmt: skip
    answer = await as_mallory(attacker, 37, fields)
    return seen(await grows(attacker, before, 1.0), answer)


@attack(
    "mismatch/batch",
    "sends a batch to its own topic whose messages name alice's in their properties (320)",
    asset=WRITE,
    success="alice's topic gets a message",
    open=False,
)
async def batch(attacker: Attacker) -> Outcome:
    before = await attacker.stage.end_of(ORDERS)
    answer = Answer(0)
    for text in (
        properties(REAL_TOPIC=ORDERS, REAL_QID="0", DELAY="1"),
        properties(TOPIC=ORDERS, RETRY_TOPIC=ORDERS),
    ):
        raw = text.encode()
        size = 4 * 5 + 8 + 2 + len(raw)
        item = struct.pack(">IIIII", size, 0, 0, 0, 8) + b"smuggled" + struct.pack(">H", len(raw)) + raw
        fields = send_fields(OWN) | {"m": True}
        answer = await as_mallory(attacker, 320, fields, item + item)
    return seen(await grows(attacker, before, 2.0), answer)


@attack(
    "mismatch/inner-topics",
    "sends right into the topics of delayed, timer, half and popped messages, even as administrator",
    asset=WRITE,
    success="one of them takes the message",
    open=False,
)
async def inner_topics(attacker: Attacker) -> Outcome:
    answer = Answer(0)
    for topic in INNER_TOPICS:
        text = properties(REAL_TOPIC=ORDERS, REAL_QID="0", DELAY="1", TIMER_OUT_MS="1", PGROUP="g")
        fields = send_fields(topic, text)
        answer = await attacker.ask("broker", 310, fields, b"smuggled", by=attacker.stage.power, proof=True)
        if answer.code == 0:
            return Outcome(True, f"{topic}: {answer}")
    return Outcome(False, str(answer))


@attack(
    "mismatch/read-inner-topics",
    "reads half messages of others where the broker keeps them (11)",
    asset=READ,
    success="the answer has a half message of alice",
    answer=NO_RIGHTS,
)
async def read_inner_topics(attacker: Attacker) -> Outcome:
    await half_message(attacker)
    answer = Answer(0)
    for topic in INNER_TOPICS:
        answer = await as_mallory(attacker, 11, pull_fields(topic, OWN_GROUP))
        if SECRET in answer.body:
            return Outcome(True, topic)
    return Outcome(False, str(answer))


@attack(
    "mismatch/trace-topic",
    "uses that everybody may write traces: sends a trace whose other fields name alice's topic",
    asset=WRITE,
    success="alice's topic gets a message",
    open=False,
)
async def trace_topic(attacker: Attacker) -> Outcome:
    before = await attacker.stage.end_of(ORDERS)
    text = properties(REAL_TOPIC=ORDERS, REAL_QID="0", DELAY="1", RETRY_TOPIC=ORDERS)
    fields = send_fields(TRACES, text) | {"topic": ORDERS, "defaultTopic": ORDERS, "c": ORDERS}
    answer = await as_mallory(attacker, 310, fields, b"smuggled")
    return seen(await grows(attacker, before, 2.0), answer)


# -- other spellings -------------------------------------------------------------------------------------

SPELLINGS: Final[tuple[tuple[int, dict[str, object], dict[str, object]], ...]] = (
    (310, {"b": "", "topic": ORDERS}, send_fields(OWN)),
    (310, {"b": ORDERS, "topic": OWN}, send_fields(OWN)),
    (15, {"consumerGroup": "", "consumer_group": ALICES, "topic": "", "Topic": ORDERS}, {"topic": ORDERS}),
    (15, {"consumerGroup": ALICES, "consumer_group": OWN_GROUP}, {"topic": OWN}),
    (15, {"consumerGroup": "", "consumer_group": ALICES}, {"topic": OWN}),
    (208, {"consumerGroup": "", "consumer_group": ALICES}, {}),
    (200, {}, {"groupName": OWN_GROUP, "group_name": ALICES}),
    (207, {"groupName": "", "group_name": "alice-old-group"}, {}),
    (222, {"group": ALICES, "Group": OWN_GROUP}, {"topic": OWN, "timestamp": -1}),
    (353, {"group": ALICES, "topic": OWN}, {}),
)


@attack(
    "mismatch/spelling",
    "names a group or topic of its own in one spelling of a field, and alice's in another one",
    asset="what only alice may do",
    success="one of the requests is carried out for alice's topic or group",
    answer="16",
)
async def spelling(attacker: Attacker) -> Outcome:
    """What has alice's name only in a spelling that nobody reads is carried out, for mallory's own."""
    before, answer = await attacker.stage.end_of(ORDERS), Answer(0)
    for code, names, more in SPELLINGS:
        base = {"queueId": 0, "commitOffset": 0}
        fields = {**base, **more, **names}
        answer = await as_mallory(attacker, code, fields, more if code == 200 else None)
        if answer.code == 0 and ALICES in str(names) and code != 200:
            return Outcome(True, f"{code} {names}: {answer}")
        if code == 310 and await grows(attacker, before, 0.2):
            return Outcome(True, f"{code} {names}: {answer}")
    return Outcome(False, str(answer))


@attack(
    "mismatch/topic-list",
    "asks for the progress of its own group, in a list of topics that has alice's (208)",
    asset="how much alice sends",
    success="the answer has alice's topic",
)
async def topic_list(attacker: Attacker) -> Outcome:
    fields = {"consumerGroup": OWN_GROUP, "topicList": f"{OWN};{ORDERS}"}
    answer = await as_mallory(attacker, 208, fields)
    return Outcome(f'"{ORDERS}"'.encode() in answer.body, f"{answer} {answer.body[:90]!r}")


@attack(
    "mismatch/lock",
    "locks alice's queues in the name of its own group (41)",
    asset=OFFSETS,
    success="the lock is granted",
    answer=NO_RIGHTS,
)
async def lock(attacker: Attacker) -> Outcome:
    body = {"consumerGroup": OWN_GROUP, "clientId": "m", "mqSet": [{**QUEUE, "topic": OWN}, QUEUE]}
    return carried_out(await as_mallory(attacker, 41, {}, body))


@attack(
    "mismatch/retry-topic",
    "reads the retries and dead letters of alice's group as topics (11)",
    asset=READ,
    success="the broker lets it through",
    answer=NO_RIGHTS,
)
async def retry_topic(attacker: Attacker) -> Outcome:
    answer = Answer(0)
    for topic in (
        f"%RETRY%{ALICES}",
        f"%DLQ%{ALICES}",
        f"%RETRY%{ALICES}_{ORDERS}",
        f"%RETRY%{ALICES}+{ORDERS}",
    ):
        for group in (OWN_GROUP, f"%RETRY%{OWN_GROUP}"):
            answer = await as_mallory(attacker, 11, pull_fields(topic, group))
            if not answer.is_refusal:
                return Outcome(True, f"{topic} by {group}: {answer}")
    return Outcome(False, str(answer))


@attack(
    "mismatch/send-retry",
    "sends forged retries to alice's group (310 to its retry topic)",
    asset=OFFSETS,
    success="the message is stored",
    answer=NO_RIGHTS,
)
async def send_retry(attacker: Attacker) -> Outcome:
    await attacker.stage.create_topic(f"%RETRY%{ALICES}")
    return carried_out(
        await as_mallory(attacker, 310, send_fields(f"%RETRY%{ALICES}", a=OWN_GROUP), b"forged")
    )


@attack(
    "mismatch/at-replica",
    "asks the replica for what the master refuses: offsets, messages by offset, metadata",
    asset=READ,
    success="the replica lets one of them through",
    answer=NO_RIGHTS,
)
async def at_replica(attacker: Attacker) -> Outcome:
    answer = Answer(0)
    requests: tuple[tuple[int, dict[str, Any]], ...] = (
        (33, {"offset": attacker.stage.offsets[0]}),
        (33, {"offset": attacker.stage.offsets[0], "topic": OWN}),
        (36, {"offset": attacker.stage.offsets[0], "group": OWN_GROUP, "delayLevel": -1}),
        (30, {"topic": ORDERS, "queueId": 0}),
        (15, {"consumerGroup": ALICES, "topic": ORDERS, "queueId": 0, "commitOffset": 0}),
        (21, {}),
        (37, await half_message(attacker)),
        (37, {**await half_message(attacker), "topic": OWN}),
        (310, send_fields(ORDERS)),
    )
    for code, fields in requests:
        answer = await attacker.ask("replica", code, fields, by=MALLORY)
        if not answer.is_refusal:
            return Outcome(True, f"{code}: {answer}")
    return Outcome(False, str(answer))
