"""Metrics of topics, groups and clients, of a running broker."""

from pathlib import Path

import pytest

from broker.admin import group_metrics as metrics_groups
from broker.admin.metrics import scrape
from broker.app.broker import Broker
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Ok
from keelmq.remoting.operations import clients
from keelmq.remoting.operations.broker import PULL_MESSAGE, PullMessageRequest
from keelmq.remoting.operations.broker_metadata import UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetRequest
from tests.unit.broker.app.test_broker_app import client, config, send

__all__ = ["client"]  # a fixture
COMMON = 5  # labels that all metrics have


def samples(broker: Broker) -> dict[tuple[str, ...], float]:
    """(name, values of its own labels) -> value"""
    return {
        (sample.name, *list(sample.labels.values())[COMMON:]): sample.value
        for family in scrape(broker.metric_sources())
        for sample in family.samples
    }


async def test_what_groups_get_and_lack(
    tmp_path: Path, client: RemotingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Broker(config(tmp_path)) as broker:
        for _ in range(5):
            await send(client, broker, b"x" * 10)
        for group in ("g1", "g2", "g3"):
            pull = PullMessageRequest(
                consumer_group=group, topic="T", queue_id=0, queue_offset=0, max_msg_nums=2
            )
            assert isinstance(await client.call(broker.address, PULL_MESSAGE, pull), Ok)
        commit = UpdateConsumerOffsetRequest(consumer_group="g1", topic="T", queue_id=0, commit_offset=2)
        assert isinstance(await client.call(broker.address, UPDATE_CONSUMER_OFFSET, commit), Ok)
        consumer = clients.ConsumerData(group_name="g1", consume_type="CONSUME_ACTIVELY")
        beat = clients.HeartbeatData(
            client_id="c",
            consumer_data_set=[consumer],
            producer_data_set=[clients.ProducerData(group_name="p")],
        )
        assert isinstance(await client.call(broker.address, clients.HEART_BEAT, clients.Empty(), beat), Ok)
        found = samples(broker)
        assert found["rocketmq_messages_out_total", "T", "g1", "false"] == 2
        assert found["rocketmq_throughput_in_total", "T", "false"] == broker.store.put_bytes
        assert found["rocketmq_throughput_out_total", "T", "g1", "false"] == broker.store.put_bytes * 2 / 5
        assert found["rocketmq_consumer_lag_messages", "g1", "T", "false", "false"] == 3
        assert found["rocketmq_consumer_connections", "g1", "PYTHON", "479", "pull", "false"] == 1
        assert found["rocketmq_producer_connections", "PYTHON", "479"] == 1
        assert found["rocketmq_consumer_group_number",] == len(broker.metadata.groups.table.rows)
        monkeypatch.setattr(metrics_groups, "PAIRS_MAX", 1)
        found = samples(broker)
        assert found["rocketmq_messages_out_total", "(others)", "(others)", "false"] == 4
        assert ("rocketmq_messages_out_total", "T", "g2", "false") not in found
