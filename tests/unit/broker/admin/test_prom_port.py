"""metricsExporterType=PROM: a port of its own, as RocketMQ has it; metricsLabel; what is refused."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from broker.admin.exporter_metrics import TABLE
from broker.admin.metrics import TABLE as BROKER_TABLE
from broker.app.broker import Broker
from broker.config.broker_config import BrokerConfig
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Ok
from keelmq.remoting.operations.broker import PULL_MESSAGE, PullMessageRequest
from keelmq.remoting.operations.broker_metadata import UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetRequest
from keelmq.remoting.servers.health import HEALTH_TABLE, LIBRARY_TABLE
from keelmq.remoting.servers.metrics import documented
from keelmq.security.metrics import TABLE as SECURITY
from tests.support.http_parts import ask, samples, shapes, value
from tests.unit.broker.app.test_broker_app import config, send

PROM = {"metrics_exporter_type": "PROM", "metrics_prom_exporter_port": 0, "broker_ip1": "127.0.0.1"}


async def test_the_exporter_port_has_the_paths_of_rocketmq(tmp_path: Path, client: RemotingClient) -> None:
    labels = "env:test,zone:a"
    async with Broker(config(tmp_path, metrics_label=labels, **PROM)) as broker:
        await send(client, broker, b"x")
        pages = {path: await ask(broker.prom_address, path) for path in ("/", "/metrics", "/-/healthy")}
        other = await ask(broker.prom_address, "/v1/haStatus")
    assert {page.status_code for page in pages.values()} == {200} and other.status_code == 404
    assert pages["/-/healthy"].text == "Exporter is Healthy.\n"
    for path in ("/", "/metrics"):
        found = samples(pages[path].text)
        assert value(found, "rocketmq_messages_in_total", topic="T", env="test", zone="a") == 1


async def test_without_it_there_is_no_such_port(tmp_path: Path) -> None:
    async with Broker(config(tmp_path)) as broker:
        assert broker.prom_address is None


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"metricsExporterType": "OTLP_GRPC"}, "OTLP_GRPC is not supported: use PROM"),
        ({"metricsExporterType": 3}, "LOG is not supported"),
        ({"metricsExporterType": "X"}, "must be one of DISABLE, OTLP_GRPC, PROM, LOG"),
        ({"metricsInDelta": True}, "deltas are not supported"),
        ({"metricsLabel": "env"}, "'env' is not name:value"),
        ({"metricsLabel": "a-b:c"}, "'a-b:c' is not name:value"),
    ],
)
def test_what_is_refused_at_the_start(settings: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        BrokerConfig.model_validate(settings)


def test_the_type_may_be_a_number() -> None:
    assert BrokerConfig.model_validate({"metricsExporterType": "2"}).metrics_exporter_type == "PROM"


async def test_the_gauges_of_the_standalone_exporter(tmp_path: Path, client: RemotingClient) -> None:
    """Every name is there once something was sent and read, but for what this broker has not seen."""
    async with Broker(config(tmp_path, metrics_exporter_compat=True, **PROM)) as broker:
        for _ in range(3):
            await send(client, broker, b"x")
        pull = PullMessageRequest(consumer_group="g", topic="T", queue_id=0, queue_offset=0, max_msg_nums=2)
        assert isinstance(await client.call(broker.address, PULL_MESSAGE, pull), Ok)
        commit = UpdateConsumerOffsetRequest(consumer_group="g", topic="T", queue_id=0, commit_offset=1)
        assert isinstance(await client.call(broker.address, UPDATE_CONSUMER_OFFSET, commit), Ok)
        broker.stats.tick()
        text = (await ask(broker.prom_address, "/metrics")).text
    found = samples(text)
    assert value(found, "rocketmq_group_diff", group="g", topic="T", countOfOnlineConsumers="0") == 2
    assert value(found, "rocketmq_producer_offset", topic="T", cluster="DefaultCluster", broker="b") == 3
    assert value(found, "rocketmq_consumer_offset", topic="T", group="g") == 1
    runtime = {name for name in found if name.startswith("rocketmq_brokeruntime_")}
    declared = {each.name for each in TABLE.metrics if each.name.startswith("rocketmq_brokeruntime_")}
    assert runtime == declared
    assert value(found, "rocketmq_brokeruntime_put_tps10") >= 0
    assert value(found, "rocketmq_brokeruntime_commitlog_maxoffset") == value(found, "rocketmq_max_offset")
    known = documented([TABLE, BROKER_TABLE, SECURITY, HEALTH_TABLE, LIBRARY_TABLE])
    assert shapes(text).items() <= known.items()
