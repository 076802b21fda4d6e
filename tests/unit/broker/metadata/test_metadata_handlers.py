"""The operations on metadata, by captured requests and by what they must refuse."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from broker.admission.send_gate import ROLE
from broker.metadata.groups import POSITIONS
from broker.metadata.handlers import MetadataHandlers
from broker.metadata.service import Metadata
from broker.metadata.topics import Topic
from broker.pop.records import REVIVE_GROUP, SETTLED_GROUP
from broker.transactions.messages import GROUP as TRANSACTIONS_GROUP
from keelmq.remoting.body import body_bytes
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.command import RemotingCommand, decode
from keelmq.remoting.dispatch import Dispatcher
from keelmq.remoting.lenient_json import load_lenient
from keelmq.remoting.operation import CommandError, Empty, Ok, Operation, OperationTable, Outcome, Wire
from keelmq.remoting.operations.broker_metadata import SubscriptionGroupConfig, UpdateConsumerOffsetRequest
from keelmq.remoting.operations.route import TopicConfig
from tests.support.handler_parts import Broker
from tests.support.metadata_parts import open_metadata
from tests.support.server_parts import until
from tests.support.store_parts import FakePeer, open_store

FRAMES = Path(__file__).parents[3] / "fixtures" / "frames"


class Desk:
    """Handlers over a table; ask() goes the way a decoded request does."""

    def __init__(self, path: Path, **metadata: Any) -> None:
        self.store = open_store(path)
        self.store.become_master()
        self.metadata: Metadata = open_metadata(path, **metadata)
        table = OperationTable()
        MetadataHandlers(self.metadata, self.store).bind(table)
        self.dispatcher = Dispatcher(table, name="test")
        self.peer = FakePeer()

    async def frame(self, name: str) -> RemotingCommand | None:
        return await self.request(decode((FRAMES / f"{name}.req.bin").read_bytes()[4:]))

    async def request(self, command: RemotingCommand) -> RemotingCommand | None:
        raw = await self.dispatcher.answer(command, self.peer)
        return None if raw is None else decode(raw[4:])

    async def ask(self, code: int, raw: bytes = b"", /, **ext: object) -> RemotingCommand:
        fields = {key: str(value) for key, value in ext.items()}
        answer = await self.request(RemotingCommand(code, 7, 0, None, fields, raw))
        assert answer is not None and answer.opaque == 7
        return answer

    async def create(self, name: str, **changed: object) -> RemotingCommand:
        fields: dict[str, Any] = {
            "defaultTopic": "TBW102", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6,
            "topicFilterType": "SINGLE_TAG",
        }  # fmt: skip
        return await self.ask(17, topic=name, **(fields | changed))

    def put(self, name: str, queue_id: int = 0) -> None:
        self.store.put(
            Topic(TopicConfig(topic_name=name)), queue_id, b"x", b"", 0, 0, 1, b"\x7f\0\0\1\0\0\1\1", 0, 0
        )
        self.store.set_confirm_offset(self.store.commit_log.max_offset)


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.metadata.close()
    desk.store.close()


def captured(name: str) -> RemotingCommand:
    return decode((FRAMES / f"{name}.resp.bin").read_bytes()[4:])


async def test_captured_topic_and_group_updates(desk: Desk) -> None:
    answer = await desk.frame("17-update-topic-mqadmin")
    assert answer is not None and answer.code == captured("17-update-topic-mqadmin").code == 0
    found = desk.metadata.topics.get("FxNormal")
    assert found is not None and found.config == TopicConfig(
        topic_name="FxNormal", read_queue_nums=4, write_queue_nums=4
    )
    answer = await desk.frame("200-update-sub-group-mqadmin")
    assert answer is not None and answer.code == 0
    config = desk.metadata.groups.get("FxGroup")
    assert config is not None and not config.consume_broadcast_enable and config.retry_max_times == 16
    answer = await desk.frame("351-topic-config-mqadmin")
    assert answer is not None and answer.body == captured("351-topic-config-mqadmin").body


async def test_captured_offsets(desk: Desk) -> None:
    await desk.frame("17-update-topic-mqadmin")
    answer = await desk.frame("14-query-consumer-offset-push-consumer-rc22")
    want = captured("14-query-consumer-offset-push-consumer-rc22")
    assert answer is not None and (answer.code, answer.remark) == (want.code, want.remark)
    assert await desk.frame("15-update-consumer-offset-push-consumer") is None  # oneway
    answer = await desk.frame("14-query-consumer-offset-push-consumer-rc22")
    assert answer is not None and (answer.code, answer.ext_fields) == (0, {"offset": "12"})
    desk.put("FxNormal", 2)
    answer = await desk.frame("14-query-consumer-offset-orderly-consumer")
    want = captured("14-query-consumer-offset-orderly-consumer")
    assert answer is not None and (answer.code, answer.ext_fields) == (0, want.ext_fields)


async def test_the_tables_have_the_peers_shape(desk: Desk) -> None:
    """What a RocketMQ slave polls: the members that its reader knows."""
    await desk.frame("200-update-sub-group-mqadmin")
    await desk.create("T")
    await desk.ask(15, consumerGroup="FxGroup", topic="T", queueId=1, commitOffset=9)
    desk.metadata.delays.advance(3, 8)
    for name, code in (
        ("201-all-subscription-group-broker", 201),
        ("43-all-consumer-offset-broker", 43),
        ("45-all-delay-offset-broker", 45),
    ):
        answer = await desk.frame(name)
        assert answer is not None and answer.code == 0, code
        ours, theirs = json.loads(answer.body), load_lenient(captured(name).body)
        theirs.pop("groupTopicMap", None)  # the peer computes it
        assert ours.keys() == theirs.keys(), code
        if code == 201:
            group = ours["subscriptionGroupTable"]["FxGroup"]
            assert group == theirs["subscriptionGroupTable"]["FxGroup"]
        if code == 43:
            assert ours["offsetTable"] == {"T@FxGroup": {"1": 9}}
        if code == 45:
            assert ours["offsetTable"] == {"3": 8}


@pytest.mark.parametrize(
    ("name", "changed", "code", "says"),
    [
        ("a b", {}, 29, "illegal characters"),
        ("TBW102", {}, 29, "system topic"),
        ("rmq_sys_x", {}, 29, "system topic"),
        ("b-a", {}, 29, "system topic"),
        ("T", {"readQueueNums": -1}, 29, "readQueueNums"),
        ("T", {"writeQueueNums": 70_000}, 29, "writeQueueNums"),
        ("T", {"perm": 16}, 29, "perm"),
        ("T", {"perm": 9}, 29, "perm 9 of T is not 2"),
        ("T", {"perm": "many"}, 1, "perm"),
        ("T", {"attributes": "+message.type=RED"}, 1, "message.type"),
    ],
)
async def test_topics_that_are_refused(
    desk: Desk, name: str, changed: dict[str, object], code: int, says: str
) -> None:
    answer = await desk.create(name, **changed)
    assert answer.code == code and says in (answer.remark or "")
    assert not desk.metadata.topics.data_version.counter


async def test_attributes_reach_the_table(desk: Desk) -> None:
    """user-pain 37: topics with attributes were lost."""
    assert (await desk.create("T", attributes="+message.type=FIFO")).code == 0
    found = desk.metadata.topics.get("T")
    assert found is not None and found.config.attributes == {"message.type": "FIFO"}
    version = desk.metadata.topics.data_version
    assert (await desk.create("T")).code == 0 and desk.metadata.topics.data_version == version


async def test_a_deleted_topic_takes_its_offsets_along(desk: Desk) -> None:
    """broker-ops pitfall 10; the queues go on numbering (S4)."""
    for name in ("T", "%RETRY%g_T", "%RETRY%g+T", "%RETRY%g_TT"):
        if "+" not in name:
            await desk.create(name)
        await desk.ask(15, consumerGroup="g", topic=name, queueId=0, commitOffset=1)
    desk.put("T")
    assert (await desk.ask(215, topic="T")).code == 0
    assert (await desk.ask(215, topic="T")).code == 0  # again: nothing to do
    assert {"T", "%RETRY%g_T"}.isdisjoint(desk.metadata.topics.topics)
    assert list(desk.metadata.offsets.table.rows) == ["%RETRY%g_TT@g"]
    assert desk.metadata.topics.table.gone["T"] == desk.store.commit_log.max_offset
    assert (await desk.ask(351, topic="T")).code == ResponseCode.TOPIC_NOT_EXIST
    for name in ("TBW102", "C1_REPLY_TOPIC"):  # without that one, no request would be answered any more
        assert (await desk.ask(215, topic=name)).code == ResponseCode.INVALID_PARAMETER


async def test_a_deleted_group_takes_its_offsets_along_when_asked(desk: Desk) -> None:
    await desk.create("T")
    for group in ("g", "h"):
        await desk.ask(15, consumerGroup=group, topic="T", queueId=0, commitOffset=1)
    assert (await desk.ask(207, groupName="g")).code == 0
    assert desk.metadata.offsets.query("g", "T", 0) == 1
    assert (await desk.ask(207, groupName="g", cleanOffset="true")).code == 0
    assert desk.metadata.offsets.query("g", "T", 0) == -1 and desk.metadata.offsets.query("h", "T", 0) == 1
    assert (await desk.ask(352, group="g")).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert b'"groupName":"h"' in (await desk.ask(352, group="h")).body
    assert (await desk.ask(207, groupName="TOOLS_CONSUMER")).code == ResponseCode.INVALID_PARAMETER


async def test_lists_of_topics_and_groups_are_deleted(desk: Desk) -> None:
    """Bodies as RocketMQ 5.5.1 writes them; one bad name, and nothing is deleted."""
    for name in ("A", "B", "C"):
        await desk.create(name)
        await desk.ask(15, consumerGroup=f"g{name}", topic=name, queueId=0, commitOffset=1)
    topics, groups, offsets = desk.metadata.topics, desk.metadata.groups, desk.metadata.offsets
    for code, raw, remark in (
        (5002, b'{"topicList":["A","TBW102"]}', "The topic[TBW102] is conflict with system topic."),
        (5002, b'{"topicList":[]}', "the body names no topic"),
        (5002, b"", "the body names no topic"),
        (5003, b'{"cleanOffset":true,"groupNameList":["gA","TOOLS_CONSUMER"]}', "belongs to the broker"),
        (5003, b'{"cleanOffset":true}', "the body names no group"),
    ):
        answer = await desk.ask(code, raw)
        assert answer.code == ResponseCode.INVALID_PARAMETER and remark in (answer.remark or "")
    assert {"A", "B", "C"} <= topics.topics.keys() and {"gA", "gB"} <= groups.table.rows.keys()
    for _ in range(2):  # the answer to the first one may have been lost
        assert (await desk.ask(5002, b'{"topicList":["A","B","A"]}')).code == 0
    assert {"A", "B"}.isdisjoint(topics.topics) and "C" in topics.topics
    assert list(offsets.table.rows) == ["C@gC"]
    assert (await desk.ask(5003, b'{"groupNameList":["gA","gC"]}')).code == 0
    assert {"gA", "gC"}.isdisjoint(groups.table.rows) and "gB" in groups.table.rows
    assert offsets.query("gC", "C", 0) == 1
    assert (await desk.ask(5003, b'{"cleanOffset":true,"groupNameList":["gC"]}')).code == 0
    assert offsets.query("gC", "C", 0) == -1


async def test_a_replica_hands_offsets_on(tmp_path: Path, desk: Desk) -> None:
    """From consumers whose route is old; never a second time."""
    asked: list[UpdateConsumerOffsetRequest] = []

    async def forward_to_master(
        operation: Operation[Any, Any], header: Wire, body: Wire | None
    ) -> Outcome[Any]:
        assert operation.code == 15 and isinstance(header, UpdateConsumerOffsetRequest)
        asked.append(header)
        return Ok(Empty())

    table = OperationTable()
    MetadataHandlers(desk.metadata, desk.store, forward_to_master=forward_to_master).bind(table)
    desk.dispatcher = Dispatcher(table, name="test")
    desk.metadata.gate.close(ROLE, "slave")
    commit = {"consumerGroup": "g", "topic": "T", "queueId": 1, "commitOffset": 7}
    assert (await desk.ask(15, **commit)).code == 0
    (header,) = asked
    assert (header.consumer_group, header.topic, header.queue_id) == ("g", "T", 1)
    assert header.commit_offset == 7 and header.forwarded
    assert (await desk.ask(15, **commit, forwarded="true")).code == ResponseCode.SYSTEM_ERROR
    assert len(asked) == 1


async def test_offset_commits_that_are_refused(tmp_path: Path, desk: Desk) -> None:
    fields: dict[str, Any] = {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 1}
    assert (await desk.ask(15, **fields)).code == ResponseCode.TOPIC_NOT_EXIST
    await desk.create("T")
    assert (await desk.ask(15, **fields)).code == 0
    assert (await desk.ask(15, **(fields | {"commitOffset": -1}))).code == 0  # Node: ignored
    assert desk.metadata.offsets.query("g", "T", 0) == 1
    assert (await desk.ask(15, **(fields | {"consumerGroup": "a b"}))).code == 26
    del fields["commitOffset"]
    assert (await desk.ask(15, **fields)).code == ResponseCode.INVALID_PARAMETER


async def test_unknown_offsets_of_old_queues(desk: Desk) -> None:
    desk.put("T")
    fields: dict[str, Any] = {"consumerGroup": "g", "topic": "T", "queueId": 0}
    assert (await desk.ask(14, **fields)).ext_fields == {"offset": "0"}
    assert (await desk.ask(14, setZeroIfNotFound="false", **fields)).code == 22
    queue = desk.store.find_queue("T", 0)
    assert queue is not None
    queue.min_offset = 1
    assert (await desk.ask(14, **fields)).code == 22


async def test_a_slave_that_lacks_a_topic_has_its_deletion(desk: Desk) -> None:
    """mqadmin deleteTopic asks masters, then slaves, which have it from their master by then."""
    desk.metadata.gate.close(ROLE, "this broker is slave of 10.0.0.2:10911")
    assert (await desk.ask(215, topic="T")).code == 0
    assert (await desk.ask(5002, b'{"topicList":["T"]}')).code == 0


async def test_a_slave_and_a_fenced_master_change_nothing(desk: Desk) -> None:
    await desk.create("T")
    desk.metadata.gate.close(ROLE, "this broker is slave of 10.0.0.2:10911")
    for answer in (
        await desk.create("U"),
        await desk.ask(215, topic="T"),
        await desk.ask(5002, b'{"topicList":["T"]}'),
        await desk.ask(5003, b'{"groupNameList":["g"]}'),
        await desk.ask(200, body_bytes(SubscriptionGroupConfig(group_name="g"))),
        await desk.ask(207, groupName="g"),
        await desk.ask(15, consumerGroup="g", topic="T", queueId=0, commitOffset=1),
    ):
        assert answer.code == 1 and "slave of 10.0.0.2" in (answer.remark or "")
    assert desk.metadata.offsets.query("g", "T", 0) == -1 and desk.metadata.topics.get("T") is not None
    desk.metadata.gate.open(ROLE)
    desk.metadata.gate.min_in_sync = 2
    answer = await desk.create("U")
    assert answer.code == 1 and "in-sync replicas not enough: 1 of at least 2" in (answer.remark or "")


async def test_a_full_disk_is_an_answer(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **kwargs: object) -> bool:
        raise OSError(28, "No space left on device", "topics.json")

    monkeypatch.setattr(desk.metadata.topics.file, "save", full)
    answer = await desk.create("T")
    assert answer.code == 1 and answer.remark == "cannot write topics.json: No space left on device"
    assert desk.metadata.topics.get("T") is None


async def test_bodies_that_are_no_group(desk: Desk) -> None:
    for body in (b"", b"[]", b'{"groupName":7}', b"{"):
        assert (await desk.ask(200, body)).code == 1
    illegal = body_bytes(SubscriptionGroupConfig(group_name="a b"))
    assert (await desk.ask(200, illegal)).code == ResponseCode.INVALID_PARAMETER


async def test_offsets_of_queues_that_are_not_there(desk: Desk) -> None:
    """Each commit writes its whole row: a client must not make it as long as it likes."""
    await desk.create("T")
    await desk.create("%RETRY%g", readQueueNums=1, writeQueueNums=1)
    offsets = desk.metadata.offsets
    commit: dict[str, object] = {"consumerGroup": "g", "commitOffset": 3}
    for topic, queue_id in (("T", 4), ("T", 300_000), ("T", -1), ("%RETRY%g", 1)):
        answer = await desk.ask(15, topic=topic, queueId=queue_id, **commit)
        assert answer.code == ResponseCode.INVALID_PARAMETER, (topic, queue_id)
        assert answer.remark and "is illegal" in answer.remark
    assert offsets.row("g", "T") == offsets.row("g", "%RETRY%g") == {}
    for topic, queue_id in (("T", 0), ("T", 3), ("%RETRY%g", 0)):
        assert (await desk.ask(15, topic=topic, queueId=queue_id, **commit)).code == 0
    nothing = await desk.ask(15, consumerGroup="g", topic="T", queueId=-1, commitOffset=-1)
    assert nothing.code == 0, "clients say so of queues that they never read"
    desk.put("T", 3)
    await desk.create("T", readQueueNums=2, writeQueueNums=2)
    answer = await desk.ask(15, consumerGroup="g", topic="T", queueId=3, commitOffset=1)
    assert answer.code == 0 and offsets.row("g", "T") == {0: 3, 3: 1}


@pytest.mark.parametrize("group", sorted(POSITIONS))
async def test_positions_of_the_broker_are_no_clients(desk: Desk, group: str) -> None:
    await desk.create("T")
    desk.metadata.offsets.commit(group, "T", 0, 7)
    answers = [
        await desk.ask(15, consumerGroup=group, topic="T", queueId=0, commitOffset=3),
        await desk.ask(207, groupName=group, cleanOffset="true"),
    ]
    assert all(each.code != 0 and "belongs to the broker" in (each.remark or "") for each in answers)
    with pytest.raises(CommandError, match="belongs to the broker"):
        desk.metadata.find_group(group)
    assert desk.metadata.offsets.row(group, "T") == {0: 7}


def test_which_groups_have_positions_of_the_broker() -> None:
    assert {TRANSACTIONS_GROUP, REVIVE_GROUP, SETTLED_GROUP} == POSITIONS


async def test_a_pulls_commit_flag_is_a_commit(desk: Desk) -> None:
    await desk.create("T")
    desk.metadata.commit_by_pull("g", "T", 2, 33)
    assert desk.metadata.offsets.query("g", "T", 2) == 33
    desk.metadata.gate.close(ROLE, "slave")
    desk.metadata.commit_by_pull("g", "T", 2, 44)
    assert desk.metadata.offsets.query("g", "T", 2) == 33


async def test_commits_are_journaled_and_written_in_the_background(tmp_path: Path) -> None:
    desk = Desk(tmp_path, flush_period_ms=1)
    await desk.create("T")
    task = asyncio.create_task(desk.metadata.run())
    desk.metadata.commit_by_pull("g", "T", 0, 5)
    offsets = desk.metadata.offsets
    await until(lambda: offsets.path.exists() and not offsets.is_behind)
    task.cancel()
    assert open_metadata(tmp_path).offsets.query("g", "T", 0) == 5


async def test_the_commit_flag_of_a_pull_reaches_the_table(tmp_path: Path) -> None:
    """sysFlag bit 0 of 11; on the first execution only, and not without the bit."""
    broker = Broker(tmp_path)
    broker.pull(0, commitOffset="3")
    broker.pull(0, commitOffset="5", sysFlag="5")
    broker.pull(0, commitOffset="6", sysFlag="7", suspendTimeoutMillis="1000", lenient=True)
    broker.send(b"wakes the one that waits")
    broker.tick()
    broker.pull(0, commitOffset="-1", sysFlag="5")
    assert broker.commits == [("g", "TopicA", 0, 5), ("g", "TopicA", 0, 6)]
    broker.store.close()
