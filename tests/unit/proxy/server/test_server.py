"""The gRPC server over a real broker, with a plain gRPC client: what the clients of RocketMQ depend on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from broker.app.broker import Broker
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Call, CommandError, Empty
from keelmq.remoting.operations.broker_metadata import (
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    SubscriptionGroupConfig,
)
from keelmq.remoting.operations.pop import ACK_MESSAGE, BATCH_ACK_MESSAGE
from keelmq.runtime.clock import wall_ms
from keelmq.runtime.config import ConfigError
from proxy.core.times import duration, ms_of, timestamp
from proxy.server.grpc_server import SERVICE
from proxy.wire import messaging_pb2 as pb
from tests.support.server_parts import until
from tests.unit.proxy.server.parts import (
    GROUP,
    HOST,
    METADATA,
    TOPIC,
    GrpcClient,
    as_operator,
    create,
    handle_of,
    receive_request,
    serving,
)

HERE = pb.Endpoints(scheme=pb.DOMAIN_NAME, addresses=[pb.Address(host="lb.example", port=443)])


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[Broker, GrpcClient]]:
    async with serving(tmp_path) as found:
        yield found


@pytest.fixture
def client(served: tuple[Broker, GrpcClient]) -> GrpcClient:
    return served[1]


async def fifo_group(broker: Broker) -> None:
    body = SubscriptionGroupConfig(group_name="g", consume_message_orderly=True)
    await as_operator(broker, UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, Empty(), body)


# -- routes ----------------------------------------------------------------------------------------------


async def test_a_route_has_the_clients_endpoints(served: tuple[Broker, GrpcClient]) -> None:
    broker, client = served
    await create(broker, queues=2, message_type="FIFO")
    found = await client.call("QueryRoute", pb.QueryRouteRequest(topic=TOPIC, endpoints=HERE))
    assert found.status.code == pb.OK
    assert [(each.id, each.permission, each.broker.id) for each in found.message_queues] == [
        (0, pb.READ_WRITE, 0),
        (1, pb.READ_WRITE, 0),
    ]
    assert all(each.broker.endpoints == HERE for each in found.message_queues)
    assert list(found.message_queues[0].accept_message_types) == [pb.FIFO]


async def test_an_unknown_topic_has_the_route_with_which_it_is_created(client: GrpcClient) -> None:
    """Python's producer asks for a route first, and never sends without one."""
    found = await client.call("QueryRoute", pb.QueryRouteRequest(topic=TOPIC, endpoints=HERE))
    assert found.status.code == pb.OK and found.message_queues
    assert (await client.send("first")).status.code == pb.OK


async def test_an_unknown_topic_that_is_not_created_is_refused_at_once(tmp_path: Path) -> None:
    async with serving(tmp_path, autoCreateTopicEnable=False) as (_, client):
        found = await client.call("QueryRoute", pb.QueryRouteRequest(topic=TOPIC, endpoints=HERE))
        assert found.status.code == pb.TOPIC_NOT_FOUND
        assert (await client.send("first")).status.code == pb.TOPIC_NOT_FOUND


async def test_a_broker_with_two_queues_is_one_assignment(served: tuple[Broker, GrpcClient]) -> None:
    broker, client = served
    await create(broker, queues=2)
    request = pb.QueryAssignmentRequest(topic=TOPIC, group=GROUP, endpoints=HERE)
    found = await client.call("QueryAssignment", request)
    assert [each.message_queue.id for each in found.assignments] == [-1]


async def test_of_a_group_in_order_each_queue_is_an_assignment(served: tuple[Broker, GrpcClient]) -> None:
    broker, client = served
    await create(broker, queues=2)
    await fifo_group(broker)
    request = pb.QueryAssignmentRequest(topic=TOPIC, group=GROUP, endpoints=HERE)
    found = await client.call("QueryAssignment", request)
    assert [each.message_queue.id for each in found.assignments] == [0, 1]


# -- settings --------------------------------------------------------------------------------------------


async def test_settings_are_answered_on_the_same_stream(served: tuple[Broker, GrpcClient]) -> None:
    broker, client = served
    await create(broker)
    await fifo_group(broker)
    entry = pb.SubscriptionEntry(topic=TOPIC)
    settings = pb.Settings(
        client_type=pb.PUSH_CONSUMER, subscription=pb.Subscription(group=GROUP, subscriptions=[entry])
    )
    stream = client.telemetry()
    for _ in range(2):  # Python sends them again after a second
        await stream.write(pb.TelemetryCommand(settings=settings))
        answer = await stream.read()
        assert answer.status.code == pb.OK
        assert answer.settings.subscription.fifo
        assert answer.settings.backoff_policy.max_attempts == 17
    stream.cancel()


async def test_settings_that_are_refused_end_the_stream(client: GrpcClient) -> None:
    stream = client.telemetry()
    await stream.write(pb.TelemetryCommand(settings=pb.Settings()))
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await stream.read()
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_an_empty_heartbeat_is_ok(client: GrpcClient) -> None:
    """Go sends one after its stream was broken, and drops the stream unless the answer is OK."""
    assert (await client.call("Heartbeat", pb.HeartbeatRequest())).status.code == pb.OK
    request = pb.NotifyClientTerminationRequest()
    assert (await client.call("NotifyClientTermination", request)).status.code == pb.OK


async def test_a_call_without_a_client_id(client: GrpcClient) -> None:
    found = await client.call("Heartbeat", pb.HeartbeatRequest(), metadata=())
    assert found.status.code == pb.CLIENT_ID_REQUIRED


async def test_what_is_not_served_says_why(served: tuple[Broker, GrpcClient]) -> None:
    broker, client = served
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await client.call("SyncLiteSubscription", pb.SyncLiteSubscriptionRequest())
    assert error.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert "lite" in (error.value.details() or "")
    assert broker.listeners.proxy is not None
    async with grpc.aio.insecure_channel(f"{HOST}:{broker.listeners.proxy.port}") as channel:
        for path, text in (("apache.rocketmq.v2.Admin/QueryMessage", "mqadmin"), (f"{SERVICE}/X", "")):
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await channel.unary_unary(f"/{path}")(b"", metadata=METADATA)
            assert error.value.code() == grpc.StatusCode.UNIMPLEMENTED
            assert text in (error.value.details() or "")


# -- sending and receiving -------------------------------------------------------------------------------


async def test_sent_received_acknowledged(client: GrpcClient) -> None:
    sent = await client.send("one", tag="t")
    assert [(each.status.code, each.message_id, each.offset) for each in sent.entries] == [
        (pb.OK, "01one", 0)
    ]
    status, [message] = await client.receive()
    assert status.code == pb.OK
    system = message.system_properties
    assert (message.body, message.topic, system.message_id, system.tag) == (b"one", TOPIC, "01one", "t")
    assert (system.delivery_attempt, ms_of(system.invisible_duration)) == (1, 30_000)
    assert (await client.receive())[0].code == pb.MESSAGE_NOT_FOUND
    answer = await client.ack(handle_of(message))
    assert (answer.status.code, answer.entries[0].status.code) == (pb.OK, pb.OK)
    again = await client.ack(handle_of(message))
    assert again.status.code in (pb.OK, pb.INVALID_RECEIPT_HANDLE)


async def test_handles_that_are_garbage(client: GrpcClient) -> None:
    await client.send("one")
    _, [message] = await client.receive()
    good = handle_of(message)
    bad = ["", "x", good.replace("K1 g", "K1 h"), good + "9" * 9, good.replace("broker-a", "nobody")[:9]]
    answer = await client.ack(good, *bad)
    assert answer.status.code == pb.MULTIPLE_RESULTS
    assert [each.status.code for each in answer.entries] == [pb.OK, *[pb.INVALID_RECEIPT_HANDLE] * len(bad)]
    assert [each.receipt_handle for each in answer.entries] == [good, *bad]


async def test_a_handle_of_a_broker_that_is_gone_ends(
    client: GrpcClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Push consumers repeat every other refusal for ever."""
    await client.send("one")
    _, [message] = await client.receive()
    client.timeout_s = 1.5
    start_s, popped_ms = handle_of(message).split(" ")[4:6]
    gone = handle_of(message).replace("broker-a", "nobody")
    old = gone.replace(f" {start_s} {popped_ms} ", f" {start_s} 1700000000000 ", 1)
    answered = 0
    async with asyncio.timeout(60):
        while answered < 2:
            codes = [each.status.code for each in (await client.ack(old, handle_of(message))).entries]
            if codes[1] == pb.PROXY_TIMEOUT:  # on a busy machine
                continue
            assert codes[1] in (pb.OK, pb.INVALID_RECEIPT_HANDLE)
            assert codes[0] == pb.HA_NOT_AVAILABLE, "its members may be back soon"
            answered += 1
    monkeypatch.setattr("proxy.core.absences.GONE_MS", 0)
    for handle, code in ((old, pb.INVALID_RECEIPT_HANDLE), (gone, pb.HA_NOT_AVAILABLE)):
        assert (await client.ack(handle)).status.code == code
        change = pb.ChangeInvisibleDurationRequest(
            group=GROUP, topic=TOPIC, receipt_handle=handle, invisible_duration=duration(0)
        )
        assert (await client.call("ChangeInvisibleDuration", change)).status.code == code
        forward = pb.ForwardMessageToDeadLetterQueueRequest(group=GROUP, topic=TOPIC, receipt_handle=handle)
        assert (await client.call("ForwardMessageToDeadLetterQueue", forward)).status.code == code


async def no_request(header: Any, call: Call) -> Any:
    raise CommandError(ResponseCode.SYSTEM_ERROR, "this request is not expected")


async def test_acknowledgements_are_one_request(served: tuple[Broker, GrpcClient]) -> None:
    broker, client = served
    await client.send("one", "two", "three")
    _, messages = await client.receive()
    handlers = broker.operations.handlers
    handlers[ACK_MESSAGE.code] = (ACK_MESSAGE, no_request)
    answer = await client.ack(*map(handle_of, messages), "x")
    assert [each.status.code for each in answer.entries] == [pb.OK] * 3 + [pb.INVALID_RECEIPT_HANDLE]
    for message in messages:  # none is left to change
        request = pb.ChangeInvisibleDurationRequest(
            group=GROUP, topic=TOPIC, receipt_handle=handle_of(message), invisible_duration=duration(1)
        )
        changed = await client.call("ChangeInvisibleDuration", request)
        assert changed.status.code == pb.INVALID_RECEIPT_HANDLE


async def test_acknowledgements_that_are_refused_together_are_sent_one_by_one(
    served: tuple[Broker, GrpcClient],
) -> None:
    broker, client = served
    await client.send("one", "two")
    _, messages = await client.receive()
    broker.operations.handlers[BATCH_ACK_MESSAGE.code] = (BATCH_ACK_MESSAGE, no_request)
    assert (await client.ack(*map(handle_of, messages))).status.code == pb.OK


async def test_the_handle_of_another_group_acknowledges_nothing(client: GrpcClient) -> None:
    await client.send("one")
    _, [message] = await client.receive()
    other = pb.Resource(name="h")
    assert (await client.ack(handle_of(message), group=other)).status.code == pb.INVALID_RECEIPT_HANDLE


async def test_a_batch_is_stored_as_a_whole(client: GrpcClient) -> None:
    found = await client.send("one", "two", "three")
    assert found.status.code == pb.OK
    assert [each.offset for each in found.entries] == [0, 1, 2]
    _, messages = await client.receive()
    assert {each.body for each in messages} == {b"one", b"two", b"three"}


async def test_a_batch_of_several_topics_or_groups(client: GrpcClient) -> None:
    def message(topic: str, group: str) -> pb.Message:
        system = pb.SystemProperties(message_id="m", message_group=group)
        return pb.Message(topic=pb.Resource(name=topic), body=b"x", system_properties=system)

    for other, code in ((("U", "g"), pb.MESSAGE_CORRUPTED), (("T", "h"), pb.ILLEGAL_MESSAGE_GROUP)):
        request = pb.SendMessageRequest(messages=[message("T", "g"), message(*other)])
        assert (await client.call("SendMessage", request)).status.code == code
    for count in (0, 33):
        request = pb.SendMessageRequest(messages=[message("T", "g")] * count)
        assert (await client.call("SendMessage", request)).status.code == pb.BAD_REQUEST


async def test_the_topic_accepts_the_type(served: tuple[Broker, GrpcClient]) -> None:
    broker, client = served
    await create(broker, message_type="DELAY")
    assert (await client.send("one")).status.code == pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    delivery = timestamp(wall_ms() + 60_000)
    assert (await client.send("two", delivery_timestamp=delivery)).entries[0].recall_handle


async def test_the_messages_of_a_group_are_in_one_queue_and_in_order(
    served: tuple[Broker, GrpcClient],
) -> None:
    broker, client = served
    await create(broker, queues=4)
    await fifo_group(broker)
    for number in range(6):
        await client.send(f"{number}", message_group="m")
    _, messages = await client.receive(batch_size=4)
    assert [each.body for each in messages] == [b"0", b"1", b"2", b"3"]
    assert len({each.system_properties.queue_id for each in messages}) == 1
    assert (await client.receive())[0].code == pb.MESSAGE_NOT_FOUND  # until those before are acknowledged
    await client.ack(*map(handle_of, messages))
    _, messages = await client.receive()
    assert [each.body for each in messages] == [b"4", b"5"]


async def test_the_same_attempt_gets_the_same_messages(served: tuple[Broker, GrpcClient]) -> None:
    """A client whose receive failed repeats it with the same attempt id."""
    broker, client = served
    await create(broker)
    await fifo_group(broker)
    await client.send("one", message_group="m")
    assert len((await client.receive(attempt_id="a"))[1]) == 1
    assert len((await client.receive(attempt_id="b"))[1]) == 0
    assert len((await client.receive(attempt_id="a"))[1]) == 1


async def test_a_receive_waits_for_a_message(client: GrpcClient) -> None:
    await client.send("first")
    await client.receive()
    waiting = asyncio.create_task(client.receive(long_polling_timeout=duration(5_000)))
    while not waiting.done():
        await client.send("one")
        await asyncio.sleep(0.05)
    status, messages = await waiting
    assert (status.code, messages[0].body) == (pb.OK, b"one")


async def test_a_receive_ends_before_its_deadline(client: GrpcClient) -> None:
    await client.send("first")
    await client.receive()
    request = receive_request(long_polling_timeout=duration(20_000))
    answers = [each async for each in client.receiving(request, timeout=1.5)]
    assert answers[0].status.code == pb.MESSAGE_NOT_FOUND


async def waits_at(broker: Broker) -> None:
    """A pop waits for messages."""
    await until(lambda: len(broker.services.pop.handlers.polling) > 0, "a pop that waits")


async def test_messages_of_a_push_consumer_have_an_owner(served: tuple[Broker, GrpcClient]) -> None:
    """Those of a simple consumer have none: it says how long they are invisible. The broker is told when the
    answer was written."""
    broker, client = served
    await client.send("1")
    await client.send("2")
    _, (pushed,) = await client.receive(batch_size=1, auto_renew=True)
    _, (_,) = await client.receive(batch_size=1)
    state = broker.services.pop.pop.state
    (owned,) = state.owned("g", "tester")
    assert owned.offsets == (pushed.system_properties.queue_offset,)
    assert len(state) == 2
    await until(lambda: state.owned("g", "tester")[0].is_delivered, "29061 with the pop")


async def test_a_handle_of_a_topic_that_is_deleted_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No name server has a route of it any more."""
    async with serving(tmp_path, auto_create_topic_enable=False) as (broker, client):
        await create(broker)
        await client.send("one")
        _, [message] = await client.receive()
        popped_ms = handle_of(message).split(" ")[5]
        old = (
            handle_of(message).replace(f" {popped_ms} ", " 1700000000000 ", 1).replace(" T ", " deleted ", 1)
        )
        request = pb.AckMessageRequest(group=GROUP, topic=pb.Resource(name="deleted"))
        request.entries.add(message_id="m", receipt_handle=old)
        for gone_ms, code in ((600_000, pb.TOPIC_NOT_FOUND), (0, pb.INVALID_RECEIPT_HANDLE)):
            monkeypatch.setattr("proxy.core.absences.GONE_MS", gone_ms)
            assert (await client.call("AckMessage", request)).entries[0].status.code == code


async def received_by_push(client: GrpcClient, body: str) -> str:
    """Sends a message that the push consumer `tester` receives. Returns the handle."""
    await client.send(body)
    _, [message] = await client.receive(auto_renew=True, invisible_duration=None)
    return handle_of(message)


async def terminate(client: GrpcClient, *, metadata: Any = METADATA) -> None:
    request = pb.NotifyClientTerminationRequest(group=GROUP)
    assert (await client.call("NotifyClientTermination", request, metadata=metadata)).status.code == pb.OK


async def test_what_an_ended_client_has_is_received_by_others(client: GrpcClient) -> None:
    handle = await received_by_push(client, "one")
    started_s = asyncio.get_running_loop().time()
    await terminate(client)
    assert (await client.receive())[0].code == pb.MESSAGE_NOT_FOUND, "the client may acknowledge it yet"
    _, [message] = await client.receive(long_polling_timeout=duration(8_000))
    assert (message.body, message.system_properties.delivery_attempt) == (b"one", 2)
    assert asyncio.get_running_loop().time() - started_s < 8, "the invisible time is 60 s"
    assert (await client.ack(handle)).status.code in (pb.OK, pb.INVALID_RECEIPT_HANDLE)


async def test_an_ended_client_may_acknowledge_what_it_was_consuming(client: GrpcClient) -> None:
    handle = await received_by_push(client, "one")
    await terminate(client)
    assert (await client.ack(handle)).status.code == pb.OK
    assert (await client.receive(long_polling_timeout=duration(2_000)))[0].code == pb.MESSAGE_NOT_FOUND


async def test_an_ended_client_is_counted_no_more(served: tuple[Broker, GrpcClient]) -> None:
    """Its stream may end later."""
    broker, client = served
    proxy = broker.listeners.proxy
    assert proxy is not None
    settings = pb.Settings(client_type=pb.PRODUCER, publishing=pb.Publishing(topics=[TOPIC]))
    stream = client.telemetry()
    await stream.write(pb.TelemetryCommand(settings=settings))
    assert (await stream.read()).status.code == pb.OK
    assert sum(proxy.clients().values()) == 1
    await terminate(client, metadata=(("x-mq-client-id", "other"),))
    assert sum(proxy.clients().values()) == 1
    await terminate(client)
    assert sum(proxy.clients().values()) == 0
    stream.cancel()


async def test_a_cancelled_receive_gives_its_messages_back(served: tuple[Broker, GrpcClient]) -> None:
    """Without that, they were invisible for ten minutes."""
    broker, client = served
    await client.send("first")
    await client.receive()
    request = receive_request(long_polling_timeout=duration(5_000), invisible_duration=duration(600_000))
    stream = client.receiving(request)
    reading = asyncio.ensure_future(stream.read())
    await waits_at(broker)
    stream.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await client.send("one")
    for _ in range(100):
        _, messages = await client.receive(long_polling_timeout=duration(100))
        if messages:
            break
    assert [each.body for each in messages] == [b"one"]


async def test_a_stop_does_not_wait_for_receives(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        settings = {"grpcClientConsumerMaxLongPollingTimeoutMillis": 120_000}
        broker, client = await stack.enter_async_context(serving(tmp_path, **settings))
        await client.send("first")
        await client.receive()
        request = receive_request(long_polling_timeout=duration(100_000))
        stream = client.receiving(request, timeout=110)
        reading = asyncio.ensure_future(stream.read())
        await waits_at(broker)
        async with asyncio.timeout(30):
            await stack.aclose()
        with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
            await reading


@pytest.mark.parametrize("invisible_ms", [0, 9_999, 12 * 3_600_000 + 1])
async def test_an_invisible_time_that_is_illegal(client: GrpcClient, invisible_ms: int) -> None:
    status, _ = await client.receive(invisible_duration=duration(invisible_ms))
    assert status.code == pb.ILLEGAL_INVISIBLE_TIME


async def test_a_changed_message_has_another_handle(client: GrpcClient) -> None:
    await client.send("one")
    _, [message] = await client.receive()
    request = pb.ChangeInvisibleDurationRequest(
        group=GROUP, topic=TOPIC, receipt_handle=handle_of(message), invisible_duration=duration(60_000)
    )
    changed = await client.call("ChangeInvisibleDuration", request)
    assert changed.status.code == pb.OK and changed.receipt_handle != handle_of(message)
    again = await client.call("ChangeInvisibleDuration", request)  # the old one is void
    assert again.status.code == pb.INVALID_RECEIPT_HANDLE
    assert again.receipt_handle == handle_of(message)  # Python takes it from a refusal, too
    assert (await client.ack(changed.receipt_handle)).status.code == pb.OK


async def test_a_message_that_failed_comes_again_and_is_counted(client: GrpcClient) -> None:
    await client.send("one")
    _, [message] = await client.receive()
    request = pb.ChangeInvisibleDurationRequest(
        group=GROUP, topic=TOPIC, receipt_handle=handle_of(message), invisible_duration=duration(1)
    )
    assert (await client.call("ChangeInvisibleDuration", request)).status.code == pb.OK
    _, [again] = await client.receive(long_polling_timeout=duration(9_000))
    assert (again.topic, again.system_properties.delivery_attempt) == (TOPIC, 2)
    assert (await client.ack(handle_of(again))).status.code == pb.OK


@pytest.mark.parametrize("wanted", ["Aa", "Aa || x"])
async def test_a_tag_with_the_same_hash_is_not_delivered(client: GrpcClient, wanted: str) -> None:
    await client.send("one", tag="BB")
    await client.send("two", tag="Aa")
    tags = pb.FilterExpression(type=pb.TAG, expression=wanted)
    _, messages = await client.receive(filter_expression=tags)
    assert [each.body for each in messages] == [b"two"]


async def test_filters_that_cannot_be(client: GrpcClient) -> None:
    await client.send("one")
    for expression in ("", "a ="):
        wanted = pb.FilterExpression(type=pb.SQL, expression=expression)
        status, _ = await client.receive(filter_expression=wanted)
        assert status.code in (pb.ILLEGAL_FILTER_EXPRESSION, pb.INTERNAL_SERVER_ERROR)


async def test_a_transaction_is_seen_when_it_is_committed(client: GrpcClient) -> None:
    found = await client.send("one", message_type=pb.TRANSACTION)
    transaction_id = found.entries[0].transaction_id
    assert transaction_id
    assert (await client.receive())[0].code == pb.MESSAGE_NOT_FOUND
    request = pb.EndTransactionRequest(
        topic=TOPIC, message_id="01one", transaction_id=transaction_id, resolution=pb.COMMIT
    )
    assert (await client.call("EndTransaction", request)).status.code == pb.OK
    _, messages = await client.receive(long_polling_timeout=duration(5_000))
    assert [each.body for each in messages] == [b"one"]


async def test_a_transaction_that_has_ended_in_the_other_way(client: GrpcClient) -> None:
    found = await client.send("one", message_type=pb.TRANSACTION)
    request = pb.EndTransactionRequest(
        topic=TOPIC, transaction_id=found.entries[0].transaction_id, resolution=pb.COMMIT
    )
    for _ in range(2):
        assert (await client.call("EndTransaction", request)).status.code == pb.OK
    request.resolution = pb.ROLLBACK
    ended = await client.call("EndTransaction", request)
    assert ended.status.code == pb.INVALID_TRANSACTION_ID
    assert "already committed" in ended.status.message


async def test_an_orphaned_transaction_is_checked_with_a_producer_of_its_topic(tmp_path: Path) -> None:
    settings = {"transactionTimeOut": 100, "transactionCheckInterval": 100}
    async with serving(tmp_path, **settings) as (_, client):
        stream = client.telemetry()
        producer = pb.Settings(client_type=pb.PRODUCER, publishing=pb.Publishing(topics=[TOPIC]))
        await stream.write(pb.TelemetryCommand(settings=producer))
        assert (await stream.read()).status.code == pb.OK
        await client.send("first")
        await client.send("one", message_type=pb.TRANSACTION)
        asked = (await stream.read()).recover_orphaned_transaction_command
        assert (asked.message.body, asked.message.topic) == (b"one", TOPIC)
        assert asked.message.system_properties.message_id == "01one"
        request = pb.EndTransactionRequest(
            topic=TOPIC, message_id="01one", transaction_id=asked.transaction_id, resolution=pb.COMMIT,
            source=pb.SOURCE_SERVER_CHECK,
        )  # fmt: skip
        assert (await client.call("EndTransaction", request)).status.code == pb.OK
        bodies: set[bytes] = set()
        while b"one" not in bodies:
            bodies |= {each.body for each in (await client.receive(long_polling_timeout=duration(100)))[1]}
        stream.cancel()


@pytest.mark.parametrize("transaction_id", ["", "x", "a b c d", "broker-a -1 0 m", "broker-a 9 9" + "9" * 40])
async def test_transaction_ids_that_are_garbage(client: GrpcClient, transaction_id: str) -> None:
    await client.send("one")
    request = pb.EndTransactionRequest(
        topic=TOPIC, message_id="m", transaction_id=transaction_id, resolution=pb.COMMIT
    )
    found = await client.call("EndTransaction", request)
    assert found.status.code == pb.INVALID_TRANSACTION_ID


async def test_a_delayed_message_is_recalled(tmp_path: Path) -> None:
    async with serving(tmp_path, recallMessageEnable=True) as (_, client):
        sent = await client.send("one", delivery_timestamp=timestamp(wall_ms() + 3_600_000))
        handle = sent.entries[0].recall_handle
        request = pb.RecallMessageRequest(topic=TOPIC, recall_handle=handle)
        found = await client.call("RecallMessage", request)
        assert (found.status.code, found.message_id) == (pb.OK, "01one")
        for bad in ("", "x", handle[:-8], "y" * 9_999):
            request = pb.RecallMessageRequest(topic=TOPIC, recall_handle=bad)
            assert (await client.call("RecallMessage", request)).status.code == pb.BAD_REQUEST
        await client.send("two", topic=pb.Resource(name="U"))
        request = pb.RecallMessageRequest(topic=pb.Resource(name="U"), recall_handle=handle)
        assert (await client.call("RecallMessage", request)).status.code == pb.BAD_REQUEST


async def test_a_dead_letter_lets_the_group_go_on(served: tuple[Broker, GrpcClient]) -> None:
    """A consumer in order forwards a message that it cannot process, every second until the answer is OK."""
    broker, client = served
    await create(broker)
    await fifo_group(broker)
    await client.send("bad", message_group="m")
    await client.send("good", message_group="m")
    _, [bad] = await client.receive(batch_size=1)
    request = pb.ForwardMessageToDeadLetterQueueRequest(
        group=GROUP, topic=TOPIC, receipt_handle=handle_of(bad), message_id="01bad"
    )
    found = await client.call("ForwardMessageToDeadLetterQueue", request)
    assert found.status.code == pb.OK
    _, [good] = await client.receive()
    assert good.body == b"good"
    dead = pb.Resource(name="%DLQ%g")
    _, [letter] = await client.receive(topic=dead, group=pb.Resource(name="operators"))
    assert (letter.body, letter.system_properties.message_id) == (b"bad", "01bad")
    assert letter.system_properties.dead_letter_queue.topic == "T"
    fields = handle_of(bad).split(" ")
    for handle in ("x", " ".join([*fields[:3], "987654321", *fields[4:]])):  # no message is there
        request.receipt_handle = handle
        found = await client.call("ForwardMessageToDeadLetterQueue", request)
        assert found.status.code == pb.INVALID_RECEIPT_HANDLE


async def test_a_message_that_is_suspended_is_no_further_attempt(client: GrpcClient) -> None:
    await client.send("one")
    _, [message] = await client.receive()
    request = pb.ChangeInvisibleDurationRequest(
        group=GROUP, topic=TOPIC, receipt_handle=handle_of(message), invisible_duration=duration(1),
        suspend=True,
    )  # fmt: skip
    assert (await client.call("ChangeInvisibleDuration", request)).status.code == pb.OK
    _, [again] = await client.receive(long_polling_timeout=duration(9_000))
    assert again.system_properties.delivery_attempt == 1


async def test_bytes_that_are_no_message(
    served: tuple[Broker, GrpcClient], caplog: pytest.LogCaptureFixture
) -> None:
    """Each is answered, and not logged: 45,000 of them made 22 MB of log. The connection stays."""
    broker, client = served
    assert broker.listeners.proxy is not None
    async with grpc.aio.insecure_channel(f"{HOST}:{broker.listeners.proxy.port}") as channel:
        data = await channel.unary_unary(f"/{SERVICE}/SendMessage")(b"\xff\xff", metadata=METADATA)
        assert pb.SendMessageResponse.FromString(data).status.code == pb.BAD_REQUEST
        received = channel.unary_stream(f"/{SERVICE}/ReceiveMessage")(b"\xff", metadata=METADATA)
        (answer,) = [pb.ReceiveMessageResponse.FromString(each) async for each in received]
        assert answer.status.code == pb.BAD_REQUEST
        stream = channel.stream_stream(f"/{SERVICE}/Telemetry")(metadata=METADATA)
        await stream.write(b"\xff")
        with pytest.raises(grpc.aio.AioRpcError, match="1 bytes are no TelemetryCommand") as ended:
            await stream.read()
        assert ended.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert (await client.send("one")).status.code == pb.OK
    assert [each for each in caplog.records if each.levelname == "ERROR"] == []


async def test_a_request_above_the_limit(tmp_path: Path) -> None:
    async with serving(tmp_path, grpcMaxInboundMessageSize=65_536) as (_, client):
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await client.send("x" * 70_000)
        assert error.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_it_does_not_open_what_security_closes(tmp_path: Path) -> None:
    (tmp_path / "plain_acl.yml").write_text("accounts: []\n")
    with pytest.raises(ConfigError, match="the gRPC port"):
        async with serving(tmp_path / "store", aclEnable=True, aclPath=tmp_path):
            pass


async def test_a_port_that_is_taken(served: tuple[Broker, GrpcClient], tmp_path: Path) -> None:
    broker, _ = served
    assert broker.listeners.proxy is not None
    with pytest.raises(ConfigError, match="grpcServerPort: cannot listen on"):
        async with serving(tmp_path / "second", grpcServerPort=broker.listeners.proxy.port):
            pass
