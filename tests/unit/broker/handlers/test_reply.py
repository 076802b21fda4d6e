"""Request and response between two clients: the reply reaches who asked, or the replier is told why not."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from broker.app.broker import Broker
from broker.config.broker_config import BrokerConfig
from broker.message.record import decode, host_bytes, host_text, parse_properties
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Call, CommandError, Empty, Failed, Ok, OperationTable
from keelmq.remoting.operations.broker import SendMessageRequestV2
from keelmq.remoting.operations.clients import HEART_BEAT, HeartbeatData, ProducerData
from keelmq.remoting.operations.replies import (
    PUSH_REPLY_MESSAGE_TO_CLIENT,
    SEND_REPLY_MESSAGE,
    SEND_REPLY_MESSAGE_V2,
    PushReplyRequest,
    PushReplyResponse,
    SendReplyRequest,
)
from tests.support.server_parts import until

pytestmark = pytest.mark.timeout(20)


class Desk:
    """A broker, a client that asks, and one that replies."""

    def __init__(self, broker: Broker) -> None:
        self.broker, self.pushed = broker, list[tuple[PushReplyRequest, Call]]()
        self.answers_with: int = ResponseCode.SUCCESS
        self.silent: asyncio.Event | None = None
        table = OperationTable()
        table.bind(PUSH_REPLY_MESSAGE_TO_CLIENT, self._receive)
        self.asker, self.replier = RemotingClient(table), RemotingClient()

    async def _receive(self, header: PushReplyRequest, call: Call) -> PushReplyResponse:
        self.pushed.append((header, call))
        if self.silent is not None:
            await self.silent.wait()
        if self.answers_with != ResponseCode.SUCCESS:
            raise CommandError(self.answers_with, "nobody waits for it")
        return PushReplyResponse()

    async def appear(self, client_id: str) -> None:
        body = HeartbeatData(clientID=client_id, producer_data_set=[ProducerData(group_name="Askers")])
        assert isinstance(await self.asker.call(self.broker.address, HEART_BEAT, Empty(), body), Ok)

    async def reply(self, *, topic: str = "C_REPLY_TOPIC", **properties: str) -> Any:
        text = "".join(f"{key}\x01{value}\x02" for key, value in properties.items())
        header = SendMessageRequestV2(a="Repliers", b=topic, e=0, g=5, h=3, i=text)
        return await self.replier.call(self.broker.address, SEND_REPLY_MESSAGE_V2, header, b"answer")


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    config = {
        "brokerClusterName": "C", "bindAddress": "127.0.0.1", "listenPort": 0, "httpPort": -1,
        "telemetryEnable": False, "storePathRootDir": tmp_path, "mappedFileSizeCommitLog": 1 << 16,
    }  # fmt: skip
    async with Broker(BrokerConfig.model_validate(config)) as broker:
        made = Desk(broker)
        yield made
        await made.asker.close()
        await made.replier.close()


async def test_a_reply_reaches_who_asked(desk: Desk) -> None:
    """It is kept as well: the answer names where."""
    await desk.appear("10.0.0.1@7")
    outcome = await desk.reply(REPLY_TO_CLIENT="10.0.0.1@7", CORRELATION_ID="c-1", UNIQ_KEY="K")
    assert isinstance(outcome, Ok) and outcome.header.queue_offset == 0
    ((header, call),) = desk.pushed
    assert bytes(call.body) == b"answer" and (header.topic, header.flag) == ("C_REPLY_TOPIC", 3)
    assert header.store_host == host_text(desk.broker.store.store_host) and header.born_timestamp == 5
    properties = parse_properties((header.properties or "").encode())
    assert properties["CORRELATION_ID"] == "c-1" and properties["PUSH_REPLY_TIME"] == str(
        header.store_timestamp
    )
    queue = desk.broker.store.find_queue("C_REPLY_TOPIC", 0)
    assert queue is not None
    offset, size, _ = queue.unit(0)
    record = decode(desk.broker.store.commit_log.view(offset, size))
    assert record.body == b"answer" and parse_properties(record.properties)["CLUSTER"] == "C"
    assert outcome.header.msg_id.endswith(f"{offset:016X}")


async def test_long_names_too(desk: Desk) -> None:
    await desk.appear("A")
    header = SendReplyRequest(topic="C_REPLY_TOPIC", properties="REPLY_TO_CLIENT\x01A", born_timestamp=1)
    outcome = await desk.replier.call(desk.broker.address, SEND_REPLY_MESSAGE, header, b"x")
    assert isinstance(outcome, Ok) and len(desk.pushed) == 1


async def test_the_replier_is_told_what_went_wrong(desk: Desk) -> None:
    cases: list[tuple[dict[str, str], str]] = [
        ({}, "REPLY_TO_CLIENT is null"),
        ({"REPLY_TO_CLIENT": "gone"}, "not found"),
    ]
    for properties, says in cases:
        outcome = await desk.reply(**properties)
        assert isinstance(outcome, Failed) and outcome.code == ResponseCode.SYSTEM_ERROR
        assert says in outcome.remark
    outcome = await desk.reply(topic="Absent", REPLY_TO_CLIENT="A")
    assert isinstance(outcome, Failed) and outcome.code == ResponseCode.TOPIC_NOT_EXIST
    for topic in ("RMQ_SYS_TRANS_OP_HALF_TOPIC", "rmq_sys_wheel_timer", "rmq_sys_REVIVE_LOG_C"):
        outcome = await desk.reply(topic=topic, REPLY_TO_CLIENT="A")
        assert isinstance(outcome, Failed) and outcome.code == ResponseCode.NO_PERMISSION
    await desk.appear("A")
    desk.answers_with = ResponseCode.SYSTEM_ERROR
    outcome = await desk.reply(REPLY_TO_CLIENT="A")
    assert isinstance(outcome, Failed) and "nobody waits" in outcome.remark


@pytest.fixture
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a broker that is made after it: clients get 50 ms to answer."""
    monkeypatch.setattr("broker.handlers.reply.ANSWER_MS_MAX", 50)


async def test_a_client_that_does_not_answer(short_wait: None, desk: Desk) -> None:
    await desk.appear("A")
    desk.silent = asyncio.Event()
    outcome = await desk.reply(REPLY_TO_CLIENT="A")
    assert isinstance(outcome, Failed) and "has not answered" in outcome.remark
    desk.silent.set()


async def test_a_reply_to_a_client_that_has_left(desk: Desk) -> None:
    """Its connection is gone, and with it whom to push to."""
    await desk.appear("A")
    await desk.asker.close()
    registry = desk.broker.clients.registry
    await until(lambda: registry.find_producer("A") is None)
    registry.check_invariants()
    outcome = await desk.reply(REPLY_TO_CLIENT="A")
    assert isinstance(outcome, Failed) and "not found" in outcome.remark


def test_hosts_as_text() -> None:
    for host in ("10.1.2.3", "fd00::5"):
        assert host_text(host_bytes(host, 10911)) == f"{host}:10911"
