"""What a consumer tells operators about itself: mqadmin's questions, by way of a real broker."""

from typing import Any

import pytest

from keelmq.client import (
    ConsumeFromWhere,
    ConsumerSettings,
    LitePullConsumer,
    Message,
    Producer,
    PushConsumer,
    ReconsumeLater,
)
from keelmq.client.admin import AdminClient, AdminError
from keelmq.client.consumer.inspection import Inspection
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Call, CommandError
from keelmq.remoting.operations.clients import (
    INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
    ConsumerCallRequest,
    ConsumerStatusRequest,
)
from keelmq.remoting.queue_map import QueueKey, load_queue_map
from pytest_keelmq.cluster import TestBroker
from tests.support.client_parts import Seen, broker, send, until
from tests.support.reach_in import member_of
from tests.support.store_parts import FakePeer

__all__ = ["broker"]

FIRST = ConsumerSettings(from_where=ConsumeFromWhere.FIRST_OFFSET)


def table_of(info: dict[str, Any], topic: str) -> dict[QueueKey, dict[str, Any]]:
    return {queue: state for queue, state in info["mqTable"].items() if queue.topic == topic}


async def finished(consumer: PushConsumer, topic: str, count: int) -> None:
    """So many messages of the topic are done, and counted."""
    workers = member_of(consumer).process_queues

    def done() -> int:
        return sum(each.commit_offset or 0 for queue, each in workers.items() if queue.topic == topic)

    await until(lambda: done() == count, f"{count} messages of {topic}")


async def test_the_state_of_a_consumer(broker: TestBroker, admin: AdminClient) -> None:
    broker.create_topic("Told", queues=1)
    seen = Seen()
    seen.gate.clear()
    await send(broker, "Told", 3)
    async with PushConsumer(broker.namesrv_addr, "told", seen, settings=FIRST).subscribe(
        "Told", "*"
    ) as consumer:
        await until(lambda: seen.running == 3, "three listeners")
        info = await admin.groups.running_info(broker.broker_addr, "told", consumer.client_id)
        (state,) = table_of(info, "Told").values()
        assert (state["cachedMsgCount"], state["cachedMsgMinOffset"], state["cachedMsgMaxOffset"]) == (
            3,
            0,
            2,
        )
        assert (state["commitOffset"], state["droped"], state["locked"]) == (0, False, True)
        assert state["lastPullTimestamp"] > 0 and state["lastConsumeTimestamp"] == 0
        properties = info["properties"]
        assert (properties["PROP_CONSUMEORDERLY"], properties["PROP_CONSUME_TYPE"]) == (
            "false", "CONSUME_PASSIVELY",
        )  # fmt: skip
        assert properties["PROP_NAMESERVER_ADDR"] == broker.namesrv_addr
        assert {each["topic"] for each in info["subscriptionSet"]} == {"Told", "%RETRY%told"}
        assert "jstack" not in info
        seen.gate.set()
        await finished(consumer, "Told", 3)
        info = await admin.groups.running_info(broker.broker_addr, "told", consumer.client_id, jstack=True)
        (state,) = table_of(info, "Told").values()
        assert (state["cachedMsgCount"], state["commitOffset"]) == (0, 3) and state[
            "lastConsumeTimestamp"
        ] > 0
        assert "MainThread" in info["jstack"] and "task pulls of " in info["jstack"]
        consumer.pause()
        info = await admin.groups.running_info(broker.broker_addr, "told", consumer.client_id)
        assert info["properties"]["pause"] == "true"


async def test_how_far_it_is(broker: TestBroker, admin: AdminClient) -> None:
    broker.create_topic("Far", queues=2)
    async with Producer(broker.namesrv_addr) as producer:
        for _ in range(4):
            await producer.send(Message("Far", b"x"))
    seen = Seen()
    async with PushConsumer(broker.namesrv_addr, "far", seen, settings=FIRST).subscribe("Far") as consumer:
        await finished(consumer, "Far", 4)
        header = ConsumerStatusRequest(topic="Far", group="far")
        answer = await admin.ask(broker.broker_addr, INVOKE_BROKER_TO_GET_CONSUMER_STATUS, header)
        _, members = load_queue_map(bytes(answer.body), "")
        (told,) = members["consumerTable"].values()
        assert list(members["consumerTable"]) == [consumer.client_id]
        queues = {QueueKey.from_json(key) for key in told}
        assert queues == {QueueKey("Far", "test-broker", number) for number in (0, 1)}
        assert sum(told.values()) == 4


async def test_a_message_is_handled_once_more(broker: TestBroker, admin: AdminClient) -> None:
    """Whatever comes of it, no offset moves and nothing is sent back."""
    broker.create_topic("Once", queues=1)
    fail: list[BaseException | None] = [None]
    seen = Seen(lambda _: fail[0])
    async with PushConsumer(broker.namesrv_addr, "once", seen, settings=FIRST).subscribe("Once") as consumer:
        async with Producer(broker.namesrv_addr) as producer:
            sent = await producer.send(Message("Once", b"again"))
        await finished(consumer, "Once", 1)

        async def handled() -> dict[str, Any]:
            return await admin.groups.consume_directly(
                broker.broker_addr, "once", consumer.client_id, sent.offset_msg_id
            )

        told = await handled()
        assert (told["consumeResult"], told["order"], told["remark"]) == ("CR_SUCCESS", False, None)
        assert seen.bodies == [b"again", b"again"]
        fail[0] = ReconsumeLater("not now")
        told = await handled()
        assert (told["consumeResult"], told["remark"]) == ("CR_LATER", "not now")
        fail[0] = ValueError("broken")
        told = await handled()
        assert (told["consumeResult"], told["remark"]) == ("CR_THROW_EXCEPTION", "ValueError('broken')")
        info = await admin.groups.running_info(broker.broker_addr, "once", consumer.client_id)
        assert [state["commitOffset"] for state in table_of(info, "Once").values()] == [1]
        with pytest.raises(AdminError, match="there is no message"):
            await admin.groups.consume_directly(broker.broker_addr, "once", consumer.client_id, "F" * 32)
    assert len(seen.bodies) == 4


async def test_an_orderly_consumer(broker: TestBroker, admin: AdminClient) -> None:
    broker.create_topic("Lined", queues=1)
    seen = Seen()
    settings = FIRST
    async with PushConsumer(broker.namesrv_addr, "lined", seen, settings=settings, orderly=True).subscribe(
        "Lined"
    ) as consumer:
        await send(broker, "Lined", 1)
        await seen.has(1)
        info = await admin.groups.running_info(broker.broker_addr, "lined", consumer.client_id)
        assert info["properties"]["PROP_CONSUMEORDERLY"] == "true"
        (state,) = table_of(info, "Lined").values()
        assert state["locked"] and state["lastLockTimestamp"] > 0


async def test_one_that_polls_has_no_listener(broker: TestBroker, admin: AdminClient) -> None:
    broker.create_topic("Polled", queues=1)
    await send(broker, "Polled", 1)
    async with LitePullConsumer(broker.namesrv_addr, "polled", settings=FIRST).subscribe(
        "Polled"
    ) as consumer:
        (message,) = await consumer.poll(timeout_ms=10_000)
        info = await admin.groups.running_info(broker.broker_addr, "polled", consumer.client_id)
        assert info["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_ACTIVELY"
        with pytest.raises(AdminError, match="lite pull consumer") as caught:
            await admin.groups.consume_directly(
                broker.broker_addr, "polled", consumer.client_id, message.offset_msg_id
            )
        assert caught.value.code == ResponseCode.SYSTEM_ERROR


async def test_questions_for_another_group_and_no_message(broker: TestBroker) -> None:
    """Brokers ask only clients of the group: this is a client that has left it, or a broken broker."""
    consumer = PushConsumer(broker.namesrv_addr, "mine", Seen())
    told = Inspection(member_of(consumer), "h:1", Seen().__call__, orderly=False)  # type: ignore[arg-type]
    call = Call(FakePeer(), raw_body=b"no message")
    theirs = ConsumerCallRequest(consumer_group="theirs", client_id="c")
    for ask in (told.running_info, told.consume_directly):
        with pytest.raises(CommandError, match="<theirs> not exist in this consumer"):
            await ask(theirs, call)
    with pytest.raises(CommandError, match="<theirs> not exist in this consumer"):
        await told.status(ConsumerStatusRequest(topic="T", group="theirs"), call)
    with pytest.raises(CommandError, match="the body is not a message"):
        await told.consume_directly(theirs.model_copy(update={"consumer_group": "mine"}), call)
    await consumer.close()
