"""The requests that renew messages: to whom, and how many at once."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from broker.clients.proxied_requests import Sender
from keelmq.remoting.operation import Ok
from keelmq.remoting.operations.pop import RENEW_POPPED, RenewPoppedRequest, RenewPoppedResponse
from keelmq.runtime.clock import now_ms
from proxy.core.names import Client
from proxy.core.renewals import Place
from proxy.core.statuses import Refused
from proxy.server.cluster import Call
from proxy.server.renewing import IN_FLIGHT_MAX, Renewing
from proxy.wire import messaging_pb2 as pb

INVISIBLE_MS = 60_000


class FakeCluster:
    """hung: groups of brokers that do not answer."""

    def __init__(self) -> None:
        self.hung: set[str] = set()
        self.sent: list[tuple[str, RenewPoppedRequest]] = []
        self.change = asyncio.Event()
        self.refusals = self.open = 0

    async def call(self, topic: str, broker_name: str, operation: Any, header: Any, *, call: Any) -> Any:
        assert operation is RENEW_POPPED and topic == header.topic
        assert call.sender == Sender("10.0.0.1:5"), "the broker judges the client"
        self.sent.append((broker_name, header))
        self.change.set()
        if broker_name in self.hung:
            self.open += 1
            try:
                await asyncio.Future()
            finally:
                self.open -= 1
        if self.refusals:
            self.refusals -= 1
            raise Refused(pb.TOPIC_NOT_FOUND, "no route")
        return Ok(RenewPoppedResponse(visible_in=None), None)

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(10):
            while not condition():
                self.change.clear()
                await self.change.wait()


def call_of(client_id: str) -> Call:
    return Call(Client(client_id), Sender("10.0.0.1:5"), now_ms() + 1_000)


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
async def renewing(cluster: FakeCluster) -> AsyncIterator[Renewing]:
    found = Renewing(cluster, INVISIBLE_MS)  # type: ignore[arg-type]
    task = asyncio.create_task(found.run())
    yield found
    task.cancel()
    await asyncio.wait([task])
    assert not cluster.open, "requests that outlive the proxy"


async def test_the_broker_is_asked_for_a_client_that_a_proxy_hears_of_first(
    renewing: Renewing, cluster: FakeCluster
) -> None:
    renewing.receives(call_of("c"), Place("g", "t", "a"))
    await cluster.until(lambda: cluster.sent)
    ((broker_name, header),) = cluster.sent
    assert (broker_name, header.consumer_group, header.owner) == ("a", "g", "c")
    assert 0 < header.invisible_time <= INVISIBLE_MS


async def test_a_group_that_does_not_answer_delays_no_other(renewing: Renewing, cluster: FakeCluster) -> None:
    cluster.hung = {"a"}
    for number in range(3 * IN_FLIGHT_MAX):
        renewing.receives(call_of(f"c{number}"), Place("g", "t", "a"))
    renewing.receives(call_of("last"), Place("g", "t", "b"))
    await cluster.until(lambda: any(name == "b" for name, _ in cluster.sent))
    assert sum(name == "a" for name, _ in cluster.sent) == IN_FLIGHT_MAX


async def test_a_refusal_is_no_end(renewing: Renewing, cluster: FakeCluster) -> None:
    cluster.refusals = 1
    renewing.receives(call_of("c"), Place("g", "t", "a"))
    await cluster.until(lambda: len(cluster.sent) == 2)
