"""Metrics of topics, groups and clients, of a running broker."""

from pathlib import Path

from broker.admin.group_metrics import OTHERS
from broker.admin.metrics import scrape
from broker.app.broker import Broker
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Empty, Ok
from keelmq.remoting.operations import clients
from keelmq.remoting.operations.broker import (
    DELETE_TOPIC_IN_BROKER,
    PULL_MESSAGE,
    SEND_MESSAGE_V2,
    PullMessageRequest,
    SendMessageRequestV2,
    TopicRequest,
)
from keelmq.remoting.operations.broker_metadata import (
    UPDATE_CONSUMER_OFFSET,
    UpdateConsumerOffsetRequest,
)
from keelmq.remoting.servers.metrics import OVERFLOW
from tests.unit.broker.app.test_broker_app import config, send

COMMON = 5  # labels that all metrics have


async def samples(broker: Broker) -> dict[tuple[str, ...], float]:
    """(name, values of its own labels) -> value"""
    return {
        (sample.name, *list(sample.labels.values())[COMMON:]): sample.value
        for family in await scrape(broker.metric_sources())
        for sample in family.samples
    }


async def test_what_groups_get_and_lack(tmp_path: Path, client: RemotingClient) -> None:
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
        heartbeat = clients.HeartbeatData(
            client_id="c",
            consumer_data_set=[consumer],
            producer_data_set=[clients.ProducerData(group_name="p")],
        )
        assert isinstance(await client.call(broker.address, clients.HEART_BEAT, Empty(), heartbeat), Ok)
        found = await samples(broker)
        assert found["rocketmq_messages_out_total", "T", "g1", "false"] == 2
        assert found["rocketmq_throughput_in_total", "T", "normal", "false"] == broker.store.put_bytes
        assert found["rocketmq_throughput_out_total", "T", "g1", "false"] == broker.store.put_bytes * 2 / 5
        assert found["rocketmq_consumer_lag_messages", "g1", "T", "false", "false"] == 3
        labels = "g1", "T", "false", "false"
        assert found["rocketmq_consumer_inflight_messages", *labels] == 0
        assert found["rocketmq_consumer_ready_messages", *labels] == 3
        assert ("rocketmq_consumer_lag_latency_milliseconds", *labels) not in found, "not measured yet"
        await broker.lags.measure()
        found = await samples(broker)
        assert 0 <= found["rocketmq_consumer_lag_latency_milliseconds", *labels] < 60_000
        assert found["rocketmq_consumer_connections", "g1", "PYTHON", "479", "pull", "false", "remoting"] == 1
        assert found["rocketmq_producer_connections", "PYTHON", "479", "remoting"] == 1
        assert found["rocketmq_consumer_group_number",] == len(broker.metadata.groups.table.rows)


async def test_a_metric_beyond_the_limit_has_one_series_for_the_others(
    tmp_path: Path, client: RemotingClient
) -> None:
    async with Broker(config(tmp_path, metrics_otel_cardinality_limit=1)) as broker:
        await send(client, broker, b"x" * 10)
        for group in ("g1", "g2", "g3"):
            pull = PullMessageRequest(
                consumer_group=group, topic="T", queue_id=0, queue_offset=0, max_msg_nums=2
            )
            assert isinstance(await client.call(broker.address, PULL_MESSAGE, pull), Ok)
        found = await samples(broker)
    assert found["rocketmq_messages_out_total", "(others)", "(others)", "false"] == 2
    assert ("rocketmq_messages_out_total", "T", "g2", "false") not in found
    overflow = {key[1]: count for key, count in found.items() if key[0] == OVERFLOW.name}
    assert overflow


async def test_the_series_of_the_others_never_goes_down(tmp_path: Path, client: RemotingClient) -> None:
    """Prometheus takes a smaller value for a restart, and counts all of it again."""
    async with Broker(config(tmp_path, metrics_otel_cardinality_limit=1)) as broker:
        reads, group = broker.stats.reads, next(iter(broker.metadata.groups.table.rows))
        for topic in ("T1", "T2", "T3"):
            header = SendMessageRequestV2(a="g", b=topic, e=0, g=1)
            assert isinstance(await client.call(broker.address, SEND_MESSAGE_V2, header, b"x" * 10), Ok)
            for _ in range(5):
                reads.count_read(topic, group, 0, 1, 1, 100)
                reads.count_dead_letter(topic, group)
        names = {
            "rocketmq_messages_in_total", "rocketmq_throughput_in_total", "rocketmq_message_size_bytes_count",
            "rocketmq_messages_out_total", "rocketmq_throughput_out_total",
            "rocketmq_send_to_dlq_messages_total",
        }  # fmt: skip

        async def others() -> dict[str, float]:
            return {
                key[0]: value
                for key, value in (await samples(broker)).items()
                if OTHERS in key and key[0] in names
            }

        before = await others()
        delete = TopicRequest(topic="T1")
        assert isinstance(await client.call(broker.address, DELETE_TOPIC_IN_BROKER, delete), Ok)
        after = await others()
        assert before.keys() == after.keys() == names
        assert all(after[name] >= before[name] for name in names), (before, after)
        reads.count_read("T3", group, 0, 1, 1, 100)
        assert (await others())["rocketmq_messages_out_total"] == after["rocketmq_messages_out_total"] + 1


async def test_messages_that_were_pulled_and_not_committed_are_in_flight(
    tmp_path: Path, client: RemotingClient
) -> None:
    async with Broker(config(tmp_path)) as broker:
        for _ in range(5):
            await send(client, broker, b"x")
        commit = UpdateConsumerOffsetRequest(consumer_group="g", topic="T", queue_id=0, commit_offset=1)
        assert isinstance(await client.call(broker.address, UPDATE_CONSUMER_OFFSET, commit), Ok)
        pull = PullMessageRequest(consumer_group="g", topic="T", queue_id=0, queue_offset=1, max_msg_nums=3)
        assert isinstance(await client.call(broker.address, PULL_MESSAGE, pull), Ok)
        await broker.lags.measure()
        lag = next(each for each in broker.lags.found if each.group == "g")
        assert (lag.messages, lag.inflight, lag.ready) == (4, 3, 1)
        assert lag.latency_ms >= lag.queueing_ms >= 0
        broker.metadata.offsets.remove_topic("T")
        await broker.lags.measure()
        assert broker.lags.found == [], "series of what is gone go"


async def test_the_series_of_a_deleted_topic_end(tmp_path: Path, client: RemotingClient) -> None:
    async with Broker(config(tmp_path)) as broker:
        await send(client, broker, b"x")
        pull = PullMessageRequest(consumer_group="g", topic="T", queue_id=0, queue_offset=0, max_msg_nums=2)
        assert isinstance(await client.call(broker.address, PULL_MESSAGE, pull), Ok)
        assert any("T" in key for key in (await samples(broker)))
        deleted = await client.call(broker.address, DELETE_TOPIC_IN_BROKER, TopicRequest(topic="T"))
        assert isinstance(deleted, Ok)
        assert not any("T" in key for key in (await samples(broker)))
