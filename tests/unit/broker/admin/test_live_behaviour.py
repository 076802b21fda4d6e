"""Each setting here is changed in a running broker (25), and the same request gets another answer."""

import asyncio
import threading
from pathlib import Path

import pytest

from broker.app.broker import Broker
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Empty, Failed, Ok, Operation, Wire
from keelmq.remoting.operations.broker import (
    PULL_MESSAGE,
    SEND_MESSAGE_V2,
    PullMessageRequest,
    SendMessageRequestV2,
)
from keelmq.remoting.operations.broker_admin import UPDATE_BROKER_CONFIG
from tests.support.reach_in import sync_by
from tests.unit.broker.app.test_broker_app import config

FAR_FUTURE_MS = 4_102_444_800_000
PREPARED = 4
PLAIN = SendMessageRequestV2(a="g", b="T", e=0, g=1)
NEW_TOPIC = SendMessageRequestV2(a="g", b="U", e=0, g=1)
HALF = SendMessageRequestV2(a="g", b="T", e=0, f=PREPARED, g=1, i="TRAN_MSG\x01true\x02PGROUP\x01g")
TIMER = SendMessageRequestV2(a="g", b="T", e=0, g=1, i="TIMER_DELAY_SEC\x015")
PULL = PullMessageRequest(consumer_group="h", topic="T", queue_id=0, queue_offset=0, max_msg_nums=1)

CASES: list[tuple[str, Operation, Wire, int]] = [  # type: ignore[type-arg]
    ("maxMessageSize=1", SEND_MESSAGE_V2, PLAIN, ResponseCode.MESSAGE_ILLEGAL),
    ("autoCreateTopicEnable=false", SEND_MESSAGE_V2, NEW_TOPIC, ResponseCode.TOPIC_NOT_EXIST),
    ("autoCreateTopicMax=1", SEND_MESSAGE_V2, NEW_TOPIC, ResponseCode.TOPIC_NOT_EXIST),
    (f"startAcceptSendRequestTimeStamp={FAR_FUTURE_MS}", SEND_MESSAGE_V2, PLAIN, ResponseCode.SYSTEM_ERROR),
    ("rejectTransactionMessage=true", SEND_MESSAGE_V2, HALF, ResponseCode.NO_PERMISSION),
    ("timerWheelEnable=false", SEND_MESSAGE_V2, TIMER, ResponseCode.SYSTEM_ERROR),
    ("timerMaxDelaySec=4", SEND_MESSAGE_V2, TIMER, ResponseCode.MESSAGE_ILLEGAL),
    ("autoCreateSubscriptionGroup=false", PULL_MESSAGE, PULL, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
    ("autoCreateSubscriptionGroupMax=1", PULL_MESSAGE, PULL, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
    ("brokerPermission=2", PULL_MESSAGE, PULL, ResponseCode.NO_PERMISSION),
]


async def change(client: RemotingClient, broker: Broker, text: str) -> None:
    outcome = await client.call(broker.address, UPDATE_BROKER_CONFIG, Empty(), text.encode())
    assert isinstance(outcome, Ok), outcome


@pytest.mark.parametrize(("text", "operation", "header", "code"), CASES, ids=[each[0] for each in CASES])
async def test_the_same_request_gets_another_answer(
    tmp_path: Path,
    client: RemotingClient,
    text: str,
    operation: Operation,  # type: ignore[type-arg]
    header: Wire,
    code: int,
) -> None:
    async with Broker(config(tmp_path / "before")) as broker:
        await client.call(broker.address, SEND_MESSAGE_V2, PLAIN, b"first")
        assert isinstance(await client.call(broker.address, operation, header, b"body"), Ok)
    async with Broker(config(tmp_path / "after")) as broker:
        await client.call(broker.address, SEND_MESSAGE_V2, PLAIN, b"first")
        await change(client, broker, text)
        answer = await client.call(broker.address, operation, header, b"body")
        assert isinstance(answer, Failed) and answer.code == code, answer


async def test_a_lone_master_waits_for_its_disk_or_not(tmp_path: Path, client: RemotingClient) -> None:
    """A consumer sees nothing that is not on disk, either."""
    disk = threading.Event()
    async with Broker(config(tmp_path, sync_flush_timeout=60_000)) as broker:
        log = broker.store.commit_log

        def sync() -> int:
            assert disk.wait(30)
            return log.sync()

        sync_by(broker.commit, sync)
        assert isinstance(await client.call(broker.address, SEND_MESSAGE_V2, PLAIN, b"1"), Ok)
        await change(client, broker, "flushDiskType=SYNC_FLUSH\nsyncFlushTimeout=200")
        late = await client.call(broker.address, SEND_MESSAGE_V2, PLAIN, b"2")
        assert isinstance(late, Failed) and late.code == ResponseCode.FLUSH_DISK_TIMEOUT
        assert broker.store.confirm_offset < log.max_offset
        await change(client, broker, "flushDiskType=ASYNC_FLUSH")
        assert broker.store.confirm_offset == log.max_offset
        assert isinstance(await client.call(broker.address, SEND_MESSAGE_V2, PLAIN, b"3"), Ok)
        await change(client, broker, "flushDiskType=SYNC_FLUSH\nsyncFlushTimeout=60000")
        waiting = asyncio.create_task(client.call(broker.address, SEND_MESSAGE_V2, PLAIN, b"4"))
        disk.set()
        assert isinstance(await waiting, Ok), "and the disk is asked"
