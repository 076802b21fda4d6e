"""Producers and consumers that were written for RocketMQ, in C++ and for Node, against brokers of ours."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from tests.interop.drivers import CPP, NODE_JS, need
from tests.interop.stage import Stage, staged

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120), pytest.mark.asyncio(loop_scope="module")]

EACH = pytest.mark.parametrize("kind", [CPP, NODE_JS])
ANSWERS = {CPP: "OK", NODE_JS: "SEND_OK"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[dict[str, Stage]]:
    """A broker for each kind of client, which all tests use: each has topics and groups of its own."""
    async with AsyncExitStack() as stack:
        yield {
            kind: await stack.enter_async_context(staged(tmp_path_factory.mktemp(kind)))
            for kind in (CPP, NODE_JS)
        }


@pytest.fixture
def stage(request: pytest.FixtureRequest, shared: dict[str, Stage]) -> Stage:
    kind = request.getfixturevalue("kind") if "kind" in request.fixturenames else CPP
    need(kind)
    return shared[kind]


@EACH
async def test_plain_messages(stage: Stage, kind: str) -> None:
    """Tags whose hashes are equal, keys, a body that the client compresses; a consumer that begins later."""
    await stage.create("Plain")
    async with stage.producer(kind) as producer:
        for body, tag in (("one", "Aa"), ("two", "BB"), ("three", "Cc"), ("x" * 5_000, "Aa")):
            event = await producer.must_send("Plain", body, tag=tag, keys=f"key-{len(body)}")
            assert event["status"] == ANSWERS[kind]
        async with (
            stage.consumer(kind, "Plain", "All") as everything,
            stage.consumer(kind, "Plain", "Some", expression="Aa || Cc") as some,
        ):
            await producer.must_send("Plain", "late", tag="Cc")
            await everything.until(lambda: len(everything.got) == 5)
            await some.until(lambda: len(some.got) == 4)
    assert sorted(everything.bodies) == sorted(["one", "two", "three", "late", "x" * 5_000])
    assert sorted(some.bodies) == sorted(["one", "three", "late", "x" * 5_000])
    seen = {event["got"]: event for event in everything.got}
    assert (seen["two"]["tag"], seen["two"]["keys"], seen["two"]["times"]) == ("BB", "key-3", 0)


@EACH
async def test_a_group_goes_on_where_it_was(stage: Stage, kind: str) -> None:
    await stage.create("Again")
    async with stage.producer(kind) as producer:
        for index in range(8):
            await producer.must_send("Again", f"first {index}")
        async with stage.consumer(kind, "Again", "Group") as consumer:
            await consumer.until(lambda: len(consumer.got) == 8)
            await stage.committed("Again", "Group", 8)
        for index in range(8):
            await producer.must_send("Again", f"second {index}")
        async with stage.consumer(kind, "Again", "Group") as consumer:
            await consumer.until(lambda: len(consumer.got) >= 8)
        assert sorted(consumer.bodies) == [f"second {index}" for index in range(8)]


@EACH
async def test_a_group_shares_the_queues(stage: Stage, kind: str) -> None:
    """Each message goes to one of the two; when one leaves, the other gets everything."""
    await stage.create("Shared", queues=4)
    async with stage.producer(kind) as producer, stage.consumer(kind, "Shared", "Team") as stays:
        async with stage.consumer(kind, "Shared", "Team", home="second") as leaves:
            await stage.members("Team", 2)
            count = 0
            async with asyncio.timeout(30):
                while not (stays.got and leaves.got):  # until both have shared the queues out
                    await producer.must_send("Shared", f"m{count}")
                    count += 1
                    await asyncio.sleep(0.02)
            await stays.until(lambda: len({*stays.bodies, *leaves.bodies}) == count)
            await stage.committed("Shared", "Team", count)
        await stage.members("Team", 1)
        await producer.must_send("Shared", "a")
        for index in range(4):
            await producer.must_send("Shared", f"last {index}")
        await stays.until(lambda: {f"last {index}" for index in range(4)} <= set(stays.bodies))


async def test_batches_from_cpp(stage: Stage) -> None:
    await stage.create("Batch")
    async with stage.producer(CPP) as producer, stage.consumer(CPP, "Batch", "Group") as consumer:
        bodies = [f"item {index}" for index in range(20)]
        event = await producer.must_send("Batch", "", batch=bodies)
        assert event["status"] == "OK"
        await consumer.until(lambda: len(consumer.got) == 20)
    assert consumer.bodies == bodies or sorted(consumer.bodies) == sorted(bodies)
    offsets = sorted(each["offset"] for each in consumer.got)
    assert offsets == list(range(20)) and len({each["queueId"] for each in consumer.got}) == 1


async def test_ordered_consumption_from_cpp(stage: Stage) -> None:
    """Locks, and the order within each queue."""
    await stage.create("Ordered")
    async with stage.producer(CPP) as producer:
        for index in range(40):
            await producer.must_send("Ordered", f"{index % 4}-{index:02d}", shard=index % 4)
        async with stage.consumer(CPP, "Ordered", "Line", orderly=True) as consumer:
            await consumer.until(lambda: len(consumer.got) == 40)
            for index in range(40, 60):
                await producer.must_send("Ordered", f"{index % 4}-{index:02d}", shard=index % 4)
            await consumer.until(lambda: len(consumer.got) == 60)
    for shard in "0123":
        mine = [body for body in consumer.bodies if body.startswith(shard)]
        assert mine == sorted(mine) and len(mine) == 15


async def test_a_pull_consumer_from_cpp(stage: Stage) -> None:
    """Its first pull comes before its first heartbeat, with a subscription of its own."""
    await stage.create("Pulled", queues=1)
    async with stage.producer(CPP) as producer, stage.puller("Pulled", "Puller") as puller:
        for index in range(5):
            await producer.must_send("Pulled", f"m{index}")
        puller.tell(go=1)
        await puller.until(lambda: any("pulled" in event for event in puller.events))
    assert puller.events[-1]["pulled"] == [f"m{index}" for index in range(5)]


@EACH
async def test_broadcasting(stage: Stage, kind: str) -> None:
    await stage.create("News")
    async with (
        stage.consumer(kind, "News", "Readers", broadcast=True) as one,
        stage.consumer(kind, "News", "Readers", home="second", broadcast=True) as other,
        stage.producer(kind) as producer,
    ):
        for index in range(6):
            await producer.must_send("News", f"n{index}")
        for reader in (one, other):
            await reader.until(lambda reader=reader: len(reader.got) == 6)  # type: ignore[misc]


@EACH
async def test_delayed_messages(stage: Stage, kind: str) -> None:
    await stage.create("Later")
    async with stage.producer(kind) as producer, stage.consumer(kind, "Later", "Group") as consumer:
        await producer.must_send("Later", "at once")
        sent_ms = stage.wall_ms()
        await producer.must_send("Later", "later", level=2)  # 2 s on this stage
        await consumer.until(lambda: len(consumer.got) == 2)
    assert consumer.bodies == ["at once", "later"]
    assert 2_000 <= consumer.got[1]["at"] - sent_ms < 10_000


@EACH
async def test_what_cannot_be_consumed_ends_as_a_dead_letter(stage: Stage, kind: str) -> None:
    """Tried three times (retryMaxTimes 2), then it is in %DLQ%, and can be consumed from there."""
    await stage.create("Bad")
    await stage.group("Tired", retry_max_times=2)
    async with (
        stage.producer(kind) as producer,
        stage.consumer(kind, "Bad", "Tired", attempts=2) as consumer,
    ):
        await producer.must_send("Bad", "poison", tag="T", keys="k")
        await producer.must_send("Bad", "good")
        await consumer.until(lambda: consumer.bodies.count("poison") == 3)
        assert [each["times"] for each in consumer.got if each["got"] == "poison"] == [0, 1, 2]
        await stage.routed("%DLQ%Tired")
        async with stage.consumer(CPP if kind == CPP else kind, "%DLQ%Tired", "Undertaker") as undertaker:
            await undertaker.until(lambda: len(undertaker.got) == 1)
    assert (undertaker.bodies, undertaker.got[0]["tag"]) == (["poison"], "T")
    assert consumer.bodies.count("good") == 1


@EACH
async def test_an_operator_resets_a_group(stage: Stage, kind: str) -> None:
    """The consumer that runs goes back to the first message."""
    await stage.create("Reset", queues=1)
    async with stage.producer(kind) as producer, stage.consumer(kind, "Reset", "Group") as consumer:
        for index in range(5):
            await producer.must_send("Reset", f"m{index}")
        await consumer.until(lambda: len(consumer.got) == 5)
        await stage.committed("Reset", "Group", 5, queues=1)
        await stage.reset("Reset", "Group")
        await producer.must_send("Reset", "wakes the pull that waits")
        await consumer.until(lambda: consumer.bodies.count("m0") == 2, 60)
        await consumer.until(lambda: consumer.bodies.count("m4") == 2)


@pytest.mark.parametrize("kind", [NODE_JS])
async def test_sql_filters(stage: Stage, kind: str) -> None:
    """The subscription comes with the heartbeats; the broker looks at the properties."""
    await stage.create("Sql")
    sql = "price BETWEEN 3 AND 6 AND color IS NOT NULL AND NOT TAGS IN ('Old')"
    async with stage.producer(kind) as producer, stage.consumer(kind, "Sql", "Group", sql=sql) as consumer:
        for price in range(10):
            color = {"color": "red"} if price % 2 else {}
            await producer.must_send("Sql", f"{price}", tag="New", properties={"price": str(price), **color})
        await producer.must_send("Sql", "old", tag="Old", properties={"price": "3", "color": "red"})
        await producer.must_send("Sql", "last", tag="New", properties={"price": "5", "color": "red"})
        await consumer.until(lambda: "last" in consumer.bodies and len(consumer.got) >= 3)
    assert sorted(consumer.bodies) == ["3", "5", "last"]
