"""The producer against a scripted broker: what is retried, what is not, what a fail-over costs."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from keelmq.client import ClientHook, Message, MessageQueue, Producer, SendError, SendErrorKind, SendStatus
from keelmq.client.message import decode_properties
from keelmq.remoting.codes import ResponseCode
from tests.support.fake_cluster import FakeBroker, FakeNameServer

TOPIC = "TopicX"


@pytest.fixture
async def producer(name_server: FakeNameServer) -> AsyncIterator[Producer]:
    async with Producer(name_server.address, "group-x") as producer:
        yield producer


def properties(broker: FakeBroker, index: int) -> dict[str, str]:
    return decode_properties(broker.sends[index][0].properties or "")


async def test_send(producer: Producer, broker: FakeBroker) -> None:
    message = Message(TOPIC, b"hello", tags="TagA", keys=("k1", "k2"), properties={"color": "red"}, flag=3)
    result = await producer.send(message)
    header, body = broker.sends[0]
    assert (header.producer_group, header.topic, header.flag, body) == ("group-x", TOPIC, 3, b"hello")
    sent = properties(broker, 0)
    assert sent == {
        "color": "red",
        "TAGS": "TagA",
        "KEYS": "k1 k2",
        "WAIT": "true",
        "UNIQ_KEY": result.msg_id,
    }
    assert (result.status, result.queue_offset, result.attempts) == (SendStatus.SEND_OK, 0, 1)
    assert (result.broker_name, result.offset_msg_id, result.uncertain_attempts) == ("broker-a", "7F", 0)


async def test_round_robin_and_one_route_question(
    producer: Producer, broker: FakeBroker, name_server: FakeNameServer
) -> None:
    for _ in range(8):
        await producer.send(Message(TOPIC, b""))
    assert [header.queue_id for header, _ in broker.sends] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert name_server.asked == [TOPIC]


async def test_chosen_queue(producer: Producer, broker: FakeBroker) -> None:
    result = await producer.send(Message(TOPIC, b""), queue=MessageQueue(TOPIC, "broker-a", 2))
    assert (result.queue_id, broker.sends[0][0].queue_id) == (2, 2)


@pytest.mark.parametrize(
    ("code", "uncertain"), [(1, 0), (2, 0), (14, 0), (16, 0), (10, 1), (11, 1), (12, 1), (None, 1)]
)
async def test_a_passing_failure_is_retried_with_a_fresh_route(
    code: int | None, uncertain: int, producer: Producer, broker: FakeBroker, name_server: FakeNameServer
) -> None:
    broker.script = [code]
    result = await producer.send(Message(TOPIC, b"x"))
    assert (result.attempts, result.uncertain_attempts) == (2, uncertain)
    assert properties(broker, 0)["UNIQ_KEY"] == properties(broker, 1)["UNIQ_KEY"] == result.msg_id
    assert len(name_server.asked) == 2


async def test_a_lasting_refusal_is_not_repeated(producer: Producer, broker: FakeBroker) -> None:
    broker.script = [ResponseCode.MESSAGE_ILLEGAL]
    with pytest.raises(SendError) as caught:
        await producer.send(Message(TOPIC, b"x"))
    assert (caught.value.kind, caught.value.attempts) == (SendErrorKind.REFUSED, 1)
    assert "13" in caught.value.remark


async def test_unknown_after_a_refusal_stays_unknown(producer: Producer, broker: FakeBroker) -> None:
    broker.script = [None, ResponseCode.MESSAGE_ILLEGAL]
    with pytest.raises(SendError) as caught:
        await producer.send(Message(TOPIC, b"x"))
    assert (caught.value.kind, caught.value.attempts) == (SendErrorKind.UNKNOWN, 2)


async def test_deadline(producer: Producer, broker: FakeBroker) -> None:
    broker.hold.clear()
    with pytest.raises(SendError) as caught:
        await producer.send(Message(TOPIC, b"x"), timeout_ms=50)
    assert caught.value.kind is SendErrorKind.UNKNOWN


async def test_no_name_server(producer: Producer, name_server: FakeNameServer) -> None:
    await name_server.server.close()
    with pytest.raises(SendError) as caught:
        await producer.send(Message(TOPIC, b"x"), timeout_ms=80)
    assert (caught.value.kind, caught.value.attempts) == (SendErrorKind.NO_ROUTE, 0)
    assert "no name server answered" in caught.value.remark


async def test_name_servers_are_tried_in_turn(name_server: FakeNameServer) -> None:
    async with FakeNameServer() as empty, FakeNameServer() as dead:
        addresses = f"{dead.address};{empty.address};{name_server.address}"
        await dead.server.close()
        async with Producer(addresses) as producer:
            assert (await producer.send(Message(TOPIC, b"x"))).attempts == 1
        assert empty.asked == [TOPIC], "a server that just started knows no topic: the next one is asked"


async def test_unknown_topic_borrows_the_default_route(
    producer: Producer, broker: FakeBroker, name_server: FakeNameServer
) -> None:
    name_server.routes["TBW102"] = {0: broker.address}
    name_server.queue_nums = 8
    for _ in range(5):
        await producer.send(Message("NewTopic", b"x"))
    assert [header.queue_id for header, _ in broker.sends] == [0, 1, 2, 3, 0]
    assert {header.topic for header, _ in broker.sends} == {"NewTopic"}


async def test_fail_over_with_many_in_flight(
    producer: Producer, broker: FakeBroker, name_server: FakeNameServer
) -> None:
    """The master dies with 32 sends unanswered; the route shows no master for a while, then another one."""
    async with FakeBroker() as successor:
        asked_before = 0

        def route() -> dict[int, str]:
            return {0: successor.address} if len(name_server.asked) > asked_before + 5 else {2: "127.0.0.1:1"}

        broker.hold.clear()
        tasks = [await producer.send_async(Message(TOPIC, b"%d" % index)) for index in range(32)]
        await broker.received(32)
        name_server.routes[TOPIC], asked_before = route, len(name_server.asked)
        await broker.server.close()
        results = await asyncio.gather(*tasks)
        assert all(result.uncertain_attempts == 1 for result in results)
        assert sorted(body for _, body in successor.sends) == sorted(b"%d" % index for index in range(32))
        assert len(name_server.asked) - asked_before < 12, "one message probes, the others wait"


async def test_send_async_is_bounded(broker: FakeBroker, name_server: FakeNameServer) -> None:
    broker.hold.clear()
    async with Producer(name_server.address, in_flight_max=2) as producer:
        tasks = [await producer.send_async(Message(TOPIC, b"x")) for _ in range(2)]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await producer.send_async(Message(TOPIC, b"x"))
        broker.hold.set()
        tasks.append(await producer.send_async(Message(TOPIC, b"x")))
        assert [result.attempts for result in await asyncio.gather(*tasks)] == [1, 1, 1]


async def test_closed_producer(producer: Producer) -> None:
    await producer.close()
    with pytest.raises(SendError) as caught:
        await producer.send(Message(TOPIC, b"x"))
    assert caught.value.kind is SendErrorKind.CLOSED


async def test_no_hook_begins_again_with_a_closed_producer(name_server: FakeNameServer) -> None:
    class Counts(ClientHook):
        attachments = 0

        def attached(self, namesrv_addr: str) -> None:
            self.attachments += 1

        async def detached(self) -> None:
            self.attachments -= 1

    hook, message = Counts(), Message(TOPIC, b"x")
    async with Producer(name_server.address, hooks=[hook]) as producer:
        await producer.send(message)
        assert hook.attachments == 1
    for late in (
        lambda: producer.send(message),
        lambda: producer.send_batch([message]),
        lambda: producer.send_oneway(message),
        lambda: producer.request(message),
    ):
        with pytest.raises(SendError) as caught:
            await late()
        assert caught.value.kind is SendErrorKind.CLOSED
    assert hook.attachments == 0


async def test_large_bodies_are_compressed(producer: Producer, broker: FakeBroker) -> None:
    await producer.send(Message(TOPIC, b"a" * 5_000))
    header, body = broker.sends[0]
    assert header.sys_flag == 1 and len(body) < 100


async def test_separators_in_properties_are_refused(producer: Producer) -> None:
    with pytest.raises(ValueError, match="cannot contain"):
        await producer.send(Message(TOPIC, b"", properties={"a": "b\x02"}))


async def test_who_waits_for_a_hung_master_goes_on_when_there_is_another(
    producer: Producer, broker: FakeBroker, name_server: FakeNameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGSTOP: its connections stay open. The attempt would end after ATTEMPT_TIMEOUT_MS."""
    monkeypatch.setattr("keelmq.client.cluster.broker_monitor.SILENT_MS", 50)
    monkeypatch.setattr("keelmq.client.cluster.broker_monitor.WATCH_MS", 5)
    broker.hold.clear()
    async with FakeBroker() as transfer_target:
        name_server.routes[TOPIC] = {0: broker.address}
        sending = asyncio.create_task(producer.send(Message(TOPIC, b"x"), timeout_ms=10_000))
        await broker.received(1)
        name_server.routes[TOPIC] = {0: transfer_target.address, 1: broker.address}
        async with asyncio.timeout(2):
            result = await sending
        assert (result.attempts, result.uncertain_attempts) == (2, 1)
        assert len(transfer_target.sends) == 1
    broker.hold.set()


async def test_a_forwarded_message_says_that_the_route_is_old(
    producer: Producer, broker: FakeBroker, name_server: FakeNameServer
) -> None:
    """A former master forwards it (broker/admission/send_forwarder.py): the next ones go to the new one."""
    async with FakeBroker() as transfer_target:
        name_server.routes[TOPIC] = {0: broker.address}
        broker.moved_to = transfer_target.address
        await producer.send(Message(TOPIC, b"x"))
        name_server.routes[TOPIC] = {0: transfer_target.address, 1: broker.address}
        async with asyncio.timeout(5):
            while not transfer_target.sends:
                await producer.send(Message(TOPIC, b"x"))
        assert (await producer.send(Message(TOPIC, b"x"))).attempts == 1
