"""Topics with queue.type=BatchCQ as clients see them: what is stored, what is answered, what is refused."""

import asyncio
import contextlib
import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from broker.config.client_settings import ClientSettings
from broker.message.delay_levels import SCHEDULE_TOPIC, DelayLevels
from broker.message.inner_batch import keys_of
from broker.message.record import decode, encode, parse_properties
from broker.pop.consumption import PopConsumption
from broker.store.queue.batch_queue import BatchQueue
from broker.timers.schedule_message_service import ScheduleMessageService
from keelmq.client import Message, MessageQueue, Producer, PullConsumer, PullError, PushConsumer
from keelmq.client.cluster.queue_reader import PullStatus
from keelmq.client.core.send_result import SendResult
from keelmq.client.message import MessageExt, decode_messages
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.command import RemotingCommand
from keelmq.remoting.operation import Call, CommandError, Ok
from keelmq.remoting.operations.broker import SEND_MESSAGE_V2, SendMessageRequestV2, SendMessageResponse
from keelmq.remoting.operations.clients import SendBackRequest
from keelmq.remoting.operations.pop import PopMessageRequest, RequestModeBody, RequestModeRequest
from keelmq.remoting.operations.route import TopicConfig
from pytest_keelmq.cluster import TestBroker
from tests.support.admin_parts import mqadmin
from tests.support.client_parts import Seen
from tests.support.client_parts import broker as test_broker
from tests.support.handler_parts import Broker
from tests.support.laid_by_parts import trio
from tests.support.metadata_parts import open_metadata
from tests.support.store_parts import FakePeer
from tests.unit.broker.handlers.test_slow_path_sends import ok
from tests.unit.broker.store.test_inner_batch import items, messages
from tests.unit.keelmq.client.consumer.test_push_consumer import FIRST

__all__ = ["test_broker"]

BATCH_CQ = {"queue.type": "BatchCQ"}


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    broker = Broker(tmp_path)
    broker.topics.update(
        TopicConfig(topic_name="Batches", read_queue_nums=2, write_queue_nums=2, attributes=BATCH_CQ)
    )
    return broker


def send_batch(broker: Broker, body: bytes, code: int = 320, **changed: object) -> RemotingCommand | None:
    fields: dict[str, object] = {
        "a": "group", "b": "Batches", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "5",
        "i": "UNIQ_KEY\x01OUTER\x02WAIT\x01true", "j": "0", "k": "false", "m": "true",
    }  # fmt: skip
    return broker.request(code, fields | changed, body)


def pulled(broker: Broker, offset: int = 0, **changed: object) -> list[MessageExt]:
    """As our client, and a 5.x Java client, have them."""
    broker.tick()
    broker.peer.sent.clear()
    reply = broker.pull(offset, topic="Batches", **changed)
    (reply,) = [reply] if reply is not None else broker.answers()
    return decode_messages(reply.body) if reply.body else []


# -- sending -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [320, 310])
def test_a_batch_is_answered_as_one_message(broker: Broker, code: int) -> None:
    reply = ok(send_batch(broker, items(3), code))
    assert reply.ext_fields["batchUniqId"] == reply.ext_fields["transactionId"] == "OUTER"
    assert len(reply.ext_fields["msgId"]) == 32
    assert (reply.ext_fields["queueId"], reply.ext_fields["queueOffset"]) == ("0", "0")
    assert ok(send_batch(broker, items(2))).ext_fields["queueOffset"] == "3"
    found = pulled(broker)
    assert [(each.queue_offset, each.body, each.flag) for each in found] == [
        (0, b"item 0", 0), (1, b"item 1", 1), (2, b"item 2", 2), (3, b"item 0", 0), (4, b"item 1", 1)
    ]  # fmt: skip
    assert [each.msg_id for each in found[:3]] == ["AC0000", "AC0001", "AC0002"]
    assert found[0].offset_msg_id == reply.ext_fields["msgId"]
    (outer,) = {each.sys_flag for each in found}
    assert outer == 0xC0
    record = decode(broker.store.commit_log.view(0, 1 << 16))
    assert record.flag == 5
    properties = parse_properties(record.properties)
    assert properties["INNER_NUM"] == "3"
    assert properties["CLUSTER"] == "c"


def test_a_batch_without_a_key_gets_one(broker: Broker) -> None:
    reply = ok(send_batch(broker, items(1), i="A\x01b"))
    assert len(reply.ext_fields["batchUniqId"]) == 32
    broker.tick()
    record = decode(broker.store.commit_log.view(0, 1 << 16))
    assert parse_properties(record.properties)["UNIQ_KEY"] == reply.ext_fields["batchUniqId"]


def test_other_topics_have_their_batches_as_before(broker: Broker) -> None:
    reply = ok(send_batch(broker, items(2), b="TopicA"))
    assert "batchUniqId" not in reply.ext_fields
    assert len(reply.ext_fields["msgId"].split(",")) == 2


def test_a_batch_waits_for_replicas(broker: Broker) -> None:
    broker.gate.wait = True
    assert send_batch(broker, items(2)) is None
    broker.tick()
    assert not broker.answers()
    broker.replicated()
    (answer,) = broker.answers()
    assert answer.ext_fields["batchUniqId"] == "OUTER"
    assert send_batch(broker, items(2), i="WAIT\x01false") is not None


@pytest.mark.parametrize(
    ("body", "changed"),
    [
        (b"", {}),
        (items(2)[:-1], {}),
        (items(1), {"i": "DELAY\x013"}),
        (items(1), {"i": "TIMER_DELAY_MS\x0160000"}),
        (items(1), {"i": "TRAN_MSG\x01true\x02PGROUP\x01g", "f": "4"}),
        (items(1), {"f": "1"}),
        (items(1), {"i": "A\x01" + "x" * 32_690}),
        (items(1), {"m": "false", "f": "128"}),
        (items(1), {"m": "false", "f": "192", "b": "TopicA"}),
    ],
)  # fmt: skip
def test_what_is_refused_leaves_nothing(broker: Broker, body: bytes, changed: dict[str, object]) -> None:
    reply = send_batch(broker, body, 310, **changed)
    assert reply is not None
    assert reply.code == ResponseCode.MESSAGE_ILLEGAL, reply.remark
    assert broker.store.commit_log.max_offset == 0


def test_single_messages_between_batches(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sent alone, or delivered late."""
    ok(send_batch(broker, items(2)))
    reply = ok(broker.send(b"alone", b="Batches"))
    assert reply.ext_fields["queueOffset"] == "2"
    assert "batchUniqId" not in reply.ext_fields
    ok(broker.send(b"late", b="Batches", i="DELAY\x011\x02UNIQ_KEY\x01L"))
    ok(send_batch(broker, items(1)))
    broker.tick()
    metadata = open_metadata(tmp_path / "metadata")
    metadata.topics, metadata.gate = broker.topics, broker.gate
    later = ScheduleMessageService(broker.store, metadata, broker.writer, clock=lambda: 1 << 45)
    assert type(broker.store.find_queue("Batches", 0)) is BatchQueue
    assert type(broker.store.find_queue(SCHEDULE_TOPIC, 0)) is not BatchQueue
    # what is due later than a level's delay was stored by a wrong clock
    monkeypatch.setattr(DelayLevels, "delay_ms", lambda levels, level: 1 << 50)
    later.round()
    assert later.delivered == 1
    found = pulled(broker)
    assert [(each.queue_offset, each.body) for each in found] == [
        (0, b"item 0"), (1, b"item 1"), (2, b"alone"), (3, b"item 0"), (4, b"late")
    ]  # fmt: skip
    assert found[2].tags == "TagA"
    assert found[2].properties["INNER_NUM"] == "1"


# -- reading -------------------------------------------------------------------------------------------------


def test_a_pull_inside_of_a_batch(broker: Broker) -> None:
    ok(send_batch(broker, items(4)))
    ok(send_batch(broker, items(2)))
    assert [each.queue_offset for each in pulled(broker, 2)] == [0, 1, 2, 3, 4, 5]
    assert [each.queue_offset for each in pulled(broker, 2, maxMsgNums="1")] == [0, 1, 2, 3]
    assert [each.queue_offset for each in pulled(broker, 5, subscription="t1")] == [4, 5]


def test_a_waiting_pull_gets_the_batch(broker: Broker) -> None:
    assert broker.pull(0, topic="Batches", suspend_ms=9_000) is None
    ok(send_batch(broker, items(2)))
    broker.tick()
    (answer,) = broker.answers()
    assert [each.body for each in decode_messages(answer.body)] == [b"item 0", b"item 1"]
    assert answer.ext_fields["nextBeginOffset"] == answer.ext_fields["maxOffset"] == "2"


async def test_sql_and_pop_are_refused(broker: Broker) -> None:
    """Neither can look into a batch."""
    settings = ClientSettings.model_validate({"enablePropertyFilter": True})
    broker.use_settings(settings)
    ok(send_batch(broker, items(2)))
    reply = broker.pull(0, topic="Batches", subscription="a > 5", expressionType="SQL92")
    assert reply is not None
    assert (reply.code, "BatchCQ" in (reply.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
    reply = broker.pull(0, subscription="a > 5", expressionType="SQL92")
    assert reply is not None
    assert reply.code == ResponseCode.PULL_NOT_FOUND
    metadata = open_metadata(broker.store.root / "metadata")
    part = PopConsumption(broker.context, metadata, broker.writer, broker_name="b")
    header = PopMessageRequest(
        consumer_group="g", topic="Batches", queue_id=-1, max_msg_nums=1, invisible_time=1,
        poll_time=0,
    )  # fmt: skip
    with pytest.raises(CommandError, match="BatchCQ") as refused:
        await part.handlers.pop(header, Call(FakePeer()))
    assert refused.value.code == ResponseCode.NO_PERMISSION
    body = RequestModeBody(topic="Batches", consumer_group="g", mode="POP")
    with pytest.raises(CommandError, match="BatchCQ"):
        await part.assignment.set_message_request_mode(RequestModeRequest(), Call(FakePeer(), body=body))


async def test_one_message_of_a_batch_is_sent_back(broker: Broker) -> None:
    """By its own id: the place in the log is that of all of them."""
    ok(send_batch(broker, items(3)))
    ok(send_batch(broker, items(1, 9)))
    broker.tick()
    _, second = (broker.store.find_queue("Batches", 0).unit(at)[0] for at in (0, 3))  # type: ignore[union-attr]

    async def back(offset: int, key: str | None) -> None:
        header = SendBackRequest(offset=offset, group="g", delay_level=0, origin_msg_id=key)
        await broker.handlers.send_back.send_back(header, Call(FakePeer()))
        broker.tick()

    await back(0, "AC0001")
    await back(second, None)
    for key in (None, "AC0009", ""):
        with pytest.raises(CommandError, match="no message with the originMsgId"):
            await back(0, key)
    queue = broker.store.find_queue(SCHEDULE_TOPIC, 2)
    assert queue is not None
    records = [decode(broker.store.commit_log.view(at, size)) for at, size, _ in queue.units(0, 9)]
    assert [(each.body, each.flag, each.sys_flag) for each in records] == [
        (b"item 1", 1, 0),
        (b"item 9", 9, 0),
    ]
    properties = parse_properties(records[0].properties)
    assert (properties["UNIQ_KEY"], properties["RETRY_TOPIC"]) == ("AC0001", "Batches")
    assert not {"INNER_NUM", "INNER_BASE"} & properties.keys()


# -- clients -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [b"", b"short", items(2)[:-1], items(1) + b"x", items(1)[:20] + b"\x7f\xff"])
def test_a_batch_that_cannot_be_taken_apart_comes_as_it_is(broker: Broker, body: bytes) -> None:
    """As with RocketMQ's clients; it holds up neither what is behind it nor a search by key."""
    ok(send_batch(broker, items(1)))
    broker.tick()
    record = decode(broker.store.commit_log.view(0, 1 << 16))
    broken = encode(replace(record, body=body))
    found = decode_messages(broken + encode(record))
    assert [each.body for each in found] == [body, b"item 0"]
    assert found[0].properties["INNER_NUM"] == "1"
    assert keys_of(broken) == []


def alter_topic(broker: TestBroker, name: str, *attributes: str) -> str:
    """Why not; "": it is done."""
    target = ("-b", broker.broker_addr, "-t", name, "-r", "1", "-w", "1")
    result = mqadmin("updateTopic", *target, *attributes)
    return "" if result.exit_code == 0 else result.output


async def route(consumer: PullConsumer, topic: str) -> None:
    """Until it is there."""
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(PullError):
                if len(await consumer.fetch_queues(topic)) == 1:
                    return
            await asyncio.sleep(0.01)


@pytest.mark.slow
def test_from_the_producer_to_the_consumer(test_broker: TestBroker) -> None:
    """mqadmin makes the topic; our clients send, read, fail, and find by key."""
    address = test_broker.namesrv_addr
    assert not alter_topic(test_broker, "E2E", "-a", "+queue.type=BatchCQ")
    sent = asyncio.run(_send_and_read(address))
    for number, each in enumerate(sent):
        found = mqadmin("queryMsgByUniqueKey", "-n", address, "-t", "E2E", "-i", each.msg_id, "--json")
        assert [message["body"] for message in json.loads(found.stdout)] == [str(number)]
    found = mqadmin("queryMsgById", "-n", address, "-t", "E2E", "-i", sent[0].offset_msg_id, "--json")
    assert [message["queueOffset"] for message in json.loads(found.stdout)] == [0, 1, 2, 3, 4]


async def _send_and_read(address: str) -> list[SendResult]:
    async with PullConsumer(address) as consumer, Producer(address) as producer:
        await route(consumer, "E2E")
        batch = [Message("E2E", b"%d" % number, tags="AB"[number % 2]) for number in range(5)]
        sent = await producer.send_batch(batch)
        alone = await producer.send(Message("E2E", b"alone", tags="A"))
        assert [each.queue_offset for each in (*sent, alone)] == [0, 1, 2, 3, 4, 5]
        assert len({each.offset_msg_id for each in sent}) == 1
        queue = MessageQueue("E2E", alone.broker_name, 0)
        assert await consumer.max_offset(queue) == 6
        result = await consumer.pull(queue, 3)
        assert [(each.queue_offset, each.body) for each in result.messages] == [
            (3, b"3"), (4, b"4"), (5, b"alone")
        ]  # fmt: skip
        stored = result.messages[0].store_timestamp
        assert (await consumer.offset_at(queue, stored), await consumer.offset_at(queue, stored + 1)) in (
            (0, 5), (0, 6)
        )  # fmt: skip
        result = await consumer.pull(queue, 0, 1, subscription="B")
        assert ([each.body for each in result.messages], result.next_begin_offset) == ([b"1", b"3"], 6)
        assert (await consumer.pull(queue, 6)).status is PullStatus.NO_NEW_MSG
    failed: list[bytes] = []

    def fail(message: MessageExt) -> BaseException | None:
        if message.body != b"2" or failed:
            return None
        failed.append(message.body)
        return ValueError("once")

    seen = Seen(fail)
    async with PushConsumer(address, "g-E2E", seen, settings=FIRST).subscribe("E2E"):
        bodies = await seen.has(7)
    assert sorted(bodies) == [b"0", b"1", b"2", b"2", b"3", b"4", b"alone"]
    assert [each.reconsume_times for each in seen.messages if each.body == b"2"] == [0, 1]
    return sent


def test_a_topic_keeps_its_type(test_broker: TestBroker) -> None:
    """Also one that was deleted, while its queues number something."""
    address = test_broker.namesrv_addr
    assert not alter_topic(test_broker, "Was", "-a", "+queue.type=BatchCQ")
    assert "unchangeable" in alter_topic(test_broker, "Was", "-a", "+queue.type=SimpleCQ")
    assert not alter_topic(test_broker, "Was")

    async def send() -> None:
        async with Producer(address) as producer:
            await producer.send(Message("Was", b""), queue=MessageQueue("Was", "test-broker", 0))

    asyncio.run(send())
    assert mqadmin("deleteTopic", "-n", address, "-c", "DefaultCluster", "-t", "Was").exit_code == 0
    assert "Was was a topic with queue.type=BatchCQ" in alter_topic(test_broker, "Was")
    assert not alter_topic(test_broker, "Was", "-a", "+queue.type=BatchCQ")


# -- a group of brokers --------------------------------------------------------------------------------------


async def test_batches_outlive_their_master(tmp_path: Path) -> None:
    """The replicas have them byte for byte, the next master goes on counting, confirmOffset covers them."""
    async with trio(tmp_path) as group:
        master = group.master
        master.topics.update(
            TopicConfig(topic_name="Batches", read_queue_nums=1, write_queue_nums=1, attributes=BATCH_CQ)
        )
        header = SendMessageRequestV2(a="P", b="Batches", e=0, g=1, m=True)

        async def send(body: bytes) -> SendMessageResponse:
            outcome = await group.client.call(group.master.address, SEND_MESSAGE_V2, header, body)
            assert isinstance(outcome, Ok), outcome
            return outcome.header

        assert [(await send(items(count))).queue_offset for count in (3, 2)] == [0, 3]
        before = messages(master.store)
        assert len(before) == 5
        log = bytes(master.store.commit_log.view(0, 1 << 18))
        await group.lose_master()
        answer = await send(items(4))
        assert (answer.queue_offset, answer.batch_uniq_id is not None) == (5, True)
        store = group.master.store
        assert bytes(store.commit_log.view(0, len(log))) == log
        assert messages(store)[:5] == before
        assert len(messages(store)) == 9
