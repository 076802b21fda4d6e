"""Questions that a broker hands on to a consumer, over the consumer's own connection."""

import asyncio
from pathlib import Path

import pytest

from broker.app import Broker
from remoting.client import RemotingClient
from remoting.codes import ResponseCode
from remoting.operation import Call, Empty, Failed, Ok, OperationTable, Reply
from remoting.operations.broker import SEND_MESSAGE_V2, SendMessageRequestV2
from remoting.operations.clients import (
    CONSUME_MESSAGE_DIRECTLY,
    GET_CONSUMER_RUNNING_INFO,
    HEART_BEAT,
    NOTIFY_CONSUMER_IDS_CHANGED,
    ConsumerCallRequest,
    ConsumerData,
    ConsumerGroupRequest,
    HeartbeatData,
)
from tests.unit.test_broker_app import config

ASKED = ConsumerCallRequest(consumer_group="g", client_id="c@1")


class Consumer:
    """Answers what a consumer is asked."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.told = asyncio.Event()
        self.silent = False
        table = OperationTable()
        table.bind(GET_CONSUMER_RUNNING_INFO, self.running_info)
        table.bind(CONSUME_MESSAGE_DIRECTLY, self.consume)
        table.bind(NOTIFY_CONSUMER_IDS_CHANGED, self.changed)
        self.client = RemotingClient(table)

    async def running_info(self, header: ConsumerCallRequest, call: Call) -> Reply | None:
        return None if self.silent else Reply(body={"properties": {}})

    async def consume(self, header: ConsumerCallRequest, call: Call) -> Reply:
        self.seen.append(call.raw_body)
        return Reply(body=b'{"consumeResult":"CR_SUCCESS"}')

    async def changed(self, header: ConsumerGroupRequest, call: Call) -> None:
        self.told.set()

    async def join(self, broker: Broker) -> None:
        body = HeartbeatData(clientID="c@1", consumer_data_set=[ConsumerData(group_name="g")])
        assert isinstance(await self.client.call(broker.address, HEART_BEAT, Empty(), body), Ok)
        await self.told.wait()


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


async def test_a_consumer_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.clients.calls.ConsumerCalls.__init__.__kwdefaults__", {"answer_ms_max": 30})
    consumer, tool = Consumer(), RemotingClient()
    consumer.silent = True
    async with Broker(config(tmp_path)) as broker:
        await consumer.join(broker)
        outcome = await tool.call(broker.address, GET_CONSUMER_RUNNING_INFO, ASKED)
        assert isinstance(outcome, Failed) and outcome.code == ResponseCode.CONSUME_MSG_TIMEOUT
        await consumer.client.close()
        await tool.close()
