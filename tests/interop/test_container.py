"""To clients that were written for RocketMQ, a broker in a container is a broker."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.interop.drivers import CPP, NODE_JS, need
from tests.interop.stage import Stage, staged

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]


@pytest.fixture
async def stage(tmp_path: Path, kind: str) -> AsyncIterator[Stage]:
    need(kind)
    async with staged(tmp_path, containers=True) as stage:
        yield stage


@pytest.mark.parametrize("kind", [CPP, NODE_JS])
async def test_messages_and_offsets(stage: Stage, kind: str) -> None:
    """One that begins later has everything, and a group goes on where it was."""
    await stage.create("Inner")
    async with stage.producer(kind) as producer:
        for index in range(8):
            await producer.must_send("Inner", f"first {index}")
        async with stage.consumer(kind, "Inner", "Group") as consumer:
            await consumer.until(lambda: len(consumer.got) == 8)
            await stage.committed("Inner", "Group", 8)
        for index in range(8):
            await producer.must_send("Inner", f"second {index}")
        async with stage.consumer(kind, "Inner", "Group") as consumer:
            await consumer.until(lambda: len(consumer.got) >= 8)
        assert set(consumer.bodies) == {f"second {index}" for index in range(8)}
