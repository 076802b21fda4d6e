"""mqadmin about brokers, topics, groups and offsets: a real name server and broker, a connected consumer."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import Result

from broker.app.broker import Broker
from cli.mqadmin.json_rows import read_rows
from cli.mqadmin.targets import Target, changed
from keelmq.client import Message, MessageQueue, Producer
from keelmq.client.admin import ServerResult
from keelmq.client.message import decode_messages
from keelmq.client.message_id import encode_offset_message_id
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import version_text
from keelmq.remoting.config_store import ConfigSources
from keelmq.remoting.operation import Call, Empty, Ok, OperationTable, Reply
from keelmq.remoting.operations import clients
from keelmq.remoting.operations.broker_metadata import UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetRequest
from keelmq.remoting.operations.route import TopicConfig
from keelmq.remoting.queue_map import QueueKey, dump_queue_map
from namesrv.app import Namesrv
from namesrv.config import NamesrvConfig
from tests.support.admin_parts import DEAD, InThread, mqadmin
from tests.unit.broker.app.test_broker_app import config

TOPIC, GROUP = "orders", "g-orders"


class World(InThread):
    """Ten messages in queue 0 of TOPIC; GROUP has consumed four, and one member is connected."""

    def __init__(self, path: Path) -> None:
        self.path, self.conf = path, path / "broker.conf"
        self.conf.write_text("fileReservedTime=72\n")

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        names = NamesrvConfig(
            bind_address="127.0.0.1", listen_port=0, http_port=-1, kv_config_path=self.path / "kv.json"
        )
        async with Namesrv(names) as namesrv:
            host, port = namesrv.address
            self.server, self.namesrv = namesrv, f"{host}:{port}"
            settings = config(
                self.path, namesrvAddr=self.namesrv, broker_name="broker-a", default_topic_queue_nums=2
            )
            async with Broker(settings, ConfigSources(self.conf)) as broker:
                self.broker, self.address = broker, broker.address
                await self._fill()
                yield
                await self.member.close()

    async def _fill(self) -> None:
        pushed = OperationTable()
        pushed.bind(clients.GET_CONSUMER_RUNNING_INFO, self._running_info)
        pushed.bind(clients.CONSUME_MESSAGE_DIRECTLY, self._consume)
        self.member = RemotingClient(pushed)
        async with asyncio.timeout(10):
            while not self.broker.status.readiness.registered:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)
        async with Producer(self.namesrv, "g-producers") as producer:
            for number in range(10):
                queue = MessageQueue(TOPIC, "broker-a", 0)
                await producer.send(Message(TOPIC, b"body %d" % number), queue=queue)
        subscription = clients.SubscriptionData(topic=TOPIC, sub_string="A || B", sub_version=1)
        consumer = clients.ConsumerData(group_name=GROUP, subscription_data_set=[subscription])
        producer_data = clients.ProducerData(group_name="g-producers")
        body = clients.HeartbeatData(
            client_id="10.0.0.9@1", consumer_data_set=[consumer], producer_data_set=[producer_data]
        )
        assert isinstance(await self.member.call(self.address, clients.HEART_BEAT, Empty(), body), Ok)
        await self.commit(GROUP, 4)

    async def commit(self, group: str, offset: int) -> None:
        header = UpdateConsumerOffsetRequest(
            consumer_group=group, topic=TOPIC, queue_id=0, commit_offset=offset
        )
        assert isinstance(await self.member.call(self.address, UPDATE_CONSUMER_OFFSET, header), Ok)

    async def _consume(self, header: clients.ConsumerCallRequest, call: Call) -> Reply:
        (message,) = decode_messages(call.raw_body)
        remark = message.body.decode()
        result = {"order": False, "autoCommit": True, "consumeResult": "CR_SUCCESS", "remark": remark}
        return Reply(body=json.dumps(result | {"spentTimeMills": 3}).encode())

    async def _running_info(self, header: clients.ConsumerCallRequest, call: Call) -> Reply:
        """As a client written in Java says it."""
        queues = [(QueueKey(TOPIC, "broker-a", 0), {"commitOffset": 4})]
        subscription = [{"topic": TOPIC, "subString": "A || B", "classFilterMode": False}]
        status = {TOPIC: {"pullRT": 1.5, "consumeOKTPS": 2.0, "consumeFailedMsgs": 7}}
        jstack = "main {[: at" if header.jstack_enable else ""
        body = dump_queue_map(
            "mqTable",
            queues,
            jstack=jstack,
            properties={"PROP_CONSUMEORDERLY": "false"},
            statusTable=status,
            subscriptionSet=subscription,
        )
        return Reply(body=body)


def ran(*args: str, code: int = 0) -> Result:
    result = mqadmin(*args)
    assert result.exit_code == code, (result.stdout, result.stderr)
    return result


def usage(*args: str) -> str:
    """The error of a wrong call, without the box around it."""
    return " ".join(ran(*args, code=2).stderr.replace("│", " ").split())


def value(*args: str) -> Any:
    return json.loads(ran(*args, "--json").stdout)


# -- brokers -----------------------------------------------------------------------------------------------


def test_the_settings_of_one_replica_are_not_compared(world: World) -> None:
    alone = ran("getBrokerConfig", "-c", "DefaultCluster", "-n", world.namesrv, "--diff", code=1)
    assert "nothing to compare" in alone.stdout and "the same settings" not in alone.stdout


def test_status(world: World) -> None:
    lines = ran("brokerStatus", "-b", world.address).stdout.splitlines()
    assert lines == sorted(lines)
    assert f"{'msgPutTotalTodayNow':<32}: 10" in lines
    of_cluster = ran("brokerStatus", "-c", "DefaultCluster", "-n", world.namesrv).stdout.splitlines()
    assert f"{world.address:<24} {'msgPutTotalTodayNow':<32}: 10" in of_cluster
    both = ran("brokerStatus", "-b", f"{world.address};{DEAD}", "--timeout", "500", code=4)
    assert DEAD in both.stderr and "msgPutTotalTodayNow" in both.stdout


def test_settings(world: World) -> None:
    shown = ran("getBrokerConfig", "-b", world.address).stdout.splitlines()
    assert shown[0] == f"============{world.address}============"
    assert f"{'brokerName':<50}=  broker-a" in shown
    titled = ran("getBrokerConfig", "-c", "DefaultCluster", "-n", world.namesrv).stdout.splitlines()
    assert titled[0] == f"============Master: {world.address}============"
    done = ran("updateBrokerConfig", "-b", world.address, "-k", "fileReservedTime", "-v", "48")
    assert done.stdout == f"update broker config success, {world.address}\n"
    assert world.conf.read_text() == "fileReservedTime=48\n"
    refused = ran("updateBrokerConfig", "-b", world.address, "-k", "listenPort", "-v", "1", code=1)
    assert "listenPort is read at start only" in refused.stderr
    assert "did you mean" in ran(
        "updateBrokerConfig", "-c", "DefaultCluster", "-n", world.namesrv, "-k", "fileReservdTime", "-v", "1",
        code=1,
    ).stderr  # fmt: skip


def test_usage(world: World) -> None:
    assert "give -b BROKERADDR or -c" in usage("brokerStatus")
    assert "needs -n" in usage("brokerStatus", "-c", "DefaultCluster")
    missing = ran("getBrokerConfig", "-c", "Nowhere", "-n", world.namesrv, code=1)
    assert "no cluster named Nowhere (known: DefaultCluster)" in missing.stderr


@pytest.mark.parametrize("name", ["cleanExpiredCQ", "deleteExpiredCommitLog", "cleanUnusedTopic"])
def test_housekeeping(world: World, name: str) -> None:
    assert ran(name, "-b", world.address).stdout == f"success {world.address}\n"


def test_consume_stats_of_a_broker(world: World) -> None:
    lines = ran("brokerConsumeStats", "-b", world.address).stdout.splitlines()
    assert lines[0].split() == [
        "#Topic",
        "#Group",
        "#Broker",
        "Name",
        "#QID",
        "#Broker",
        "Offset",
        "#Consumer",
        "Offset",
        "#Diff",
        "#LastTime",
    ]
    row = next(line for line in lines if GROUP in line)
    assert row.startswith(f"{TOPIC:<64}  {GROUP:<64}  {'broker-a':<32}  0     ")
    assert lines[-1].startswith("Diff Total: ")
    assert value("brokerConsumeStats", "-b", world.address, "-l", "1000000") == []


def test_entries_of_a_queue(world: World) -> None:
    lines = ran(
        "queryCq", "-t", TOPIC, "-q", "0", "-i", "2", "-c", "3", "-n", world.namesrv
    ).stdout.splitlines()
    assert lines[1] == "Data:" and [line.partition(":")[0] for line in lines[2:]] == ["2", "3", "4"]


def test_a_group_without_master_is_told_of() -> None:
    target = Target(("h:1",), ("the name servers list no master of broker-b: nothing was done there",))
    output = changed([ServerResult("h:1", True)], target, lambda address: f"done {address}")
    assert (output.text, output.exit_code) == ("done h:1", 4)
    assert "no master of broker-b" in output.problems[0]
    assert changed([ServerResult("h:1", True)], Target(("h:1",)), str).exit_code is None


# -- topics ------------------------------------------------------------------------------------------------


def test_topic_status(world: World) -> None:
    lines = ran("topicStatus", "-t", TOPIC, "-n", world.namesrv).stdout.splitlines()
    assert lines[0] == (
        f"{'#Broker Name':<32}  {'#QID':<4}  {'#Min Offset':<20}  {'#Max Offset':<20}    #Last Updated"
    )
    assert lines[1].startswith(f"{'broker-a':<32}  0     {'0':<20}  ")
    assert lines[-1].startswith("Topic Put TPS: ")
    told = value("topicStatus", "-t", TOPIC, "-n", world.namesrv)
    assert sum(row["maxOffset"] for row in told["offsetTable"]) == 10
    assert "TOPIC_NOT_EXIST" in ran("topicStatus", "-t", "nobody", "-n", world.namesrv, code=1).stderr


def test_a_topic_is_created_changed_and_deleted(world: World) -> None:
    made = ran(
        "updateTopic", "-t", "made", "-c", "DefaultCluster", "-n", world.namesrv, "-r", "3", "-w", "2",
        "-a", "+message.type=FIFO",
    )  # fmt: skip
    assert made.stdout.splitlines() == [
        f"create topic to {world.address} success.",
        "TopicConfig [topicName=made, readQueueNums=3, writeQueueNums=2, perm=RW-, "
        "topicFilterType=SINGLE_TAG, topicSysFlag=0, order=false, attributes={+message.type=FIFO}]",
    ]
    changed = ran("updateTopicPerm", "-t", "made", "-b", world.address, "-p", "4", "-n", world.namesrv)
    assert changed.stdout.startswith(
        f"update topic perm from 6 to 4 in {world.address} success.\nTopicConfig"
    )
    assert "perm=R--" in changed.stdout and "attributes={message.type=FIFO}" in changed.stdout
    assert world.broker.topics.topics["made"].config.attributes == {"message.type": "FIFO"}
    ran("deleteTopic", "-t", "made", "-c", "DefaultCluster", "-n", world.namesrv)
    assert "made" not in world.broker.topics.topics
    whole = ran("deleteTopic", "-t", "TBW102", "-c", "DefaultCluster", "-n", world.namesrv, code=1)
    assert whole.stdout == "" and "system topic" in whole.stderr
    ran("topicRoute", "-t", "TBW102", "-n", world.namesrv)  # producers of new topics need it
    refused = ran("updateTopic", "-t", "no such name!", "-b", world.address, code=1)
    assert "INVALID_PARAMETER" in refused.stderr
    assert "true or false" in usage("updateTopic", "-t", "x", "-b", world.address, "-o", "maybe")


def test_lists_from_files(world: World, tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    path.write_text('[{"topicName": "l1"}, {"topicName": "l2", "perm": 4}]')
    text = ran("updateTopicList", "-b", world.address, "-f", str(path)).stdout
    assert text == f"submit batch of topic config to {world.address} success, 2 topics.\n"
    assert world.broker.topics.topics["l2"].perm == 4
    path.write_text('[{"groupName": "lg"}]')
    ran("updateSubGroupList", "-b", world.address, "-f", str(path))
    assert "lg" in world.broker.metadata.groups.table.rows
    for text, says in (
        ("{", "list.json is not JSON"),
        ('{"topicName": "l1"}', "list.json is not a JSON array of topic configurations"),
        ("[" * 100_000, "list.json is not JSON"),
        ('[{"topicName": "l1"}, 7]', "list.json: [1]: "),
        ('[{"topicName": "l1", "perm": "x"}]', "list.json: [0].perm: "),
    ):
        path.write_text(text)
        with pytest.raises(typer.BadParameter) as refused:
            read_rows(path, TopicConfig, "topic configurations")
        assert says in str(refused.value) and "\n" not in str(refused.value)
    assert "list.json" in usage("updateTopicList", "-b", world.address, "-f", str(path))
    assert "cannot read" in usage("updateTopicList", "-b", world.address, "-f", "/nowhere")


def test_where_a_topic_is_and_who_gets_which_queues(world: World) -> None:
    assert ran("topicClusterList", "-t", TOPIC, "-n", world.namesrv).stdout == "DefaultCluster\n"
    shares = value("allocateMQ", "-t", TOPIC, "-i", "a,b,c", "-n", world.namesrv)["result"]
    assert [[queue["queueId"] for queue in shares[member]] for member in "abc"] == [[0], [1], []]


def test_order_configuration(world: World) -> None:
    here = ("updateOrderConf", "-n", world.namesrv, "-t", "ordered", "-m")
    put = ran(*here, "put", "-v", "broker-a:4").stdout
    assert put == "put orderConf success. topic=[ordered], orderConf=[broker-a:4]\n"
    assert "orderConf=[broker-a:4]" in ran(*here, "get").stdout
    ran(*here, "delete")
    ran(*here, "get", code=1)
    assert "put needs" in usage(*here, "put")
    ordered = ran("updateTopic", "-t", "o1", "-c", "DefaultCluster", "-n", world.namesrv, "-o", "true")
    assert "orderConf=[broker-a:8]" in ordered.stderr
    assert (
        "orderConf=[broker-a:8]"
        in ran("updateOrderConf", "-n", world.namesrv, "-t", "o1", "-m", "get").stdout
    )


# -- groups ------------------------------------------------------------------------------------------------


def test_a_group_is_created_shown_and_deleted(world: World) -> None:
    made = ran(
        "updateSubGroup", "-g", "made", "-c", "DefaultCluster", "-n", world.namesrv, "-r", "5", "-o", "true"
    )
    assert made.stdout.startswith(
        f"create subscription group to {world.address} success.\nSubscriptionGroupConfig"
    )
    config = world.broker.metadata.groups.get("made")
    assert config is not None and (config.retry_max_times, config.consume_message_orderly) == (5, True)
    shown = ran("getConsumerConfig", "-g", "made", "-n", world.namesrv).stdout.splitlines()
    line = "=" * 29
    assert shown[0] == f"{line}DefaultCluster:broker-a{line}"
    texts = {key.strip(): value for key, _, value in (row.partition("=  ") for row in shown[1:])}
    assert (texts["retryMaxTimes"], texts["consumeMessageOrderly"]) == ("5", "true")
    assert (texts["subscriptionDataSet"], texts["attributes"]) == ("null", "{}")
    assert texts["groupRetryPolicy"].startswith("GroupRetryPolicy{type=CUSTOMIZED, ")
    gone = ran("deleteSubGroup", "-g", "made", "-c", "DefaultCluster", "-n", world.namesrv, "-r", "true")
    assert gone.stdout == (
        f"delete subscription group [made] from broker [{world.address}] "
        "in cluster [DefaultCluster] success.\n"
    )
    assert (
        "no broker has a group made"
        in ran("getConsumerConfig", "-g", "made", "-n", world.namesrv, code=1).stderr
    )


def test_what_a_group_did_with_a_message(world: World) -> None:
    """GROUP has consumed four messages, but subscribes to tags that they do not have."""

    def tracks(offset: int) -> list[str]:
        here = ("-n", world.namesrv, "-t", TOPIC, "-b", "broker-a", "-i", "0", "-o", str(offset))
        lines = ran("queryMsgByOffset", *here).stdout.splitlines()
        return [line for line in lines if line.startswith("MessageTrack")]

    seen, waiting = tracks(3), tracks(9)
    text = f"MessageTrack [consumerGroup={GROUP}, trackType=%s, exceptionDesc=null]"
    assert text % "CONSUMED_BUT_FILTERED" in seen and text % "NOT_CONSUME_YET" in waiting


def test_progress_of_a_group(world: World) -> None:
    here = ("consumerProgress", "-n", world.namesrv, "-g", GROUP)
    lines = ran(*here).stdout.splitlines()
    assert lines[0] == (
        f"{'#Topic':<64}  {'#Broker Name':<32}  {'#QID':<4}  {'#Broker Offset':<20}  "
        f"{'#Consumer Offset':<20}  "
        f"{'#Diff':<20} {'#Inflight':<20}#LastTime"
    )
    row = next(line for line in lines if line.startswith(f"{TOPIC} "))
    assert row.split()[1:3] == ["broker-a", "0"] and row.split()[4] == "4"
    assert lines[-3].startswith("Consume TPS: ") and lines[-2].startswith("Consume Diff Total: ")
    told = value(*here, "-s", "true")["queues"]
    assert told[0]["clientId"] == "10.0.0.9@1"
    assert "#Client IP" in ran(*here, "-s", "true").stdout
    of_topic = value(*here, "-t", TOPIC)
    assert {row["topic"] for row in of_topic["queues"]} == {TOPIC}
    unknown = ran("consumerProgress", "-n", world.namesrv, "-g", "nobody", code=1)
    assert "nobody" in unknown.stderr


def test_progress_of_all_groups(world: World) -> None:
    lines = ran("consumerProgress", "-n", world.namesrv).stdout.splitlines()
    assert lines[0].split() == ["#Group", "#Count", "#Version", "#Type", "#Model", "#TPS", "#Diff", "Total"]
    row = next(line for line in lines if line.startswith(GROUP)).split()
    assert (row[1], row[3], row[4]) == ("1", "PUSH", "CLUSTERING")


def test_who_is_connected(world: World) -> None:
    lines = ran("consumerConnection", "-n", world.namesrv, "-g", GROUP).stdout.splitlines()
    assert lines[0] == f"{'#ClientId':<36} {'#ClientAddr':<22} {'#Language':<10} #Version"
    assert lines[1].startswith(f"{'10.0.0.9@1':<36} ") and lines[1].endswith("V5_3_3")
    assert f"{TOPIC:<20} A || B" in lines and "MessageModel: CLUSTERING" in lines
    offline = ran("consumerConnection", "-b", world.address, "-g", "nobody", code=1)
    assert "CONSUMER_NOT_ONLINE" in offline.stderr
    producers = ran("producerConnection", "-n", world.namesrv, "-g", "g-producers", "-t", TOPIC).stdout
    assert producers.startswith(f"0001  {'10.0.0.9@1':<32} ")
    every = ran("producer", "-b", world.address).stdout
    assert "producer group (g-producers) instances : clientId=10.0.0.9@1" in every


def test_what_consumers_say(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = ran("consumerStatus", "-n", world.namesrv, "-g", GROUP).stdout.splitlines()
    assert lines[0].split() == ["#Index", "#ClientId", "#Version", "#ConsumerRunningInfoFile"]
    path = Path(lines[1].split()[-1])
    assert "#Consumer Offset#" in path.read_text() and path.name == "10.0.0.9@1"
    left = f"WARN: no consumer of 1 queue of {TOPIC}: broker-a:1"  # the member says that it has queue 0
    assert lines[-3:] == ["Same subscription in the same group of consumer", "", left]
    here = ran("consumerStatus", "-b", world.address, "-g", GROUP).stdout.splitlines()
    assert here[-1] == "Rebalance OK", "without name servers the queues of a topic are not known"
    one = ran("consumerStatus", "-b", world.address, "-g", GROUP, "-i", "10.0.0.9@1", "-s").stdout
    assert one.splitlines()[1].startswith("PROP_CONSUMEORDERLY") and "main {[: at" in one
    assert "not online" in ran("consumerStatus", "-b", world.address, "-g", GROUP, "-i", "x", code=1).stderr


def test_what_consumers_say_cannot_be_written(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests may run as root, who may write everywhere: so a file is in the way of the directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("cli.mqadmin.commands.consumer.time", SimpleNamespace(time=lambda: 7.0))
    (tmp_path / "7000").write_text("")
    refused = ran("consumerStatus", "-n", world.namesrv, "-g", GROUP, code=1)
    (line,) = refused.stderr.splitlines()
    assert "cannot write 7000/10.0.0.9@1: File exists" in line and "another directory" in line


def test_a_consumer_handles_a_message_once_more(world: World) -> None:
    queue = world.broker.store.find_queue(TOPIC, 0)
    assert queue is not None
    msg_id = encode_offset_message_id(world.address, queue.unit(2)[0])
    here = ("queryMsgById", "-n", world.namesrv, "-t", TOPIC, "-i", msg_id, "-g", GROUP)
    assert ran(*here, "-d", "10.0.0.9@1").stdout == (
        f"{msg_id} ConsumeMessageDirectlyResult [order=false, autoCommit=true, consumeResult=CR_SUCCESS, "
        "remark=body 2, spentTimeMills=3]\n"
    )
    assert "not online" in ran(*here, "-d", "nobody", code=1).stderr
    assert "belong together" in usage(*here)


# -- offsets -----------------------------------------------------------------------------------------------


def offset_of(world: World, group: str) -> int:
    return world.broker.metadata.offsets.query(group, TOPIC, 0)


def test_offsets_are_cloned_and_reset(world: World) -> None:
    done = ran("cloneGroupOffset", "-n", world.namesrv, "-s", GROUP, "-d", "g-new", "-t", TOPIC)
    assert (
        done.stdout == f"clone group offset success. srcGroup[{GROUP}], destGroup=[g-new], topic[{TOPIC}]\n"
    )
    assert offset_of(world, "g-new") == 4
    here = ("resetOffsetByTime", "-n", world.namesrv, "-g", "g-new", "-t", TOPIC, "-s")
    lines = ran(*here, "0").stdout.splitlines()
    assert lines[0].startswith(f"rollback consumer offset by specified group[g-new], topic[{TOPIC}]")
    assert lines[1].split() == ["#brokerName", "#queueId", "#offset"]
    assert lines[2].split() == ["broker-a", "0", "0"] and offset_of(world, "g-new") == 0
    ran("skipAccumulatedMessage", "-n", world.namesrv, "-g", "g-new", "-t", TOPIC)
    assert offset_of(world, "g-new") == world.broker.store.max_queue_offset(TOPIC, 0)
    ran(*here, "0", "-b", world.address, "-q", "0", "-o", "3")
    assert offset_of(world, "g-new") == 3
    assert "is not now" in usage(*here, "yesterday")
    assert "-q/--queue needs" in usage(*here, "now", "-q", "1")
    unknown = ran("resetOffsetByTime", "-n", world.namesrv, "-g", "nobody", "-t", TOPIC, "-s", "now", code=1)
    assert "SUBSCRIPTION_GROUP_NOT_EXIST" in unknown.stderr
    nothing = ran("cloneGroupOffset", "-n", world.namesrv, "-s", "nobody", "-d", "x", "-t", "nobody", code=1)
    assert "TOPIC_NOT_EXIST" in nothing.stderr


# -- speed -------------------------------------------------------------------------------------------------


def test_how_long_sends_take(world: World) -> None:
    lines = ran("checkMsgSendRT", "-n", world.namesrv, "-t", "speed", "-a", "3").stdout.splitlines()
    assert lines[0].split() == ["#Broker", "Name", "#QID", "#Send", "Result", "#RT"]
    assert len(lines) == 5 and lines[1].split()[2] == "true" and lines[-1].startswith("Avg RT: ")
    rows = value("clusterRT", "-n", world.namesrv, "-a", "2")
    assert [(row["brokerName"], row["successCount"], row["failCount"]) for row in rows] == [
        ("broker-a", 2, 0)
    ]
    log = ran("clusterRT", "-n", world.namesrv, "-a", "1", "-p", "true", "-m", "room1").stdout
    assert "|room1|DefaultCluster|broker-a|" in log
    status = ran("sendMsgStatus", "-n", world.namesrv, "-b", "broker-a", "-c", "2").stdout.splitlines()
    assert len(status) == 2 and "SendResult=SEND_OK" in status[0]


def test_what_flows(world: World) -> None:
    rows = value("statsAll", "-n", world.namesrv, "-t", TOPIC)
    row = next(row for row in rows if row["consumerGroup"] == GROUP)
    assert row["inMsg24Hour"] == 10 and row["accumulation"] > 0
    lines = ran("statsAll", "-n", world.namesrv).stdout.splitlines()
    assert lines[0].split() == [
        "#Topic", "#Consumer", "Group", "#Accumulation", "#InTPS", "#OutTPS", "#InMsg24Hour", "#OutMsg24Hour",
    ]  # fmt: skip
    assert any("NO_CONSUMER" in line for line in lines)
    active = {row["topic"] for row in value("statsAll", "-n", world.namesrv, "-a")}
    assert TOPIC in active and "TBW102" not in active


@pytest.mark.parametrize(
    ("number", "name"),
    [(479, "V5_3_3"), (478, "V5_3_3_SNAPSHOT"), (317, "V4_5_2"), (213, "V4_0_0"), (62, "62")],
)
def test_versions_have_names(number: int, name: str) -> None:
    assert version_text(number) == name
