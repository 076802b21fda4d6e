"""Faults of the client that once lost messages, hung, or let one broker hurt another."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator

import pytest

from keelmq.client import Message, MessageQueue, Producer, SendError, SendErrorKind, SendResult
from keelmq.client.cluster.broker_recovery import Recoveries
from keelmq.client.cluster.routes import IDLE_MS, TOPICS_KEPT, RouteCache, RouteError, TopicRoute
from keelmq.client.message import decode_properties
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import ResponseCode
from tests.support.client_parts import until
from tests.support.fake_cluster import FakeBroker, FakeNameServer

TOPIC = "TopicX"
Answers = list[SendResult | SendError]


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker() as broker:
        yield broker
        broker.hold.set()


# -- close() ------------------------------------------------------------------------------------------------


async def test_what_is_under_way_at_the_end_of_the_block_is_sent(
    broker: FakeBroker, name_server: FakeNameServer
) -> None:
    """It was cancelled, and no callback was called."""
    answers: Answers = []
    async with Producer(name_server.address) as producer:
        for _ in range(3):
            await producer.send_async(Message(TOPIC, b"x"), callback=answers.append)
    assert [type(answer) for answer in answers] == [SendResult] * 3
    assert len(broker.sends) == 3


async def test_a_send_that_is_awaited_elsewhere_ends_as_well(
    broker: FakeBroker, name_server: FakeNameServer
) -> None:
    broker.hold.clear()
    async with Producer(name_server.address) as producer:
        sending = asyncio.create_task(producer.send(Message(TOPIC, b"x")))
        await broker.received(1)
        asyncio.get_running_loop().call_later(0.05, broker.hold.set)
    assert (await sending).attempts == 1


async def test_after_the_deadline_each_send_ends_by_an_error(
    broker: FakeBroker, name_server: FakeNameServer
) -> None:
    """UNKNOWN: it left, and nobody answered. CLOSED: it surely did not leave."""
    answers: Answers = []
    broker.hold.clear()
    async with Producer(name_server.address, close_timeout_ms=50) as producer:
        await producer.send_async(Message(TOPIC, b"x"), timeout_ms=60_000, callback=answers.append)
        await producer.send_async(Message("none", b"x"), timeout_ms=60_000, callback=answers.append)
        await broker.received(1)
    errors = [answer for answer in answers if isinstance(answer, SendError)]
    assert sorted(error.kind.name for error in errors) == ["CLOSED", "UNKNOWN"]
    assert all("the producer was closed" in error.remark for error in errors)


async def test_a_cancelled_send_calls_its_callback(broker: FakeBroker, name_server: FakeNameServer) -> None:
    answers: Answers = []
    broker.hold.clear()
    async with Producer(name_server.address) as producer:
        task = await producer.send_async(Message(TOPIC, b"x"), callback=answers.append)
        await broker.received(1)
        task.cancel()
        await until(lambda: bool(answers), "the callback")
    (error,) = answers
    assert isinstance(error, SendError) and error.kind is SendErrorKind.UNKNOWN


async def test_who_waits_for_a_slot_of_a_closed_producer_is_told(
    broker: FakeBroker, name_server: FakeNameServer
) -> None:
    broker.hold.clear()
    async with Producer(name_server.address, in_flight_max=1) as producer:
        await producer.send_async(Message(TOPIC, b"1"))
        waits = asyncio.create_task(producer.send_async(Message(TOPIC, b"2")))
        await broker.received(1)
        asyncio.get_running_loop().call_later(0.05, broker.hold.set)
    with pytest.raises(SendError) as caught:
        await waits
    assert caught.value.kind is SendErrorKind.CLOSED and len(broker.sends) == 1


async def test_who_waits_for_a_route_of_a_closed_client_is_told(name_server: FakeNameServer) -> None:
    """He was cancelled, without anybody having cancelled him."""
    client = RemotingClient()
    routes = RouteCache(client, name_server.address)
    waits = asyncio.create_task(routes.find(TOPIC))
    await asyncio.sleep(0)
    await routes.close()
    with pytest.raises(RouteError, match="closed"):
        await waits
    await client.close()


# -- one broker is not another ------------------------------------------------------------------------------


@pytest.fixture
async def healthy(broker: FakeBroker, name_server: FakeNameServer) -> AsyncIterator[FakeBroker]:
    """Of the same topic as `broker`, which hangs."""
    async with FakeBroker() as other:
        name_server.brokers = {"broker-a": {0: broker.address}, "broker-b": {0: other.address}}
        broker.hold.clear()
        yield other
        broker.hold.set()


async def test_a_hung_group_holds_up_nobody_else(
    broker: FakeBroker, healthy: FakeBroker, name_server: FakeNameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one message tried the hung master again, all messages of the topic waited for it."""
    monkeypatch.setattr("keelmq.client.producer.sender.ATTEMPT_TIMEOUT_MS", 400)
    async with Producer(name_server.address, close_timeout_ms=0) as producer:
        hung = asyncio.create_task(
            producer.send(Message(TOPIC, b"a"), queue=MessageQueue(TOPIC, "broker-a", 0), timeout_ms=60_000)
        )
        await broker.received(2)  # the first attempt is over
        for index in range(4):
            queue = MessageQueue(TOPIC, "broker-b", index)
            sent = await producer.send(Message(TOPIC, b"b"), queue=queue, timeout_ms=200)
            assert (sent.broker_name, sent.attempts) == ("broker-b", 1)
        assert not hung.done()
    with pytest.raises(SendError):
        await hung


async def test_a_hung_group_gets_no_message_that_may_go_elsewhere(
    broker: FakeBroker, healthy: FakeBroker, name_server: FakeNameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it gets messages again when it answers."""
    monkeypatch.setattr("keelmq.client.cluster.broker_monitor.SILENT_MS", 20)
    monkeypatch.setattr("keelmq.client.cluster.broker_monitor.WATCH_MS", 5)
    async with Producer(name_server.address, close_timeout_ms=100) as producer:
        first = asyncio.create_task(producer.send(Message(TOPIC, b"first"), timeout_ms=60_000))
        await broker.received(1)
        await until(lambda: len(name_server.asked) >= 3, "a look for another master")
        for _ in range(20):
            assert (await producer.send(Message(TOPIC, b"x"), timeout_ms=300)).broker_name == "broker-b"
        broker.hold.set()
        assert (await first).broker_name == "broker-a"
        names = {(await producer.send(Message(TOPIC, b"x"))).broker_name for _ in range(8)}
        assert names == {"broker-a", "broker-b"}


async def test_a_group_that_lost_its_connection_is_used_again(
    broker: FakeBroker, healthy: FakeBroker, name_server: FakeNameServer
) -> None:
    """Without a message that waits for it: a question in the background finds it."""
    broker.hold.set()
    broker.script = [None]
    async with Producer(name_server.address) as producer:
        assert (await producer.send(Message(TOPIC, b"x"))).broker_name == "broker-b"
        async with asyncio.timeout(10):
            while (await producer.send(Message(TOPIC, b"x"))).broker_name != "broker-a":
                pass


async def test_a_topic_that_is_refused_holds_up_no_other(
    broker: FakeBroker, name_server: FakeNameServer
) -> None:
    """NO_PERMISSION is of one topic."""
    recoveries = Recoveries(random.Random(1))
    recoveries.refused("a", "closed", ResponseCode.NO_PERMISSION, now_ms=0)
    assert recoveries.find("a", "closed", now_ms=0) is not None
    assert recoveries.find("a", "open", now_ms=0) is None
    recoveries.refused("a", "closed", ResponseCode.SYSTEM_BUSY, now_ms=0)
    assert recoveries.find("a", "open", now_ms=0) is not None


# -- back-off -----------------------------------------------------------------------------------------------


async def test_a_busy_broker_is_asked_seldom(broker: FakeBroker, name_server: FakeNameServer) -> None:
    """SYSTEM_BUSY was answered with the message again, every 20 ms."""
    broker.script = [ResponseCode.SYSTEM_BUSY] * 1_000
    async with Producer(name_server.address) as producer:
        with pytest.raises(SendError) as caught:
            await producer.send(Message(TOPIC, b"x"), timeout_ms=1_000)
    assert caught.value.kind is SendErrorKind.REFUSED
    assert 2 <= len(broker.sends) < 20, "100, 200, 400, 800 ms at most between them"


async def test_a_turn_passes_on_when_its_owner_is_cancelled() -> None:
    recoveries = Recoveries(random.Random(1))
    _, recovery = recoveries.unreachable("a", now_ms=0)
    assert await recovery.turn()
    second, third = asyncio.create_task(recovery.turn()), asyncio.create_task(recovery.turn())
    await asyncio.sleep(0)
    recovery.end_turn()
    second.cancel()  # it has the turn, and does not know it yet
    assert await third
    recovery.end_turn()
    assert not recovery.probing


# -- keys, watch, what is forgotten -------------------------------------------------------------------------


async def test_a_str_is_one_key(broker: FakeBroker, name_server: FakeNameServer) -> None:
    """It was stored as "o r d e r - 1"."""
    async with Producer(name_server.address) as producer:
        await producer.send(Message(TOPIC, b"x", keys="order-1"))
        await producer.send(Message(TOPIC, b"x", keys=("order-1", "order-2")))
        await producer.send(Message(TOPIC, b"x", keys=""))
    found = [decode_properties(header.properties or "").get("KEYS") for header, _ in broker.sends]
    assert found == ["order-1", "order-1 order-2", None]


async def test_the_watch_survives_its_errors(
    broker: FakeBroker,
    name_server: FakeNameServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It died of the first error that was no RouteError: a hung master was never left again."""
    monkeypatch.setattr("keelmq.client.cluster.broker_monitor.SILENT_MS", 20)
    monkeypatch.setattr("keelmq.client.cluster.broker_monitor.WATCH_MS", 5)
    real, calls = RouteCache.refresh, 0

    async def refresh(
        self: RouteCache, topic: str, *, borrow: bool = False, rotate: bool = False
    ) -> TopicRoute:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ValueError("a route that nobody understands")
        return await real(self, topic, borrow=borrow, rotate=rotate)

    broker.hold.clear()
    async with FakeBroker() as successor, Producer(name_server.address, close_timeout_ms=0) as producer:
        sending = asyncio.create_task(producer.send(Message(TOPIC, b"x"), timeout_ms=10_000))
        await broker.received(1)
        monkeypatch.setattr(RouteCache, "refresh", refresh)
        name_server.routes[TOPIC] = {0: successor.address, 1: broker.address}
        with caplog.at_level(logging.ERROR):
            async with asyncio.timeout(2):
                assert (await sending).uncertain_attempts == 1
    assert calls > 1 and "failed; restarting it" in caplog.text


async def test_routes_of_topics_that_nobody_uses_are_forgotten(
    broker: FakeBroker, name_server: FakeNameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And their brokers with them. A few are kept: an idle producer stays known to its masters."""
    now = 0
    monkeypatch.setattr("keelmq.client.cluster.routes.now_ms", lambda: now)
    topics = [f"T{index}" for index in range(2 * TOPICS_KEPT)]
    for topic in topics:
        name_server.routes[topic] = {0: broker.address}
    client = RemotingClient()
    routes = RouteCache(client, name_server.address)
    try:
        for topic in topics:
            await routes.find(topic)
        now += IDLE_MS - 1
        await routes.refresh_all()
        assert routes.knows(topics), "a poll is no use, but an hour is not over"
        await routes.find("T0")
        now += 1
        await routes.refresh_all(also=["T1"])
        assert routes.knows(["T0", "T1"]), "used, and wanted"
        assert sum(routes.knows([topic]) for topic in topics) == TOPICS_KEPT
    finally:
        await routes.close()
        await client.close()


async def test_a_topic_that_was_deleted_is_forgotten(
    broker: FakeBroker, name_server: FakeNameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0
    monkeypatch.setattr("keelmq.client.cluster.routes.now_ms", lambda: now)
    client = RemotingClient()
    routes = RouteCache(client, name_server.address)
    try:
        await routes.find(TOPIC)
        del name_server.routes[TOPIC]
        await routes.refresh_all()
        assert routes.knows([TOPIC]), "a name server that just started knows no topic"
        now += 10 * 60_000
        await routes.refresh_all()
        assert not routes.knows([TOPIC]) and not routes.addresses()
    finally:
        await routes.close()
        await client.close()


def test_brokers_that_no_message_asks_for_are_forgotten() -> None:
    recoveries = Recoveries(random.Random(1))
    recoveries.unreachable("a", now_ms=0)
    recoveries.refused("b", "T", ResponseCode.SYSTEM_BUSY, now_ms=0)
    recoveries.find("b", "T", now_ms=50_000)
    recoveries.sweep(now_ms=60_000)
    assert recoveries.find("a", "T", now_ms=60_000) is None
    assert recoveries.find("b", "T", now_ms=60_000) is not None
