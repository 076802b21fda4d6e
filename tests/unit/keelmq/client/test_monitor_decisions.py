"""What the broker monitor decides for each thing that a part of the client reports. No sockets."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from keelmq.client.cluster import broker_monitor
from keelmq.client.cluster.broker_monitor import BrokerMonitor, PausedRead
from keelmq.client.cluster.queue_reader import QueueReader
from keelmq.client.cluster.routes import TopicRoute
from keelmq.client.core.queues import MessageQueue
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Failed, Ok
from keelmq.remoting.operations.broker import OffsetResponse
from keelmq.runtime.backoff import Backoff
from keelmq.runtime.clock import now_ms
from tests.support.client_parts import until

QUEUE = MessageQueue("T", "a", 0)
NOBODY = Failed(ResponseCode.RPC_SEND_TO_CHANNEL_FAILED, "nobody there")
LONG = Backoff(first_ms=10**8, max_ms=10**8)
INSTANT = Backoff(first_ms=1, max_ms=1)


def route_to(master: str | None, topic: str = "T", **slaves: str) -> TopicRoute:
    table = ({0: master} if master else {}) | {int(key[1:]): address for key, address in slaves.items()}
    return TopicRoute(topic, addresses={"a": table})


class Routes:
    """The present route of every topic; counts how it is asked for."""

    def __init__(self) -> None:
        self.present = route_to("one:1")
        self.asked: list[str] = []

    async def find(self, topic: str, *, borrow: bool = False) -> TopicRoute:
        self.asked.append("cache")
        return self.present

    async def refresh(self, topic: str, *, borrow: bool = False, rotate: bool = False) -> TopicRoute:
        self.asked.append("next name server" if rotate else "name server")
        return self.present

    def refresh_soon(self, topic: str) -> None:
        self.asked.append(f"soon {topic}")

    def replicas_of(self, queue: MessageQueue) -> list[str]:
        return [address for broker_id, address in self.present.addresses["a"].items() if broker_id]


class Client:
    """Answers for the addresses that are there."""

    def __init__(self) -> None:
        self.there: set[str] = set()
        self.calls: list[str] = []
        self.dropped: list[str] = []
        self.connecting: list[str] = []

    def connect_soon(self, address: str) -> None:
        self.connecting.append(address)

    def drop(self, address: str) -> None:
        self.dropped.append(address)

    async def call(self, address: str, *_: object, **__: object) -> Ok[OffsetResponse] | Failed:
        self.calls.append(address)
        return Ok(OffsetResponse(offset=7)) if address in self.there else NOBODY


class Parts:
    def __init__(self, **settings: Any) -> None:
        self.client, self.routes = Client(), Routes()
        self.monitor = BrokerMonitor(self.client, self.routes, **{"cuts_replaced": True} | settings)

    def may_send(self, topic: str = "T") -> bool:
        return self.monitor.recoveries.may_try("a", topic, now_ms=now_ms() + 60_000)


@pytest.fixture
async def parts() -> AsyncIterator[Parts]:
    made = Parts()
    yield made
    await made.monitor.close()


# -- heartbeats and connections ------------------------------------------------------------------------------


async def test_a_lost_connection_to_a_broker_that_knew_the_client(parts: Parts) -> None:
    """It has forgotten the client, and may be dead: a heartbeat at once, and fresh routes."""
    monitor = parts.monitor
    monitor.registered("one:1")
    monitor.connection_lost("one:1")
    assert monitor.heartbeat_due.is_set() and monitor.routes_doubted.is_set()
    assert not monitor.registered_at


async def test_a_lost_connection_to_anybody_else(parts: Parts) -> None:
    """A name server, or a broker that never accepted a heartbeat: one that closes each connection must not
    get heartbeats without a pause."""
    monitor = parts.monitor
    monitor.registered("one:1")
    monitor.connection_lost("namesrv:9876")
    assert not monitor.heartbeat_due.is_set() and not monitor.routes_doubted.is_set()
    assert set(monitor.registered_at) == {"one:1"}


async def test_a_heartbeat_that_is_not_accepted(parts: Parts) -> None:
    """The first one tells that the broker may be master no more. Heartbeats have their own back-off."""
    monitor = parts.monitor
    monitor.registered("one:1")
    monitor.heartbeat_failed("one:1")
    assert monitor.routes_doubted.is_set() and not monitor.heartbeat_due.is_set()
    monitor.routes_doubted.clear()
    monitor.heartbeat_failed("one:1")
    assert not monitor.routes_doubted.is_set()


async def test_brokers_that_left_the_routes_are_not_missed(parts: Parts) -> None:
    monitor = parts.monitor
    monitor.registered("one:1")
    monitor.registered("two:1")
    monitor.registers_at({"two:1"})
    monitor.connection_lost("one:1")
    assert set(monitor.registered_at) == {"two:1"} and not monitor.routes_doubted.is_set()


# -- sends ---------------------------------------------------------------------------------------------------


async def test_an_unreachable_broker_is_left_alone_until_it_answers(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_monitor, "PING", INSTANT)
    parts.monitor.unreachable(QUEUE, sends_again=True)
    assert not parts.may_send() and not parts.may_send("other"), "no topic of it"
    await until(lambda: len(parts.client.calls) >= 3, "questions in the background")
    assert not parts.may_send()
    parts.client.there.add("one:1")
    await until(parts.may_send)
    assert not any(each.startswith("soon") for each in parts.routes.asked), "the next attempt asks"


async def test_a_failed_oneway_has_no_next_attempt_that_would_ask_for_the_route(parts: Parts) -> None:
    parts.monitor.unreachable(QUEUE, sends_again=False)
    assert parts.routes.asked == ["soon T"]


async def test_connections_to_the_replicas_are_opened_while_they_elect(parts: Parts) -> None:
    """Once for each fail-over, however many messages failed."""
    parts.routes.present = route_to("one:1", _2="two:1", _3="three:1")
    parts.monitor.unreachable(QUEUE, sends_again=True)
    parts.monitor.unreachable(MessageQueue("T", "a", 1), sends_again=True)
    _, recovery = parts.monitor.no_master("a", "T")
    parts.monitor.recoveries.failed_again(recovery, now_ms=now_ms())
    parts.monitor.unreachable(QUEUE, sends_again=True)
    assert parts.client.connecting == ["two:1", "three:1"]
    parts.monitor.recoveries.succeeded("a", "T")
    parts.monitor.unreachable(QUEUE, sends_again=True)
    assert parts.client.connecting == ["two:1", "three:1"] * 2, "the next fail-over"


async def test_a_success_wakes_all_who_wait(parts: Parts) -> None:
    key, recovery = parts.monitor.no_master("a", "T")
    assert await recovery.turn(), "the first one tries"
    waiting = asyncio.create_task(recovery.turn())
    await until(lambda: len(recovery.waiting) == 1)
    parts.monitor.accepted("one:1", "a", "T", now_ms(), forwarded=False)
    assert await waiting is False, "choose a queue again"
    assert not parts.monitor.recoveries.holds(key, recovery) and parts.routes.asked == []


async def test_a_broker_that_forwarded_a_message_is_master_no_more(parts: Parts) -> None:
    parts.monitor.accepted("one:1", "a", "T", now_ms(), forwarded=True)
    assert parts.routes.asked == ["soon T"] and parts.may_send()


async def test_a_refusal_holds_up_what_it_is_about(parts: Parts) -> None:
    monitor = parts.monitor
    code = ResponseCode.NO_PERMISSION
    monitor.refused("one:1", "a", "T", now_ms(), code, sends_again=False)
    assert not monitor.recoveries, "a final refusal is the sender's alone"
    monitor.refused("one:1", "a", "T", now_ms(), code, sends_again=True)
    assert monitor.recoveries.find("a", "T", now_ms=0) and not monitor.recoveries.find("a", "U", now_ms=0)
    monitor.refused("one:1", "a", "T", now_ms(), ResponseCode.SYSTEM_BUSY, sends_again=True)
    assert monitor.recoveries.find("a", "U", now_ms=0)


@pytest.mark.parametrize(("master", "dropped"), [("one:1", []), ("two:1", ["one:1"]), (None, [])])
async def test_an_overdue_send(
    master: str | None, dropped: list[str], parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker is suspected, and the route asked for. The connection is cut when there is another master,
    and not before: one that is only slow keeps it."""
    monkeypatch.setattr(broker_monitor, "WATCH_MS", 1)
    monkeypatch.setattr(broker_monitor, "PING", LONG)
    parts.routes.present = route_to(master)
    token = parts.monitor.expect_answer("one:1", QUEUE, now_ms() - broker_monitor.SILENT_MS)
    await until(lambda: len(parts.routes.asked) >= 2)
    parts.monitor.settled(token)
    assert not parts.may_send()
    assert sorted(set(parts.client.dropped)) == dropped


async def test_a_later_answer_tells_that_the_broker_is_there(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_monitor, "WATCH_MS", 1)
    sent_ms = now_ms() - broker_monitor.SILENT_MS
    token = parts.monitor.expect_answer("one:1", QUEUE, sent_ms)
    parts.monitor.accepted("one:1", "a", "T", sent_ms + 1, forwarded=False)
    await until(lambda: len(parts.routes.asked) >= 2)
    parts.monitor.settled(token)
    assert parts.may_send()


# -- routes --------------------------------------------------------------------------------------------------


async def test_a_replaced_master_is_cut(parts: Parts) -> None:
    """Not one that is missing for a moment, and not one that is new."""
    for master in ("one:1", None, "one:1"):
        parts.monitor.route_changed(route_to(master))
    assert parts.client.dropped == []
    parts.monitor.route_changed(route_to("two:1", _1="one:1"))
    assert parts.client.dropped == ["one:1"]
    parts.monitor.route_changed(route_to("two:1"))
    assert parts.client.dropped == ["one:1"]


async def test_a_producer_keeps_the_connection_for_its_sends() -> None:
    """The old master forwards them: cut off, they would be sent twice."""
    parts = Parts(cuts_replaced=False)
    parts.monitor.route_changed(route_to("one:1"))
    parts.monitor.route_changed(route_to("two:1"))
    assert parts.client.dropped == []


async def test_after_a_failure_the_next_name_server_is_asked(parts: Parts) -> None:
    await parts.monitor.route("T", fresh=False, of_send=False)
    await parts.monitor.route("T", fresh=True, of_send=True)
    assert parts.routes.asked == ["cache", "next name server"]


# -- reads ---------------------------------------------------------------------------------------------------


def read_of(*tried: str) -> PausedRead:
    return PausedRead("T", lambda route: route.master("a"), tried)


async def test_a_read_goes_on_when_there_is_somebody_new_to_ask(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for another topic, not without a master, and not for one that failed: name servers that disagree
    would have it repeated without a pause."""
    monkeypatch.setattr(broker_monitor, "READ_AGAIN", LONG)
    pause = asyncio.create_task(parts.monitor.read_failed(read_of("one:1"), failures=1, code=None))
    await asyncio.sleep(0)
    for other in (route_to("two:1", topic="U"), route_to(None), route_to("one:1", _1="two:1")):
        parts.monitor.route_changed(other)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not pause.done(), other
    parts.monitor.route_changed(route_to("two:1"))
    async with asyncio.timeout(5):
        assert await pause is False, "the cached route is the one to read by"


async def test_else_it_pauses_and_asks_for_the_route(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_monitor, "READ_AGAIN", INSTANT)
    async with asyncio.timeout(5):
        assert await parts.monitor.read_failed(read_of("one:1"), failures=1, code=None)
    assert not parts.monitor.paused_reads


async def test_a_busy_broker_is_asked_less(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_monitor, "READ_AGAIN", LONG)
    monkeypatch.setattr(broker_monitor, "READ_AGAIN_BUSY", INSTANT)
    busy = ResponseCode.SYSTEM_BUSY
    async with asyncio.timeout(5):
        assert await parts.monitor.read_failed(read_of("one:1"), failures=1, code=busy)


async def test_the_reader_follows_the_monitor(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    """A route that another request brought ends the pause of a read, which then asks no name server."""
    monkeypatch.setattr(broker_monitor, "READ_AGAIN", LONG)
    parts.client.there.add("two:1")
    reading = asyncio.create_task(QueueReader(parts.client, parts.monitor, "g").max_offset(QUEUE))
    await until(lambda: bool(parts.monitor.paused_reads))
    parts.routes.present = route_to("two:1")
    parts.monitor.route_changed(parts.routes.present)
    async with asyncio.timeout(5):
        assert await reading == 7
    assert parts.client.calls == ["one:1", "two:1"] and parts.routes.asked == ["cache", "cache"]
