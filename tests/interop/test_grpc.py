"""RocketMQ 5's own clients, in Python and for Node, against mqproxy and against a broker with enableProxy."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from cli.lab.cluster import Program
from keelmq.remoting.operations.broker_metadata import SubscriptionGroupConfig
from tests.interop.drivers import GRPC_NODE, GRPC_PYTHON, Client, command_of, need
from tests.interop.stage import Stage, staged
from tests.support.pages import ROOT, blocks
from tests.support.ports import free_port

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180), pytest.mark.asyncio(loop_scope="module")]

HOST = "127.0.0.1"
EACH = pytest.mark.parametrize("kind", [GRPC_PYTHON, GRPC_NODE])
OTHER = {GRPC_PYTHON: GRPC_NODE, GRPC_NODE: GRPC_PYTHON}
DELAY_MS = 3_000


class Scene:
    """A broker that serves gRPC itself, and a proxy beside it."""

    def __init__(self, stage: Stage, directory: Path, broker_port: int, proxy: Program) -> None:
        self.stage, self._directory, self.proxy = stage, directory, proxy
        self.in_broker = f"{HOST}:{broker_port}"

    def client(self, client: str, kind: str, *, at: str = "", home: str = "", **more: object) -> Client:
        """at: the address; "": the proxy's."""
        directory = self._directory / (home or f"{kind}-{more.get('group', '')}")
        directory.mkdir(exist_ok=True)
        options = {"group": "producers", "endpoints": at or self.proxy.address, **more}
        return Client(client, directory, kind=kind, **options)

    async def fifo_group(self, name: str) -> None:
        group = SubscriptionGroupConfig(group_name=name, consume_message_orderly=True)
        await self.stage.group_settings(group)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    """All tests use it: each has topics and groups of its own."""
    directory = tmp_path_factory.mktemp("grpc")
    async with AsyncExitStack() as stack:
        broker_port = free_port()
        more = {"enableProxy": "true", "grpcServerPort": str(broker_port)}
        more |= {"transactionTimeOut": "1000", "transactionCheckInterval": "1000"}
        stage = await stack.enter_async_context(staged(directory, more=more))
        proxy = proxy_of(stage, directory)
        stack.callback(stage.running.cluster.kill, proxy)
        stage.running.cluster.start_program(proxy)
        await ready(stage, proxy)
        yield Scene(stage, directory, broker_port, proxy)


def proxy_of(stage: Stage, directory: Path, name: str = "proxy") -> Program:
    port = free_port()
    settings = {
        "namesrvAddr": stage.namesrv, "bindAddress": HOST, "grpcServerPort": str(port),
        "allowOpenNetwork": "true",
    }  # fmt: skip
    proxy = Program(name, "proxy", directory, settings, f"{HOST}:{port}")
    proxy.write()
    return proxy


async def ready(stage: Stage, proxy: Program) -> None:
    async def is_ready() -> bool:
        return "ready: mqproxy" in proxy.log_path.read_text()

    await stage.running.cluster.until(f"{proxy.name} is ready", is_ready, timeout_s=20)


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
    proxy = proxy_of(stage, scene.proxy.directory, f"proxy-{kind}")
    stage.running.cluster.start_program(proxy)
    try:
        await ready(stage, proxy)
        async with (
            scene.client(kind, "producer", topics=[topic], home=f"r-{kind}") as producer,
            scene.client(
                kind, "consumer", at=proxy.address, topic=topic, group=f"restart-{kind}"
            ) as consumer,
        ):
            await producer.must_send(topic, "before")
            await consumer.until(lambda: "before" in consumer.bodies)
            await stage.running.cluster.kill_and_wait(proxy)
            await producer.must_send(topic, "meanwhile")
            stage.running.cluster.start_program(proxy)
            await producer.must_send(topic, "after")
            await consumer.until(lambda: {"meanwhile", "after"} <= set(consumer.bodies))
    finally:
        stage.running.cluster.kill(proxy)
