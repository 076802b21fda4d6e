"""rocketmq_rpc_latency: which answers are counted, once each, with RocketMQ's names."""

import asyncio
from pathlib import Path

import pytest

from broker.admission.pending_replies import PendingReplies
from broker.app.broker import Broker
from broker.stats.rpc_latency import RpcLatency, TimedPeer, response_code_of
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import RequestCode, ResponseCode
from keelmq.remoting.command import response_frame
from keelmq.remoting.operation import Call, CommandError, Empty, Failed, Ok, Operation, OperationTable, Reply
from keelmq.remoting.operations.broker import (
    PULL_MESSAGE,
    SEND_MESSAGE_V2,
    PullMessageRequest,
    SendMessageRequestV2,
)
from keelmq.remoting.operations.broker_metadata import UPDATE_AND_CREATE_TOPIC, CreateTopicRequest
from tests.support.handler_context import send_gate
from tests.support.store_parts import FakePeer
from tests.unit.broker.app.test_broker_app import config, send

ASK = Operation(105, "ask", Empty, Empty)


def counts(latency: RpcLatency) -> dict[tuple[str, ...], int]:
    """labels -> answers; those that are not there are left out."""
    return {labels: sum(histogram.counts) for labels, histogram in latency.labelled()}


async def test_sends_and_pulls_of_a_broker(tmp_path: Path, client: RemotingClient) -> None:
    async with Broker(config(tmp_path)) as broker:
        for _ in range(30):  # one by one: the fast path without a batch
            await send(client, broker, b"x")
        header = SendMessageRequestV2(a="g", b="T", e=0, g=1)
        await asyncio.gather(*(client.call(broker.address, SEND_MESSAGE_V2, header, b"x") for _ in range(40)))
        illegal = SendMessageRequestV2(a="g", b="T", e=0, g=1, i="DELAY\x01x\x02")
        assert isinstance(await client.call(broker.address, SEND_MESSAGE_V2, illegal, b"x"), Failed)
        pull = PullMessageRequest(consumer_group="g", topic="T", queue_id=0, queue_offset=0, max_msg_nums=1)
        assert isinstance(await client.call(broker.address, PULL_MESSAGE, pull), Ok)
        refused = pull.model_copy(update={"queue_id": 99})
        assert isinstance(await client.call(broker.address, PULL_MESSAGE, refused), Failed)
        waits = pull.model_copy(update={"queue_offset": 70, "sys_flag": 6, "suspend_timeout_millis": 30_000})
        woken, _ = await asyncio.gather(  # over one connection: the pull arrives first
            client.call(broker.address, PULL_MESSAGE, waits), send(client, broker, b"x")
        )
        assert isinstance(woken, Ok)
        create = CreateTopicRequest(
            topic="New", default_topic="TBW102", read_queue_nums=1, write_queue_nums=1, perm=6
        )
        assert isinstance(await client.call(broker.address, UPDATE_AND_CREATE_TOPIC, create), Ok)
        found = counts(broker.pending.latency)
        created = broker.stats.creations.topics
    # The first send creates the topic, and is answered when the topic is on the disk.
    assert found["send_message_v2", "success", "false", "success"] in (70, 71)
    assert found["send_message_v2", "message_illegal", "false", "success"] == 1
    assert found["pull_message", "success", "false", "success"] == 1
    assert found["pull_message", "success", "true", "success"] == 1
    assert found["pull_message", "invalid_parameter", "false", "success"] == 1
    assert found["update_and_create_topic", "success", "false", "success"] == 1
    assert sum(created["success", "false"].counts) == 1


def test_replies_that_wait_are_counted_when_they_leave() -> None:
    pending, peer = PendingReplies(send_gate()), FakePeer()
    success = response_frame(1, ResponseCode.SUCCESS)
    pending.add(10, peer, success, 0, 2)
    pending.add(20, peer, success, 0, 1, RequestCode.SEND_MESSAGE)
    pending.add(30, peer, success, 0, 1, RequestCode.SEND_MESSAGE)
    pending.release(20)
    found = counts(pending.latency)
    assert found == {
        ("send_message_v2", "success", "false", "success"): 2,
        ("send_message", "success", "false", "success"): 1,
    }
    assert len(pending) == 1
    pending.expire(5_000, 3_000)
    found = counts(pending.latency)
    assert found["send_message", "flush_slave_timeout", "false", "success"] == 1


async def test_coroutine_handlers_by_how_they_end() -> None:
    latency, table = RpcLatency(), OperationTable()
    seen: list[bool] = []

    async def answer(header: Empty, call: Call) -> Reply | None:
        match call.opaque:
            case 1:
                raise CommandError(ResponseCode.NO_PERMISSION, "no")
            case 2:
                raise ZeroDivisionError
            case 3:
                return None
            case _:
                return Reply()

    table.bind(ASK, answer)
    latency.watch(table, {ASK.code: lambda request, is_success, elapsed_ms: seen.append(is_success)})
    _, handler = table.handlers[ASK.code]
    for opaque in range(5):
        call = Call(FakePeer(), opaque=opaque, is_oneway=opaque == 4)
        if opaque in (1, 2):
            with pytest.raises(CommandError if opaque == 1 else ZeroDivisionError):
                await handler(Empty(), call)
        else:
            await handler(Empty(), call)
    name = "get_routeinfo_by_topic"
    assert counts(latency) == {
        (name, "success", "false", "success"): 1,
        (name, "no_permission", "false", "success"): 1,
        (name, "system_error", "false", "process_request_failed"): 1,
        (name, "success", "false", "oneway"): 1,
    }, "an answer that comes later is counted by those who send it"
    assert seen == [True, False, False, True, True] and not latency.running.total()


def test_a_reply_after_long_polling_says_so() -> None:
    latency, peer = RpcLatency(), FakePeer()
    timed = TimedPeer(peer, latency, RequestCode.POP_MESSAGE)
    timed.is_long_polling = True
    frame = response_frame(7, ResponseCode.POLLING_TIMEOUT)
    assert response_code_of(frame) == ResponseCode.POLLING_TIMEOUT
    timed.send(frame)
    assert counts(latency) == {("pop_message", "polling_timeout", "true", "success"): 1}
