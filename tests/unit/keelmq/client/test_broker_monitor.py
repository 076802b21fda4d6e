"""Pulls that wait at a broker that hangs, with scripted ones: connected, and silent (SIGSTOP)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from keelmq.client import PullConsumer, PullStatus
from keelmq.client.cluster.broker_monitor import BrokerMonitor
from keelmq.client.cluster.routes import RouteCache
from keelmq.client.core.queues import MessageQueue
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Call
from keelmq.remoting.operations.broker import (
    GET_MAX_OFFSET,
    PULL_MESSAGE,
    OffsetResponse,
    PullMessageRequest,
    PullMessageResponse,
    QueueRequest,
)
from keelmq.runtime.clock import now_ms
from tests.support.client_parts import until
from tests.support.fake_cluster import FakeNameServer, Server

QUEUE = MessageQueue("T", "broker-a", 0)
SUSPEND_MS = 60_000
PROBE_MS = 20


class QuietBroker(Server):
    """Holds every pull for as long as nobody lets it go; `hangs`: it answers nothing at all."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs = False
        self.pulls = self.probes = 0
        self.arrived = asyncio.Event()
        self.table.bind(PULL_MESSAGE, self._pull)
        self.table.bind(GET_MAX_OFFSET, self._max_offset)

    async def _pull(self, _: PullMessageRequest, __: Call) -> PullMessageResponse:
        self.pulls += 1
        await self.arrived.wait()
        return PullMessageResponse(next_begin_offset=5, min_offset=0, max_offset=5)

    async def _max_offset(self, _: QueueRequest, __: Call) -> OffsetResponse:
        self.probes += 1
        if self.hangs:
            await asyncio.Event().wait()
        return OffsetResponse(offset=5)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keelmq.client.cluster.broker_monitor.SILENT_MS", 20)
    monkeypatch.setattr("keelmq.client.cluster.broker_monitor.LOOK_AGAIN_MS", 10)
    monkeypatch.setattr(
        "keelmq.client.cluster.broker_monitor.PROBE_TIMEOUT_MS", 60_000
    )  # only what is tested here helps


@asynccontextmanager
async def monitored(namesrv_addr: str) -> AsyncIterator[BrokerMonitor]:
    client = RemotingClient()
    routes = RouteCache(client, namesrv_addr)
    monitor = BrokerMonitor(client, routes, cuts_replaced=True, probe_interval_ms=PROBE_MS)
    try:
        yield monitor
    finally:
        await monitor.close()
        await routes.close()
        await client.close()


@pytest.fixture
async def brokers() -> AsyncIterator[tuple[QuietBroker, QuietBroker]]:
    async with QuietBroker() as one, QuietBroker() as two:
        yield one, two


async def test_a_pull_leaves_a_master_that_hangs_when_there_is_another(
    brokers: tuple[QuietBroker, QuietBroker],
) -> None:
    """And not before: who is master is not the client's decision."""
    hung, transfer_target = brokers
    transfer_target.arrived.set()
    async with FakeNameServer() as server:
        server.routes["T"] = {0: hung.address}
        async with PullConsumer(server.address, "g", probe_interval_ms=PROBE_MS) as consumer:
            pull = asyncio.create_task(consumer.pull(QUEUE, 5, suspend_ms=SUSPEND_MS))
            await until(lambda: hung.pulls == 1)
            hung.hangs = True
            asked = len(server.asked)
            await until(lambda: len(server.asked) >= asked + 3, "questions for the route")
            assert not pull.done() and hung.pulls == 1, "the route still names it"
            server.routes["T"] = {0: transfer_target.address, 1: hung.address}
            started_ms = now_ms()
            assert (await pull).status is PullStatus.FOUND
    assert now_ms() - started_ms < SUSPEND_MS / 4
    assert (hung.pulls, transfer_target.pulls) == (1, 1)


async def test_a_master_that_answers_keeps_its_pulls(brokers: tuple[QuietBroker, QuietBroker]) -> None:
    """An idle queue: the pull waits, the small question is answered, and the route is nobody's business."""
    master, _ = brokers
    async with FakeNameServer() as server:
        server.routes["T"] = {0: master.address}
        async with PullConsumer(server.address, "g", probe_interval_ms=PROBE_MS) as consumer:
            pull = asyncio.create_task(consumer.pull(QUEUE, 5, suspend_ms=SUSPEND_MS))
            await until(lambda: master.probes >= 3)
            assert not pull.done() and master.pulls == 1 and server.asked == ["T"]
            master.arrived.set()
            assert (await pull).next_begin_offset == 5


async def test_a_pull_that_does_not_wait_is_not_watched(brokers: tuple[QuietBroker, QuietBroker]) -> None:
    master, _ = brokers
    master.arrived.set()
    async with FakeNameServer() as server:
        server.routes["T"] = {0: master.address}
        async with PullConsumer(server.address, "g", probe_interval_ms=PROBE_MS) as consumer:
            for _ in range(3):
                await consumer.pull(QUEUE, 5)
    assert (master.pulls, master.probes) == (3, 0)


def test_an_interval_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="above 0"):
        PullConsumer("127.0.0.1:1", probe_interval_ms=0)


async def test_answers_to_other_requests_keep_a_broker_from_being_asked(
    brokers: tuple[QuietBroker, QuietBroker],
) -> None:
    """The sends and the pulls of a client share the monitor: an answer to one tells about the other."""
    master, _ = brokers
    async with FakeNameServer() as server, monitored(server.address) as monitor:
        server.routes["T"] = {0: master.address}
        monitor.expect_poll(master.address, QUEUE, now_ms() - PROBE_MS)
        for number in range(3 * PROBE_MS):
            if number % 2:
                monitor.accepted(master.address, "broker-a", "T", now_ms(), forwarded=False)
            else:
                monitor.heard(master.address)
            await asyncio.sleep(0.001)
        assert master.probes == 0
        await until(lambda: master.probes == 1, "a question when nothing else is heard")


async def test_a_closed_monitor_starts_nothing() -> None:
    async with FakeNameServer() as server, monitored(server.address) as monitor:
        await monitor.close()
        monitor.settled_poll(monitor.expect_poll("127.0.0.1:1", QUEUE, now_ms()))
        monitor.settled(monitor.expect_answer("127.0.0.1:1", QUEUE, now_ms()))
        monitor.unreachable(QUEUE, sends_again=True)
        assert not [task for task in asyncio.all_tasks() if "broker" in task.get_name()]
