"""Offsets that an operator resets, and what else is asked about groups."""

import json
import re
from pathlib import Path

import pytest

from broker.admission.send_gate import ROLE
from broker.clients.admin import ClientAdmin
from broker.clients.consume_stats import ConsumeStats
from broker.clients.core.registry import Client, Consumer, Subscription
from broker.config.client_settings import ClientSettings
from broker.filter.core.subscription import parse
from broker.message.record import tag_code
from broker.metadata.core.resets import PendingResets
from broker.metadata.handlers import MetadataHandlers
from broker.metadata.ports import StoreQueues
from broker.metadata.service import Metadata
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.command import RemotingCommand, decode
from keelmq.runtime.clock import now_ms, wall_ms
from tests.support.handler_parts import Broker
from tests.support.store_parts import FakePeer
from tests.unit.broker.handlers.test_pull_handler import answer, fill


class Desk:
    """A broker's pulls, with the metadata that operators and consumers change."""

    def __init__(self, path: Path) -> None:
        self.broker = Broker(path)
        self.metadata = Metadata(
            path / "config", self.broker.topics, self.broker.gate, StoreQueues(self.broker.store)
        )
        context = self.broker.context
        self.broker.use_metadata(self.metadata)
        self.metadata.groups.find("g")
        settings = ClientSettings.model_validate({"enablePropertyFilter": True})
        ClientAdmin(self.metadata, self.broker.store, context.registry, settings, "b-a").bind(
            self.broker.table
        )
        ConsumeStats(
            self.metadata, self.broker.store, context.registry, "b-a", tps=lambda name, key: 0.0, address=str
        ).bind(self.broker.table)
        MetadataHandlers(self.metadata, self.broker.store).bind(self.broker.table)

    async def ask(self, code: int, body: object = None, **ext: object) -> RemotingCommand:
        raw = json.dumps(body).encode() if body is not None else b""
        fields = {key: str(value) for key, value in ext.items()}
        command = RemotingCommand(code, 9, 0, None, fields, raw)
        frame = await self.broker.dispatcher.answer(command, FakePeer())
        assert frame is not None
        return decode(frame[4:])

    async def reset(self, **ext: object) -> RemotingCommand:
        return await self.ask(
            222, **({"topic": "TopicA", "group": "g", "timestamp": -1, "isForce": "true"} | ext)
        )

    async def commit(self, offset: int, queue_id: int = 0) -> int:
        reply = await self.ask(15, consumerGroup="g", topic="TopicA", queueId=queue_id, commitOffset=offset)
        return reply.code

    def offset(self, queue_id: int = 0) -> int:
        return self.metadata.offsets.query("g", "TopicA", queue_id)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    desk = Desk(tmp_path)
    fill(desk.broker, 9)
    return desk


async def test_a_reset_reaches_the_consumer_with_its_next_pull(desk: Desk) -> None:
    await desk.commit(7)
    reply = await desk.reset(queueId=0, offset=2)
    assert reply.code == 0
    assert reply.body == b'{"offsetTable":{{"brokerName":"b-a","queueId":0,"topic":"TopicA"}:2}}'
    assert await desk.commit(8) == 0  # of the old position
    answer_ = answer(desk.broker, 8, sysFlag="5", commitOffset="8")
    assert (answer_.code, answer_.remark) == (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET")
    assert answer_.ext_fields["nextBeginOffset"] == "2"
    assert desk.offset() == 2
    assert answer(desk.broker, 2).code == 0  # told once
    assert await desk.commit(3) == 0
    assert desk.offset() == 3


async def test_resets_by_time(desk: Desk) -> None:
    assert (await desk.reset(timestamp=0)).code == 0
    assert [desk.offset(queue_id) for queue_id in range(4)] == [0, 0, 0, 0]
    reply = await desk.reset()
    assert [desk.offset(queue_id) for queue_id in range(4)] == [9, 0, 0, 0]
    first = json.loads(reply.body.split(b":", 1)[1][1:].partition(b"}:")[0] + b"}")
    assert (first["brokerName"], first["queueId"]) == ("b-a", 0)


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"topic": "Nobody"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"group": "nobody"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"queueId": 0, "offset": 11}, ResponseCode.SYSTEM_ERROR),
        ({"queueId": 9, "offset": 0}, ResponseCode.SYSTEM_ERROR),
        ({"queueId": 9}, ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_resets_that_are_refused(desk: Desk, changed: dict[str, object], code: int) -> None:
    assert (await desk.reset(**changed)).code == code
    assert desk.offset() == -1 and not desk.metadata.resets.offsets


async def test_a_slave_resets_nothing(desk: Desk) -> None:
    desk.broker.gate.close(ROLE, "slave")
    assert (await desk.reset()).code == ResponseCode.SYSTEM_ERROR


async def test_what_is_deleted_leaves_no_reset(desk: Desk) -> None:
    """broker-ops pitfall 10."""
    await desk.reset()
    await desk.ask(207, groupName="g")
    assert not desk.metadata.resets.offsets
    desk.metadata.groups.find("g")
    await desk.reset()
    await desk.ask(215, topic="TopicA")
    assert not desk.metadata.resets.offsets


def test_resets_are_bounded() -> None:
    resets = PendingResets(resets_max=1)
    assert resets.set("g", "T", 0, 1) and resets.set("g", "T", 0, 2)
    assert not resets.set("g", "T", 1, 1)
    assert resets.take("g", "T", 0) == 2 and resets.take("g", "T", 0) is None


async def test_forbidden_topics(desk: Desk) -> None:
    ask = {"group": "g", "topic": "TopicA"}
    assert json.loads((await desk.ask(353, **ask)).body) == {**ask, "readable": True}
    assert json.loads((await desk.ask(353, **ask, readable="false")).body)["readable"] is False
    row = desk.metadata.find_group("g")
    assert row is not None and row.forbidden == {"TopicA": 1}
    desk.broker.context.find_group = desk.metadata.find_group
    assert answer(desk.broker, 0).code == ResponseCode.NO_PERMISSION
    await desk.ask(353, **ask, readable="true")
    assert answer(desk.broker, 0).code == 0


async def test_who_subscribes_to_what(desk: Desk) -> None:
    wanted = Subscription("TopicA", "A||B", "TAG", 5, parse("A||B", "TAG", tag_code))
    consumer = Consumer("g", "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET", (wanted,))
    client = Client(1, "c@1", "10.0.0.1:1", "JAVA", 479)
    began_ms = wall_ms()
    desk.broker.context.registry.heartbeat(client, [consumer], ["p"], now_ms=now_ms())
    body = json.loads((await desk.ask(345, group="g", topic="TopicA")).body)
    assert body["subscriptionData"]["tagsSet"] == ["A", "B"]
    assert "subscriptionData" not in json.loads((await desk.ask(345, group="g", topic="Other")).body)
    assert (await desk.ask(300, topic="TopicA")).body == b'{"groupList":["g"]}'
    await desk.commit(1)
    assert json.loads((await desk.ask(343, group="g")).body) == {"topicList": ["TopicA"]}
    producers = json.loads((await desk.ask(328)).body)
    (producer,) = producers["data"]["p"]
    assert producer["clientId"] == "c@1"
    assert began_ms - 1 <= producer["lastUpdateTimestamp"] <= wall_ms() + 1, "of its last heartbeat"


async def test_a_topic_is_consumed_by_those_who_commit_and_those_who_are_connected(desk: Desk) -> None:
    """A broadcasting group never commits, and a new one has not yet."""
    desk.metadata.offsets.commit("offline", "TopicA", 0, 1)
    for connection, (group, model) in enumerate([("b", "BROADCASTING"), ("new", "CLUSTERING")]):
        wanted = Subscription("TopicA", "*", "TAG", 5, parse("*", "TAG", tag_code))
        consumer = Consumer(group, "CONSUME_PASSIVELY", model, "CONSUME_FROM_LAST_OFFSET", (wanted,))
        client = Client(connection, f"c@{connection}", "10.0.0.1:1", "JAVA", 479)
        desk.broker.context.registry.heartbeat(client, [consumer], [], now_ms=0)
    assert (await desk.ask(300, topic="TopicA")).body == b'{"groupList":["b","new","offline"]}'
    assert (await desk.ask(300, topic="Other")).body == b'{"groupList":[]}'


@pytest.mark.parametrize(
    ("kind", "text", "code"),
    [("SQL92", "a > 1", 0), ("SQL92", "a >", 23), ("TAG", "a||b", 0), ("XPATH", "a", 23)],
)
async def test_a_filter_is_checked_before_a_consumer_starts(
    desk: Desk, kind: str, text: str, code: int
) -> None:
    data = {"topic": "T", "subString": text, "expressionType": kind, "subVersion": 1}
    reply = await desk.ask(46, {"clientId": "c", "group": "g", "subscriptionData": data})
    assert reply.code == code


def members_of(body: bytes) -> list[bytes]:
    """A body's member names in their order, also those in keys."""
    return re.findall(rb'"(\w+)":', body)


def captured(name: str) -> bytes:
    path = Path(__file__).parents[4] / "fixtures" / "frames" / f"{name}.bin"
    return decode(path.read_bytes()[4:]).body


async def test_how_far_a_topic_is(desk: Desk) -> None:
    theirs = captured("202-topic-stats-mqadmin.resp")
    reply = await desk.ask(202, topic="TopicA")
    assert members_of(reply.body) == [*members_of(theirs), b"topicPutTps"]  # four queues as well; 5.3 has it
    first = json.loads(reply.body[len(b'{"offsetTable":{') :].partition(b"}:")[2].partition(b"}")[0] + b"}")
    assert (first["maxOffset"], first["minOffset"]) == (9, 0) and first["lastUpdateTimestamp"] > 0
    assert (await desk.ask(202, topic="Nobody")).code == ResponseCode.TOPIC_NOT_EXIST


async def test_how_far_a_group_is(desk: Desk) -> None:
    theirs = captured("208-consume-stats-mqadmin.resp")
    await desk.commit(4)
    for ext in ({}, {"topic": "TopicA"}, {"topicList": "Nobody;TopicA"}):
        reply = await desk.ask(208, consumerGroup="g", **ext)
        names = members_of(reply.body)
        assert set(names) == set(members_of(theirs)) and names[:9] == members_of(theirs)[:9]
        first = json.loads(reply.body.partition(b"}:")[2].partition(b"}")[0] + b"}")
        assert (first["brokerOffset"], first["consumerOffset"]) == (9, 4) and first["lastTimestamp"] > 0
    consumer = Consumer("g", "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET", ())
    desk.broker.context.registry.heartbeat(Client(1, "c", "h", "JAVA", 1), [consumer], [], now_ms=0)
    assert (await desk.ask(208, consumerGroup="g")).body == b'{"consumeTps":0.0,"offsetTable":{}}'
