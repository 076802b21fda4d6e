"""An idle producer stays known to the present masters: its routes are polled, and at once after a loss."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from keelmq.client import Message, Producer
from keelmq.client.producer.transaction import TransactionProducer, TransactionState
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Call, CommandError, Empty, Reply
from keelmq.remoting.operations.broker import SEND_MESSAGE_V2, SendMessageRequestV2, SendMessageResponse
from keelmq.remoting.operations.clients import (
    HEART_BEAT,
    UNREGISTER_CLIENT,
    HeartbeatResponse,
    UnregisterClientRequest,
)
from tests.support.client_parts import until
from tests.support.fake_cluster import FakeNameServer, Server
from tests.support.reach_in import membership_of


class Master(Server):
    """Counts heartbeats; can lose its connections, and stop listening."""

    def __init__(self) -> None:
        super().__init__()
        self.heartbeats = 0
        self.peers: list[Call] = []
        self.refuses = False
        self.table.bind(HEART_BEAT, self._heartbeat)
        self.table.bind(UNREGISTER_CLIENT, self._leave)
        self.table.bind(SEND_MESSAGE_V2, self._send)

    async def _heartbeat(self, _: Empty, call: Call) -> HeartbeatResponse:
        if self.refuses:
            raise CommandError(ResponseCode.SYSTEM_BUSY, "later")
        self.heartbeats += 1
        self.peers.append(call)
        return HeartbeatResponse()

    async def _leave(self, _: UnregisterClientRequest, __: Call) -> Reply:
        return Reply()

    async def _send(self, header: SendMessageRequestV2, _: Call) -> SendMessageResponse:
        return SendMessageResponse(msg_id="0", queue_id=header.queue_id, queue_offset=0)

    async def die(self) -> None:
        await self.server.close()


@pytest.fixture
async def cluster() -> AsyncIterator[tuple[Master, Master, FakeNameServer]]:
    async with Master() as one, Master() as two, FakeNameServer() as server:
        server.routes["T"] = {0: one.address}
        yield one, two, server


async def never(_: object) -> TransactionState:
    return TransactionState.UNKNOWN


def producer_of(server: FakeNameServer, **settings: int) -> TransactionProducer:
    return TransactionProducer(server.address, "g", never, topics=["T"], **settings)


async def test_a_dead_master_is_replaced_at_once(cluster: tuple[Master, Master, FakeNameServer]) -> None:
    """It sends nothing, and the poll is half a minute away. While nobody is master it asks again, soon."""
    one, two, server = cluster
    async with producer_of(server):
        await until(lambda: one.heartbeats >= 1)
        server.routes["T"] = {}
        asked = len(server.asked)
        await one.die()
        await until(lambda: len(server.asked) >= asked + 3, "questions for the route")
        server.routes["T"] = {0: two.address}
        await until(lambda: two.heartbeats >= 1, "a heartbeat to the new master")


async def test_a_route_that_is_old_for_a_moment_is_asked_again(
    cluster: tuple[Master, Master, FakeNameServer],
) -> None:
    """The name server still names the dead one when we ask first."""
    one, two, server = cluster
    async with producer_of(server):
        await until(lambda: one.heartbeats >= 1)
        asked, dead = len(server.asked), one.address
        await one.die()
        await until(lambda: len(server.asked) >= asked + 2)
        server.routes["T"] = {0: two.address, 1: dead}
        await until(lambda: two.heartbeats >= 1)


async def test_without_any_loss_the_route_is_polled(cluster: tuple[Master, Master, FakeNameServer]) -> None:
    """A hand-over: the old master lives on as a slave, and no connection closes."""
    one, two, server = cluster
    async with producer_of(server, route_poll_interval_ms=20):
        await until(lambda: one.heartbeats >= 1)
        server.routes["T"] = {0: two.address, 1: one.address}
        await until(lambda: two.heartbeats >= 1)


async def test_when_all_know_us_nobody_is_asked(
    cluster: tuple[Master, Master, FakeNameServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The poll's timer runs out again and again: each time it waits for half a minute."""
    waits: list[int] = []

    async def wait(event: asyncio.Event, timeout_ms: int) -> bool:
        waits.append(timeout_ms)
        await until(membership_of(producer).all_know)
        if len(waits) > 3:
            await event.wait()
        return False

    monkeypatch.setattr("keelmq.client.cluster.route_poll.wait_for_event", wait)
    _, _, server = cluster
    async with producer_of(server) as producer:
        await until(lambda: len(waits) > 3)
    assert waits == [30_000] * 4
    assert server.asked == ["T"] * 4, "once at the start, and once for each timer"


async def test_a_name_server_that_was_away_at_the_start(
    cluster: tuple[Master, Master, FakeNameServer],
) -> None:
    """Then the poll is not waited for."""
    one, _, server = cluster
    asked: list[str] = []

    def not_yet() -> dict[int, str]:
        asked.append("T")
        if len(asked) < 3:
            raise CommandError(ResponseCode.SYSTEM_ERROR, "not ready yet")
        return {0: one.address}

    server.routes["T"] = not_yet
    async with producer_of(server):
        await until(lambda: one.heartbeats >= 1)


async def test_a_topic_that_comes_later_is_found(cluster: tuple[Master, Master, FakeNameServer]) -> None:
    one, _, server = cluster
    server.routes.clear()
    async with producer_of(server, route_poll_interval_ms=20):
        await until(lambda: server.asked.count("T") >= 3)
        server.routes["T"] = {0: one.address}
        await until(lambda: one.heartbeats >= 1)


async def test_the_loss_of_a_master_that_is_refused_a_heartbeat(
    cluster: tuple[Master, Master, FakeNameServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers, but does not take us: it may be fenced, and the route old."""
    monkeypatch.setattr("keelmq.client.cluster.heartbeats.HEARTBEAT_INTERVAL_MS", 20)
    one, two, server = cluster
    async with producer_of(server) as producer:
        await until(lambda: one.heartbeats >= 1)
        one.refuses = True
        server.routes["T"] = {0: two.address}
        membership_of(producer).wake()
        await until(lambda: two.heartbeats >= 1)


async def test_a_plain_producer_too(cluster: tuple[Master, Master, FakeNameServer]) -> None:
    """From its first message on."""
    one, two, server = cluster
    async with Producer(server.address, "g") as producer:
        await producer.send(Message("T", b"1"))
        await until(lambda: one.heartbeats >= 1)
        server.routes["T"] = {0: two.address}
        await one.die()
        await until(lambda: two.heartbeats >= 1)


def test_an_interval_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="above 0"):
        Producer("127.0.0.1:1", route_poll_interval_ms=0)
