"""AdminClient with lists of servers of which some are dead, silent, or know less than others."""

import asyncio
import time
from pathlib import Path

import pytest

from keelmq.client.admin import ADMIN_TIMEOUT_MS, STAGGER_MS, AdminClient, AdminError, gather_some
from keelmq.remoting.command import decode
from keelmq.remoting.operation import Call, CommandError, Empty, Reply
from keelmq.remoting.operations.broker_admin import GET_BROKER_CONSUME_STATS, BrokerConsumeStatsRequest
from keelmq.remoting.operations.controller import GET_METADATA_INFO, ControllerMetadata
from keelmq.remoting.operations.namesrv_admin import PUT_KV_CONFIG, PutKVConfigRequest
from tests.support.admin_parts import DEAD, hanging
from tests.support.fake_cluster import FakeNameServer, Server

FRAMES = Path(__file__).parents[4] / "fixtures" / "frames"


class Controller(Server):
    """Names `leader`, once `gate` is open."""

    def __init__(self, leader: str | None) -> None:
        super().__init__()
        self.leader, self.gate, self.asked = leader, asyncio.Event(), asyncio.Event()
        self.gate.set()
        self.table.bind(GET_METADATA_INFO, self._metadata)

    async def _metadata(self, _: Empty, __: Call) -> ControllerMetadata:
        self.asked.set()
        await self.gate.wait()
        return ControllerMetadata(controller_leader_address=self.leader)


async def test_a_silent_server_of_the_list_costs_a_moment(admin: AdminClient) -> None:
    async with FakeNameServer() as server:
        server.routes["T"] = {0: "h:1"}
        with hanging() as silent:
            began = time.monotonic()
            route = await admin.name_servers.topic_route(f"{silent};{DEAD};{server.address}", "T")
    assert route.queue_datas and time.monotonic() - began < ADMIN_TIMEOUT_MS / 1000
    assert STAGGER_MS < 1_000


async def test_the_first_is_asked_alone_while_it_is_quick(admin: AdminClient) -> None:
    async with FakeNameServer() as first, FakeNameServer() as second:
        first.routes["T"] = second.routes["T"] = {0: "h:1"}
        await admin.name_servers.topic_route(f"{first.address};{second.address}", "T")
        assert (first.asked, second.asked) == (["T"], [])


async def test_a_topic_that_only_the_second_knows(admin: AdminClient) -> None:
    """The first may have just started."""
    async with FakeNameServer() as first, FakeNameServer() as second:
        second.routes["T"] = {0: "h:1"}
        assert (await admin.name_servers.topic_route(f"{first.address};{second.address}", "T")).queue_datas
        with pytest.raises(AdminError) as caught:
            await admin.name_servers.topic_route(f"{first.address};{DEAD}", "U")
        assert caught.value.code == 17  # the answer of one that is there, not the silence of the other


async def test_a_view_with_a_leader_is_preferred(admin: AdminClient) -> None:
    async with Controller(None) as blind, Controller("h:1") as seeing:
        addresses = f"{blind.address};{seeing.address}"
        assert await admin.controllers.controller_leader(addresses) == "h:1"
        seeing.leader = None
        assert (await admin.controllers.controller_metadata(addresses)).controller_leader_address is None
        with pytest.raises(AdminError, match="no controller leads"):
            await admin.controllers.controller_leader(addresses)


async def test_a_late_answer_still_counts(admin: AdminClient) -> None:
    """The first says nothing for a while; the second, asked meanwhile, knows no leader."""
    async with Controller("h:1") as late, Controller(None) as blind:
        late.gate.clear()
        asking = asyncio.create_task(admin.controllers.controller_leader(f"{late.address};{blind.address}"))
        await blind.asked.wait()
        late.gate.set()
        assert await asking == "h:1"


async def test_nobody_is_there(admin: AdminClient) -> None:
    with pytest.raises(AdminError) as caught:
        await admin.controllers.controller_metadata(f"{DEAD};127.0.0.1:2")
    assert caught.value.code is None and not caught.value.unknown


async def test_each_server_is_told_and_answers_for_itself(admin: AdminClient) -> None:
    async def put(request: PutKVConfigRequest, _: Call) -> Empty:
        return Empty()

    async def refuse(request: PutKVConfigRequest, _: Call) -> Empty:
        raise CommandError(16, "no")

    async with Server() as good, Server() as bad:
        good.table.bind(PUT_KV_CONFIG, put)
        bad.table.bind(PUT_KV_CONFIG, refuse)
        addresses = [good.address, DEAD, bad.address]
        said = await admin.each(
            ";".join(addresses), lambda each: admin.name_servers.put_kv_config(each, "n", "k", "v")
        )
        assert [each.address for each in said] == addresses
        assert [None if each.error is None else each.error.code for each in said] == [None, None, 16]
        assert [each.error is None for each in said] == [True, False, False]


async def test_a_timeout_of_ones_own() -> None:
    with hanging() as silent:
        async with AdminClient(timeout_ms=100) as admin:
            began = time.monotonic()
            with pytest.raises(AdminError) as caught:
                await admin.name_servers.cluster_info(silent)
    assert caught.value.unknown and time.monotonic() - began < 2


async def test_only_some_are_asked_at_a_time() -> None:
    running, most = 0, 0

    async def question(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return number

    assert await gather_some((question(number) for number in range(20)), limit=3) == list(range(20))
    assert most == 3


async def test_the_groups_of_a_broker_of_rocketmq(admin: AdminClient) -> None:
    """The answer was captured from one."""
    frame = (FRAMES / "317-broker-consume-stats-mqadmin.resp.bin").read_bytes()

    async def captured(_: BrokerConsumeStatsRequest, __: Call) -> Reply:
        return Reply(body=decode(frame[4:]).body)

    async with Server() as broker:
        broker.table.bind(GET_BROKER_CONSUME_STATS, captured)
        stats = await admin.groups.broker_consume_stats(broker.address)
    first = stats["FxGroup"][0].queues
    assert {queue.topic for queue in first} == {"FxNormal"}
    assert sum(row.behind for row in first.values()) > 0 and stats["SELF_TEST_C_GROUP"] == []
