"""Pop consumption: what goes out, what is acknowledged, what comes again, and what a new master knows."""

import asyncio
import base64
import dataclasses
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from broker.admission.send_gate import DISK_FULL, ROLE, PutRefused
from broker.metadata.core.topic_names import DLQ_PREFIX
from broker.metadata.offsets import ConsumerOffsetTable
from broker.metadata.topics import TopicTable
from broker.pop import service
from broker.pop.core.state import INVISIBLE_MS_MAX, Checkpoint, Key, PopState
from broker.pop.reading import BODY_BYTES_MAX, FILTERED_MAX, PopReader
from broker.pop.records import REVIVE_GROUP, checkpoint_of
from broker.pop.service import PUT_OFF_MS
from broker.put.message_to_store import MessageToStore, PutMessageResult
from broker.store.settings import NamedTopic
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.command import decode as decode_frame
from keelmq.remoting.operation import Empty, Failed, Ok, Outcome, Wire
from keelmq.remoting.operations.broker_metadata import SubscriptionGroupConfig
from keelmq.remoting.operations.pop import RequestModeBody, RequestModeRequest
from keelmq.runtime.clock import now_ms
from tests.support.items import memory_grows_by
from tests.support.pop_parts import INVISIBLE_MS, Message, Scene, read
from tests.support.store_parts import BORN_HOST, damage_unit


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(tmp_path, monkeypatch)


def bodies(messages: list[Message]) -> list[bytes]:
    return sorted(message.body for message in messages)


async def test_a_message_goes_out_once_until_its_time_is_over(scene: Scene) -> None:
    scene.send(b"1", b"2")
    scene.send(b"3", queue_id=2)
    assert bodies(await scene.pop()) == [b"1", b"2", b"3"]
    assert await scene.pop() == []
    scene.run(INVISIBLE_MS - 1)
    assert await scene.pop() == []
    scene.run(1)
    again = await scene.pop()
    assert bodies(again) == [b"1", b"2", b"3"]
    assert {message.topic for message in again} == {"TopicA"}  # under the name that was subscribed to
    assert {message.tries for message in again} == {1}
    assert {message.popped_from for message in again} == {"%RETRY%g_TopicA"}


async def test_what_is_acknowledged_never_comes_again(scene: Scene) -> None:
    scene.send(b"1", b"2", b"3")
    first, second, third = await scene.pop()
    assert (await scene.ack(second)).code == 0
    assert (await scene.ack(second)).code == 0  # a repeat
    scene.run(INVISIBLE_MS)
    again = await scene.pop()
    assert bodies(again) == [b"1", b"3"]
    for message in again:
        await scene.ack(message)
    await scene.ack(first)  # too late: it came again
    scene.run(2 * INVISIBLE_MS)
    assert await scene.pop() == []
    assert len(scene.pop_service.state) == 0
    assert third.offset == 2


async def test_the_header_of_an_answer(scene: Scene) -> None:
    """clients pitfall 24: msgOffsetInfo names exactly the records of the body."""
    scene.send(b"1", b"2", b"3", queue_id=1)
    reply = await scene.raw_pop(maxMsgNums=2)
    assert reply is not None and (reply.code, reply.remark) == (0, "FOUND")
    header = dict(reply.ext_fields)
    assert header.pop("reviveQid") in {str(queue) for queue in range(8)}
    assert header == {
        "popTime": str(scene.now), "invisibleTime": str(INVISIBLE_MS), "restNum": "1",
        "startOffsetInfo": "0 1 0", "msgOffsetInfo": "0 1 0,1",
    }  # fmt: skip


async def test_checks(scene: Scene) -> None:
    async def code(**changed: object) -> int:
        reply = await scene.raw_pop(**changed)
        assert reply is not None
        return reply.code

    scene.send(b"1")
    stale = await scene.raw_pop(bornTime=scene.now - 501)
    assert stale is not None and stale.ext_fields["popTime"] == "0"  # a Java client reads it
    assert await code(bornTime=scene.now - 501) == ResponseCode.POLLING_TIMEOUT
    assert await code(maxMsgNums=33) == ResponseCode.INVALID_PARAMETER
    assert await code(topic="None") == ResponseCode.TOPIC_NOT_EXIST
    assert await code(consumerGroup="g" * 242) == ResponseCode.INVALID_PARAMETER  # %RETRY%g..._TopicA: 256
    assert await code(consumerGroup="g" * 241, queueId=3) == ResponseCode.POLLING_TIMEOUT
    assert await code(queueId=4) == ResponseCode.INVALID_PARAMETER
    assert await code(exp="a >", expType="SQL92") == ResponseCode.SYSTEM_ERROR
    assert await code(exp="a", expType="ABC") == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert await code(queueId=3) == ResponseCode.POLLING_TIMEOUT
    scene.broker.gate.close(ROLE, "no master")
    assert await code() == ResponseCode.SERVICE_NOT_AVAILABLE
    scene.broker.gate.open(ROLE)
    assert await code() == 0


async def test_checks_of_acknowledgements(scene: Scene) -> None:
    scene.send(b"1")
    (message,) = await scene.pop()
    assert (await scene.ack(message, topic="None")).code == ResponseCode.TOPIC_NOT_EXIST
    assert (await scene.ack(message, queueId=9)).code == ResponseCode.MESSAGE_ILLEGAL
    assert (await scene.ack(message, offset=7)).code == ResponseCode.NO_MESSAGE
    assert (await scene.ack(message, extraInfo="0 1")).code == ResponseCode.MESSAGE_ILLEGAL
    assert (await scene.ack(message, extraInfo="x 1 2 3 0 b 0")).code == ResponseCode.MESSAGE_ILLEGAL


async def test_filters_pass_over_for_good(scene: Scene) -> None:
    scene.send(b"1", b"2", tag="A")
    scene.send(b"3", tag="B")
    scene.send(b"4", tag="A")
    assert bodies(await scene.pop(exp="B")) == [b"3"]
    assert await scene.pop(exp="B") == []
    scene.run(INVISIBLE_MS)
    assert bodies(await scene.pop(exp="A", consumerGroup="h")) == [b"1", b"2", b"4"]


async def test_the_invisible_time_is_changed(scene: Scene) -> None:
    scene.send(b"1", b"2")
    first, _ = await scene.pop()
    scene.run(1_000)
    reply = await scene.change(first, 3 * INVISIBLE_MS)
    assert reply.code == 0
    assert reply.ext_fields["invisibleTime"] == str(3 * INVISIBLE_MS)
    assert reply.ext_fields["popTime"] == str(scene.now)
    changed = Message(
        first.body, first.topic, first.queue_id, first.offset,
        f"0 {scene.now} {3 * INVISIBLE_MS} {reply.ext_fields['reviveQid']} 0 b 0 0", 0, {},
    )  # fmt: skip
    scene.run(INVISIBLE_MS)
    assert bodies(await scene.pop()) == [b"2"]
    assert (await scene.change(first, 1)).code == ResponseCode.NO_MESSAGE  # the handle is another one now
    assert (await scene.ack(changed)).code == 0
    scene.run(3 * INVISIBLE_MS)
    assert bodies(await scene.pop()) == [b"2"]


@pytest.mark.parametrize("with_successor", [False, True])
async def test_a_suspended_message_comes_again_without_a_further_attempt(
    scene: Scene, with_successor: bool
) -> None:
    scene.metadata.groups.update(SubscriptionGroupConfig(group_name="g", retry_max_times=1))
    scene.send(b"1")
    found = []
    for suspend in ("true", "TRUE", "false", "true", "true", ""):
        (message,) = await scene.pop()
        found.append(message.tries)
        changed = {"suspend": suspend} if suspend else {}
        assert (await scene.change(message, 1_000, **changed)).code == 0
        if with_successor:
            scene.restart()
        scene.run(1_001)  # its new pop time is a millisecond later than the old one
    assert found == [0, 0, 0, 1, 1, 1]
    assert await scene.pop() == []
    assert scene.broker.store.max_queue_offset(DLQ_PREFIX + "g", 0) == 1


async def test_a_checkpoint_that_is_written_again_stays_suspended(scene: Scene) -> None:
    """RocketMQ 5.5.1 loses the flag there (#10465)."""
    scene.send(b"1")
    (message,) = await scene.pop()
    reply = await scene.change(message, 2 * INVISIBLE_MS, suspend="true")
    key = Key("g", "TopicA", 0, 0, int(reply.ext_fields["popTime"]))
    held = scene.pop_service.state.find(key, int(reply.ext_fields["reviveQid"]))
    assert held is not None
    before = held.position
    scene.replay_at_most(0)
    scene.send(*(b"%d" % index for index in range(40)))
    for _ in range(40):
        for other in await scene.pop(maxMsgNums=1):
            await scene.ack(other)
    scene.run()
    assert held.position > before
    scene.restart()
    scene.run(2 * INVISIBLE_MS + 1)
    assert [each.tries for each in await scene.pop()] == [0]


async def test_batches_are_acknowledged(scene: Scene) -> None:
    scene.send(*(b"%d" % index for index in range(10)))
    messages = await scene.pop()
    start, pop_ms, invisible_ms, revive_queue, *_ = messages[0].handle.split(" ")
    ack = {
        "c": "g", "t": "TopicA", "r": "0", "so": int(start), "q": 0, "rq": int(revive_queue),
        "pt": int(pop_ms), "it": int(invisible_ms), "b": base64.b64encode(bytes((0b11111101, 0b10))).decode(),
    }  # fmt: skip
    body = json.dumps({"brokerName": "b", "acks": [ack]}).encode()
    reply = await scene.request(200151, {}, body)
    assert reply is not None and reply.code == 0
    scene.run(INVISIBLE_MS)
    assert bodies(await scene.pop()) == [b"1", b"8"]


async def test_a_batch_skips_what_is_gone(scene: Scene) -> None:
    """As RocketMQ: messages of a topic that exists must not come again because another one was deleted."""
    scene.send(b"1", b"2")
    start, pop_ms, invisible_ms, revive_queue, *_ = (await scene.pop())[0].handle.split(" ")
    ack = {
        "c": "g", "t": "TopicA", "r": "0", "so": int(start), "q": 0, "rq": int(revive_queue),
        "pt": int(pop_ms), "it": int(invisible_ms), "b": base64.b64encode(b"\3").decode(),
    }  # fmt: skip
    acks = [ack | {"t": "Gone"}, ack | {"q": 99}, ack | {"q": -1}, ack]
    reply = await scene.request(200151, {}, json.dumps({"brokerName": "b", "acks": acks}).encode())
    assert reply is not None and reply.code == 0
    scene.run(INVISIBLE_MS)
    assert bodies(await scene.pop()) == []
    for body in (b"", b"{}", b'{"acks":[]}'):
        reply = await scene.request(200151, {}, body)
        assert reply is not None and reply.code == ResponseCode.NO_MESSAGE


@pytest.mark.parametrize("born", [{}, {"bornTime": 0}, {"bornTime": ""}], ids=["absent", "0", "empty"])
async def test_the_requests_of_javas_proxy(scene: Scene, born: dict[str, Any]) -> None:
    """It does not say when a pop was born, and adds commitLogOffset to receipt handles."""
    fields: dict[str, Any] = {
        "consumerGroup": "g", "topic": "TopicA", "queueId": -1, "maxMsgNums": 32,
        "invisibleTime": INVISIBLE_MS, "pollTime": 15_000, "initMode": 0, "expType": "TAG", "exp": "*",
    } | born  # fmt: skip
    assert await scene.request(200054, fields) is None
    scene.send(b"1", b"2")
    assert decode_frame(scene.peer.sent.pop()[4:]).ext_fields["hasMsg"] == "true"
    reply = await scene.request(200050, fields)
    assert reply is not None and reply.code == 0, reply
    scene.tick()
    first, second = read(reply)
    assert (await scene.ack(first, extraInfo=f"{first.handle} 4711")).code == 0
    later = dataclasses.replace(second, handle=f"{second.handle} 4711")
    assert (await scene.change(later, 2 * INVISIBLE_MS)).code == 0
    scene.run(INVISIBLE_MS)
    assert bodies(await scene.pop()) == []
    scene.run(INVISIBLE_MS)
    assert bodies(await scene.pop()) == [b"2"]


async def test_an_old_pop_is_refused(scene: Scene) -> None:
    reply = await scene.raw_pop(bornTime=scene.now - 501)
    assert reply is not None and "older than its pollTime" in (reply.remark or "")


async def test_a_slave_sends_a_request_mode_to_the_master(scene: Scene) -> None:
    """RocketMQ's slave stores it for itself; here the master does, and all members get it."""
    mode = {"topic": "TopicA", "consumerGroup": "g", "mode": "POP", "popShareQueueNum": 0}
    body = json.dumps(mode).encode()
    asked: list[tuple[Wire, object]] = []
    answers: list[Outcome[Empty]] = [Ok(Empty()), Failed(ResponseCode.SYSTEM_ERROR, "no")]

    async def forward_to_master(operation: object, header: Wire, body: object) -> Outcome[Empty]:
        asked.append((header, body))
        return answers.pop(0)

    scene.broker.context.forward_to_master = forward_to_master
    scene.broker.gate.close("role", "slave")
    codes = []
    for fields in ({}, {}, {"forwarded": "true"}):
        reply = await scene.request(401, fields, body)
        assert reply is not None
        codes.append(reply.code)
    assert codes == [0, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SERVICE_NOT_AVAILABLE]
    assert asked == [(RequestModeRequest(forwarded=True), RequestModeBody.model_validate(mode))] * 2
    assert scene.metadata.request_modes.table.rows == {}


@pytest.mark.parametrize("revive_queue", [-1, -8, -9, 8])
async def test_a_batch_of_no_revive_queue_acknowledges_nothing(scene: Scene, revive_queue: int) -> None:
    scene.send(b"1")
    start, pop_ms, invisible_ms, *_ = (await scene.pop())[0].handle.split(" ")
    ack = {
        "c": "g", "t": "TopicA", "r": "0", "so": int(start), "q": 0, "rq": revive_queue,
        "pt": int(pop_ms), "it": int(invisible_ms), "b": base64.b64encode(b"\1").decode(),
    }  # fmt: skip
    before = scene.broker.store.commit_log.max_offset
    reply = await scene.request(200151, {}, json.dumps({"brokerName": "b", "acks": [ack]}).encode())
    assert reply is not None and reply.code == 0
    assert scene.broker.store.commit_log.max_offset == before
    scene.run(INVISIBLE_MS)
    assert bodies(await scene.pop()) == [b"1"]


async def test_a_new_master_knows_what_is_out_and_what_is_done(scene: Scene) -> None:
    scene.send(b"1", b"2", b"3")
    _, second, _ = await scene.pop()
    await scene.ack(second)
    scene.restart()
    assert await scene.pop() == []
    scene.run(INVISIBLE_MS)
    scene.restart()
    again = await scene.pop()
    assert bodies(again) == [b"1", b"3"]
    scene.restart()
    for message in again:
        await scene.ack(message)
    scene.restart()
    scene.run(INVISIBLE_MS)
    scene.restart()
    assert await scene.pop() == []


async def test_offsets_follow_what_cannot_be_lost(scene: Scene) -> None:
    scene.broker.gate.wait = True
    reply = scene.broker.send(b"1")
    assert reply is None
    scene.broker.tick()
    scene.broker.replicated()
    assert await scene.raw_pop() is None  # nothing is said before the checkpoint is on the replicas
    scene.broker.tick()
    scene.pop_service.round()
    assert scene.metadata.offsets.query("g", "TopicA", 0) == -1
    scene.broker.replicated()
    scene.broker.store.flush()
    scene.pop_service.round()
    assert scene.metadata.offsets.query("g", "TopicA", 0) == 1
    (message,) = read(decode_frame(scene.peer.sent[-1][4:]))
    scene.peer.sent.clear()
    fields = {"consumerGroup": "g", "topic": "TopicA", "queueId": 0, "extraInfo": message.handle, "offset": 0}
    assert await scene.request(200051, fields) is None  # nor is an acknowledgement
    scene.broker.replicated()
    assert decode_frame(scene.peer.sent[-1][4:]).code == 0


async def test_the_revive_log_is_read_from_where_it_matters(scene: Scene) -> None:
    scene.replay_at_most(20)
    scene.send(b"slow")
    (slow,) = await scene.pop(invisibleTime=100 * INVISIBLE_MS)
    for index in range(300):
        scene.send(b"%d" % index)
        (message,) = await scene.pop()
        await scene.ack(message)
        if index % 50 == 0:
            scene.run()
    scene.run()
    topic = scene.pop_service.topic.name
    for queue_id in range(8):
        end = scene.broker.store.max_queue_offset(topic, queue_id)
        assert end - scene.metadata.offsets.query(REVIVE_GROUP, topic, queue_id) <= 21
    scene.restart()
    assert (await scene.ack(slow)).code == 0
    scene.run(100 * INVISIBLE_MS)
    assert await scene.pop() == []


async def test_a_round_revives_a_bounded_number_of_messages(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer that died can have left thousands, which are all due at the same time."""
    monkeypatch.setattr(service, "BATCH_MAX", 8)
    scene.send(*(b"%d" % number for number in range(30)))
    for _ in range(6):
        assert len(await scene.pop(maxMsgNums=5)) == 5
    scene.now += INVISIBLE_MS
    revived = [0]
    while scene.pop_service.round():
        scene.tick()
        revived.append(scene.retries())
    scene.tick()
    assert scene.retries() == 30
    assert max(after - before for before, after in pairwise(revived)) == 10


async def test_a_round_writes_a_bounded_number_of_checkpoints_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.send(*(b"%d" % number for number in range(200)))
    for _ in range(80):
        await scene.pop(maxMsgNums=1, consumerGroup="slow", queueId=0, invisibleTime=100 * INVISIBLE_MS)
    for _ in range(200):
        await popped_and_acked(scene, maxMsgNums=1, queueId=0)
    monkeypatch.setattr(service, "BATCH_MAX", 8)
    scene.replay_at_most(0)
    ends = [0, sum(scene.pop_service.state.ends)]
    while ends[-1] != ends[-2]:
        scene.pop_service.round()
        ends.append(sum(scene.pop_service.state.ends))
    written = [after - before for before, after in pairwise(ends[1:-1])]
    assert written == [8] * 10, "each open one once"


async def test_dead_letters(scene: Scene) -> None:
    scene.metadata.groups.update(SubscriptionGroupConfig(group_name="g", retry_max_times=2))
    scene.send(b"poison")
    for tries in range(3):
        (message,) = await scene.pop()
        assert message.tries == tries
        scene.run(INVISIBLE_MS)
    assert await scene.pop() == []
    assert scene.broker.store.max_queue_offset(DLQ_PREFIX + "g", 0) == 1
    assert message.properties["1ST_POP_TIME"]


def store_long(scene: Scene, sizes: list[int]) -> list[bytes]:
    """Messages whose properties have so many bytes; the bodies say how many."""
    store, wanted = scene.broker.store, []
    for size in sizes:
        properties = b"TAGS\x01A\x02UNIQ_KEY\x01K\x02k\x01"
        properties += b"x" * (size - len(properties))
        body = b"%d" % size
        store.put(NamedTopic("TopicA"), 0, body, properties, 0, 0, scene.now, BORN_HOST, 0, 0)
        wanted.append(body)
    store.set_confirm_offset(store.commit_log.max_offset)
    return wanted


NEAR_THE_LIMIT = [*range(32_640, 32_760, 8), 32_766, 32_767]


async def pop_all(scene: Scene, **changed: object) -> list[Message]:
    found: list[Message] = []
    while messages := await scene.pop(**changed):
        found += messages
    return found


async def test_long_properties_come_again(scene: Scene) -> None:
    """What the broker adds to them may not fit; then it is left out."""
    wanted = store_long(scene, NEAR_THE_LIMIT)
    assert bodies(await pop_all(scene)) == wanted
    for tries in (1, 2):
        scene.run(INVISIBLE_MS)
        again = await pop_all(scene)
        assert bodies(again) == wanted
        assert {message.tries for message in again} == {tries}
        assert {message.properties["UNIQ_KEY"] for message in again} == {"K"}
    assert "1ST_POP_TIME" in again[0].properties and "1ST_POP_TIME" not in again[-1].properties
    assert again[0].topic == "TopicA" and again[-1].topic == "%RETRY%g_TopicA"
    for message in again:
        assert (await scene.ack(message)).code == 0
    assert len(scene.pop_service.state) == 0


async def test_long_properties_in_dead_letters(scene: Scene) -> None:
    scene.metadata.groups.update(SubscriptionGroupConfig(group_name="g", retry_max_times=0))
    wanted = store_long(scene, NEAR_THE_LIMIT)
    assert bodies(await pop_all(scene)) == wanted
    scene.run(INVISIBLE_MS)
    assert await scene.pop() == []
    assert scene.broker.store.max_queue_offset(DLQ_PREFIX + "g", 0) == len(wanted)


async def test_a_message_that_cannot_come_again_is_a_dead_letter(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.send(b"1", b"2")
    assert len(await scene.pop()) == 2
    put = scene.broker.writer.put

    def refuse_retries(letter: MessageToStore) -> PutMessageResult | PutRefused:
        refused = letter.topic.name.startswith("%RETRY%") or (dlq and letter.topic.name.startswith("%DLQ%"))
        return PutRefused(ResponseCode.MESSAGE_ILLEGAL, "too long") if refused else put(letter)

    dlq = False
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scene.broker.writer, "put", refuse_retries)
        scene.run(INVISIBLE_MS)
        assert scene.broker.store.max_queue_offset(DLQ_PREFIX + "g", 0) == 2
        scene.send(b"3")
        dlq = True
        assert bodies(await scene.pop()) == [b"3"]
        scene.run(INVISIBLE_MS)
    assert scene.broker.store.max_queue_offset(DLQ_PREFIX + "g", 0) == 2
    assert "cannot be delivered again" in caplog.text
    assert len(scene.pop_service.state) == 0


async def test_a_waiting_pop_that_fails_is_given_up_alone(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    for group in "gh":
        assert await scene.raw_pop(consumerGroup=group, pollTime=15_000) is None
    pop = PopReader.pop

    def fail_for_g(reader: PopReader, params: Any, now_ms: int) -> Any:
        return 1 // (params.group != "g") and pop(reader, params, now_ms)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PopReader, "pop", fail_for_g)
        scene.send(b"1")
    failed, found = (decode_frame(frame[4:]) for frame in scene.peer.sent)
    assert (failed.code, found.code) == (ResponseCode.POLLING_TIMEOUT, 0)
    assert "ZeroDivisionError" in caplog.text
    scene.peer.sent.clear()
    assert await scene.raw_pop(consumerGroup="h", pollTime=15_000) is None
    scene.send(b"2", queue_id=1)
    assert len(scene.peer.sent) == 1, "the topic is still watched"


async def test_a_waiting_pop_gets_the_next_message(scene: Scene) -> None:
    assert await scene.raw_pop(pollTime=15_000) is None
    assert await scene.raw_pop(pollTime=15_000) is None
    info = await scene.request(200055, {"consumerGroup": "g", "topic": "TopicA", "queueId": -1})
    assert info is not None and info.ext_fields == {"pollingNum": "2"}
    scene.send(b"1", queue_id=3)
    assert len(scene.peer.sent) == 1  # one message wakes one consumer
    (message,) = read(decode_frame(scene.peer.sent.pop()[4:]))
    assert message.body == b"1"
    scene.part.handlers.expire(now_ms() + 15_000)
    (frame,) = scene.peer.sent
    assert decode_frame(frame[4:]).code == ResponseCode.POLLING_TIMEOUT
    assert scene.broker.store.queues.waiter_count == 0


async def test_a_waiting_pop_gets_what_comes_again(scene: Scene) -> None:
    scene.send(b"1")
    assert len(await scene.pop()) == 1
    assert await scene.raw_pop(pollTime=90_000) is None
    scene.run(INVISIBLE_MS)
    (message,) = read(decode_frame(scene.peer.sent[0][4:]))
    assert (message.body, message.tries) == (b"1", 1)


async def test_a_waiting_request_keeps_no_body_and_no_unknown_field(scene: Scene) -> None:
    fields = {
        "consumerGroup": "g",
        "topic": "TopicA",
        "queueId": -1,
        "bornTime": scene.now,
        "pollTime": 15_000,
    }
    pop = fields | {"maxMsgNums": 1, "invisibleTime": 60_000, "initMode": 0}
    with memory_grows_by(3_000_000):
        for number in range(8):
            text = str(number) * 1_000_000
            assert await scene.request(200050, pop | {"attemptId": text, "x": text}, text.encode()) is None
            assert await scene.request(200054, fields | {"x": text}, text.encode()) is None


async def test_not_too_many_wait(scene: Scene) -> None:
    settings = scene.broker.context.settings
    scene.broker.context.settings = settings.model_copy(update={"pop_polling_size": 1})
    scene.restart()
    assert await scene.raw_pop(pollTime=15_000) is None
    reply = await scene.raw_pop(pollTime=15_000)
    assert reply is not None and reply.code == ResponseCode.POLLING_FULL


async def test_notifications_and_peeks(scene: Scene) -> None:
    fields = {"consumerGroup": "g", "topic": "TopicA", "queueId": -1, "bornTime": scene.now}
    peek = {"consumerGroup": "g", "topic": "TopicA", "queueId": -1, "maxMsgNums": 9}
    reply = await scene.request(200052, peek)
    assert reply is not None and reply.code == ResponseCode.PULL_NOT_FOUND
    assert await scene.request(200054, fields | {"pollTime": 15_000}) is None
    scene.send(b"1")
    assert decode_frame(scene.peer.sent.pop()[4:]).ext_fields == {"hasMsg": "true", "pollingFull": "false"}
    for _ in range(2):
        reply = await scene.request(200052, peek)
        assert reply is not None and reply.code == 0 and reply.ext_fields["restNum"] == "1"
    assert len(await scene.pop()) == 1
    reply = await scene.request(200054, fields | {"pollTime": 0})
    assert reply is not None and reply.ext_fields["hasMsg"] == "false"


async def notify(scene: Scene, **changed: object) -> str | None:
    """Returns whether a message waits, in the words of the answer. None: the answer comes later."""
    fields = {"consumerGroup": "g", "topic": "TopicA", "queueId": -1, "pollTime": 0, "bornTime": scene.now}
    reply = await scene.request(200054, fields | changed)
    assert reply is None or reply.code == 0, reply
    return reply.ext_fields["hasMsg"] if reply is not None else None


async def test_a_notification_is_about_what_its_filter_lets_through(scene: Scene) -> None:
    """RocketMQ 5.5 sends the filter; an older client sends none."""
    only_b = {"expType": "TAG", "exp": "B"}
    scene.send(b"1", b"2", tag="A")
    assert await notify(scene) == await notify(scene, expType="TAG", exp="*") == "true"
    assert await notify(scene, **only_b) == "false"
    assert await notify(scene, pollTime=15_000, **only_b) is None
    scene.send(b"3", tag="A")
    assert scene.peer.sent == []
    scene.send(b"4", tag="B")
    assert decode_frame(scene.peer.sent.pop()[4:]).ext_fields["hasMsg"] == "true"
    assert bodies(await scene.pop(exp="B")) == [b"4"]
    assert await notify(scene, **only_b) == "false"
    scene.run(INVISIBLE_MS)
    assert await notify(scene, expType="TAG", exp="C") == "true"  # the retry has passed the group's filter


async def test_a_notification_does_not_read_a_long_queue(scene: Scene) -> None:
    scene.send(*[b"x"] * FILTERED_MAX, tag="A")
    assert await notify(scene, expType="TAG", exp="B") == "false"
    scene.send(b"x", tag="A")
    assert await notify(scene, expType="TAG", exp="B") == "true"


async def test_a_notification_with_an_sql_filter(scene: Scene) -> None:
    sql = {"expType": "SQL92", "exp": "a > 1"}
    fields = {"consumerGroup": "g", "topic": "TopicA", "queueId": -1, "pollTime": 0}
    reply = await scene.request(200054, fields | sql)
    assert reply is not None and reply.code == ResponseCode.SYSTEM_ERROR
    settings = scene.broker.context.settings
    scene.broker.context.settings = settings.model_copy(update={"enable_property_filter": True})
    reply = await scene.request(200054, fields | sql | {"exp": "a >"})
    assert reply is not None and reply.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    for number in (0, 0, 0, 0, 2):
        reply = scene.broker.send(b"x" * (BODY_BYTES_MAX // 3), e="0", i=f"a\x01{number}\x02")
        assert reply is not None and reply.code == 0
        scene.tick()
        assert await notify(scene, **sql) == ("true" if number == 2 else "false")


async def test_a_notification_of_a_damaged_queue_lets_the_pop_tell(scene: Scene, tmp_path: Path) -> None:
    scene.send(b"1")
    damage_unit(tmp_path, 0)
    assert await notify(scene, queueId=0, expType="TAG", exp="A") == "true"
    reply = await scene.raw_pop(queueId=0, exp="A")
    assert reply is not None and reply.code == ResponseCode.SYSTEM_ERROR


async def test_a_damaged_queue_keeps_nothing_of_the_others_back(
    scene: Scene, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scene.send(b"1", b"2")
    scene.send(b"3", queue_id=1)
    damage_unit(tmp_path, 0)
    assert bodies(await scene.pop()) == [b"3"]
    peek = {"consumerGroup": "h", "topic": "TopicA", "queueId": -1, "maxMsgNums": 9}
    reply = await scene.request(200052, peek)
    assert reply is not None and reply.code == 0
    assert await scene.raw_pop(pollTime=15_000) is None  # a message may come into another queue
    for reply in (await scene.raw_pop(queueId=0), await scene.request(200052, peek | {"queueId": 0})):
        assert reply is not None and reply.code == ResponseCode.SYSTEM_ERROR
        assert reply.remark is not None and "TopicA, queue 0, is damaged near offset 0" in reply.remark
    (line,) = [each for each in caplog.records if "damaged" in each.getMessage()]
    assert line.exc_info is None


@pytest.mark.parametrize("place", [(0, 0), (9, 100), (3_000, 200)])
async def test_a_unit_of_no_record_is_no_message(
    scene: Scene, tmp_path: Path, place: tuple[int, int]
) -> None:
    scene.send(b"1", b"2", b"3")
    damage_unit(tmp_path, 1, place)
    assert bodies(await scene.pop(queueId=0)) == [b"1"]  # it is in front of the damage
    reply = await scene.raw_pop(queueId=0)
    assert reply is not None and reply.code == ResponseCode.SYSTEM_ERROR
    assert await scene.pop() == []


@pytest.mark.parametrize("offset", [0, 3])
async def test_a_unit_of_another_queues_record_is_no_message(
    scene: Scene, tmp_path: Path, offset: int
) -> None:
    """A checkpoint with one offset twice would be revived for ever."""
    scene.send(b"1", b"2", b"3", b"4", queue_id=1)
    scene.send(b"5", b"6")
    (foreign,) = scene.broker.store.queues.get("TopicA", 1).units(offset, 1)
    damage_unit(tmp_path, 0, foreign[:2])
    reply = await scene.raw_pop(queueId=0)
    assert reply is not None and reply.code == ResponseCode.SYSTEM_ERROR
    assert reply.remark is not None and f"it names message {offset} of a queue 1" in reply.remark
    scene.run(2 * INVISIBLE_MS)
    assert len(scene.pop_service.state) == 0


async def test_damaged_retries_refuse_no_other_pop(scene: Scene, tmp_path: Path) -> None:
    scene.send(b"1")
    assert len(await scene.pop()) == 1
    scene.run(INVISIBLE_MS)
    damage_unit(tmp_path, 0, topic="%RETRY%g_TopicA")
    for _ in range(5):  # one of them reads the retries first
        assert await scene.raw_pop(queueId=0, pollTime=15_000) is None
    scene.peer.sent.clear()
    scene.send(b"2")
    assert [message.body for message in read(decode_frame(scene.peer.sent[0][4:]))] == [b"2"]


async def test_in_order(scene: Scene) -> None:
    scene.send(b"1", b"2", b"3", b"4")
    first, second = await scene.pop(order="true", queueId=0, maxMsgNums=2)
    assert first.handle.split(" ")[3] == "999"
    assert await scene.pop(order="true", queueId=0) == []
    await scene.ack(first)
    assert await scene.pop(order="true", queueId=0) == []
    scene.run(INVISIBLE_MS)
    reply = await scene.raw_pop(order="true", queueId=0, maxMsgNums=2)
    assert reply is not None
    assert reply.ext_fields["orderCountInfo"] == "0 qo0%1 1;0 0 0"
    second, third = read(reply)
    assert (second.body, third.body) == (b"2", b"3")
    assert (await scene.change(second, 2 * INVISIBLE_MS)).code == 0
    await scene.ack(third)
    scene.run(INVISIBLE_MS)
    assert await scene.pop(order="true", queueId=0) == []  # the second one's time is longer now
    assert await scene.raw_pop(order="true", queueId=0, pollTime=15_000) is None
    await scene.ack(second)
    (fourth,) = read(decode_frame(scene.peer.sent.pop()[4:]))  # it waited for that
    assert fourth.body == b"4"
    assert scene.metadata.offsets.query("g", "TopicA", 0) == 3
    scene.restart()
    assert bodies(await scene.pop(order="true", queueId=0)) == [b"4"]


async def test_a_message_that_is_suspended_in_order_is_no_further_attempt(scene: Scene) -> None:
    async def pop() -> tuple[list[Message], str]:
        reply = await scene.raw_pop(order="true", queueId=0)
        assert reply is not None
        return read(reply), reply.ext_fields["orderCountInfo"]

    scene.send(b"1", b"2")
    (first, second), counts = await pop()
    assert counts == "0 0 0"
    assert (await scene.change(first, 1_000, suspend="true")).code == 0
    assert (await scene.change(second, 1_000)).code == 0
    scene.run(1_000)
    (first, second), counts = await pop()
    assert counts == "0 qo0%1 1;0 0 0"
    for message in (first, second):
        assert (await scene.change(message, 1_000, suspend="true")).code == 0
    assert (await scene.change(first, 2_000)).code == 0  # the last word counts
    scene.run(2_000)
    assert (await pop())[1] == "0 qo0%0 1;0 qo0%1 1;0 0 1"


async def test_the_same_attempt_gets_the_same_messages(scene: Scene) -> None:
    scene.send(b"1", b"2")
    for _ in range(2):
        assert len(await scene.pop(order="true", queueId=0, attemptId="a")) == 2
    assert await scene.pop(order="true", queueId=0, attemptId="b") == []
    asked = {"order": "true", "queueId": 0}
    assert await notify(scene, attemptId="a", **asked) == "true"
    assert await notify(scene, attemptId="b", **asked) == "false"


async def test_the_same_attempt_among_others_gets_the_same_messages(scene: Scene) -> None:
    """#10827: RocketMQ answers it with nothing while another pop of the group has its lock."""
    scene.send(b"1", b"2")
    assert len(await scene.pop(order="true", queueId=0, attemptId="a")) == 2
    others = [scene.pop(order="true", queueId=0, attemptId=f"b{number}") for number in range(8)]
    *before, again = await asyncio.gather(*others, scene.pop(order="true", queueId=0, attemptId="a"))
    assert bodies(again) == [b"1", b"2"] and not any(before)


async def test_new_groups_begin_where_they_say(scene: Scene) -> None:
    """broker-ops pitfall 16: retries are never skipped, whatever the init mode is."""
    scene.send(b"1", b"2", b"3")
    scene.broker.context.cached_bytes = 0
    assert bodies(await scene.pop(initMode=1, queueId=0)) == [b"3"]
    scene.run(INVISIBLE_MS)
    assert bodies(await scene.pop(initMode=1)) == [b"3"]


async def test_an_empty_queue_keeps_its_offset(scene: Scene) -> None:
    """broker-ops pitfall 18: a read that finds nothing does not set the offset to 0."""
    scene.send(b"1")
    (message,) = await scene.pop()
    await scene.ack(message)
    scene.run()
    assert await scene.pop() == []
    scene.run()
    assert scene.metadata.offsets.query("g", "TopicA", 0) == 1


async def test_reset(scene: Scene) -> None:
    """broker-ops pitfall 15: popping groups follow a reset of their offset."""
    scene.send(b"1", b"2")
    for message in await scene.pop():
        await scene.ack(message)
    scene.metadata.resets.set("g", "TopicA", 0, 1)
    assert bodies(await scene.pop()) == [b"2"]


async def test_a_reset_ends_what_is_out_in_order(scene: Scene) -> None:
    scene.send(b"1", b"2")
    assert len(await scene.pop(order="true", queueId=0)) == 2
    scene.metadata.resets.set("g", "TopicA", 0, 1)
    assert bodies(await scene.pop(order="true", queueId=0)) == [b"2"]


async def popped_and_acked(scene: Scene, **changed: object) -> list[bytes]:
    messages = await scene.pop(**changed)
    for message in messages:
        await scene.ack(message)
    scene.run()
    return bodies(messages)


async def hold_the_revive_queues(scene: Scene) -> list[Message]:
    """A slow group has a message out in each of them: a new master reads all that comes after these."""
    scene.send(*(b"slow" for _ in range(8)))
    held = []
    for _ in range(8):
        held += await scene.pop(
            consumerGroup="slow", maxMsgNums=1, queueId=0, invisibleTime=INVISIBLE_MS * 60
        )
    assert len({message.handle.split(" ")[3] for message in held}) == 8
    return held


async def test_a_reset_stays_when_a_new_master_reads_older_checkpoints(scene: Scene) -> None:
    await hold_the_revive_queues(scene)
    scene.send(*(b"%02d" % number for number in range(20)), queue_id=1)
    everything = [b"%02d" % number for number in range(20)]
    for first in range(0, 20, 5):
        assert await popped_and_acked(scene, queueId=1, maxMsgNums=5) == everything[first : first + 5]
    assert await scene.pop(queueId=1) == []
    scene.metadata.offsets.commit("g", "TopicA", 1, 0)
    scene.metadata.resets.set("g", "TopicA", 1, 0)
    scene.run()
    assert await popped_and_acked(scene, queueId=1, maxMsgNums=2) == everything[:2]
    scene.restart()
    left = [body for _ in range(2) for body in await popped_and_acked(scene, queueId=1)]  # by queue files
    assert left == everything[2:]
    scene.restart()
    assert await scene.pop(queueId=1) == []


@pytest.mark.slow
async def test_what_was_out_before_a_reset_moves_nobody_on(scene: Scene) -> None:
    """Neither by a changed invisible time, nor when its checkpoint is written again."""
    await hold_the_revive_queues(scene)
    scene.send(*(b"%d" % number for number in range(6)), queue_id=1)
    (*_, slow, changed) = await scene.pop(queueId=1)
    scene.metadata.resets.set("g", "TopicA", 1, 0)
    assert await popped_and_acked(scene, queueId=1, maxMsgNums=2) == [b"0", b"1"]
    assert (await scene.change(changed, INVISIBLE_MS * 60)).code == 0
    scene.restart()
    assert await popped_and_acked(scene, queueId=1, maxMsgNums=1) == [b"2"]
    scene.send(*(b"more" for _ in range(40)), queue_id=2)
    for _ in range(40):  # records of ended checkpoints, in each of the revive queues
        assert await popped_and_acked(scene, queueId=2, maxMsgNums=1) == [b"more"]
    scene.replay_at_most(0)
    scene.pop_service.round()  # one: the new master has not settled what was written again
    scene.tick()
    scene.restart()
    assert bodies(await scene.pop(queueId=1)) == [b"3", b"4", b"5"]
    assert (await scene.ack(slow)).code == 0


async def test_a_pending_reset_is_not_written_over(scene: Scene) -> None:
    """The group's last pop is confirmed between the reset and the next pop."""
    scene.send(b"1", b"2")
    assert len(await scene.pop()) == 2
    scene.metadata.offsets.commit("g", "TopicA", 0, 0)
    scene.metadata.resets.set("g", "TopicA", 0, 0)
    scene.run()
    assert scene.metadata.offsets.query("g", "TopicA", 0) == 0
    assert bodies(await scene.pop()) == [b"1", b"2"]
    scene.run()
    assert scene.metadata.offsets.query("g", "TopicA", 0) == 2


async def test_an_offset_that_a_request_has_set_stays_with_a_new_master(scene: Scene) -> None:
    """Though it reads checkpoints from before: a commit (15), and a group that was deleted and made again."""
    await hold_the_revive_queues(scene)
    scene.send(b"0", b"1", b"2", b"3", queue_id=1)
    for group in ("g", "h"):
        assert len(await scene.pop(consumerGroup=group, queueId=1)) == 4
    scene.run()
    scene.metadata.offsets.commit("g", "TopicA", 1, 1)
    scene.metadata.offsets.remove_group("h")
    scene.run()
    scene.restart()
    assert scene.metadata.offsets.query("g", "TopicA", 1) == 1
    assert bodies(await scene.pop(queueId=1)) == [b"1", b"2", b"3"]
    assert bodies(await scene.pop(consumerGroup="h", queueId=1)) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("is_confirmed", [False, True])
async def test_an_offset_that_a_request_has_set_is_not_written_over(scene: Scene, is_confirmed: bool) -> None:
    """By a pop from before, whose checkpoint is confirmed only then; nor by one whose is not at all yet."""
    scene.send(b"0", b"1", b"2")
    scene.run()
    assert len(await scene.pop(maxMsgNums=2)) == 2
    scene.metadata.offsets.commit("g", "TopicA", 0, 1)
    if is_confirmed:
        scene.run()
    assert scene.metadata.offsets.query("g", "TopicA", 0) == 1
    assert bodies(await scene.pop(maxMsgNums=1)) == [b"1"]
    scene.run()
    assert scene.metadata.offsets.query("g", "TopicA", 0) == 2
    assert bodies(await scene.pop()) == [b"2"]


async def test_a_reset_that_cannot_be_written_is_taken_later(scene: Scene) -> None:
    scene.send(b"1", b"2")
    assert await popped_and_acked(scene) == [b"1", b"2"]
    scene.metadata.resets.set("g", "TopicA", 0, 1)
    refused = PutRefused(ResponseCode.SYSTEM_ERROR, "no room")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scene.broker.writer, "put", lambda letter: refused)
        reply = await scene.raw_pop()
        assert reply is not None and (reply.code, reply.remark) == refused
    assert bodies(await scene.pop()) == [b"2"]


POISON = [
    b'{"so":0,"pt":0,"it":0,"t":"x","c":"g","q":0,"n":1000000000000000}',
    b'{"so":0,"pt":0,"it":0,"t":"x","c":"g","q":0,"d":[%s]}' % b",".join([b"1"] * 10_000),
    b'{"so":0,"pt":0,"it":0,"t":"x","c":"g","q":0,"d":[-1]}',
    b'{"so":0,"pt":100000000000000000000000,"it":0,"t":"x","c":"g","q":0,"n":1}',
    b'{"so":9223372036854775807,"pt":0,"it":0,"t":"x","c":"g","q":0,"n":2}',
    b'{"x":' + b"[" * 50_000,
    b"\xff",
    b"",
]


@pytest.mark.parametrize("tag", [b"ck", b"ack", b"bAck", b"reset"])
async def test_a_record_that_is_none_stops_nothing(
    scene: Scene, tag: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    store, topic = scene.broker.store, scene.pop_service.topic
    scene.send(b"1", b"2")
    first, _ = await scene.pop()
    for body in POISON:
        store.put(topic, 0, body, b"TAGS\x01%b\x02" % tag, 0, 0, scene.now, BORN_HOST, 0, 0)
    store.set_confirm_offset(store.commit_log.max_offset)
    scene.restart()
    assert (await scene.ack(first)).code == 0
    assert len(scene.pop_service.state) == 1
    told = [record for record in caplog.records if topic.name in record.getMessage()]
    assert len(told) == 1, "and its log is not flooded"
    scene.run(INVISIBLE_MS)
    assert bodies(await scene.pop()) == [b"2"]


async def test_an_unexpected_error_with_one_record_stops_nothing(scene: Scene) -> None:
    scene.send(b"1", b"2")
    messages = await scene.pop(maxMsgNums=1) + await scene.pop(maxMsgNums=1)
    stored = PopState.stored
    with pytest.MonkeyPatch.context() as patch:

        def fail_once(pop_state: PopState, checkpoint: Checkpoint, position: int) -> None:
            if checkpoint.key.start_offset == 0:
                raise OverflowError("too large")
            stored(pop_state, checkpoint, position)

        patch.setattr(PopState, "stored", fail_once)
        scene.restart()
    assert len(scene.pop_service.state) == 1
    assert (await scene.ack(messages[1])).code == 0
    assert len(scene.pop_service.state) == 0


async def test_a_gate_that_is_closed_for_a_while_ends_no_term(scene: Scene) -> None:
    """A disk that was full, or a lease that lapsed: what is out in order stays out."""
    scene.send(b"1", b"2", b"3")
    first, second = await scene.pop(order="true", queueId=0, maxMsgNums=2)
    scene.broker.gate.close(DISK_FULL, "disk full")
    scene.run(1)
    scene.broker.gate.open(DISK_FULL)
    scene.run(1)
    assert await scene.pop(order="true", queueId=0) == []
    await scene.ack(first)
    await scene.ack(second)
    assert scene.metadata.offsets.query("g", "TopicA", 0) == 2
    assert bodies(await scene.pop(order="true", queueId=0)) == [b"3"]


async def test_a_mastership_that_ends_ends_the_term(scene: Scene) -> None:
    scene.send(b"1")
    assert len(await scene.pop(order="true", queueId=0)) == 1
    scene.broker.store.become_slave()
    scene.pop_service.round()
    scene.broker.store.become_master()
    scene.run()
    assert bodies(await scene.pop(order="true", queueId=0)) == [b"1"]


async def test_arrivals_while_a_pop_begins_to_wait_are_seen(scene: Scene) -> None:
    """broker-ops pitfall 19: a message between the empty read and the waiting is not missed."""
    scene.send(b"1")
    assert len(await scene.pop()) == 1
    assert await scene.raw_pop(pollTime=15_000) is None
    scene.send(b"2")
    assert len(scene.peer.sent) == 1


async def test_request_modes_and_assignments(scene: Scene) -> None:
    async def assigned(client_id: str = "c1") -> list[tuple[int, str]]:
        body = {"topic": "TopicA", "consumerGroup": "g", "clientId": client_id, "strategyName": "AVG",
                "messageModel": "CLUSTERING"}  # fmt: skip
        reply = await scene.request(400, {}, json.dumps(body).encode())
        assert reply is not None and reply.code == 0
        queues = json.loads(reply.body)["messageQueueAssignments"]
        return [(each["messageQueue"]["queueId"], each["mode"]) for each in queues]

    assert await assigned() == []  # it has sent no heartbeat
    mode = {"topic": "TopicA", "consumerGroup": "g", "mode": "POP", "popShareQueueNum": 0}
    reply = await scene.request(401, {}, json.dumps(mode).encode())
    assert reply is not None and reply.code == 0
    assert await assigned() == [(-1, "POP")]
    reply = await scene.request(402, {})
    assert reply is not None
    assert json.loads(reply.body) == {"messageRequestModeMap": {"TopicA": {"g": mode}}}
    reply = await scene.request(401, {}, json.dumps(mode | {"topic": "%RETRY%g"}).encode())
    assert reply is not None and reply.code == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize(
    "changed", [{"topic": "T" * 256}, {"consumerGroup": "g" * 256}, {"consumerGroup": ""}]
)
async def test_no_mode_is_kept_for_a_name_that_nothing_can_have(
    scene: Scene, changed: dict[str, str]
) -> None:
    body = {"topic": "TopicA", "consumerGroup": "g", "clientId": "c1", "strategyName": "AVG",
            "messageModel": "CLUSTERING", "mode": "POP", "popShareQueueNum": 0} | changed  # fmt: skip
    for code in (400, 401):
        reply = await scene.request(code, {}, json.dumps(body).encode())
        assert reply is not None and reply.code == ResponseCode.INVALID_PARAMETER
    assert scene.metadata.request_modes.table.rows == {}


async def test_what_a_deleted_group_or_topic_had_out_is_nobodys(scene: Scene) -> None:
    scene.send(b"1")
    assert len(await scene.pop()) == len(await scene.pop(consumerGroup="h")) == 1
    scene.metadata.groups.delete("g")
    scene.run(INVISIBLE_MS)
    assert scene.metadata.groups.get("g") is None
    assert scene.retries() == 0
    assert bodies(await scene.pop(consumerGroup="h")) == [b"1"]
    scene.metadata.topics.delete(["TopicA"], 0)
    scene.run(INVISIBLE_MS)
    assert scene.retries("%RETRY%h_TopicA") == 1
    assert len(scene.pop_service.state) == 0


async def test_retries_that_rocketmq_wrote_with_a_plus(scene: Scene) -> None:
    scene.topic("%RETRY%g+TopicA", 1)
    store, name = scene.broker.store, NamedTopic("%RETRY%g+TopicA")
    store.put(name, 0, b"old", b"TAGS\x01A\x02", 0, 0, scene.now, BORN_HOST, 1, 0)
    store.set_confirm_offset(store.commit_log.max_offset)
    (message,) = await scene.pop()
    assert (message.body, message.topic, message.popped_from) == (b"old", "TopicA", "%RETRY%g+TopicA")
    scene.run(INVISIBLE_MS)
    (again,) = await scene.pop()
    assert again.popped_from == "%RETRY%g+TopicA"
    assert (await scene.ack(again)).code == 0
    scene.run(INVISIBLE_MS)
    assert await scene.pop() == []


async def test_a_broker_that_cannot_write_gives_nothing_and_loses_nothing(scene: Scene) -> None:
    scene.send(b"1", b"2")
    messages = await scene.pop()
    scene.broker.gate.close(DISK_FULL, "disk full")
    scene.run(INVISIBLE_MS)
    assert scene.retries() == 0
    scene.broker.gate.open(DISK_FULL)
    scene.run()
    again = await scene.pop()
    assert bodies(again) == bodies(messages)


async def test_as_much_is_out_as_may_be(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.pop.core.state.OPEN_MAX", 1)
    scene.send(b"1", b"2")
    (first,) = await scene.pop(maxMsgNums=1)
    reply = await scene.raw_pop()
    assert reply is not None and reply.code == ResponseCode.SYSTEM_BUSY
    await scene.ack(first)
    assert bodies(await scene.pop()) == [b"2"]


async def test_a_full_table_of_offsets_repeats_nothing(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.send(b"1", b"2", b"3")
    assert len(await scene.pop(maxMsgNums=1)) == 1
    scene.run()
    rows = len(scene.metadata.offsets.table.rows)
    monkeypatch.setattr(ConsumerOffsetTable, "rows_max", rows)
    for order in ("true", "false"):
        reply = await scene.raw_pop(consumerGroup="h", order=order)
        assert reply is not None and reply.code == ResponseCode.SYSTEM_ERROR
        assert "consumer offsets" in reply.remark
    assert len(scene.metadata.offsets.table.rows) == rows
    assert bodies(await scene.pop(maxMsgNums=1)) == [b"2"]  # whose progress has its row
    monkeypatch.setattr(ConsumerOffsetTable, "rows_max", rows + 1)
    assert bodies(await scene.pop(consumerGroup="h")) == [b"1", b"2", b"3"]
    monkeypatch.setattr(ConsumerOffsetTable, "rows_max", rows)  # others were faster
    scene.run()
    assert scene.metadata.offsets.query("h", "TopicA", 0) == -1
    scene.send(b"4")
    reply = await scene.raw_pop(consumerGroup="h")
    assert reply is not None and reply.code == ResponseCode.SYSTEM_ERROR
    monkeypatch.setattr(ConsumerOffsetTable, "rows_max", rows + 1)
    assert bodies(await scene.pop(consumerGroup="h")) == [b"4"], "it still knows where the group goes on"
    scene.run()
    assert scene.metadata.offsets.query("h", "TopicA", 0) == 4


async def test_a_full_table_of_topics_stops_no_other_group(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.send(b"1")
    await scene.pop()
    scene.run(INVISIBLE_MS)
    (message,) = await scene.pop()  # from the retry topic of g, which exists now
    await scene.ack(message)
    scene.send(b"2")
    assert bodies(await scene.pop(consumerGroup="h", invisibleTime=INVISIBLE_MS // 2)) == [b"1", b"2"]
    assert bodies(await scene.pop()) == [b"2"]
    room = TopicTable.rows_max
    monkeypatch.setattr(TopicTable, "rows_max", len(scene.broker.topics.topics))
    scene.run(INVISIBLE_MS)
    assert bodies(await scene.pop()) == [b"2"], "h, which is due first and has no retry topic, is put off"
    assert await scene.pop(consumerGroup="h") == []
    assert max(scene.pop_service.late_ms()) == INVISIBLE_MS // 2, "what is put off is late all the same"
    monkeypatch.setattr(TopicTable, "rows_max", room)
    scene.run(PUT_OFF_MS)
    assert bodies(await scene.pop(consumerGroup="h")) == [b"1", b"2"]
    assert max(scene.pop_service.late_ms()) == 0


def test_progress_for_which_there_is_no_room_is_known_here(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ConsumerOffsetTable, "rows_max", 0)
    scene.pop_service.offsets.commit(("h", "TopicA", 0), 7)
    scene.run()
    assert scene.pop_service.offsets.get(("h", "TopicA", 0)) == 7


async def test_a_full_table_of_offsets_stops_no_empty_pop(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ConsumerOffsetTable, "rows_max", 0)
    assert await scene.pop(consumerGroup="h") == []


async def test_a_selective_filter_is_looked_on_for_while_a_pop_waits(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.pop.reading.READS_MAX", 2)
    scene.send(*(b"other" for _ in range(100)), tag="B")  # in queue files of 10 units, and so many looks
    scene.send(b"mine", tag="A")
    for fields in ({"exp": "A"}, {"exp": "A", "consumerGroup": "h", "queueId": 0}):
        assert await scene.raw_pop(pollTime=15_000, **fields) is None
    rounds, looks = 0, scene.broker.store.get
    with pytest.MonkeyPatch.context() as patch:
        counts: list[int] = []
        patch.setattr(
            scene.broker.store, "get", lambda *args, **more: (counts.append(1), looks(*args, **more))[1]
        )
        while scene.broker.soon:
            counts.clear()
            scene.broker.tick()
            rounds += 1
            assert len(counts) <= 2 + 3, "one slice of one of them in each iteration of the loop"
    assert rounds > 8, "others have their turn between"
    assert [read(decode_frame(frame[4:]))[0].body for frame in scene.peer.sent] == [b"mine", b"mine"]
    assert len(scene.part.handlers.polling) == 0


async def test_a_filter_does_not_read_on_after_the_last_waiter_is_gone(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.pop.reading.READS_MAX", 1)
    scene.send(*(b"other" for _ in range(100)), tag="B")
    assert await scene.raw_pop(exp="A", pollTime=15_000) is None
    scene.part.handlers.expire(now_ms() + 15_000)
    scene.peer.sent.clear()
    rounds = 0
    while scene.broker.soon:
        scene.broker.tick()
        rounds += 1
    assert rounds <= 2
    scene.broker.gate.close(DISK_FULL, "disk full")
    assert scene.broker.soon == []


async def test_invisible_times_end(scene: Scene) -> None:
    """A message that nobody acknowledges comes again some time, and its checkpoint is done with."""
    scene.send(b"1", b"2")
    scene.send(b"3", queue_id=1)
    reply = await scene.raw_pop(queueId=0, maxMsgNums=1, invisibleTime=2**62)
    assert reply is not None and reply.ext_fields["invisibleTime"] == str(INVISIBLE_MS_MAX)
    (second,) = await scene.pop(queueId=0, maxMsgNums=1)
    assert (await scene.change(second, 2**62)).ext_fields["invisibleTime"] == str(INVISIBLE_MS_MAX)
    (third,) = await scene.pop(order="true", queueId=1, maxMsgNums=1, invisibleTime=2**62)
    changed = await scene.change(third, 2**62)
    assert int(changed.ext_fields["invisibleTime"]) == INVISIBLE_MS_MAX
    scene.run(INVISIBLE_MS_MAX - 1)
    assert await scene.pop(queueId=0) == await scene.pop(order="true", queueId=1) == []
    scene.run(2)  # a handle that changes within its millisecond is one of the next
    assert bodies(await scene.pop(order="true", queueId=1)) == [b"3"]
    assert bodies(await scene.pop(queueId=0)) == [b"1", b"2"]


def test_invisible_times_of_old_records_end() -> None:
    raw = b'{"so":0,"pt":1,"it":4611686018427387904,"t":"x","c":"g","q":0,"n":1}'
    assert checkpoint_of(raw, 0).due_ms == 1 + INVISIBLE_MS_MAX


async def test_what_came_again_does_not_so_once_more_after_a_fail_over(scene: Scene) -> None:
    """The old master had no time left to say how far it was."""
    scene.send(b"1")
    assert len(await scene.pop()) == 1
    scene.run(INVISIBLE_MS - 1)
    scene.now += 1
    scene.pop_service.round()
    scene.tick()
    assert scene.retries() == 1
    scene.restart()
    scene.run(INVISIBLE_MS)
    assert scene.retries() == 1
