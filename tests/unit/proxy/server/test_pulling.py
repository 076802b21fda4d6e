"""Pulls and offsets over gRPC, of a real broker: the same queues, groups and offsets as over remoting."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from broker.app.broker import Broker
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Ok
from keelmq.remoting.operations.broker_metadata import (
    QUERY_CONSUMER_OFFSET,
    ConsumerOffsetRequest,
)
from keelmq.runtime.clock import wall_ms
from proxy.core.times import duration, timestamp
from proxy.wire import messaging_pb2 as pb
from tests.support.server_parts import until
from tests.unit.proxy.server.parts import GROUP, GrpcClient, create, pull_request, queue_of, serving

HOUR_MS = 3_600_000


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[Broker, GrpcClient]]:
    async with serving(tmp_path) as found:
        await create(found[0])
        yield found


@pytest.fixture
def client(served: tuple[Broker, GrpcClient]) -> GrpcClient:
    return served[1]


async def offset_of(client: GrpcClient, policy: pb.QueryOffsetPolicy, **more: Any) -> tuple[int, int]:
    request = pb.QueryOffsetRequest(message_queue=queue_of(), query_offset_policy=policy, **more)
    found = await client.call("QueryOffset", request)
    return found.status.code, found.offset


async def commit(client: GrpcClient, offset: int, **more: Any) -> pb.Status:
    known = {"group": GROUP, "message_queue": queue_of()} | more
    found = await client.call("UpdateOffset", pb.UpdateOffsetRequest(offset=offset, **known))
    status: pb.Status = found.status
    return status


async def test_pulled_from_an_offset(client: GrpcClient) -> None:
    await client.send("one", "two", "three")
    found = await client.pull(1)
    assert (found.status.code, found.bodies, found.next_offset) == (pb.OK, ["two", "three"], 3)
    system = found.messages[0].system_properties
    assert (system.queue_offset, system.message_id, system.delivery_attempt) == (1, "01two", 1)
    assert not system.HasField("receipt_handle"), "nothing has to be acknowledged"
    assert (await client.pull(1)).bodies == ["two", "three"], "nothing is invisible"
    assert (await client.pull(0, batch_size=1)).next_offset == 1


async def test_only_what_matches_the_filter(client: GrpcClient) -> None:
    await client.send("one", tag="a")
    await client.send("two", tag="b")
    wanted = pb.FilterExpression(type=pb.TAG, expression="b")
    assert (await client.pull(0, filter_expression=wanted)).bodies == ["two"]
    none = pb.FilterExpression(type=pb.TAG, expression="c")
    found = await client.pull(0, filter_expression=none)
    assert (found.status.code, found.bodies, found.next_offset) == (pb.MESSAGE_NOT_FOUND, [], 2)


async def test_the_end_of_a_queue(client: GrpcClient) -> None:
    await client.send("one")
    found = await client.pull(1)
    assert (found.status.code, found.next_offset) == (pb.MESSAGE_NOT_FOUND, 1)
    found = await client.pull(7)
    assert (found.status.code, found.next_offset) == (pb.ILLEGAL_OFFSET, 1)


async def test_a_pull_waits_for_a_message(served: tuple[Broker, GrpcClient]) -> None:
    broker, client = served
    pulling = asyncio.ensure_future(client.pull(0, long_polling_timeout=duration(8_000)))
    await until(lambda: broker.handlers.pull.waiting_count == 1)
    await client.send("one")
    assert (await pulling).bodies == ["one"]


async def test_a_pull_of_a_client_that_is_gone_does_not_wait(served: tuple[Broker, GrpcClient]) -> None:
    broker, client = served
    request = pull_request(0, long_polling_timeout=duration(8_000))
    stream = client.streaming("PullMessage", request)
    reading = asyncio.ensure_future(stream.read())
    await until(lambda: broker.handlers.pull.waiting_count == 1)
    stream.cancel()
    await asyncio.wait([reading])
    await until(lambda: broker.handlers.pull.waiting_count == 0)


async def test_the_offsets_of_a_queue(client: GrpcClient) -> None:
    await client.send("one", "two")
    assert await offset_of(client, pb.BEGINNING) == (pb.OK, 0)
    assert await offset_of(client, pb.END) == (pb.OK, 2)
    before, after = timestamp(wall_ms() - HOUR_MS), timestamp(wall_ms() + HOUR_MS)
    assert await offset_of(client, pb.TIMESTAMP, timestamp=before) == (pb.OK, 0)
    code, offset = await offset_of(client, pb.TIMESTAMP, timestamp=after)
    assert (code, offset) in ((pb.OK, 1), (pb.OK, 2))
    for seconds in (-(2**62), 2**62):  # as far as a Timestamp goes
        code, _ = await offset_of(client, pb.TIMESTAMP, timestamp=timestamp(seconds))
        assert code == pb.OK
    assert (await offset_of(client, pb.TIMESTAMP))[0] == pb.BAD_REQUEST
    assert (await offset_of(client, 9))[0] == pb.BAD_REQUEST  # type: ignore[arg-type]


async def test_the_offset_of_a_group_is_that_of_remoting(served: tuple[Broker, GrpcClient]) -> None:
    broker, client = served
    await client.send("one", "two")
    asked = pb.GetOffsetRequest(group=GROUP, message_queue=queue_of())
    assert (await client.call("GetOffset", asked)).status.code == pb.OFFSET_NOT_FOUND
    assert (await commit(client, 2)).code == pb.OK
    found = await client.call("GetOffset", asked)
    assert (found.status.code, found.offset) == (pb.OK, 2)
    remoting = RemotingClient()
    header = ConsumerOffsetRequest(consumer_group="g", topic="T", queue_id=0)
    outcome = await remoting.call(broker.address, QUERY_CONSUMER_OFFSET, header)
    await remoting.close()
    assert isinstance(outcome, Ok) and outcome.header.offset == 2


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"message_queue": queue_of("")}, pb.BAD_REQUEST),
        ({"message_queue": queue_of(id=-1)}, pb.BAD_REQUEST),
        ({"message_queue": queue_of(id=9)}, pb.BAD_REQUEST),
        ({"message_queue": queue_of(topic=pb.Resource())}, pb.ILLEGAL_TOPIC),
        ({"group": pb.Resource()}, pb.ILLEGAL_CONSUMER_GROUP),
    ],
)
async def test_places_that_do_not_exist(client: GrpcClient, more: dict[str, Any], code: pb.Code) -> None:
    assert (await client.pull(0, **more)).status.code == code
    assert (await commit(client, 1, **more)).code == code


async def test_an_offset_below_0(client: GrpcClient) -> None:
    assert (await client.pull(-1)).status.code == pb.ILLEGAL_OFFSET
    assert (await commit(client, -1)).code == pb.ILLEGAL_OFFSET


async def test_a_topic_that_does_not_exist(client: GrpcClient) -> None:
    nowhere = queue_of(topic=pb.Resource(name="nowhere"))
    assert (await client.pull(0, message_queue=nowhere)).status.code == pb.TOPIC_NOT_FOUND
    assert (await commit(client, 0, message_queue=nowhere)).code == pb.TOPIC_NOT_FOUND
