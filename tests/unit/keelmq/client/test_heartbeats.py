"""Heartbeats to everybody who should know, at once after a lost connection, and a farewell."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from keelmq.client.cluster.broker_monitor import BrokerMonitor
from keelmq.client.cluster.heartbeats import Membership, make_client_id
from keelmq.client.cluster.routes import RouteCache
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Call, CommandError, Empty, Reply
from keelmq.remoting.operations.clients import (
    HEART_BEAT,
    UNREGISTER_CLIENT,
    HeartbeatData,
    HeartbeatResponse,
    ProducerData,
    UnregisterClientRequest,
)
from keelmq.runtime.backoff import Backoff
from tests.support.client_parts import until
from tests.support.fake_cluster import Server


class Registrar(Server):
    def __init__(self) -> None:
        super().__init__()
        self.heartbeats = 0
        self.left: list[str | None] = []
        self.refuses = False
        self.table.bind(HEART_BEAT, self._heartbeat)
        self.table.bind(UNREGISTER_CLIENT, self._leave)

    async def _heartbeat(self, _: Empty, call: Call) -> HeartbeatResponse:
        assert [each.group_name for each in call.body.producer_data_set] == ["g"]
        self.heartbeats += 1
        if self.refuses:
            raise CommandError(ResponseCode.SYSTEM_BUSY, "later")
        return HeartbeatResponse()

    async def _leave(self, header: UnregisterClientRequest, _: Call) -> Reply:
        assert header.client_id == "me"
        self.left.append(header.producer_group)
        return Reply()


@pytest.fixture
async def brokers() -> AsyncIterator[tuple[Registrar, Registrar]]:
    async with Registrar() as one, Registrar() as two:
        yield one, two


def monitor_of(client: RemotingClient) -> BrokerMonitor:
    """Its routes are not asked for here."""
    return BrokerMonitor(client, RouteCache(client, "127.0.0.1:1"), cuts_replaced=False)


async def test_only_brokers_of_the_routes_are_told(brokers: tuple[Registrar, Registrar]) -> None:
    """clients.md pitfall 21: one that has left the routes hears nothing more, and no farewell."""
    one, two = brokers
    addresses = {one.address, two.address}
    data = HeartbeatData(clientID="me", producer_data_set=[ProducerData(group_name="g")])
    client = RemotingClient()
    try:
        member = Membership(client, monitor_of(client), data=lambda: data, addresses=lambda: addresses)
        assert await member.send_to_all() and (one.heartbeats, two.heartbeats) == (1, 1)
        addresses.remove(two.address)
        assert await member.send_to_all() and (one.heartbeats, two.heartbeats) == (2, 1)
        await member.leave(producer_group="g")
        assert (one.left, two.left) == (["g"], [])
    finally:
        await client.close()


async def test_after_a_lost_connection_the_next_heartbeat_is_at_once(
    brokers: tuple[Registrar, Registrar], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one that is not taken is repeated soon; the interval is half a minute."""
    one, _ = brokers
    monkeypatch.setattr("keelmq.client.cluster.heartbeats.AGAIN", Backoff(first_ms=10, max_ms=10))
    data = HeartbeatData(clientID="me", producer_data_set=[ProducerData(group_name="g")])
    client = RemotingClient(on_closed=lambda address: monitor.connection_lost(address))
    monitor = monitor_of(client)
    member = Membership(client, monitor, data=lambda: data, addresses=lambda: {one.address})
    running = asyncio.create_task(member.run())
    try:
        await until(lambda: one.heartbeats == 1)
        client.drop(one.address)
        await until(lambda: one.heartbeats == 2)
        one.refuses = True
        member.wake()
        await until(lambda: one.heartbeats >= 5)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await client.close()


def test_client_ids() -> None:
    assert make_client_id() != make_client_id(), "two members of one process are two members"
    assert make_client_id("a") == make_client_id("a") and make_client_id("a").endswith("@a")
