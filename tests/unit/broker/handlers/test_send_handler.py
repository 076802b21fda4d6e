"""Sending: what is stored, what is answered and when, and every reason to refuse."""

import json
import re
from pathlib import Path

import pytest

from broker.admission.pending_replies import PendingReplies
from broker.message.record import decode, host_bytes, parse_properties
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.command import RemotingCommand
from keelmq.runtime.clock import wall_ms
from tests.support.handler_context import send_gate
from tests.support.handler_parts import Broker, last_record
from tests.support.store_parts import BORN_HOST, FakePeer


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return Broker(tmp_path)


def ok(reply: RemotingCommand | None) -> RemotingCommand:
    assert reply is not None
    assert reply.code == 0, reply.remark
    return reply


@pytest.mark.parametrize("lenient", [False, True])
def test_a_message_is_stored_as_sent_and_answered_at_once(broker: Broker, lenient: bool) -> None:
    reply = ok(broker.send(b"hello", lenient=lenient, e="2", h="5", j="3", g="1234567890123"))
    assert reply.opaque == 9
    record = last_record(broker)
    assert reply.ext_fields == {
        "msgId": f"7F00000100002A9F{record.offset:016X}",
        "queueId": "2",
        "queueOffset": "0",
        "transactionId": "AC11",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
    assert (record.topic, record.queue_id, record.body, record.flag) == ("TopicA", 2, b"hello", 5)
    assert (record.born_timestamp, record.born_host, record.reconsume_times) == (1234567890123, BORN_HOST, 3)
    assert parse_properties(record.properties) == {
        "TAGS": "TagA", "UNIQ_KEY": "AC11", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "c",
    }  # fmt: skip
    assert ok(broker.send(e="2")).ext_fields["queueOffset"] == "1"


def test_the_long_names_of_code_10(broker: Broker) -> None:
    fields: dict[str, object] = {
        "producerGroup": "g", "topic": "TopicA", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4",
        "queueId": "1", "sysFlag": "0", "bornTimestamp": "77", "flag": "0", "properties": "UNIQ_KEY\x01K",
        "reconsumeTimes": "0", "unitMode": "false", "batch": "false",
    }  # fmt: skip
    for lenient in (False, True):
        assert ok(broker.request(10, fields, b"v1", lenient=lenient)).ext_fields["queueId"] == "1"
    assert (last_record(broker).born_timestamp, last_record(broker).body) == (77, b"v1")


def test_one_end_of_tick_for_many_messages(broker: Broker) -> None:
    for _ in range(5):
        broker.send()
    assert (len(broker.soon), broker.ticks) == (1, 0)
    broker.tick()
    assert broker.ticks == 1
    assert broker.store.max_queue_offset("TopicA", 0) == 5
    broker.send()
    assert len(broker.soon) == 1


def test_oneway_is_stored_and_never_answered(broker: Broker) -> None:
    assert broker.send(flag=2) is None
    assert broker.store.commit_log.max_offset > 0
    assert broker.send(flag=2, b="no such topic!") is None
    assert broker.answers() == []


def test_a_missing_unique_key_is_made(broker: Broker) -> None:
    keys = [ok(broker.send(i="TAGS\x01T")).ext_fields["transactionId"] for _ in range(3)]
    assert len(set(keys)) == 3
    assert {len(key) for key in keys} == {32}
    stored = parse_properties(last_record(broker).properties)
    assert (stored["UNIQ_KEY"], stored["TAGS"]) == (keys[-1], "T")


def test_a_strange_unique_key_is_escaped(broker: Broker) -> None:
    assert ok(broker.send(i='UNIQ_KEY\x01a"b\\ü')).ext_fields["transactionId"] == 'a"b\\ü'


def test_negative_queue_id_means_any(broker: Broker) -> None:
    seen = {ok(broker.send(e="-1")).ext_fields["queueId"] for _ in range(60)}
    assert seen <= {"0", "1", "2", "3"} and len(seen) > 1


def test_an_unknown_topic_is_created_and_announced(broker: Broker) -> None:
    announced: list[int] = []
    broker.topics.on_change = lambda: announced.append(1)
    ok(broker.send(b="Fresh", d="3"))
    assert announced == [1]
    assert "Fresh" in json.loads(broker.topics.path.read_text())["topicConfigTable"]


def test_a_store_host_that_is_known_late(broker: Broker) -> None:
    broker.send()
    broker.store.store_host = host_bytes("10.9.8.7", 10911)
    assert ok(broker.send()).ext_fields["msgId"].startswith("0A09080700002A9F")


REFUSALS = [
    ({"b": ""}, ResponseCode.INVALID_PARAMETER, "blank"),
    ({"b": "a b"}, ResponseCode.INVALID_PARAMETER, "illegal characters"),
    ({"b": "x" * 128}, ResponseCode.INVALID_PARAMETER, "longer than"),
    ({"b": "SCHEDULE_TOPIC_XXXX"}, ResponseCode.NO_PERMISSION, "forbidden"),
    ({"b": "rmq_sys_wheel_timer"}, ResponseCode.NO_PERMISSION, "forbidden"),
    ({"b": "rmq_sys_REVIVE_LOG_c"}, ResponseCode.NO_PERMISSION, "forbidden"),
    ({"b": "rmq_sys_REVIVE_LOG_c", "m": "true"}, ResponseCode.NO_PERMISSION, "forbidden"),
    ({"b": "Fresh", "c": "Absent"}, ResponseCode.TOPIC_NOT_EXIST, "apply first"),
    ({"e": "4"}, ResponseCode.INVALID_PARAMETER, "queueId\\[4\\] is illegal"),
    ({"f": "4"}, ResponseCode.MESSAGE_ILLEGAL, "transaction bits"),
    ({"f": str(1 << 40)}, ResponseCode.MESSAGE_ILLEGAL, "illegal"),
    ({"m": "true"}, ResponseCode.MESSAGE_ILLEGAL, "batch"),
    ({"i": "TRAN_MSG\x01true"}, ResponseCode.MESSAGE_ILLEGAL, "transactional"),
    ({"i": "A\x01b\x02DELAY\x01x\x02"}, ResponseCode.MESSAGE_ILLEGAL, "property DELAY"),
    ({"i": "TIMER_DELAY_SEC\x013"}, ResponseCode.SYSTEM_ERROR, "timerWheelEnable"),
    ({"i": "a\x01b\x02_SYS_MSG_PRIORITY_\x01high"}, ResponseCode.MESSAGE_ILLEGAL, "_PRIORITY_ is 'high'"),
    ({"i": "_SYS_MSG_PRIORITY_\x01-1"}, ResponseCode.MESSAGE_ILLEGAL, "0 to 2147483647"),
    ({"i": "_SYS_MSG_PRIORITY_\x012147483648"}, ResponseCode.MESSAGE_ILLEGAL, "0 to 2147483647"),
    ({"i": "_SYS_MSG_PRIORITY_\x01" + "9" * 5000}, ResponseCode.MESSAGE_ILLEGAL, "0 to 2147483647"),
    ({"i": "_SYS_MSG_PRIORITY_\x011", "m": "true"}, ResponseCode.MESSAGE_ILLEGAL, "has no priority"),
    ({"i": "k\x01v\0\x02"}, ResponseCode.MESSAGE_ILLEGAL, "zero byte"),
    ({"i": "k\x01" + "v" * 32_767}, ResponseCode.MESSAGE_ILLEGAL, "properties"),
]


def test_topics_of_the_broker_that_clients_do_send_to(broker: Broker) -> None:
    """Benchmarks, replies, `mqadmin clusterRT` (the topic called like the broker), templates."""
    for name in ("BenchmarkTest", "c_REPLY_TOPIC", "b", "c", "TBW102", "RMQ_SYS_TRACE_TOPIC"):
        ok(broker.send(b=name))


@pytest.mark.parametrize(("changed", "code", "remark"), REFUSALS)
@pytest.mark.parametrize("lenient", [False, True])
def test_refused(broker: Broker, changed: dict[str, object], code: int, remark: str, lenient: bool) -> None:
    reply = broker.send(lenient=lenient, **changed)
    assert reply is not None
    assert reply.code == code
    assert reply.remark is not None
    assert re.search(remark, reply.remark)
    assert broker.store.commit_log.max_offset == 0
    assert broker.soon == []


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"b": "a b", "e": "9"}, ResponseCode.INVALID_PARAMETER),
        ({"b": "SCHEDULE_TOPIC_XXXX", "e": "99"}, ResponseCode.NO_PERMISSION),
        ({"b": "Fresh", "c": "Absent", "e": "99"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"e": "99"}, ResponseCode.INVALID_PARAMETER),
        ({"b": "Fresh"}, ResponseCode.MESSAGE_ILLEGAL),
    ],
)
def test_of_several_faults_the_peers_first_one_is_told(
    broker: Broker, changed: dict[str, object], code: int
) -> None:
    """Clients go by the code: they try another broker for 16 and 17, and not for 13."""
    broker.gate.min_in_sync = 2
    reply = broker.send(b"x" * 100_001, **changed)
    assert reply is not None and reply.code == code
    assert broker.topics.get("Fresh") is None  # what is refused creates no topic


def test_messages_are_taken_from_a_certain_time_on(broker: Broker) -> None:
    for begins_ms, code in ((wall_ms() + 60_000, ResponseCode.SYSTEM_ERROR), (wall_ms() - 1, 0)):
        broker.gate.configure(permits_write=True, accept_from_ms=begins_ms)
        reply = broker.send()
        assert reply is not None and reply.code == code
        assert not code or str(begins_ms) in (reply.remark or "")


def test_without_permission_to_write_ordered_topics_are_closed(broker: Broker) -> None:
    """Of the others clients see it in the route; an ordered one has its own order of brokers there."""
    broker.gate.configure(permits_write=False, accept_from_ms=0)
    ok(broker.send())
    config = broker.topics.topics["TopicA"].config
    broker.topics.update(config.model_copy(update={"order": True}))
    reply = broker.send()
    assert reply is not None and reply.code == ResponseCode.NO_PERMISSION
    broker.gate.configure(permits_write=True, accept_from_ms=0)
    ok(broker.send())


@pytest.mark.parametrize("properties", ["", "DELAY\x011\x02"])
def test_a_topic_that_is_closed_takes_messages_until_clients_know(broker: Broker, properties: str) -> None:
    """An operator takes a topic's write permission to empty it. Clients read that in their next route, up to
    30 s later; what they send until then is no error (RocketMQ does not check the bit, either)."""
    config = broker.topics.topics["TopicA"].config
    broker.topics.update(config.model_copy(update={"perm": 4}))
    ok(broker.send(i=properties))


def test_the_handle_of_a_popped_message_is_not_stored(broker: Broker) -> None:
    """Whoever popped the copy would acknowledge with the old one, and it would come again for ever."""
    ok(broker.send(i="A\x01b\x02POP_CK\x010 1 2 3 0 b 0\x02UNIQ_KEY\x01AC11"))
    broker.tick()
    stored = parse_properties(decode(broker.store.commit_log.view(0, 1_000)).properties)
    assert (stored["A"], stored["UNIQ_KEY"], "POP_CK" in stored) == ("b", "AC11", False)


def test_names_that_only_look_special_pass(broker: Broker) -> None:
    for text in (
        "XDELAY\x013",
        "DELAY\x010",
        "TRAN_MSG\x01false",
        "k\x01TIMER_DELAY_MS",
        "NOTRAN_MSG\x01true",
    ):
        ok(broker.send(i=text))


def test_a_body_above_the_limit(broker: Broker) -> None:
    ok(broker.send(b"x" * 100_000))
    reply = broker.send(b"x" * 100_001)
    assert reply is not None and reply.code == ResponseCode.MESSAGE_ILLEGAL


def test_a_closed_gate_names_the_reason(broker: Broker) -> None:
    broker.gate.close("role", "this broker is slave of 10.0.0.2:10911")
    reply = broker.send(b="No legal name!")
    assert reply is not None and reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert reply.remark == "service not available now: this broker is slave of 10.0.0.2:10911"


def test_too_few_replicas(broker: Broker) -> None:
    broker.gate.in_sync, broker.gate.min_in_sync = 1, 2
    reply = broker.send()
    assert reply is not None and reply.code == ResponseCode.SYSTEM_ERROR
    assert reply.remark is not None and reply.remark.startswith("in-sync replicas not enough")
    broker.gate.in_sync = 2
    ok(broker.send())


def test_a_missing_field_is_named(broker: Broker) -> None:
    reply = broker.send(lenient=True, e=None)
    assert reply is not None and reply.remark == "header field e is missing"
    reply = broker.send(lenient=True, e="two")
    assert reply is not None and reply.remark == "header field e is not a number: 'two'"


def test_a_full_disk_is_an_answer(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(broker.store.commit_log, "append", full)
    reply = broker.send()
    assert reply is not None and reply.code == ResponseCode.SYSTEM_ERROR
    assert reply.remark == "create mapped file failed: No space left on device"


# -- replies that wait -------------------------------------------------------------------------------------


def test_replies_wait_until_replicated_and_leave_together(broker: Broker) -> None:
    broker.gate.wait = True
    assert [broker.send() for _ in range(3)] == [None, None, None]
    assert len(broker.pending) == 3 and broker.answers() == []
    second_end = broker.store.commit_log.max_offset * 2 // 3
    broker.pending.release(second_end)
    assert [reply.ext_fields["queueOffset"] for reply in broker.answers()] == ["0", "1"]
    broker.replicated()
    assert len(broker.peer.sent) == 1
    assert [reply.ext_fields["queueOffset"] for reply in broker.answers()] == ["2"]


def test_wait_false_does_not_wait(broker: Broker) -> None:
    broker.gate.wait = True
    ok(broker.send(i="UNIQ_KEY\x01K\x02WAIT\x01false"))
    assert broker.send(i="UNIQ_KEY\x01K\x02WAIT\x01true") is None


WAITING = [
    "NOWAIT\x01false",
    "NOWAIT\x01false\x02",
    "A\x01b\x02MY_WAIT\x01false\x02C\x01d",
    "WAIT\x01falsey",
    "note\x01WAIT\x01false",
    "WAIT\x01false\x02WAIT\x01true",
]
"""Properties that only look like WAIT=false."""


@pytest.mark.parametrize("more", ["", "\x02DELAY\x010"], ids=["plain", "the longer way"])
@pytest.mark.parametrize("properties", WAITING)
def test_only_the_property_wait_itself_bypasses_all_ack(broker: Broker, properties: str, more: str) -> None:
    broker.gate.wait = True
    assert broker.send(i=properties + more) is None
    assert len(broker.pending) == 1
    ok(broker.send(i="A\x01b\x02WAIT\x01false" + more))


@pytest.mark.parametrize("properties", WAITING)
def test_only_the_property_wait_itself_bypasses_min_in_sync(broker: Broker, properties: str) -> None:
    broker.gate.min_in_sync = 2
    reply = broker.send(i=properties)
    assert reply is not None and reply.remark == "in-sync replicas not enough: 1 of at least 2"
    ok(broker.send(i="WAIT\x01false\x02"))


def test_when_too_many_wait_nothing_is_written(tmp_path: Path) -> None:
    broker = Broker(tmp_path, pending_max=2)
    broker.gate.wait = True
    assert [broker.send(), broker.send()] == [None, None]
    end = broker.store.commit_log.max_offset
    reply = broker.send()
    assert reply is not None and reply.code == ResponseCode.SYSTEM_BUSY
    assert broker.store.commit_log.max_offset == end
    broker.replicated()
    assert broker.send() is None


def test_who_waits_too_long_is_told_the_message_is_stored() -> None:
    pending, peer, gone = PendingReplies(send_gate()), FakePeer(), FakePeer(2)
    gone.closing = True
    frame = b'{"code":0,"extFields":{"msgId":"M"},"flag":1,"opaque":5,"version":1}'
    frame = (len(frame) + 4).to_bytes(4, "big") + len(frame).to_bytes(4, "big") + frame
    for connection, now in ((peer, 100), (gone, 100), (peer, 200)):
        pending.add(10, connection, frame, now)
    assert pending.expire(3_099, 3_000) == 0
    assert pending.expire(3_100, 3_000) == 2
    assert len(peer.sent) == 1 and gone.sent == []
    header = json.loads(peer.sent[0][8:])
    assert (header["code"], header["extFields"], header["opaque"]) == (12, {"msgId": "M"}, 5)
    assert header["remark"] == "not replicated within 3000 ms"
    assert pending.fail_all(ResponseCode.SERVICE_NOT_AVAILABLE, "role change") == 1
    assert json.loads(peer.sent[1][8:])["code"] == 14
    assert len(pending) == 0


def test_one_write_per_connection_and_none_to_the_dead() -> None:
    pending, one, two = PendingReplies(send_gate()), FakePeer(1), FakePeer(2)
    for end in range(1, 7):
        pending.add(end, one if end % 2 else two, b"%d" % end, 0)
    two.closing = True
    pending.release(5)
    assert (one.sent, two.sent) == ([b"135"], [])
    assert len(pending) == 1
