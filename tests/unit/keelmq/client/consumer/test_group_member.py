"""What a member does when its brokers change, with scripted ones."""

import asyncio

import pytest

from keelmq.client.consumer.group import GroupMember
from keelmq.client.consumer.process_queue import ProcessQueue
from keelmq.client.consumer.settings import ConsumerSettings
from keelmq.client.core.queues import MessageQueue
from keelmq.client.core.subscription import Subscription
from keelmq.remoting.operation import Call, Empty, Reply, Unknown
from keelmq.remoting.operations.clients import HEART_BEAT, HeartbeatResponse
from tests.support.fake_cluster import FakeNameServer, Server


class NoSink:
    def adopted(self, worker: ProcessQueue) -> None: ...

    def arrived(self, worker: ProcessQueue) -> None: ...

    async def released(self, worker: ProcessQueue, *, closing: bool) -> None: ...


async def test_pulls_that_wait_at_a_hung_master_end_when_there_is_another() -> None:
    """SIGSTOP: the connection stays open, and a pull may wait there for 18 s."""
    asked = asyncio.Event()

    async def hang(_: Empty, call: Call) -> Reply | HeartbeatResponse:
        asked.set()
        await asyncio.Event().wait()
        return HeartbeatResponse()

    async with Server() as hung, Server() as transfer_target, FakeNameServer() as server:
        hung.table.bind(HEART_BEAT, hang)
        server.routes["T"] = {0: hung.address}
        member = GroupMember(
            server.address, "g", ConsumerSettings(), NoSink(), consume_type="CONSUME_PASSIVELY"
        )
        try:
            await member.routes.refresh("T")
            waits = asyncio.create_task(
                member.client.call(hung.address, HEART_BEAT, Empty(), member._heartbeat(), timeout_ms=60_000)
            )
            await asked.wait()
            server.routes["T"] = {1: hung.address}
            await member.routes.refresh("T")
            assert not waits.done(), "no master for a moment: nobody is better yet"
            server.routes["T"] = {0: transfer_target.address, 1: hung.address}
            await member.routes.refresh("T")
            async with asyncio.timeout(5):
                assert isinstance(await waits, Unknown)
        finally:
            await member.stop()


async def test_a_queue_that_comes_during_a_change_of_its_subscription_is_pulled_with_the_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The members were asked for, or the lock, when the application changed its mind."""
    asked, go_on = asyncio.Event(), asyncio.Event()
    queue = MessageQueue("T", "b", 0)

    async def wanted(self: GroupMember, topic: str, *, fresh: bool) -> tuple[MessageQueue, ...]:
        asked.set()
        await go_on.wait()
        return (queue,)

    monkeypatch.setattr(GroupMember, "_wanted", wanted)
    member = GroupMember("127.0.0.1:1", "g", ConsumerSettings(), NoSink(), consume_type="CONSUME_PASSIVELY")
    try:
        member.subscribe(Subscription("T", "a"))
        balancing = asyncio.create_task(member._rebalance())
        await asked.wait()
        member.subscribe(Subscription("T", "b"))
        go_on.set()
        assert await balancing
        assert member.process_queues[queue].subscription == member.subscriptions["T"]
        assert member.process_queues[queue].subscription.expression == "b"
    finally:
        for worker in member.process_queues.values():
            await worker.tasks.stop()
        await member.stop()
