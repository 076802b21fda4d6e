"""Settings of a running broker (25, 26): in force at once, kept for the next start, or refused, and why."""

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker.app.broker import Broker
from broker.app.program import make_parser, read_config
from broker.config.broker_config import AT_RUN_TIME, BrokerConfig
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.config_store import ConfigSources
from keelmq.remoting.operation import Empty, Failed, Ok
from keelmq.remoting.operations.broker import GET_BROKER_CONFIG, PULL_MESSAGE, PullMessageRequest
from keelmq.remoting.operations.broker_admin import UPDATE_BROKER_CONFIG
from keelmq.remoting.operations.route import TopicConfig
from tests.unit.broker.app.test_broker_app import config, send

FILE = "# ours\nbrokerName=b\nfileReservedTime=72\n"


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    path = tmp_path / "broker.conf"
    path.write_text(FILE)
    return path


@pytest.fixture
async def broker(tmp_path: Path, conf: Path) -> AsyncIterator[Broker]:
    async with Broker(config(tmp_path), ConfigSources(conf, {"KEELMQ_deleteWhen": "04"})) as broker:
        yield broker


async def change(client: RemotingClient, broker: Broker, text: str) -> Ok[Empty] | Failed:
    outcome = await client.call(broker.address, UPDATE_BROKER_CONFIG, Empty(), text.encode())
    assert isinstance(outcome, Ok | Failed)
    return outcome


async def shown(client: RemotingClient, broker: Broker) -> tuple[dict[str, str], int]:
    """Settings, and how often they were changed."""
    outcome = await client.call(broker.address, GET_BROKER_CONFIG, Empty())
    assert isinstance(outcome, Ok)
    pairs = (line.partition("=") for line in outcome.body.decode().splitlines())
    return {key: value for key, _, value in pairs}, json.loads(outcome.header.version)["counter"]


async def test_rocketmqs_tools_find_the_keys_that_they_read(client: RemotingClient, broker: Broker) -> None:
    """exportConfigs of mqadmin ends with a NullPointerException without one of them; exportMetrics takes the
    last one for the number of CPUs."""
    settings, _ = await shown(client, broker)
    read = (
        "brokerClusterName brokerId brokerName brokerRole fileReservedTime filterServerNums flushDiskType "
        "maxMessageSize messageDelayLevel msgTraceTopicName slaveReadEnable traceOn traceTopicEnable useTLS "
        "autoCreateTopicEnable autoCreateSubscriptionGroup clientCallbackExecutorThreads"
    )
    assert [key for key in read.split() if not settings.get(key)] == []
    assert int(settings["clientCallbackExecutorThreads"]) == len(os.sched_getaffinity(0))
    assert (settings["useTLS"], settings["traceOn"], settings["filterServerNums"]) == ("false", "true", "0")


async def test_a_change_is_in_force_shown_and_kept(
    client: RemotingClient, broker: Broker, conf: Path
) -> None:
    assert isinstance(await send(client, broker, b"x" * 100), Ok)
    answer = await change(client, broker, "maxMessageSize=50\nfileReservedTime=1\n")
    assert isinstance(answer, Ok) and not answer.remark
    refused = await send(client, broker, b"x" * 100)
    assert isinstance(refused, Failed) and refused.code == ResponseCode.MESSAGE_ILLEGAL
    assert broker.config.retention.reserved_ms == 3_600_000
    settings, version = await shown(client, broker)
    assert (settings["maxMessageSize"], settings["fileReservedTime"], version) == ("50", "1", 1)
    assert conf.read_text() == "# ours\nbrokerName=b\nfileReservedTime=1\nmaxMessageSize=50\n"
    parser = make_parser()
    again, given = read_config(parser.parse_args(["-c", str(conf)]), {})
    assert (again.max_message_size, again.file_reserved_time, given.path) == (50, 1, conf)


@pytest.mark.parametrize(
    ("text", "code", "remark"),
    [
        ("listenPort=1", 1, "listenPort is read at start only"),
        ("storePathRootDir=/etc", 1, "storePathRootDir is read at start only"),
        ("configStorePath=/etc/passwd", 16, "Can not update config in black list."),
        ("brokerConfigPath=/etc/passwd", 16, "Can not update config in black list."),
        ("fileReservedTime=-1", 1, "fileReservedTime = '-1' in the request"),
        ("fileReservedTime=1\nfileReservdTime=2", 1, "did you mean 'fileReservedTime'?"),
        ("brokerPermission=9", 1, "brokerPermission"),
        ("deleteWhen=05", 1, "would win at the next start"),
        ("no equals sign", 1, "string2Properties error"),
    ],
)
async def test_a_refusal_says_why_and_changes_nothing(
    client: RemotingClient, broker: Broker, conf: Path, text: str, code: int, remark: str
) -> None:
    before = await shown(client, broker)
    answer = await change(client, broker, text)
    assert isinstance(answer, Failed) and answer.code == code and remark in answer.remark
    assert await shown(client, broker) == before
    assert conf.read_text() == FILE


async def test_permissions_reach_consumers_and_name_servers(client: RemotingClient, broker: Broker) -> None:
    """Broker-ops pitfall 14: what is announced is what both the topic and the broker permit."""
    await send(client, broker, b"x")
    only_read = TopicConfig(topic_name="R", read_queue_nums=1, write_queue_nums=1, perm=4)
    broker.topics.update(only_read)
    version = broker.topics.table.version
    pull = PullMessageRequest(consumer_group="g", topic="T", queue_id=0, queue_offset=0, max_msg_nums=1)
    assert isinstance(await client.call(broker.address, PULL_MESSAGE, pull), Ok)
    assert isinstance(await change(client, broker, "brokerPermission=2"), Ok)
    refused = await client.call(broker.address, PULL_MESSAGE, pull)
    assert isinstance(refused, Failed) and refused.code == ResponseCode.NO_PERMISSION
    assert broker.topics.table.version > version, "name servers look at new versions only"
    registrations = await broker.status.registrations()
    assert registrations is not None
    ((_, body),) = registrations.requests
    topics = json.loads(body)["topicConfigSerializeWrapper"]["topicConfigTable"]
    assert (topics["T"]["perm"], topics["TBW102"]["perm"], broker.topics.topics["T"].perm) == (2, 2, 6)
    assert topics["R"]["perm"] == 0, "nobody may write there, whatever the broker permits"


async def test_topics_are_created_by_messages_from_now_on_or_not(
    tmp_path: Path, client: RemotingClient
) -> None:
    async with Broker(config(tmp_path, auto_create_topic_enable=False)) as broker:
        refused = await send(client, broker, b"x")
        assert isinstance(refused, Failed) and refused.code == ResponseCode.TOPIC_NOT_EXIST
        answer = await change(client, broker, "autoCreateTopicEnable=true\ndefaultTopicQueueNums=3")
        assert isinstance(answer, Ok) and "until the next start" in answer.remark, "there is no -c file"
        assert isinstance(await send(client, broker, b"x"), Ok)


def test_every_key_that_can_change_exists() -> None:
    assert {field.alias for field in BrokerConfig.model_fields.values()} >= AT_RUN_TIME
