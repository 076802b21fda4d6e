"""RocketMQ 5's own clients, in Python and for Node, against mqproxy and against a broker with enableProxy."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.interop.drivers import GRPC_PYTHON, command_of, need
from tests.interop.grpc_scene import EACH, OTHER, Scene, grpc_scene, proxy_beside
from tests.support.pages import ROOT, blocks

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180), pytest.mark.asyncio(loop_scope="module")]

DELAY_MS = 3_000
RENEWALS = 2_000


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    """All tests use it: each has topics and groups of its own."""
    settings = {
        "transactionTimeOut": "1000", "transactionCheckInterval": "1000", "recallMessageEnable": "true",
    }  # fmt: skip
    async with grpc_scene(tmp_path_factory.mktemp("grpc"), more=settings) as found:
        yield found


@EACH
async def test_messages_of_every_kind(scene: Scene, kind: str) -> None:
    """Sent at the broker, received at the proxy, by the other client, too."""
    need(OTHER[kind])
    topic = f"Kinds-{kind}"
    await scene.stage.create(topic)
    async with (
        scene.client(kind, "producer", at=scene.in_broker, topics=[topic], home=f"p-{kind}") as producer,
        scene.client(kind, "consumer", topic=topic, group=f"push-{kind}") as push,
        scene.client(OTHER[kind], "simple", topic=topic, group=f"simple-{kind}") as simple,
    ):
        await producer.must_send(topic, "plain", tag="a", keys="k", properties={"x": "y"})
        await producer.must_send(topic, "ordered", messageGroup="g")
        delayed = await producer.must_send(topic, "delayed", delayMs=DELAY_MS)
        await producer.must_send(topic, "committed", transaction="commit")
        await producer.must_send(topic, "rolled back", transaction="rollback")
        wanted = {"plain", "ordered", "delayed", "committed"}
        await push.until(lambda: wanted <= set(push.bodies))
        await simple.until(lambda: wanted <= set(simple.bodies))
    for consumer in (push, simple):
        assert sorted(consumer.bodies) == sorted(wanted)
        found = {event["got"]: event for event in consumer.got}
        plain = found["plain"]
        assert (plain["tag"], plain["keys"], plain["properties"]) == ("a", "k", {"x": "y"})
        assert (plain["times"], plain.get("corrupted", False), plain["topic"]) == (0, False, topic)
        assert found["ordered"]["messageGroup"] == "g"
        assert found["delayed"]["id"] == delayed["id"]
        assert found["delayed"]["at"] - found["plain"]["at"] > DELAY_MS / 2


async def test_the_example_of_the_page(scene: Scene, tmp_path: Path) -> None:
    """docs/grpc.md, with this proxy's address."""
    need(GRPC_PYTHON)
    (example,) = (block for block in blocks(ROOT / "docs/grpc.md") if block.language == "python")
    script = tmp_path / "example.py"
    script.write_text(example.text.replace("10.0.0.1:8081", scene.proxy.address))
    process = await asyncio.create_subprocess_exec(command_of(GRPC_PYTHON)[0], str(script), cwd=tmp_path)
    try:
        assert await asyncio.wait_for(process.wait(), 30) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    async with scene.client(GRPC_PYTHON, "simple", topic="Orders", group="page") as consumer:
        await consumer.until(lambda: consumer.bodies == ["an order"])


@EACH
async def test_an_orphaned_transaction_is_checked(scene: Scene, kind: str) -> None:
    """Neither committed nor rolled back: the broker asks the producer, which commits it."""
    topic = f"Orphan-{kind}"
    await scene.stage.create(topic)
    async with (
        scene.client(kind, "producer", topics=[topic], home=f"o-{kind}") as producer,
        scene.client(kind, "simple", topic=topic, group=f"orphan-{kind}") as consumer,
    ):
        await producer.must_send(topic, "orphan", transaction="open")
        await producer.until(lambda: {"checked": "orphan"} in producer.events)
        await consumer.until(lambda: consumer.bodies == ["orphan"])


@EACH
async def test_a_topic_that_does_not_exist_is_created(scene: Scene, kind: str) -> None:
    topic = f"New-{kind}"
    async with scene.client(kind, "producer", topics=[topic], home=f"n-{kind}") as producer:
        await producer.must_send(topic, "first")
        async with scene.client(kind, "simple", topic=topic, group=f"new-{kind}") as consumer:
            await consumer.until(lambda: consumer.bodies == ["first"])


@EACH
async def test_what_is_not_consumed_comes_again(scene: Scene, kind: str) -> None:
    """By its policy: the listener fails, and the message comes again with a higher number."""
    topic = f"Again-{kind}"
    await scene.stage.create(topic)
    async with (
        scene.client(kind, "producer", topics=[topic], home=f"a-{kind}") as producer,
        scene.client(kind, "consumer", topic=topic, group=f"again-{kind}") as consumer,
    ):
        await producer.must_send(topic, "poison")
        await producer.must_send(topic, "good")
        await consumer.until(lambda: consumer.bodies.count("poison") >= 3)
        assert [each["times"] for each in consumer.got if each["got"] == "poison"][:3] == [0, 1, 2]
        assert consumer.bodies.count("good") == 1


@EACH
async def test_only_the_tag_that_is_wanted(scene: Scene, kind: str) -> None:
    topic = f"Tags-{kind}"
    await scene.stage.create(topic)
    async with (
        scene.client(kind, "producer", topics=[topic], home=f"t-{kind}") as producer,
        scene.client(kind, "consumer", topic=topic, group=f"tag-{kind}", expression="Aa || c") as consumer,
    ):
        for number, tag in enumerate(["BB", "Aa", "c", "d"]):  # Aa and BB have the same hash
            await producer.must_send(topic, f"{number}", tag=tag)
        await consumer.until(lambda: len(consumer.got) >= 2)
        assert sorted(consumer.bodies) == ["1", "2"]


@EACH
async def test_a_group_in_order(scene: Scene, kind: str) -> None:
    topic, group = f"Fifo-{kind}", f"fifo-{kind}"
    await scene.stage.create(topic)
    await scene.fifo_group(group)
    count = 30
    async with (
        scene.client(kind, "producer", topics=[topic], home=f"f-{kind}") as producer,
        scene.client(kind, "consumer", topic=topic, group=group) as consumer,
    ):
        for number in range(count):
            await producer.must_send(topic, f"{number}", messageGroup=f"g{number % 3}")
        await consumer.until(lambda: len(consumer.got) >= count)
    for which in range(3):
        of_group = [event["got"] for event in consumer.got if event["messageGroup"] == f"g{which}"]
        assert of_group == [str(number) for number in range(which, count, 3)]


@EACH
async def test_a_proxy_is_killed_and_started_again(scene: Scene, kind: str) -> None:
    """Nothing has to be done to the clients, nothing is lost, and handles of before are good."""
    topic, stage = f"Restart-{kind}", scene.stage
    await stage.create(topic)
    async with (
        proxy_beside(stage, scene.directory, f"proxy-{kind}") as proxy,
        scene.client(kind, "producer", topics=[topic], home=f"r-{kind}") as producer,
        scene.client(kind, "consumer", at=proxy.address, topic=topic, group=f"restart-{kind}") as consumer,
    ):
        await producer.must_send(topic, "before")
        await consumer.until(lambda: "before" in consumer.bodies)
        await stage.running.cluster.kill_and_wait(proxy)
        await producer.must_send(topic, "meanwhile")
        stage.running.cluster.start_program(proxy)
        await producer.must_send(topic, "after")
        await consumer.until(lambda: {"meanwhile", "after"} <= set(consumer.bodies))


# -- what needs settings of topics and groups ------------------------------------------------------------


@EACH
async def test_a_message_that_fails_too_often_is_a_dead_letter(scene: Scene, kind: str) -> None:
    topic, group = f"Dead-{kind}", f"dead-{kind}"
    await scene.stage.create(topic)
    await scene.stage.group(group, retry_max_times=1)
    async with (
        scene.client(kind, "producer", topics=[topic], home=f"d-{kind}") as producer,
        scene.client(kind, "consumer", topic=topic, group=group) as consumer,
    ):
        sent = await producer.must_send(topic, "poison")
        await consumer.until(lambda: consumer.bodies.count("poison") == 2)
        await dead_letter(scene, kind, group, sent["id"])
        assert [each["times"] for each in consumer.got] == [0, 1]


@EACH
async def test_a_message_that_blocks_its_group_in_order_is_a_dead_letter(scene: Scene, kind: str) -> None:
    """The client forwards it when its own retries are over; those behind it follow."""
    topic, group = f"DeadFifo-{kind}", f"dead-fifo-{kind}"
    await scene.stage.create(topic)
    await scene.fifo_group(group, retry_max_times=1)
    async with (
        scene.client(kind, "producer", topics=[topic], home=f"df-{kind}") as producer,
        scene.client(kind, "consumer", topic=topic, group=group) as consumer,
    ):
        sent = await producer.must_send(topic, "poison", messageGroup="g")
        await producer.must_send(topic, "next", messageGroup="g")
        await consumer.until(lambda: "next" in consumer.bodies)
        assert consumer.bodies.count("poison") >= 2
        await dead_letter(scene, kind, group, sent["id"])


async def dead_letter(scene: Scene, kind: str, group: str, message_id: str) -> None:
    """One message is in the dead letter topic of the group, with the id that its producer knows."""
    letters = f"%DLQ%{group}"
    await scene.stage.routed(letters)
    async with scene.client(kind, "simple", topic=letters, group=f"letters-of-{group}") as consumer:
        await consumer.until(lambda: bool(consumer.got))
        assert [(each["got"], each["id"]) for each in consumer.got] == [("poison", message_id)]


@EACH
async def test_a_delayed_message_is_recalled(scene: Scene, kind: str) -> None:
    topic = f"Recall-{kind}"
    await scene.stage.create(topic)
    async with (
        scene.client(kind, "producer", topics=[topic], home=f"rc-{kind}") as producer,
        scene.client(kind, "simple", topic=topic, group=f"recall-{kind}") as consumer,
    ):
        recalled = await producer.must_send(topic, "recalled", delayMs=DELAY_MS)
        producer.tell(topic=topic, recall=recalled["recallHandle"])
        await producer.until(lambda: {"recalled": recalled["id"]} in producer.events)
        await producer.must_send(topic, "kept", delayMs=DELAY_MS)
        await consumer.until(lambda: bool(consumer.got))
        assert consumer.bodies == ["kept"]


@EACH
async def test_only_what_an_sql_filter_wants(scene: Scene, kind: str) -> None:
    topic = f"Sql-{kind}"
    await scene.stage.create(topic)
    wanted = "region = 'eu' AND size > 10"
    async with (
        scene.client(kind, "producer", topics=[topic], home=f"sq-{kind}") as producer,
        scene.client(
            kind, "consumer", topic=topic, group=f"sql-{kind}", expression=wanted, isSql=True
        ) as consumer,
    ):
        for region, size in [("eu", "9"), ("us", "11"), ("eu", "12")]:
            body = f"{region}{size}"
            await producer.must_send(topic, body, properties={"region": region, "size": size})
        await consumer.until(lambda: bool(consumer.got))
        assert consumer.bodies == ["eu12"]


@EACH
async def test_the_highest_priority_comes_first(scene: Scene, kind: str) -> None:
    topic = f"Priority-{kind}"
    await scene.stage.create(topic, message_type="PRIORITY")
    async with scene.client(kind, "producer", topics=[topic], home=f"pr-{kind}") as producer:
        for priority in (1, 3, 2):  # the Node client takes 0 for none
            await producer.must_send(topic, f"p{priority}", priority=priority)
        async with scene.client(kind, "simple", topic=topic, group=f"priority-{kind}") as consumer:
            await consumer.until(lambda: len(consumer.got) == 3)
    assert consumer.bodies == ["p3", "p2", "p1"]
    assert [each["priority"] for each in consumer.got] == [3, 2, 1]


@EACH
async def test_a_receipt_is_renewed_two_thousand_times(scene: Scene, kind: str) -> None:
    """Each answer has another handle; the last one acknowledges the message."""
    topic = f"Renewals-{kind}"
    await scene.stage.create(topic)
    async with (
        scene.client(kind, "producer", topics=[topic], home=f"rn-{kind}") as producer,
        scene.client(kind, "simple", topic=topic, group=f"renewals-{kind}", renewals=RENEWALS) as consumer,
    ):
        await producer.must_send(topic, "renewed")
        await consumer.until(lambda: any("acked" in event for event in consumer.events), timeout_s=120)
        assert consumer.bodies == ["renewed"]
        assert consumer.errors == []
    await scene.nothing_comes_again(kind, topic, f"renewals-{kind}")
