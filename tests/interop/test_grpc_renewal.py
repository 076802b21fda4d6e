"""Push consumers of RocketMQ 5 whose listeners take long: a message comes once while its client lives.

The invisible time is short here (10 s), so a listener that takes 25 s needs several renewals.
"""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.interop.grpc_scene import EACH, OTHER, Scene, grpc_scene, proxy_beside

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180), pytest.mark.asyncio(loop_scope="module")]

INVISIBLE_S = 10
SLOW_S = 25
SETTINGS = {"defaultInvisibleTimeMills": str(1_000 * INVISIBLE_S)}
KNOWN_S = 5
"""So long after an answer the broker knows that it was delivered: after a second, on a machine that is not
busy."""
REVIVAL_S = 5
"""On a busy machine."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    async with grpc_scene(tmp_path_factory.mktemp("renewal"), of_proxy=SETTINGS) as found:
        yield found


@EACH
async def test_a_slow_listener_gets_its_message_once(scene: Scene, kind: str) -> None:
    await asyncio.gather(*(get_once(scene, kind, is_fifo=is_fifo) for is_fifo in (False, True)))


async def get_once(scene: Scene, kind: str, *, is_fifo: bool) -> None:
    name = f"{kind}-fifo" if is_fifo else kind
    topic, group = f"Slow-{name}", f"slow-{name}"
    await scene.stage.create(topic)
    if is_fifo:
        await scene.fifo_group(group)
    async with (
        scene.client(kind, "producer", topics=[topic], home=f"s-{name}") as producer,
        scene.client(kind, "consumer", topic=topic, group=group, slowS=SLOW_S) as consumer,
    ):
        more = {"messageGroup": "g"} if is_fifo else {}
        await producer.must_send(topic, "slow", **more)
        await consumer.until(lambda: {"consumed": "slow"} in consumer.events, SLOW_S + 20)
        await producer.must_send(topic, "next", **more)  # when it arrives, the acknowledgement was sent
        await consumer.until(lambda: consumer.bodies == ["slow", "next"])
    await scene.nothing_comes_again(kind, topic, group)


@pytest.mark.slow
@EACH
async def test_a_proxy_that_is_killed_ends_no_renewal(scene: Scene, kind: str) -> None:
    """The one that starts in its place renews what it has never seen, and the first handle acknowledges. The
    invisible time is longer here: a client has to connect again within it."""
    topic, group, cluster = f"Died-{kind}", f"died-{kind}", scene.stage.running.cluster
    await scene.stage.create(topic)
    settings = {"defaultInvisibleTimeMills": "30000"}
    async with (
        proxy_beside(scene.stage, scene.directory, f"died-{kind}", more=settings) as proxy,
        scene.client(kind, "producer", topics=[topic], home=f"di-{kind}") as producer,
        scene.client(
            kind, "consumer", at=proxy.address, topic=topic, group=group, slowS=2 * SLOW_S
        ) as consumer,
    ):
        await producer.must_send(topic, "slow")
        await consumer.until(lambda: bool(consumer.got))
        known_s = time.monotonic() + KNOWN_S
        while time.monotonic() < known_s:  # noqa: ASYNC110 - only time has to pass
            await asyncio.sleep(0.1)
        await cluster.kill_and_wait(proxy)
        cluster.start_program(proxy)
        await consumer.until(lambda: {"consumed": "slow"} in consumer.events, 2 * SLOW_S + 20)
        await producer.must_send(topic, "next")
        await consumer.until(lambda: consumer.bodies == ["slow", "next"])
    await scene.nothing_comes_again(kind, topic, group)


@EACH
async def test_a_client_that_is_killed_holds_nothing_back(scene: Scene, kind: str) -> None:
    """Its message comes at the end of the invisible time to another one."""
    topic, group = f"Killed-{kind}", f"killed-{kind}"
    await scene.stage.create(topic)
    async with (
        scene.client(kind, "producer", topics=[topic], home=f"k-{kind}") as producer,
        scene.client(kind, "consumer", topic=topic, group=group, slowS=3_600) as consumer,
    ):
        await producer.must_send(topic, "slow")
        await consumer.until(lambda: bool(consumer.got))
        consumer.kill()
        killed_s = time.time()
        async with scene.client(OTHER[kind], "simple", topic=topic, group=group, home=f"a-{kind}") as other:
            await other.until(lambda: bool(other.got), INVISIBLE_S + 30)
            assert other.got[0]["at"] / 1_000 - killed_s < INVISIBLE_S + REVIVAL_S
            assert (other.bodies, other.got[0]["times"]) == (["slow"], 1)
