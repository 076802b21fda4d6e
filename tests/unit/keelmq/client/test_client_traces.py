"""Message traces of our clients: RocketMQ's records in the trace topic, and what they must never cost."""

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from keelmq.blocking import BlockingProducer
from keelmq.client import (
    ClientHook,
    ConsumeFromWhere,
    ConsumerSettings,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    ReconsumeLater,
    SendError,
    SendTrace,
    TraceHook,
    TransactionProducer,
    TransactionState,
)
from keelmq.client.core.traces import (
    BODY_CHARS_MAX,
    KEY_CHARS_MAX,
    ContextCode,
    MsgType,
    TraceBuffer,
    TraceRecord,
    end_transaction,
    fields_of,
    pub,
    sub_after,
    sub_before,
)
from keelmq.client.message import MessageExt, decode_messages
from keelmq.client.tracing import TRACE_TOPIC
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Ok
from keelmq.remoting.operations.broker import QUERY_MESSAGE, QueryMessageRequest
from keelmq.runtime.backoff import Backoff
from pytest_keelmq.cluster import TestBroker
from tests.support.client_parts import Seen, until
from tests.support.fake_cluster import FakeBroker, FakeNameServer

FIRST = ConsumerSettings(from_where=ConsumeFromWhere.FIRST_OFFSET)

# -- the text, byte for byte -------------------------------------------------------------------------------


def test_the_records_as_java_writes_them() -> None:
    """Made by RocketMQ's TraceDataEncoder, with null tags, keys with a blank, and every kind."""
    records = [
        pub(
            time_ms=1795247422220, region="DefaultRegion", group="PG", topic="T", msg_id="0A00", tags=None,
            keys="k1 k2", store_host="10.0.0.1:10911", body_bytes=5, cost_ms=3, msg_type=MsgType.DELAY,
            offset_msg_id="7F", success=True,
        ),
        sub_before(
            time_ms=1795247422230, region="DefaultRegion", group="CG", request_id="AB", msg_id="0A00",
            retry_times=2, keys=None,
        ),
        sub_after(
            time_ms=1795247422240, group="CG", request_id="AB", msg_id="0A00", cost_ms=10, success=False,
            keys=None, code=ContextCode.FAILED,
        ),
        end_transaction(
            time_ms=1795247422250, region="DefaultRegion", group="PG", topic="T", msg_id="0A00", tags="TagA",
            keys=None, store_host="10.0.0.1:10911", transaction_id="0A00", committed=False, from_check=True,
        ),
    ]  # fmt: skip
    assert "".join(record.text for record in records) == (
        "Pub\x011795247422220\x01DefaultRegion\x01PG\x01T\x010A00\x01null\x01k1 k2\x0110.0.0.1:10911\x015\x01"
        "3\x013\x017F\x01true\x02"
        "SubBefore\x011795247422230\x01DefaultRegion\x01CG\x01AB\x010A00\x012\x01null\x02"
        "SubAfter\x01AB\x010A00\x0110\x01false\x01null\x014\x011795247422240\x01CG\x02"
        "EndTransaction\x011795247422250\x01DefaultRegion\x01PG\x01T\x010A00\x01TagA\x01null\x01"
        "10.0.0.1:10911\x012\x010A00\x01ROLLBACK_MESSAGE\x01true\x02"
    )
    assert records[0].keys == ("0A00", "k1", "k2") and records[1].keys == ("0A00",)


def test_no_record_ends_with_an_empty_field() -> None:
    """Java's split drops those, and its reader fails with an index that is out of bounds."""
    empty: dict[str, Any] = {"time_ms": 0, "msg_id": "", "group": "g"}
    lines = fields_of(
        "".join(
            record.text
            for record in (
                pub(
                    **empty, region="", topic="", tags="", keys="", store_host="", body_bytes=0, cost_ms=0,
                    msg_type=MsgType.NORMAL, offset_msg_id="", success=False,
                ),
                sub_before(**empty, region="", request_id="", retry_times=0, keys=""),
                sub_after(
                    **empty, request_id="", cost_ms=0, success=True, keys="", code=ContextCode.SUCCESS
                ),
                end_transaction(
                    **empty, region="", topic="", tags="", keys="", store_host="", transaction_id="",
                    committed=True, from_check=False,
                ),
            )
        )
    )  # fmt: skip
    assert [(line[0], len(line)) for line in lines] == [
        ("Pub", 14), ("SubBefore", 8), ("SubAfter", 9), ("EndTransaction", 13),
    ]  # fmt: skip
    assert all(line[-1] for line in lines)


# -- the buffer --------------------------------------------------------------------------------------------


def test_the_buffer_is_bounded_and_keeps_the_oldest() -> None:
    buffer = TraceBuffer(3)
    buffer.add(TraceRecord(f"{index}", ()) for index in range(5))
    assert (len(buffer), buffer.dropped) == (3, 2)
    assert buffer.next_message() == ("012", (), 3)
    assert buffer.next_message() is None and len(buffer) == 0


def test_a_trace_message_has_bounded_body_and_keys() -> None:
    """Keys once each; a message of 118,000 characters and the record that made it so."""
    buffer = TraceBuffer(10_000)
    buffer.add([TraceRecord("x" * 1_000, ("same",))] * 200)
    assert buffer.is_worth_a_message
    body, keys, count = buffer.next_message() or ("", (), 0)
    assert (len(body), keys, count) == (BODY_CHARS_MAX, ("same",), 118)
    rest, _, count = buffer.next_message() or ("", (), 0)
    assert (len(rest), count) == (82_000, 82) and not buffer.is_worth_a_message
    buffer.add(TraceRecord("x", (f"{index:032d}",)) for index in range(2_000))
    _, keys, _ = buffer.next_message() or ("", (), 0)
    assert KEY_CHARS_MAX <= len(" ".join(keys)) + 1 < KEY_CHARS_MAX + 33


# -- from messages to records ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBroker]:
    """With the trace topic; asks soon what becomes of a transaction."""
    settings = {"traceTopicEnable": "true", "transactionTimeOut": 200, "transactionCheckInterval": 200}
    with TestBroker(tmp_path_factory.mktemp("broker"), settings) as running:
        yield running


async def records_by_key(broker: TestBroker, key: str) -> list[list[str]]:
    """As mqadmin queryMsgTraceById finds them: by the index, then the records of this message."""
    client = RemotingClient()
    try:
        header = QueryMessageRequest(
            topic=TRACE_TOPIC, key=key, max_num=64, begin_timestamp=0, end_timestamp=(1 << 63) - 1
        )
        outcome = await client.call(broker.broker_addr, QUERY_MESSAGE, header)
    finally:
        await client.close()
    if not isinstance(outcome, Ok):
        return []
    lines = [line for message in decode_messages(outcome.body) for line in fields_of(message.body.decode())]
    return [line for line in lines if key in line]


async def test_a_message_from_send_to_consumption(broker: TestBroker) -> None:
    """One that fails first, and one of a batch. The hook is shared by both clients."""
    broker.create_topic("Traced", queues=1)
    seen = Seen(lambda message: ReconsumeLater() if not message.reconsume_times else None)
    trace = TraceHook()
    async with (
        Producer(broker.namesrv_addr, "PG", hooks=[trace]) as producer,
        PushConsumer(broker.namesrv_addr, "CG", seen, settings=FIRST, hooks=[trace]) as consumer,
    ):
        consumer.subscribe("Traced")
        one = await producer.send(Message("Traced", b"12345", tags="TagA", keys=("order-1", "order-2")))
        batch = await producer.send_batch([Message("Traced", b"%d" % index) for index in range(3)])
        await seen.has(4)
    assert trace.sent == 4 + 2 * 4 and (trace.dropped, trace.failed) == (0, 0), "all is sent at the end"
    published, before, after = sorted(
        await records_by_key(broker, one.msg_id), key=lambda line: ORDER[line[0]]
    )
    assert published[2:10] == [
        "DefaultRegion", "PG", "Traced", one.msg_id, "TagA", "order-1 order-2", broker.broker_addr, "5",
    ]  # fmt: skip
    assert published[11:] == ["0", one.offset_msg_id, "true"]
    assert before[3] == "CG" and before[5:] == [one.msg_id, "0", "order-1 order-2"]
    assert after[1] == before[4] and after[4:7] == ["false", "order-1 order-2", "4"] and after[8] == "CG"
    assert {line[0] for line in await records_by_key(broker, batch[2].msg_id)} == set(ORDER)
    assert await records_by_key(broker, "order-2") == [], "found by its key, but no field is only this key"


ORDER = {"Pub": 0, "SubBefore": 1, "SubAfter": 2}


async def test_how_transactions_ended(broker: TestBroker) -> None:
    """Committed, rolled back, and committed by another producer of the group because the broker asked."""
    broker.create_topic("TracedTx", queues=1)
    seen = Seen()

    async def check(message: MessageExt) -> TransactionState:
        return TransactionState.COMMIT

    trace = TraceHook()
    async with (
        TransactionProducer(broker.namesrv_addr, "TX", check, topics=["TracedTx"], hooks=[trace]) as producer,
        PushConsumer(broker.namesrv_addr, "TXC", seen, settings=FIRST).subscribe("TracedTx"),
    ):
        good = await producer.begin(Message("TracedTx", b"good", tags="T", keys=("k",)))
        bad = await producer.begin(Message("TracedTx", b"bad"))
        assert await good.commit() and await bad.rollback()
        forgotten = await producer.begin(Message("TracedTx", b"forgotten"))
        assert sorted(await seen.has(2)) == [b"forgotten", b"good"]
    half, end = await records_by_key(broker, good.msg_id)
    assert (half[0], half[11]) == ("Pub", "1")
    assert end[0] == "EndTransaction" and end[2:9] == [
        "DefaultRegion", "TX", "TracedTx", good.msg_id, "T", "k", broker.broker_addr,
    ]  # fmt: skip
    assert end[9:] == ["2", good.result.transaction_id or good.msg_id, "COMMIT_MESSAGE", "false"]
    assert (await records_by_key(broker, bad.msg_id))[1][11:] == ["ROLLBACK_MESSAGE", "false"]
    assert (await records_by_key(broker, forgotten.msg_id))[1][11:] == ["COMMIT_MESSAGE", "true"]


def test_without_asyncio(broker: TestBroker) -> None:
    """The same hook twice: each time the loop is another one."""
    broker.create_topic("TracedPlain", queues=1)
    trace = TraceHook()
    for _ in range(2):
        with BlockingProducer(broker.namesrv_addr, hooks=[trace]) as producer:
            result = producer.send(Message("TracedPlain", b"1", delay_level=1))
        (line,) = asyncio.run(records_by_key(broker, result.msg_id))
        assert (line[0], line[11]) == ("Pub", "3")
    assert trace.sent == 2


async def test_what_is_not_traced(broker: TestBroker) -> None:
    """The trace topic itself, and what the broker wants no traces of (traceOn=false)."""
    trace = TraceHook(flush_timeout_ms=50)
    async with Producer(broker.namesrv_addr, hooks=[trace]) as producer:
        await producer.send(Message(TRACE_TOPIC, b""))
        assert not trace.is_open and trace.waiting == 0, "nothing was opened either"
    async with FakeBroker() as mute, FakeNameServer() as server:
        mute.extra = {"trace_on": "false"}
        server.routes["T"] = {0: mute.address}
        async with Producer(server.address, hooks=[trace]) as producer:
            await producer.send(Message("T", b"1"))
            assert len(mute.sends) == 1 and not trace.is_open
            mute.extra = {"trace_on": "true"}
            await producer.send(Message("T", b"2"))
            assert trace.is_open, "and this is traced"


# -- what it must never cost -------------------------------------------------------------------------------


async def test_a_trace_topic_that_hangs_slows_nothing_and_holds_little() -> None:
    """Its broker never answers a trace. What has no room is dropped, and the close is bounded."""
    async with FakeBroker() as fine, FakeBroker() as hung, FakeNameServer() as server:
        hung.hold.clear()
        server.routes["T"] = {0: fine.address}
        server.routes[TRACE_TOPIC] = {0: hung.address}
        trace = TraceHook(records_max=10, linger_ms=1, flush_timeout_ms=50)
        async with Producer(server.address, hooks=[trace]) as producer:
            await producer.send(Message("T", b"first"))
            await hung.received(1)
            async with asyncio.timeout(5):
                await asyncio.gather(*(producer.send(Message("T", b"%d" % index)) for index in range(100)))
            assert trace.dropped == 90 and trace.waiting == 10
        assert len(fine.sends) == 101


async def test_a_cluster_without_a_trace_topic(caplog: pytest.LogCaptureFixture) -> None:
    """Every message is sent; one line in the log says that their traces are not."""
    async with FakeBroker() as fine, FakeNameServer() as server:
        server.routes["T"] = {0: fine.address}
        trace = TraceHook(linger_ms=1)
        with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.WARNING):
            patch.setattr("keelmq.client.tracing.SEND_TIMEOUT_MS", 20)
            patch.setattr("keelmq.client.tracing.AGAIN", Backoff(first_ms=1, max_ms=1))
            async with Producer(server.address, hooks=[trace]) as producer:
                for _ in range(3):
                    failed = trace.failed
                    await producer.send(Message("T", b"1"))
                    await until(lambda failed=failed: trace.failed > failed)
    assert (trace.sent, trace.failed) == (0, 3) and len(fine.sends) == 3
    (line,) = [record for record in caplog.records if "trace records are lost" in record.message]
    assert "no route of topic RMQ_SYS_TRACE_TOPIC" in line.message


async def test_after_a_failure_the_cluster_has_its_peace() -> None:
    """A second, then two, then four: the name servers are not asked for the missing topic all the time. The
    end does not wait for that."""
    async with FakeBroker() as fine, FakeNameServer() as server:
        server.routes["T"] = {0: fine.address}
        trace = TraceHook(linger_ms=1, flush_timeout_ms=10_000)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("keelmq.client.tracing.SEND_TIMEOUT_MS", 20)
            patch.setattr("keelmq.client.tracing.AGAIN", Backoff(first_ms=10**9, max_ms=10**9))
            async with Producer(server.address, hooks=[trace]) as producer:
                await producer.send(Message("T", b"1"))
                await until(lambda: trace.failed == 1)
                asked = len(server.asked)
                for _ in range(50):
                    await producer.send(Message("T", b"2"))
                assert trace.failed == 1 and trace.waiting == 50
                assert len(server.asked) <= asked + 2, "but for a question that was under way"
                server.routes[TRACE_TOPIC] = {0: fine.address}
                patch.setattr("keelmq.client.tracing.SEND_TIMEOUT_MS", 5_000)
            assert (trace.failed, trace.sent) == (1, 50), "the topic is there by now: all of the rest"


async def test_a_send_that_fails_is_traced_as_failed(broker: TestBroker) -> None:
    """Its cluster may be fine again when the trace is sent."""
    trace = TraceHook()
    async with Producer(broker.namesrv_addr, "PG", hooks=[trace]) as producer:
        with pytest.raises(SendError) as caught:
            await producer.send(Message("SCHEDULE_TOPIC_XXXX", b"1"), timeout_ms=300)
    (line,) = await records_by_key(broker, caught.value.msg_id)
    assert line[12:] == ["", "false"]


async def test_a_send_that_is_given_up_is_no_success() -> None:
    """Its caller went away before the answer came: nobody knows."""
    seen: list[SendTrace] = []

    class Sees(ClientHook):
        def after_send(self, trace: SendTrace) -> None:
            seen.append(trace)

    async with FakeBroker() as slow, FakeNameServer() as server:
        slow.hold.clear()
        server.routes["T"] = {0: slow.address}
        async with Producer(server.address, hooks=[Sees()]) as producer:
            sending = asyncio.create_task(producer.send(Message("T", b"1")))
            await slow.received(1)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
    (trace,) = seen
    assert isinstance(trace.error, asyncio.CancelledError) and trace.results == ()


async def test_a_hook_is_for_one_cluster(broker: TestBroker, caplog: pytest.LogCaptureFixture) -> None:
    broker.create_topic("OneCluster")
    trace = TraceHook()
    async with FakeBroker() as other, FakeNameServer() as server:
        server.routes["T"] = {0: other.address}
        async with (
            Producer(broker.namesrv_addr, hooks=[trace]) as producer,
            Producer(server.address, hooks=[trace]) as unverified_peer,
        ):
            await producer.send(Message("OneCluster", b"1"))
            await unverified_peer.send(Message("T", b"1"))
            await unverified_peer.close()
            await producer.send(Message("OneCluster", b"2"))
            assert trace.is_open
    assert "a TraceHook serves one cluster" in caplog.text and len(other.sends) == 1
    assert trace.sent == 2, "of the client that it began with, and of no other"


async def test_a_burst_gets_through_whole(broker: TestBroker) -> None:
    """clients.md pitfall 23: traces lost under load and at shutdown."""
    broker.create_topic("Burst", queues=1)
    trace = TraceHook()
    async with Producer(broker.namesrv_addr, hooks=[trace]) as producer:
        results = await producer.send_batch([Message("Burst", b"%d" % index) for index in range(3_000)])
    assert (trace.sent, trace.dropped, trace.failed) == (3_000, 0, 0)
    for result in (results[0], results[-1]):
        assert [line[0] for line in await records_by_key(broker, result.msg_id)] == ["Pub"]
    async with PullConsumer(broker.namesrv_addr) as reader:
        (queue,) = await reader.fetch_queues(TRACE_TOPIC)
        assert await reader.max_offset(queue) < 30, "a few messages, not thousands"
