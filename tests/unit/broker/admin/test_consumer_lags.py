"""How far consumer groups are behind, as a master writes it down."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from unittest.mock import patch

import pytest

from broker.admin import consumer_lags
from broker.admin.consumer_lags import ConsumerLags
from broker.app.broker import Broker
from broker.store.querying import stored_at
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Ok
from keelmq.remoting.records import ConsumerLag, decode_record
from tests.unit.broker.app.test_broker_app import config, send
from tests.unit.broker.ha.test_ha_service import until

NOW_MS = 4_000_000_000_000


class Lags:
    """A lone broker with four messages in queue 0 of topic T, and what its ConsumerLags puts."""

    def __init__(self, broker: Broker) -> None:
        assert broker.telemetry is not None
        self.broker, self.writer = broker, broker.telemetry.writer
        self.broker_id: int | None = 0
        self.lags = ConsumerLags(
            broker.config, broker.store, broker.metadata, self.writer, lambda: self.broker_id
        )

    def commit(self, group: str, offset: int, topic: str = "T") -> None:
        assert self.broker.metadata.offsets.commit(group, topic, 0, offset)

    def stored_ts(self, index: int) -> int:
        queue = self.broker.store.find_queue("T", 0)
        assert queue is not None
        return stored_at(self.broker.store.commit_log, queue, index)

    async def write(self) -> dict[tuple[str, str], tuple[int, int]]:
        """Returns (group, topic) -> (lag_messages, lag_ms)."""
        with patch.object(self.writer, "put") as put, patch.object(consumer_lags, "wall_ms", lambda: NOW_MS):
            await self.lags.write()
        records = [call.args[0] for call in put.call_args_list]
        lags = [each for each in records if isinstance(each, ConsumerLag)]
        assert len(lags) == len({(each.consumer_group, each.topic) for each in lags})
        return {(each.consumer_group, each.topic): (each.lag_messages, each.lag_ms) for each in lags}


@pytest.fixture
async def lags(tmp_path: Path) -> AsyncIterator[Lags]:
    client = RemotingClient()
    async with Broker(config(tmp_path)) as broker:
        for number in range(4):
            assert isinstance(await send(client, broker, b"%d" % number), Ok)
        yield Lags(broker)
    await client.close()


async def test_messages_and_the_age_of_the_oldest(lags: Lags) -> None:
    lags.commit("behind", 1)
    lags.commit("done", 4)
    lags.commit("beyond", 9)
    lags.commit("behind", 0, topic="NoSuchTopic")
    lags.commit("TOOLS_CONSUMER", 0)
    found = await lags.write()
    assert found[("behind", "T")] == (3, NOW_MS - lags.stored_ts(1))
    assert found[("done", "T")] == found[("beyond", "T")] == found[("behind", "NoSuchTopic")] == (0, 0)
    assert ("TOOLS_CONSUMER", "T") not in found, "a built-in group"


async def test_what_retention_has_deleted_is_not_behind(lags: Lags) -> None:
    queue = lags.broker.store.find_queue("T", 0)
    assert queue is not None
    lags.commit("late", 0)
    with patch.object(queue, "min_offset", 3):
        assert await lags.write() == {("late", "T"): (1, NOW_MS - lags.stored_ts(3))}


async def test_only_a_master_writes(lags: Lags) -> None:
    lags.commit("behind", 1)
    lags.broker_id = None
    assert await lags.write() == {}


async def test_the_pairs_that_are_furthest_behind_and_the_number_of_the_others(
    lags: Lags, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(consumer_lags, "PAIRS_MAX", 2)
    monkeypatch.setattr(consumer_lags, "STEP", 1)
    for offset in range(5):
        lags.commit(f"g{offset}", offset)
    with caplog.at_level(logging.WARNING):
        assert set(await lags.write()) == {("g0", "T"), ("g1", "T")}
    assert "the lag of 3 pairs of consumer group and topic is left out" in caplog.text
    monkeypatch.setattr(consumer_lags, "EXAMINED_MAX", 1)
    assert set(await lags.write()) == {("g0", "T")}


async def test_a_broker_writes_them_by_itself(tmp_path: Path) -> None:
    client = RemotingClient()
    folder = tmp_path / "store" / "telemetry" / "consumer_lag"
    async with Broker(config(tmp_path, telemetry_consumer_lag_interval=20)) as broker:
        assert isinstance(await send(client, broker, b"x"), Ok)
        assert broker.metadata.offsets.commit("g", "T", 0, 0)
        await until(lambda: any(path.read_bytes() for path in folder.rglob("*.jsonl*")), "records")
    await client.close()
    (path,) = folder.rglob("*.jsonl")
    record = decode_record(path.read_bytes().splitlines()[0])
    assert isinstance(record, ConsumerLag)
    assert (record.consumer_group, record.topic, record.lag_messages) == ("g", "T", 1)
    assert (record.cluster_name, record.broker_name, record.broker_id) == ("DefaultCluster", "b", 0)


async def test_the_interval_0_switches_them_off(tmp_path: Path) -> None:
    async with Broker(config(tmp_path, telemetry_consumer_lag_interval=0)) as broker:
        assert broker.telemetry is not None
        names = {task.get_name() for task in asyncio.all_tasks()}
        assert "telemetry samples" in names and "consumer lags" not in names
