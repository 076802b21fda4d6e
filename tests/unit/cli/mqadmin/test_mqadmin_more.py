"""mqadmin: messages printed and sent again, modes, exports, the monitor; a real name server and broker."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import typer

from cli.mqadmin.commands.monitor import BLOCKED_MS, notices_of, undone_of
from cli.mqadmin.shell import app
from keelmq.client import Message, MessageQueue, Producer, SendError, SendErrorKind
from keelmq.client.admin.groups import QueueProgress
from keelmq.client.copies import copy_of
from keelmq.client.message import RETRY_TOPIC, MessageExt
from keelmq.client.message_id import encode_offset_message_id
from keelmq.remoting.queue_map import QueueKey
from tests.support.admin_parts import DEAD
from tests.unit.cli.mqadmin.test_mqadmin_broker import GROUP, TOPIC, World, ran, usage, value

NAME = "MessageQueue [topic=orders, brokerName=broker-a, queueId={}]"


@pytest.fixture(autouse=True)
def bodies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.mqadmin.commands.query.BODY_DIRECTORY", tmp_path / "bodies")


# -- printing ----------------------------------------------------------------------------------------------


def test_all_queues_are_printed(world: World) -> None:
    here = ("printMsg", "-n", world.namesrv, "-t", TOPIC)
    lines = ran(*here).stdout.splitlines()
    assert lines[0] == f"minOffset=0, maxOffset=10, {NAME.format(0)}"
    assert lines[1].startswith("MSGID: ") and lines[1].endswith("BODY: body 0")
    assert [line.rpartition("BODY: ")[2] for line in lines[1:11]] == [f"body {n}" for n in range(10)]
    assert lines[11] == "-" * 56 and lines[12] == f"minOffset=0, maxOffset=0, {NAME.format(1)}"
    without = ran(*here, "-d", "false").stdout
    assert "NOT PRINT BODY" in without and "body 0" not in without
    told = value(*here)
    assert [each["body"] for each in told] == [f"body {n}" for n in range(10)]
    assert (told[3]["queueOffset"], told[3]["topic"]) == (3, TOPIC)


def test_what_is_printed_can_be_narrowed(world: World) -> None:
    here = ("printMsg", "-n", world.namesrv, "-t", TOPIC)
    cut = ran(*here, "--limit", "4")
    assert cut.stdout.count("MSGID") == 4 and "stopped after 4 messages" in cut.stderr
    whole = ran(*here, "--limit", "10")
    assert whole.stdout.count("MSGID") == 10 and whole.stderr == ""
    stored = value(*here)[9]["storeTimestamp"]
    later = ran(*here, "-b", str(stored + 1)).stdout
    assert f"minOffset=10, maxOffset=10, {NAME.format(0)}" in later and "MSGID" not in later
    earlier = ran(*here, "-e", "1000").stdout
    assert f"minOffset=0, maxOffset=0, {NAME.format(0)}" in earlier
    before = [each["body"] for each in value(*here) if each["storeTimestamp"] < stored]
    assert 0 < len(before) < 10
    assert [each["body"] for each in value(*here, "-e", str(stored))] == before
    nothing = ran(*here, "-s", "NoSuchTag").stdout.splitlines()
    assert nothing[1] == f"{NAME.format(0)} no matched msg. status=NO_MATCHED_MSG, offset=10"
    assert "there is no charset 'UTF-4711'" in usage(*here, "-c", "UTF-4711")
    assert "is not now, ms" in usage(*here, "-b", "yesterday")


def test_one_queue_is_printed_or_counted(world: World) -> None:
    send = ("sendMessage", "-n", world.namesrv, "-t", "tagged", "-p", "x", "-b", "broker-a", "-i", "0")
    ran("updateTopic", "-t", "tagged", "-b", world.address, "-r", "2", "-w", "2")
    for more in (["-c", "TagA"], ["-c", "TagB"], ["-c", "TagB"], []):
        ran(*send, *more)
    here = ("printMsgByQueue", "-n", world.namesrv, "-t", "tagged", "-a", "broker-a", "-i", "0")
    assert ran(*here, "-f", "true").stdout.splitlines() == [
        f"Tag: {'TagB':<30} Count: 2",
        f"Tag: {'TagA':<30} Count: 1",
    ]
    silent = ran(*here)
    assert silent.stdout == "" and "4 messages: -p true prints them" in silent.stderr
    assert ran(*here, "-p", "true").stdout.count("NOT PRINT BODY") == 4
    assert ran(*here, "-p", "true", "-d", "true").stdout.count("BODY: x") == 4
    told = value(*here, "-f", "true", "-s", "TagB")
    assert told == {"minOffset": 0, "maxOffset": 4, "messages": None, "tags": {"TagB": 2}}
    unknown = ran(*here[:-1], "7", code=1)
    assert "no queue broker-a:7 (known: broker-a:0, broker-a:1)" in unknown.stderr
    assert "no route of topic nobody" in ran(*here[:4], "nobody", *here[5:], code=1).stderr


# -- queries -----------------------------------------------------------------------------------------------


def message_id(world: World, number: int) -> str:
    queue = world.broker.store.find_queue(TOPIC, 0)
    assert queue is not None
    return encode_offset_message_id(world.address, queue.unit(number)[0])


def test_a_body_is_shown_in_its_charset(world: World) -> None:
    here = ("queryMsgById", "-n", world.namesrv, "-t", TOPIC, "-i", message_id(world, 2))
    assert "Message Body:" not in ran(*here).stdout
    assert f"{'Message Body:':<20} body 2" in ran(*here, "-f", "GBK").stdout.splitlines()
    at = ("queryMsgByOffset", "-n", world.namesrv, "-t", TOPIC, "-b", "broker-a", "-i", "0", "-o", "2")
    assert f"{'Message Body:':<20} body 2" in ran(*at, "-f", "UTF-8").stdout.splitlines()
    assert "no charset" in usage(*at, "-f", "nonsense")


def test_a_message_is_sent_again(world: World) -> None:
    text = ("-p", "twice", "-k", "key-1", "-c", "TagA")
    sent = value("sendMessage", "-n", world.namesrv, "-t", "again", *text)
    here = ("queryMsgById", "-n", world.namesrv, "-t", "again", "-i", sent["offsetMsgId"], "-s", "true")
    (again,) = value(*here)
    assert again["originalMsgId"] == sent["offsetMsgId"] and again["sendStatus"] == "SEND_OK"
    assert again["msgId"] != sent["msgId"]
    found = value("queryMsgByKey", "-n", world.namesrv, "-t", "again", "-k", "key-1")
    assert [each["body"] for each in found] == ["twice", "twice"]
    line = ran(*here).stdout
    assert line.startswith(f"prepare resend msg. originalMsgId={sent['offsetMsgId']} SendResult [")
    assert "give one of them" in usage(*here, "-g", GROUP, "-d", "10.0.0.9@1")
    assert "true or false" in usage(*here[:-1], "maybe")


def test_dead_letters_are_sent_again_and_each_failure_is_told(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def store() -> None:
        async with Producer(world.namesrv) as producer:
            for number in range(3):
                properties = {RETRY_TOPIC: "refused" if number == 1 else "dead-origin"}
                letter = Message("%DLQ%dead", f"body {number}".encode(), properties=properties)
                await producer.send(letter, queue=MessageQueue("%DLQ%dead", "broker-a", 0))

    asyncio.run(store())
    send = Producer.send

    async def refusing(self: Producer, message: Message, **how: Any) -> Any:
        if message.topic == "refused":
            raise SendError(SendErrorKind.REFUSED, "not today", 1)
        return await send(self, message, **how)

    monkeypatch.setattr(Producer, "send", refusing)
    here = ("resendDeadLetter", "-n", world.namesrv, "-g", "dead", "-d", "topic", "-i")
    places = "broker-a:0:0, broker-a:0:1,broker-a:0:2,broker-a:0:99"
    done = ran(*here, places, "--json", code=4)
    assert [each["message"] for each in json.loads(done.stdout)] == ["broker-a:0:0", "broker-a:0:2"]
    assert "broker-a:0:1: sendMessage" in done.stderr and "not today" in done.stderr
    assert "broker-a:0:99: there is no such dead letter" in done.stderr
    assert "broker-a:0:99" in ran(*here, "broker-a:0:99", code=1).stderr
    assert "not today" in ran(*here, "broker-a:0:1", code=1).stderr
    assert "names no message" in usage(*here, ",")
    for wrong in ("broker-a:0", "broker-a"):
        assert "is not brokerName:queueId:queueOffset" in usage(*here, wrong)


def test_a_copy_leaves_out_what_brokers_wrote() -> None:
    properties = {
        "UNIQ_KEY": "U", "TAGS": "T", "KEYS": "a b", "mine": "1", "REAL_TOPIC": "orders", "DELAY": "3",
    }  # fmt: skip
    old = MessageExt("SCHEDULE_TOPIC_XXXX", b"x", properties, 0, 0, 0, 5, 0, 1, "h:1", 2, "h:1", 0, 99)
    copy = copy_of(old)
    assert (copy.topic, copy.tags, copy.keys, copy.flag) == ("orders", "T", ("a", "b"), 5)
    assert copy.properties == {"mine": "1"}


def test_the_route_of_another_topic(world: World) -> None:
    """-c: for messages whose own topic has no route (any more)."""
    sent = value("sendMessage", "-n", world.namesrv, "-t", TOPIC, "-p", "late", "-k", "route-key")
    here = ("queryMsgByKey", "-n", world.namesrv, "-t", TOPIC, "-k", "route-key")
    assert [each["msgId"] for each in value(*here, "-c", "DefaultCluster")] == [sent["msgId"]]
    assert "TOPIC_NOT_EXIST" in ran(*here, "-c", "nowhere", code=1).stderr


def test_a_consumer_handles_the_message_of_a_unique_key(world: World) -> None:
    key = value("printMsg", "-n", world.namesrv, "-t", TOPIC)[1]["msgId"]
    here = ("queryMsgByUniqueKey", "-n", world.namesrv, "-t", TOPIC, "-i", key, "-g", GROUP)
    (told,) = value(*here, "-d", "10.0.0.9@1")
    assert told["consumeResult"] == "CR_SUCCESS" and told["remark"] == "body 1"
    assert "belong together" in usage(*here)


# -- modes, reads ------------------------------------------------------------------------------------------


def test_the_mode_of_a_group(world: World) -> None:
    here = ("setConsumeMode", "-t", TOPIC, "-g", GROUP)
    done = ran(*here, "-b", world.address, "-m", "pop", "-q", "2").stdout.splitlines()
    assert done == [
        f"set consume mode to {world.address} success.",
        f"topic[{TOPIC}] group[{GROUP}] consume mode[POP] popShareQueueNum[2]",
    ]
    mode = world.broker.metadata.request_modes.get(TOPIC, GROUP)
    assert mode is not None and (mode.mode, mode.pop_share_queue_num) == ("POP", 2)
    ran(*here, "-c", "DefaultCluster", "-n", world.namesrv, "-m", "PULL")
    assert "PULL or POP" in usage(*here, "-b", world.address, "-m", "PUSH")
    refused = ran(*here[:2], f"%RETRY%{GROUP}", *here[3:], "-b", world.address, "-m", "POP", code=1)
    assert "NO_PERMISSION" in refused.stderr


def test_how_the_log_is_read(world: World) -> None:
    done = ran("setCommitLogReadAheadMode", "-b", world.address, "-m", "1").stdout
    assert done == f"{world.address} set commitlog readahead mode success, mode: 1\n"
    assert not world.broker.store.commit_log.reads_ahead
    ran("setCommitLogReadAheadMode", "-c", "DefaultCluster", "-n", world.namesrv, "-m", "0")
    assert world.broker.store.commit_log.reads_ahead
    ran("setCommitLogReadAheadMode", "-b", world.address, "-m", "2", code=2)


def test_a_request_that_ours_refuse_in_words(world: World) -> None:
    refused = ran("resetMasterFlushOffset", "-b", world.address, "-o", "7", code=1)
    assert "REQUEST_CODE_NOT_SUPPORTED" in refused.stderr and "compare epochs" in refused.stderr
    assert "check the port" not in refused.stderr


# -- dry runs ----------------------------------------------------------------------------------------------


def test_a_reset_is_shown_first(world: World) -> None:
    """mqadmin.md lesson 5; and a reset to 0, which upstream's tool silently leaves out."""
    ran("cloneGroupOffset", "-n", world.namesrv, "-s", GROUP, "-d", "g-dry", "-t", TOPIC)
    here = ("resetOffsetByTime", "-n", world.namesrv, "-g", "g-dry", "-t", TOPIC)

    def offsets() -> list[int]:
        return [world.broker.metadata.offsets.query("g-dry", TOPIC, number) for number in (0, 1)]

    end = world.broker.store.max_queue_offset(TOPIC, 0)
    lines = ran(*here, "-s", "0", "--dry-run").stdout.splitlines()
    assert lines[0].split() == [
        "#brokerName", "#queueId", "#brokerOffset", "#consumerOffset", "#timestampOffset", "#resetOffset",
    ]  # fmt: skip
    assert lines[1].split() == ["broker-a", "0", str(end), "4", "0", "0"]
    assert lines[2].split()[3] == "-"
    skip = value("skipAccumulatedMessage", "-n", world.namesrv, "-g", "g-dry", "-t", TOPIC, "--dry-run")
    assert (skip[0]["consumerOffset"], skip[0]["resetOffset"]) == (4, end)
    here_only = value(*here, "-s", "-1", "-b", world.address, "-q", "0", "-o", "3", "--dry-run")
    assert [(row["queueId"], row["resetOffset"]) for row in here_only] == [(0, 3)]
    kept = value(*here, "-s", "-1", "-f", "false", "--dry-run")
    assert kept[0]["resetOffset"] == 4 and offsets() == [4, -1]
    ran(*here, "-s", "-1", "-f", "false")  # nothing is left out without force
    assert offsets()[0] == 4
    ran(*here, "-s", "0", "-b", world.address, "-q", "0", "-o", "0")
    assert offsets()[0] == 0
    ran(*here, "-s", "-1")
    assert offsets()[0] == end


def test_what_would_be_lost_with_a_topic(world: World) -> None:
    here = ("deleteTopic", "-n", world.namesrv, "-t", TOPIC, "-c", "DefaultCluster", "--dry-run")
    (told,) = value(*here)
    assert told["messages"] >= 10 and GROUP in told["consumerGroups"] and told["queues"] == 2
    assert f"would delete topic [{TOPIC}] at {world.address}: 2 queues, " in ran(*here).stdout
    assert TOPIC in world.broker.topics.topics
    missing = ran(*here[:4], "nobody", *here[5:], code=1)
    assert "TOPIC_NOT_EXIST" in missing.stderr


def test_which_topics_would_lose_their_writers(world: World) -> None:
    here = ("wipeWritePerm", "-n", world.namesrv, "-b", "broker-a", "--dry-run")
    told = value(*here)
    assert TOPIC in told["wouldWipe"] and TOPIC in told["nowhereElse"]
    assert f"would wipe {TOPIC}: no other broker accepts its messages" in ran(*here).stdout.splitlines()
    assert value(*here) == told, "nothing was wiped"
    unknown = ran("wipeWritePerm", "-n", world.namesrv, "-b", "broker-x", "--dry-run", code=1)
    assert "no broker named broker-x has a topic" in unknown.stderr


def test_a_changed_setting_says_what_it_was(world: World) -> None:
    """mqadmin.md lesson 8."""
    done = ran("updateBrokerConfig", "-b", world.address, "-k", "fileReservedTime", "-v", "47")
    assert f"{world.address}: fileReservedTime was 72, is 47" in done.stderr
    refused = ran("updateBrokerConfig", "-b", world.address, "-k", "fileReservedTime", "-v", "soon", code=1)
    assert "was" not in refused.stderr.split("fileReservedTime")[0] and "soon" in refused.stderr


def test_no_command_has_a_flag_twice() -> None:
    """mqadmin.md lesson 9: upstream's resetOffsetByTime has two meanings of -c, and the later one wins."""
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert len(commands) >= 70
    for name, each in commands.items():
        names = [flag for parameter in each.params for flag in parameter.opts]
        assert len(names) == len(set(names)), f"{name}: {sorted(names)}"


# -- exports -----------------------------------------------------------------------------------------------


def test_topics_and_groups_in_a_file(world: World, tmp_path: Path) -> None:
    here = ("exportMetadata", "-f", str(tmp_path / "deep" / "er"))
    of_cluster = ran(*here, "-c", "DefaultCluster", "-n", world.namesrv).stdout
    path = tmp_path / "deep" / "er" / "metadata.json"
    assert of_cluster == f"export {path} success\n"
    found = json.loads(path.read_text())
    assert found["topicConfigTable"][TOPIC]["writeQueueNums"] == 2 and found["exportTime"] > 0
    assert GROUP in found["subscriptionGroupTable"]
    hidden = {"TBW102", "broker-a", "DefaultCluster_REPLY_TOPIC", f"%RETRY%{GROUP}"}
    assert not hidden & found["topicConfigTable"].keys()
    assert not {"TOOLS_CONSUMER", "CID_RMQ_SYS_TRANS"} & found["subscriptionGroupTable"].keys()
    topics = value(*here, "-b", world.address, "-t", "-s")
    assert f"%RETRY%{GROUP}" in topics["topicConfigTable"] and "subscriptionGroupTable" not in topics
    assert topics["file"] == str(path.with_name("topic.json"))
    groups = value(*here, "-b", world.address, "-g")
    assert "topicConfigTable" not in groups and path.with_name("subscriptionGroup.json").exists()
    assert "give -t or -g, or none" in usage(*here, "-b", world.address, "-t", "-g")
    assert "give -b" in usage(*here)


def test_an_export_that_cannot_be_whole(world: World, tmp_path: Path) -> None:
    both = ("-b", f"{world.address};{DEAD}", "--timeout", "500")
    part = ran("exportMetadata", *both, "-f", str(tmp_path), code=4)
    assert DEAD in part.stderr and (tmp_path / "metadata.json").exists()
    dead = ran("exportMetadata", "-b", DEAD, "-f", str(tmp_path / "x"), "--timeout", "200", code=3)
    assert not (tmp_path / "x").exists() and DEAD in dead.stderr
    (tmp_path / "file").write_text("")
    bad = ran("exportMetadata", "-b", world.address, "-f", str(tmp_path / "file"), code=1)
    assert "choose another directory with -f" in bad.stderr


def test_settings_and_numbers_in_files(world: World, tmp_path: Path) -> None:
    here = ("-c", "DefaultCluster", "-n", world.namesrv, "-f", str(tmp_path))
    configs = value("exportConfigs", *here)
    assert configs["clusterScale"] == {"namesrvSize": 1, "masterBrokerSize": 1, "slaveBrokerSize": 0}
    assert configs["brokerConfigs"]["broker-a"]["brokerClusterName"] == "DefaultCluster"
    assert json.loads((tmp_path / "configs.json").read_text()).keys() == configs.keys() - {"file"}
    metrics = value("exportMetrics", *here)
    report = metrics["evaluateReport"]["broker-a"]
    assert report["runtimeQuota"]["topicSize"] >= 1 and report["runtimeQuota"]["groupSize"] >= 1
    assert report["runtimeVersion"] == {"rocketmqVersion": "V5_3_3", "clientInfo": ["PYTHON%V5_3_3"]}
    assert 0 <= float(report["runtimeQuota"]["diskRatio"]["commitLogDiskRatio"]) <= 1
    total = metrics["totalData"]
    assert total["totalTps"]["totalNormalInTps"] == report["runtimeQuota"]["tps"]["normalInTps"]
    assert set(total["totalOneDayNum"]) == set(report["runtimeQuota"]["oneDayNum"])
    assert ran("exportMetrics", *here).stdout == f"export {tmp_path / 'metrics.json'} success\n"


# -- the monitor -------------------------------------------------------------------------------------------


def test_a_round_of_the_monitor(world: World) -> None:
    lines = ran("startMonitoring", "-n", world.namesrv, "-i", "0").stdout.splitlines()
    edge = "[MONITOR] " + "=" * 41
    assert (lines[0], lines[-1]) == (f"{edge}beginRound", f"{edge}endRound")
    row = next(line for line in lines if f"consumerGroup={GROUP}, topic={TOPIC}," in line)
    assert row.startswith("[MONITOR] reportUndoneMsgs: UndoneMsgs [") and "undoneMsgsTotal=" in row
    told = value("startMonitoring", "-n", world.namesrv, "-i", "0")
    undone = next(each for each in told["undoneMsgs"] if each["topic"] == TOPIC)
    assert undone["undoneMsgsTotal"] >= 6 and undone["consumerGroup"] == GROUP
    assert ran("startMonitoring", "-n", DEAD, "-i", "0", "--timeout", "200", code=3).stderr


def test_what_a_group_has_not_done() -> None:
    queues = {
        QueueKey("T", "b", 0): QueueProgress(10, 4, last_timestamp=1_000),
        QueueKey("T", "b", 1): QueueProgress(10, 8, last_timestamp=2_000),
        QueueKey("T", "b", 2): QueueProgress(5, 9),  # was cut: ahead of the queue, and no debt
        QueueKey("U", "b", 0): QueueProgress(3, 3, last_timestamp=5_000),
    }
    newest = {QueueKey("T", "b", 0): 9_000, QueueKey("T", "b", 1): 2_500, QueueKey("U", "b", 0): 5_000}
    first, second = undone_of("g", queues, newest)
    assert (first.topic, first.total, first.single, first.delay_ms) == ("T", 8, 6, 8_000)
    assert (second.topic, second.total, second.single, second.delay_ms) == ("U", 0, 0, 0)


def test_what_is_wrong_with_the_members_of_a_group() -> None:
    now, queue = 1_000_000, QueueKey("T", "b", 3)
    same = [{"topic": "T", "subString": "A"}]

    def member(
        subscription: list[dict[str, str]], state: Mapping[str, object], **properties: str
    ) -> dict[str, object]:
        return {"subscriptionSet": subscription, "mqTable": {queue: state}, "properties": properties}

    busy = {"cachedMsgCount": 5, "lastConsumeTimestamp": now - 10}
    stuck = {"cachedMsgCount": 5, "lastConsumeTimestamp": now - BLOCKED_MS - 1}
    assert notices_of("g", {"a": member(same, busy), "b": member(same, busy)}, now) == []
    text = "reportConsumerRunningInfo: ConsumerGroup: g"
    assert notices_of("g", {"a": member(same, busy), "b": member([], busy)}, now) == [
        f"{text}, Subscription different"
    ]
    assert notices_of("g", {"a": member(same, stuck)}, now) == [
        f"{text}, ClientId: a, T b:3 can't consume for a while, maybe blocked, {BLOCKED_MS + 1}ms"
    ]
    assert notices_of("g", {"a": member(same, stuck, PROP_CONSUME_TYPE="CONSUME_ACTIVELY")}, now) == []
    unlocked = {"locked": False, "lastLockTimestamp": now - 70_000}
    assert notices_of("g", {"a": member(same, unlocked, PROP_CONSUMEORDERLY="true")}, now) == [
        f"{text}, ClientId: a, T b:3 can't lock for a while, 70000ms"
    ]
