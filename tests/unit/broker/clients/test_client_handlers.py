"""Heartbeats as real clients write them, who is told of whom, and queue locks over the wire's bodies."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from broker.admission.send_forwarder import ForwardToMaster, no_other_master
from broker.admission.send_gate import HAND_OVER, ROLE
from broker.clients.service import SCAN_PERIOD_MS, START_UP_MS, Clients
from broker.config.client_settings import ClientSettings
from broker.metadata.service import Metadata
from keelmq.remoting.body import body_bytes
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.command import RemotingCommand, decode
from keelmq.remoting.dispatch import Dispatcher
from keelmq.remoting.operation import Empty, Failed, Ok, Operation, OperationTable, Outcome, Wire
from keelmq.remoting.operations.clients import LockedQueues
from keelmq.remoting.operations.route import TopicConfig
from tests.support.metadata_parts import begin_term, open_metadata
from tests.support.store_parts import FakePeer

CPP = (
    b'{"clientID":"12763-127.0.0.1@DEFAULT","consumerDataSet":[{"consumeFromWhere":0,"consumeType":1,"groupName":'
    b'"CG","messageModel":1,"subscriptionDataSet":[{"subString":"*","subVersion":"1795240973394","topic":'
    b'"%RETRY%CG"},{"codeSet":[0,0],"subString":"tagA||tagB","subVersion":"1795240973394","tagsSet":["tagA","tagB"],'
    b'"topic":"TopicX"}]}]}\n'
)


class Desk:
    def __init__(self, path: Path, forward_to_master: ForwardToMaster = no_other_master) -> None:
        self.now_ms = 0
        self.metadata: Metadata = open_metadata(path)
        self.settings = ClientSettings.model_validate({})
        self.clients = Clients(
            self.metadata, self.settings, forward_to_master=forward_to_master, clock=lambda: self.now_ms
        )
        table = OperationTable()
        self.clients.bind(table)
        self.dispatcher = Dispatcher(table, name="test")
        self.peer = FakePeer()

    def queue_of_group(self, topic: str, group: str) -> dict[str, object]:
        """Creates both; returns the first queue of the topic as clients name it."""
        config = TopicConfig(topic_name=topic, read_queue_nums=2, write_queue_nums=1)
        self.metadata.topics.update(config)
        assert self.metadata.find_group(group, None) is not None
        return {"brokerName": "b-a", "queueId": 0, "topic": topic}

    def started(self, *, at_ms: int) -> None:
        """It is that late, and the broker has looked who has started up."""
        self.now_ms = at_ms
        self.clients.expire(at_ms)

    async def ask(
        self, code: int, body: bytes | dict[str, object] = b"", *, peer: FakePeer | None = None, **ext: str
    ) -> RemotingCommand:
        raw = json.dumps(body).encode() if isinstance(body, dict) else body
        command = RemotingCommand(code, 7, 0, None, ext, raw, "CPP", 63)
        answer = await self.dispatcher.answer(command, peer or self.peer)
        assert answer is not None
        return decode(answer[4:])


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def told(peer: FakePeer) -> list[tuple[int, str]]:
    """The pushed 40s: (flag, group); forgets them."""
    commands = [decode(frame[4:]) for frame in peer.sent]
    peer.sent.clear()
    assert all(command.code == 40 for command in commands)
    return [(command.flag, command.ext_fields["consumerGroup"]) for command in commands]


async def test_a_cpp_heartbeat(desk: Desk) -> None:
    answer = await desk.ask(34, CPP)
    assert (answer.code, answer.ext_fields) == (
        0,
        {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"},
    )
    members = await desk.ask(38, consumerGroup="CG")
    assert members.body == b'{"consumerIdList":["12763-127.0.0.1@DEFAULT"]}'
    assert told(desk.peer) == []  # it starts up still
    body = json.loads((await desk.ask(203, consumerGroup="CG")).body)
    assert body["connectionSet"] == [
        {
            "clientAddr": "10.0.0.1:4660",
            "clientId": "12763-127.0.0.1@DEFAULT",
            "language": "CPP",
            "version": 63,
        }
    ]
    assert (body["consumeType"], body["messageModel"], body["consumeFromWhere"]) == (
        "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET",
    )  # fmt: skip
    wanted = body["subscriptionTable"]["TopicX"]
    assert wanted["codeSet"] == [3552231, 3552232]  # computed, whatever the client says
    assert wanted["tagsSet"] == ["tagA", "tagB"]
    retry = desk.metadata.topics.topics["%RETRY%CG"]
    assert (retry.read_queue_nums, retry.write_queue_nums, retry.perm) == (1, 1, 6)
    assert desk.metadata.groups.get("CG") is not None


async def test_a_heartbeat_of_a_producer(desk: Desk) -> None:
    await desk.ask(34, {"clientID": "p@1", "producerDataSet": [{"groupName": "PG"}]})
    body = json.loads((await desk.ask(204, producerGroup="PG")).body)
    assert [each["clientId"] for each in body["connectionSet"]] == ["p@1"]
    await desk.ask(35, clientID="p@1", consumerGroup="", producerGroup="PG")  # as C++ says farewell
    assert (await desk.ask(204, producerGroup="PG")).code == ResponseCode.SYSTEM_ERROR


async def test_members_hear_of_each_other(desk: Desk) -> None:
    other = FakePeer(2)
    await desk.ask(34, CPP)
    desk.started(at_ms=START_UP_MS)
    assert told(desk.peer) == [(2, "CG")]
    await desk.ask(34, CPP.replace(b"12763", b"99"), peer=other)
    assert told(desk.peer) == [(2, "CG")]
    desk.started(at_ms=2 * START_UP_MS)
    assert told(other) == [(2, "CG")]
    assert told(desk.peer) == []
    desk.clients.connection_closed(2)
    assert told(desk.peer) == [(2, "CG")]
    desk.settings.become(ClientSettings.model_validate({"channelExpiredTimeout": 7_000}))
    desk.now_ms = 7_000 + SCAN_PERIOD_MS
    desk.clients.expire(desk.now_ms)
    answer = await desk.ask(38, consumerGroup="CG")
    assert answer.code == ResponseCode.SYSTEM_ERROR and "no consumer for this group" in str(answer.remark)
    assert (await desk.ask(203, consumerGroup="CG")).code == ResponseCode.CONSUMER_NOT_ONLINE


async def test_a_member_that_starts_up_gets_no_40_yet(desk: Desk) -> None:
    """Java clients merge the rebalance of a 40 that comes during their start with their own: first retries
    of a new group after 18 s, and starts that stall for 20 s with code 25."""
    other = FakePeer(2)
    await desk.ask(34, CPP)
    assert told(desk.peer) == []
    desk.started(at_ms=700)
    await desk.ask(34, CPP.replace(b'"TopicX"', b'"TopicY"').replace(b"73394", b"73395"))  # the group changed
    await desk.ask(34, CPP.replace(b"12763", b"99"), peer=other)  # and another one joined
    assert told(desk.peer) == told(other) == []
    desk.started(at_ms=START_UP_MS - 1)
    assert told(desk.peer) == []
    desk.started(at_ms=START_UP_MS)
    assert told(desk.peer) == [(2, "CG")]  # once, for all three changes
    assert told(other) == []
    desk.started(at_ms=700 + START_UP_MS)
    assert told(other) == [(2, "CG")]
    desk.started(at_ms=10 * START_UP_MS)
    assert told(desk.peer) == told(other) == []


async def test_who_left_during_its_start_up_gets_no_40(desk: Desk) -> None:
    """And who comes back on the same connection gets it after its new start."""
    other = FakePeer(2)
    for peer in (desk.peer, other):
        await desk.ask(34, CPP, peer=peer)
    await desk.ask(35, clientID="12763-127.0.0.1@DEFAULT", consumerGroup="CG")
    desk.clients.connection_closed(2)
    desk.started(at_ms=1_000)
    await desk.ask(34, CPP)
    desk.started(at_ms=START_UP_MS)
    assert told(desk.peer) == told(other) == []
    desk.started(at_ms=1_000 + START_UP_MS)
    assert told(desk.peer) == [(2, "CG")]
    assert told(other) == []


async def test_members_are_left_to_find_out_by_themselves(desk: Desk) -> None:
    other = FakePeer(2)
    desk.settings.become(ClientSettings.model_validate({"notifyConsumerIdsChangedEnable": False}))
    await desk.ask(34, CPP)
    await desk.ask(34, CPP.replace(b"12763", b"99"), peer=other)
    desk.clients.connection_closed(2)
    desk.started(at_ms=2 * START_UP_MS)
    assert told(desk.peer) == told(other) == []


async def test_groups_that_must_not_be_are_passed_over(desk: Desk) -> None:
    """broker-ops pitfalls 8 and 9: an illegal or unknown group is not registered, the heartbeat is answered
    and the other groups count."""
    group = {"groupName": "../../g", "subscriptionDataSet": [{"topic": "T", "subVersion": "1"}]}
    good = {"groupName": "good"}
    answer = await desk.ask(34, {"clientID": "c", "consumerDataSet": [group, good]})
    assert answer.code == 0
    assert set(desk.clients.registry.consumers) == {"good"}
    desk.metadata.groups.auto_create = False
    await desk.ask(34, {"clientID": "c", "consumerDataSet": [{"groupName": "unknown"}]})
    assert set(desk.clients.registry.consumers) == {"good"}
    assert desk.metadata.groups.get("unknown") is None


async def test_the_flag_of_a_unit_goes_with_the_unit(desk: Desk) -> None:
    """broker-ops pitfall 13: a retry topic's flag could be set and never be cleared."""
    topics = desk.metadata.topics

    async def heartbeat(**more: object) -> int:
        await desk.ask(34, {"clientID": "c", "consumerDataSet": [{"groupName": "CG", **more}]})
        return topics.topics["%RETRY%CG"].config.topic_sys_flag

    assert await heartbeat(unitMode=True) == 2
    version = topics.table.version
    assert await heartbeat(unitMode=True) == 2 and topics.table.version == version
    assert await heartbeat() == 0 and topics.table.version > version
    assert await heartbeat(unitMode=True) == 2  # set later, too, not only when the topic is made
    topic = topics.topics["%RETRY%CG"].config
    topics.update(topic.model_copy(update={"topic_sys_flag": 3}))
    assert await heartbeat(unitMode=False) == 1  # whose unit the topic is of is another flag


async def test_a_replica_registers_and_creates_nothing(desk: Desk) -> None:
    desk.metadata.gate.close(ROLE, "slave")
    await desk.ask(34, CPP)
    assert set(desk.clients.registry.consumers) == {"CG"}
    assert desk.metadata.groups.get("CG") is None
    assert "%RETRY%CG" not in desk.metadata.topics.topics


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[1]", b'{"clientID":"c","consumerDataSet":[{"groupName":"g","messageModel":9}]}']
)
async def test_heartbeats_that_are_none_are_answered(desk: Desk, body: bytes) -> None:
    """clients pitfall 7: a heartbeat without an answer leaves the client's state wrong."""
    assert (await desk.ask(34, body)).code == ResponseCode.SYSTEM_ERROR


async def test_a_bad_expression_does_not_end_a_heartbeat(desk: Desk) -> None:
    bad = {"topic": "T", "subString": "a >", "expressionType": "SQL92", "subVersion": 1}
    consumer = {"groupName": "g", "subscriptionDataSet": [bad]}
    assert (await desk.ask(34, {"clientID": "c", "consumerDataSet": [consumer]})).code == 0
    assert desk.clients.registry.consumers["g"].subscriptions["T"].message_filter is None


async def test_names_that_a_broker_would_have_to_keep_have_limits(desk: Desk) -> None:
    """Each heartbeat, and each lock, could leave 16 MiB behind."""
    long = "x" * 2_000
    for heartbeat in ({"clientID": long}, {"clientID": "c", "producerDataSet": [{"groupName": long}]}):
        assert (await desk.ask(34, heartbeat)).code == ResponseCode.INVALID_PARAMETER
    assert not desk.clients.registry.connections() and not desk.clients.registry.producers
    lock: dict[str, object] = {"clientId": long, "consumerGroup": "g", "mqSet": []}
    assert (await desk.ask(41, lock)).code == ResponseCode.INVALID_PARAMETER


async def test_only_queues_that_exist_are_locked(desk: Desk) -> None:
    """One client could lock 200,000 invented ones, and nobody else any."""
    queue = desk.queue_of_group("T", "g")
    invented = [queue | {"topic": "U"}, queue | {"queueId": 2}, queue | {"queueId": -1}]
    body: dict[str, object] = {"clientId": "a", "consumerGroup": "g", "mqSet": [*invented, queue]}
    assert json.loads((await desk.ask(41, body)).body) == {"lockOKMQSet": [queue]}
    assert (await desk.ask(41, body | {"consumerGroup": "h"})).body == b'{"lockOKMQSet":[]}'
    other_name: dict[str, object] = {
        "clientId": "b",
        "consumerGroup": "g",
        "mqSet": [queue | {"brokerName": "x"}],
    }
    assert (await desk.ask(41, other_name)).body == b'{"lockOKMQSet":[]}', "it is the same queue"
    assert len(desk.clients.locks) == 1


@pytest.mark.parametrize(("kind", "most"), [("TAG", 32), ("SQL92", 4)])
async def test_expressions_of_a_heartbeat_have_a_limit(desk: Desk, kind: str, most: int) -> None:
    """Those of one heartbeat could keep a broker busy for minutes, and take 2.7 GB."""
    text = "a" * 16_384 if kind == "TAG" else "a > 1 OR " * 1_819 + "a > 1        "
    topics = [
        {"topic": f"T{number}", "subString": text, "expressionType": kind} for number in range(most + 1)
    ]
    consumer = {"groupName": "g", "subscriptionDataSet": topics[:-1]}
    assert (await desk.ask(34, {"clientID": "c", "consumerDataSet": [consumer]})).code == 0
    found = desk.clients.registry.consumers["g"].subscriptions
    assert len(found) == most and all(each.message_filter is not None for each in found.values())
    consumer = {"groupName": "h", "subscriptionDataSet": topics}
    refused = await desk.ask(34, {"clientID": "c", "consumerDataSet": [consumer]})
    assert refused.code == ResponseCode.INVALID_PARAMETER and "524288 is the limit" in (refused.remark or "")
    assert list(desk.clients.registry.consumers) == ["g"]


async def test_queue_locks(desk: Desk) -> None:
    queue = desk.queue_of_group("%RETRY%CG3", "CG3")
    body: dict[str, object] = {"clientId": "a", "consumerGroup": "CG3", "mqSet": [queue]}
    answer = await desk.ask(41, body)
    assert json.loads(answer.body) == {"lockOKMQSet": [queue]}
    assert (await desk.ask(41, body | {"clientId": "b"})).body == b'{"lockOKMQSet":[]}'
    assert (await desk.ask(42, body)).code == 0
    assert json.loads((await desk.ask(41, body | {"clientId": "b"})).body) == {"lockOKMQSet": [queue]}
    desk.metadata.gate.close(ROLE, "slave")
    assert (await desk.ask(41, body | {"clientId": "b"})).body == b'{"lockOKMQSet":[]}'


async def test_a_replica_asks_its_master_for_locks(tmp_path: Path) -> None:
    """An orderly consumer with an old route stands still without: its locks end after 30 s. What came from
    another broker goes to no third one."""
    (tmp_path / "master").mkdir()
    master = Desk(tmp_path / "master")
    asked: list[int] = []

    async def forward_to_master(
        operation: Operation[Any, Any], header: Wire, body: Wire | None
    ) -> Outcome[Any]:
        asked.append(operation.code)
        assert body is not None
        answer = await master.ask(operation.code, body_bytes(body))
        if answer.code:
            return Failed(answer.code, answer.remark or "")
        return Ok(Empty(), LockedQueues.model_validate_json(answer.body) if answer.body else None)

    desk = Desk(tmp_path, forward_to_master)
    desk.metadata.gate.close(ROLE, "slave")
    queue = master.queue_of_group("T", "g")
    body: dict[str, object] = {"clientId": "a", "consumerGroup": "g", "mqSet": [queue]}
    assert json.loads((await desk.ask(41, body)).body) == {"lockOKMQSet": [queue]}
    assert (await master.ask(41, body | {"clientId": "b"})).body == b'{"lockOKMQSet":[]}', "the master's lock"
    assert (await desk.ask(42, body)).code == 0
    assert json.loads((await master.ask(41, body | {"clientId": "b"})).body) == {"lockOKMQSet": [queue]}
    assert asked == [41, 42]
    refused = await desk.ask(41, body | {"onlyThisBroker": True})
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE and asked == [41, 42]


async def test_locks_wait_while_the_mastership_moves(desk: Desk) -> None:
    """A Java consumer that gets none gives up its queues until it locks them again, 20 s later."""
    queue = desk.queue_of_group("T", "g")
    body: dict[str, object] = {"clientId": "a", "consumerGroup": "g", "mqSet": [queue]}
    desk.metadata.gate.close(HAND_OVER, "going")
    asking = asyncio.create_task(desk.ask(41, body))
    asyncio.get_running_loop().call_later(0.05, desk.metadata.gate.open, HAND_OVER)
    assert json.loads((await asking).body) == {"lockOKMQSet": [queue]}


async def test_locks_of_an_earlier_term_do_not_count(desk: Desk) -> None:
    """Another broker was master meanwhile, and gave the queue to somebody else."""
    queue = desk.queue_of_group("T", "g")
    body: dict[str, object] = {"clientId": "a", "consumerGroup": "g", "mqSet": [queue]}
    begin_term(desk.metadata, 1)
    assert json.loads((await desk.ask(41, body)).body) == {"lockOKMQSet": [queue]}
    assert (await desk.ask(41, body | {"clientId": "b"})).body == b'{"lockOKMQSet":[]}'
    desk.metadata.end_term()
    begin_term(desk.metadata, 3)
    assert json.loads((await desk.ask(41, body | {"clientId": "b"})).body) == {"lockOKMQSet": [queue]}


async def test_a_producer_that_can_be_asked(desk: Desk) -> None:
    """broker-ops pitfall 6: in turn, and none whose connection is about to close."""
    peers = [FakePeer(connection_id) for connection_id in (11, 12, 13)]
    for peer in peers:
        body: dict[str, object] = {
            "clientID": f"c{peer.connection_id}",
            "producerDataSet": [{"groupName": "P"}],
        }
        await desk.ask(34, body, peer=peer)
    clients = desk.clients
    assert {id(clients.find_producer("P", "T")) for _ in range(3)} == {id(peer) for peer in peers}
    peers[0].closing = peers[1].closing = True
    assert all(clients.find_producer("P", "T") is peers[2] for _ in range(3))
    peers[2].closing = True
    assert clients.find_producer("P", "T") is None and clients.find_producer("Q", "T") is None
    assert clients.registry.find_producer("c12") == 12
    peers[0].closing = False
    await desk.ask(34, {"clientID": "other", "producerDataSet": [{"groupName": "P"}]}, peer=peers[0])
    assert clients.registry.find_producer("c11") is None and clients.registry.find_producer("other") == 11
    for peer in peers:
        clients.connection_closed(peer.connection_id)
        clients.registry.check_invariants()
    assert clients.registry.find_producer("c12") is None
