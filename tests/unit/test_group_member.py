"""What a member does when its brokers change, with scripted ones."""

import asyncio

from client.group import GroupMember
from client.settings import ConsumerSettings
from client.worker import QueueWorker
from remoting.operation import Call, Empty, Reply, Unknown
from remoting.operations.clients import HEART_BEAT, HeartbeatResponse
from tests.unit.fake_cluster import FakeNameServer, Server


class NoSink:
    def adopted(self, worker: QueueWorker) -> None: ...

    def arrived(self, worker: QueueWorker) -> None: ...

    async def released(self, worker: QueueWorker, *, closing: bool) -> None: ...


async def test_pulls_that_wait_at_a_hung_master_end_when_there_is_another() -> None:
    """SIGSTOP: the connection stays open, and a pull may wait there for 18 s."""
    asked = asyncio.Event()

    async def hang(_: Empty, call: Call) -> Reply | HeartbeatResponse:
        asked.set()
        await asyncio.Event().wait()
        return HeartbeatResponse()

    async with Server() as hung, Server() as heir, FakeNameServer() as server:
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
            server.routes["T"] = {0: heir.address, 1: hung.address}
            await member.routes.refresh("T")
            async with asyncio.timeout(5):
                assert isinstance(await waits, Unknown)
        finally:
            await member.stop()
