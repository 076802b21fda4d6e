"""RocketMQ 5's own clients under traffic while programs are killed: nothing acknowledged is lost, and nobody
has to do anything. Each test has producers and consumers of both clients at once.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from keelmq.runtime.clock import now_ms
from tests.interop.drivers import GRPC_NODE, GRPC_PYTHON, Client, need
from tests.interop.grpc_scene import OTHER, Scene, grpc_scene, ready
from tests.interop.traffic import Traffic

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="module")]

KINDS = (GRPC_PYTHON, GRPC_NODE)
PAUSE_MS_MAX = 3_000
"""Between two acknowledgements while a master is replaced: 0.3 s on an idle machine."""
RECOVERY_MS_MAX = 10_000
"""After the start of a proxy: the longer it was gone, the longer clients pause between attempts to connect.
5 s where a start takes a second."""
INVISIBLE_S = 10
ARRIVAL_S = 60.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    for kind in KINDS:
        need(kind)
    of_proxy = {"defaultInvisibleTimeMills": str(1_000 * INVISIBLE_S)}
    directory = tmp_path_factory.mktemp("fail-over")
    async with grpc_scene(directory, brokers=3, name_servers=3, of_proxy=of_proxy) as found:
        yield found


class Side:
    """One client's producer with a topic of its own, a push consumer, and the other client's simple one."""

    def __init__(self, kind: str, topic: str, traffic: Traffic, push: Client, simple: Client) -> None:
        self.kind, self.topic, self.traffic, self.push, self.simple = kind, topic, traffic, push, simple

    async def all_arrive(self) -> None:
        wanted = set(self.traffic.sent)
        await self.push.until(lambda: wanted <= set(self.push.bodies), ARRIVAL_S)
        await self.simple.until(lambda: wanted <= set(self.simple.bodies), ARRIVAL_S)

    async def both_get_more(self) -> None:
        """Both consumers get another message."""
        push, simple = len(self.push.got), len(self.simple.got)
        await self.push.until(lambda: len(self.push.got) > push)
        await self.simple.until(lambda: len(self.simple.got) > simple)


@contextlib.asynccontextmanager
async def side(scene: Scene, kind: str, name: str) -> AsyncIterator[Side]:
    topic = f"{name}-{kind}"
    await scene.stage.create(topic)
    async with (
        scene.client(kind, "producer", topics=[topic], home=f"producer-{topic}") as producer,
        scene.client(kind, "consumer", topic=topic, group=f"push-{topic}") as push,
        scene.client(OTHER[kind], "simple", topic=topic, group=f"simple-{topic}") as simple,
    ):
        traffic = Traffic(producer, topic)
        try:
            await traffic.more(50)
            yield Side(kind, topic, traffic, push, simple)
        finally:
            await traffic.stop()


@contextlib.asynccontextmanager
async def both(scene: Scene, name: str) -> AsyncIterator[list[Side]]:
    """At the end all messages that were acknowledged have arrived."""
    async with side(scene, KINDS[0], name) as first, side(scene, KINDS[1], name) as second:
        yield [first, second]
        for each in (first, second):
            await each.traffic.stop()
        await asyncio.gather(first.all_arrive(), second.all_arrive())


async def test_a_killed_master_is_a_pause_and_no_error(scene: Scene) -> None:
    running = scene.stage.running
    async with both(scene, "Master") as sides:
        master = await running.master()
        await running.cluster.kill_and_wait(master)
        await running.new_master(master)
        await asyncio.gather(*(each.traffic.more(100) for each in sides))
    print({each.kind: str(each.traffic) for each in sides})
    running.cluster.start_program(master)
    await running.all_in_sync()
    for each in sides:
        assert each.traffic.failed == []
        assert each.traffic.longest_gap_ms <= PAUSE_MS_MAX
        assert each.simple.errors == []


async def test_without_name_servers_everything_goes_on(scene: Scene) -> None:
    running = scene.stage.running
    async with both(scene, "NameServers") as sides:
        for program in running.cluster.name_servers:
            await running.cluster.kill_and_wait(program)
        await asyncio.gather(*(each.traffic.more(200) for each in sides))
        await asyncio.gather(*(each.all_arrive() for each in sides))
        for program in running.cluster.name_servers:
            running.cluster.start_program(program)
        await running.all_in_sync()
    for each in sides:
        assert each.traffic.failed == []
        assert each.simple.errors == []


async def test_a_killed_proxy_is_replaced(scene: Scene) -> None:
    """By one at the same address. Sends fail meanwhile: nobody listens there."""
    stage, proxy = scene.stage, scene.proxy
    async with both(scene, "Proxy") as sides:
        await stage.running.cluster.kill_and_wait(proxy)
        proxy.log_path.write_bytes(b"")
        stage.running.cluster.start_program(proxy)
        await ready(stage, proxy)
        ready_ms = now_ms()
        await asyncio.gather(*(each.traffic.more(1) for each in sides))
        await asyncio.gather(*(each.both_get_more() for each in sides))
        took_ms = now_ms() - ready_ms
    print(f"{took_ms} ms after the start of the proxy", {each.kind: str(each.traffic) for each in sides})
    assert took_ms <= RECOVERY_MS_MAX


async def test_a_killed_consumer_holds_nothing_back(scene: Scene) -> None:
    """The other member of the group gets what it held, when the invisible time is over."""
    async with both(scene, "Clients") as sides:
        await asyncio.gather(*(kill_a_consumer(scene, each) for each in sides))


async def kill_a_consumer(scene: Scene, side: Side) -> None:
    topic, push = side.topic, side.push
    async with scene.client(
        side.kind, "consumer", topic=topic, group=f"push-{topic}", home=f"killed-{topic}"
    ) as killed:
        await killed.until(lambda: len(killed.got) > 10)
        killed.kill()
        wanted = set(side.traffic.sent)
        await push.until(lambda: wanted <= set(push.bodies) | set(killed.bodies), INVISIBLE_S + 10)
    push.events += killed.events  # what it has acknowledged comes to no one else
