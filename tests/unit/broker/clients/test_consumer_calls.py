"""Questions that a broker hands on to a consumer, over the consumer's own connection."""

import asyncio
from pathlib import Path

import pytest

from broker.app.broker import Broker
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Call, Empty, Failed, Ok, OperationTable, Reply
from keelmq.remoting.operations.broker import SEND_MESSAGE_V2, SendMessageRequestV2
from keelmq.remoting.operations.clients import (
    CONSUME_MESSAGE_DIRECTLY,
    GET_CONSUMER_RUNNING_INFO,
    GET_CONSUMER_STATUS_FROM_CLIENT,
    HEART_BEAT,
    INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
    NOTIFY_CONSUMER_IDS_CHANGED,
    ConsumerCallRequest,
    ConsumerData,
    ConsumerGroupRequest,
    ConsumerStatusRequest,
    HeartbeatData,
)
from keelmq.remoting.queue_map import QueueKey, dump_queue_map
from tests.unit.broker.app.test_broker_app import config

ASKED = ConsumerCallRequest(consumer_group="g", client_id="c@1")
STATUS = ConsumerStatusRequest(topic="T", group="g")


class Consumer:
    """Answers what a consumer is asked."""

    def __init__(self, client_id: str = "c@1", offset: int = 7) -> None:
        self.client_id, self.offset = client_id, offset
        self.seen: list[bytes] = []
        self.asked: list[ConsumerStatusRequest] = []
        self.told = asyncio.Event()
        self.silent, self.padding = False, ""
        table = OperationTable()
        table.bind(GET_CONSUMER_STATUS_FROM_CLIENT, self.status)
        table.bind(GET_CONSUMER_RUNNING_INFO, self.running_info)
        table.bind(CONSUME_MESSAGE_DIRECTLY, self.consume)
        table.bind(NOTIFY_CONSUMER_IDS_CHANGED, self.changed)
        self.client = RemotingClient(table)

    async def running_info(self, header: ConsumerCallRequest, call: Call) -> Reply | None:
        return None if self.silent else Reply(body={"properties": {}})

    async def status(self, header: ConsumerStatusRequest, call: Call) -> Reply | None:
        self.asked.append(header)
        queue = QueueKey(header.topic, "b", 0)
        body = dump_queue_map("messageQueueTable", [(queue, self.offset)], consumerTable={}, x=self.padding)
        return None if self.silent else Reply(body=body)

    async def consume(self, header: ConsumerCallRequest, call: Call) -> Reply:
        self.seen.append(call.raw_body)
        assert header.broker_name == "b"  # Java's consumers put it into the message's queue
        return Reply(body=b'{"consumeResult":"CR_SUCCESS"}')

    async def changed(self, header: ConsumerGroupRequest, call: Call) -> None:
        self.told.set()

    async def join(self, broker: Broker) -> None:
        body = HeartbeatData(clientID=self.client_id, consumer_data_set=[ConsumerData(group_name="g")])
        assert isinstance(await self.client.call(broker.address, HEART_BEAT, Empty(), body), Ok)
        await self.told.wait()


@pytest.mark.slow
async def test_consumers_are_asked(tmp_path: Path) -> None:
    consumer, tool = Consumer(), RemotingClient()
    async with Broker(config(tmp_path)) as broker:
        nobody = await tool.call(broker.address, GET_CONSUMER_RUNNING_INFO, ASKED)
        assert isinstance(nobody, Failed) and "not online" in nobody.remark
        await consumer.join(broker)
        outcome = await tool.call(broker.address, GET_CONSUMER_RUNNING_INFO, ASKED)
        assert isinstance(outcome, Ok) and outcome.body == b'{"properties":{}}'
        message = SendMessageRequestV2(a="p", b="T", e=0, g=1)
        sent = await tool.call(broker.address, SEND_MESSAGE_V2, message, b"hello")
        assert isinstance(sent, Ok)
        one = ASKED.model_copy(update={"msg_id": sent.header.msg_id})
        outcome = await tool.call(broker.address, CONSUME_MESSAGE_DIRECTLY, one)
        assert isinstance(outcome, Ok) and outcome.body == b'{"consumeResult":"CR_SUCCESS"}'
        assert b"hello" in consumer.seen[0]
        offset = sent.header.queue_offset  # the only message
        of_ipv6 = ASKED.model_copy(update={"msg_id": f"{1:032X}{10911:08X}{offset:016X}"})
        outcome = await tool.call(broker.address, CONSUME_MESSAGE_DIRECTLY, of_ipv6)
        assert isinstance(outcome, Ok) and b"hello" in consumer.seen[1]
        await consumer.client.close()
        await tool.close()


@pytest.mark.parametrize("message_id", [None, "", "x" * 32, "F" * 32, "0" * 31])
async def test_messages_that_are_not_there(tmp_path: Path, message_id: str | None) -> None:
    tool = RemotingClient()
    async with Broker(config(tmp_path)) as broker:
        header = ASKED.model_copy(update={"msg_id": message_id})
        outcome = await tool.call(broker.address, CONSUME_MESSAGE_DIRECTLY, header)
        assert isinstance(outcome, Failed) and outcome.code == ResponseCode.SYSTEM_ERROR
        await tool.close()


@pytest.mark.slow
async def test_a_consumer_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = {"answer_ms_max": 30, "status_ms_max": 30}
    monkeypatch.setattr("broker.clients.calls.ConsumerCalls.__init__.__kwdefaults__", defaults)
    consumer, tool = Consumer(), RemotingClient()
    consumer.silent = True
    async with Broker(config(tmp_path)) as broker:
        await consumer.join(broker)
        outcome = await tool.call(broker.address, GET_CONSUMER_RUNNING_INFO, ASKED)
        assert isinstance(outcome, Failed) and outcome.code == ResponseCode.CONSUME_MSG_TIMEOUT
        await consumer.client.close()
        await tool.close()


@pytest.mark.slow
async def test_how_far_each_consumer_is(tmp_path: Path) -> None:
    """223: the maps of all members, in the form that fastjson writes."""
    one, two, tool = Consumer(), Consumer("c@2", offset=9), RemotingClient()
    async with Broker(config(tmp_path)) as broker:
        nobody = await tool.call(broker.address, INVOKE_BROKER_TO_GET_CONSUMER_STATUS, STATUS)
        assert isinstance(nobody, Failed) and nobody.code == ResponseCode.SYSTEM_ERROR
        assert nobody.remark == "No Any Consumer online in the consumer group: [g]"
        await one.join(broker)
        await two.join(broker)
        both = await tool.call(broker.address, INVOKE_BROKER_TO_GET_CONSUMER_STATUS, STATUS)
        queue = b'{"brokerName":"b","queueId":0,"topic":"T"}'
        assert isinstance(both, Ok) and both.body == (
            b'{"consumerTable":{"c@1":{%b:7},"c@2":{%b:9}}}' % (queue, queue)
        )
        assert one.asked == [STATUS]
        only = STATUS.model_copy(update={"client_addr": "c@2"})
        second = await tool.call(broker.address, INVOKE_BROKER_TO_GET_CONSUMER_STATUS, only)
        assert isinstance(second, Ok) and second.body == b'{"consumerTable":{"c@2":{%b:9}}}' % queue
        unverified_peer = STATUS.model_copy(update={"client_addr": "c@3"})
        outcome = await tool.call(broker.address, INVOKE_BROKER_TO_GET_CONSUMER_STATUS, unverified_peer)
        assert isinstance(outcome, Failed) and "<c@3> not online" in outcome.remark
        for client in (one.client, two.client, tool):
            await client.close()


@pytest.mark.slow
async def test_members_that_are_silent_or_answer_too_much_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = {"answer_ms_max": 100, "status_ms_max": 100}
    monkeypatch.setattr("broker.clients.calls.ConsumerCalls.__init__.__kwdefaults__", defaults)
    one, two, tool = Consumer(), Consumer("c@2"), RemotingClient()
    two.silent = True
    async with Broker(config(tmp_path)) as broker:
        await one.join(broker)
        await two.join(broker)
        outcome = await tool.call(broker.address, INVOKE_BROKER_TO_GET_CONSUMER_STATUS, STATUS)
        assert isinstance(outcome, Ok) and b"c@1" in outcome.body and b"c@2" not in outcome.body
        assert outcome.remark == "1 of 2 consumers have not answered"
        two.silent, two.padding = False, "x" * 1_048_576  # 16 MiB would stop the broker for seconds
        outcome = await tool.call(broker.address, INVOKE_BROKER_TO_GET_CONSUMER_STATUS, STATUS)
        assert isinstance(outcome, Ok) and b"c@1" in outcome.body and b"c@2" not in outcome.body
        one.silent = two.silent = True
        outcome = await tool.call(broker.address, INVOKE_BROKER_TO_GET_CONSUMER_STATUS, STATUS)
        assert isinstance(outcome, Failed) and outcome.code == ResponseCode.CONSUME_MSG_TIMEOUT
        for client in (one.client, two.client, tool):
            await client.close()
