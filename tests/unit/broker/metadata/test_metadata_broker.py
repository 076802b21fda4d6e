"""The broker program, alone: what was committed is there after a restart, and after kill -9."""

from pathlib import Path

import pytest

from broker.app.broker import Broker
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Failed, Ok
from keelmq.remoting.operations.broker_metadata import (
    QUERY_CONSUMER_OFFSET,
    UPDATE_CONSUMER_OFFSET,
    ConsumerOffsetRequest,
    UpdateConsumerOffsetRequest,
)
from tests.unit.broker.app.test_broker_app import config, send


async def commit(client: RemotingClient, broker: Broker, offset: int) -> None:
    header = UpdateConsumerOffsetRequest(consumer_group="g", topic="T", queue_id=0, commit_offset=offset)
    outcome = await client.call(broker.address, UPDATE_CONSUMER_OFFSET, header)
    assert isinstance(outcome, Ok), outcome


async def offset_of(client: RemotingClient, broker: Broker) -> int | None:
    header = ConsumerOffsetRequest(consumer_group="g", topic="T", queue_id=0)
    outcome = await client.call(broker.address, QUERY_CONSUMER_OFFSET, header)
    assert isinstance(outcome, Ok | Failed), outcome
    return outcome.header.offset if isinstance(outcome, Ok) else None


async def test_offsets_survive_a_restart(tmp_path: Path, client: RemotingClient) -> None:
    async with Broker(config(tmp_path)) as broker:
        for _ in range(5):
            await send(client, broker, b"x")
        await commit(client, broker, 3)
    assert not (tmp_path / "store" / "config" / "consumerOffset.json.journal").exists()
    async with Broker(config(tmp_path)) as broker:
        assert await offset_of(client, broker) == 3


async def test_offsets_beyond_a_lost_tail_are_set_back(
    tmp_path: Path, client: RemotingClient, caplog: pytest.LogCaptureFixture
) -> None:
    """Pitfall 61, alone: the disk lost messages, not the offsets."""
    async with Broker(config(tmp_path)) as broker:
        for _ in range(5):
            await send(client, broker, b"x")
        await commit(client, broker, 5)
        broker.store.become_slave()
        broker.store.cutter.truncate(broker.store.commit_log.max_offset // 2)
    async with Broker(config(tmp_path)) as broker:
        offset = await offset_of(client, broker)
        assert offset is not None and offset < 5
        assert "affected groups: g" in caplog.text
