"""Batches, delayed messages, and messages that consumers send back: what is stored, and what is answered."""

import json
import struct
from itertools import pairwise
from pathlib import Path

import pytest

from broker.admission.send_gate import HAND_OVER
from broker.clients.core.locks import Queue
from broker.message.delay_levels import SCHEDULE_TOPIC
from broker.message.record import Record, decode, parse_properties
from broker.metadata.groups import Group
from broker.metadata.ports import StoreQueues
from broker.metadata.service import Metadata
from broker.store.queue.consume_queue import UNIT_BYTES
from broker.timers import schedule_message_service
from broker.timers.schedule_message_service import BATCH_MAX, ScheduleMessageService
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.command import FLAG_ONEWAY, RemotingCommand
from keelmq.remoting.command import decode as decode_frame
from keelmq.remoting.operation import Empty, Failed, Ok, Outcome, Wire
from keelmq.remoting.operations.broker_metadata import SubscriptionGroupConfig
from keelmq.remoting.operations.clients import SendBackRequest
from keelmq.runtime.clock import now_ms, wall_ms
from tests.support.batch_parts import item
from tests.support.handler_parts import Broker
from tests.support.store_parts import FakePeer

FIXTURES = Path(__file__).parents[3] / "fixtures"


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return Broker(tmp_path)


def stored(broker: Broker, topic: str = "TopicA", queue_id: int = 0) -> list[Record]:
    broker.tick()
    queue = broker.store.find_queue(topic, queue_id)
    if queue is None:
        return []
    units = [queue.unit(index) for index in range(queue.min_offset, queue.max_offset)]
    return [decode(broker.store.commit_log.view(offset, size)) for offset, size, _ in units]


def ok(reply: RemotingCommand | None) -> RemotingCommand:
    assert reply is not None and reply.code == 0, reply
    return reply


# -- batches -----------------------------------------------------------------------------------------------


def captured(name: str) -> RemotingCommand:
    return decode_frame((FIXTURES / "frames" / f"{name}.bin").read_bytes()[4:])


def test_a_captured_batch(broker: Broker) -> None:
    """Items become messages with their own properties; the answer has all ids, and the first one's offset.
    Each has CLUSTER, from which a reply's topic is made (broker-ops pitfall 12)."""
    command, theirs = captured("320-send-batch-producer-1.req"), captured("320-send-batch-producer-1.resp")
    ext: dict[str, object] = {**command.ext_fields, "b": "TopicA"}
    reply = ok(broker.request(320, ext, command.body))
    assert reply.ext_fields.keys() == theirs.ext_fields.keys()
    assert reply.ext_fields["transactionId"] == theirs.ext_fields["transactionId"]
    assert (reply.ext_fields["queueId"], reply.ext_fields["queueOffset"]) == ("3", "0")
    records = stored(broker, queue_id=3)
    assert [record.body for record in records] == [b"batch body %d" % index for index in range(len(records))]
    assert len(records) == len(theirs.ext_fields["msgId"].split(",")) > 3
    ids = [int(each[-16:], 16) for each in reply.ext_fields["msgId"].split(",")]
    assert ids == [record.offset for record in records]
    seen = [parse_properties(record.properties) for record in records]
    assert [each["KEYS"] for each in seen] == [f"batch-{index}" for index in range(len(records))]
    assert len({each["UNIQ_KEY"] for each in seen}) == len(records)  # not the batch's own (store pitfall 15)
    assert {each["TAGS"] for each in seen} == {"TagBatch"} and seen[0]["CLUSTER"] == "c"


@pytest.mark.parametrize("flag", ["1", "true", "True"])
@pytest.mark.parametrize("code", [10, 310])
def test_every_form_of_the_batch_flag(broker: Broker, flag: str, code: int) -> None:
    """clients pitfall 3: both header forms, and C++ writes its booleans as 0 and 1."""
    body = item(b"one", b"TAGS\x01A") + item(b"two", b"TAGS\x01B\x02")
    if code == 310:
        reply = broker.send(body, m=flag, lenient=flag == "True")
    else:
        ext: dict[str, object] = {
            "producerGroup": "PG", "topic": "TopicA", "defaultTopic": "TBW102", "defaultTopicQueueNums": 4,
            "queueId": 0, "sysFlag": 0, "bornTimestamp": "7", "flag": 0, "properties": "WAIT\x01true\x02",
            "batch": flag, "reconsumeTimes": "0", "unitMode": "0",
        }  # fmt: skip
        reply = broker.request(10, ext, body, lenient=flag == "True")
    ok(reply)
    assert [record.body for record in stored(broker)] == [b"one", b"two"]


def test_a_batch_with_a_property_that_ends_like_wait_waits(broker: Broker) -> None:
    broker.gate.wait = True
    assert broker.send(item(b"one"), m="true", i="NOWAIT\x01false\x02") is None
    assert broker.send(item(b"one"), m="true", i="WAIT\x01false\x02WAIT\x01true") is None
    assert len(broker.pending) == 2


def test_a_batch_waits_for_replicas_or_for_nobody(broker: Broker) -> None:
    """As its properties say. Oneway: stored, and never answered."""
    broker.gate.wait = True
    body = item(b"one") + item(b"two")
    assert broker.send(body, m="true") is None
    ok(broker.send(body, m="true", i="WAIT\x01false\x02"))
    assert len(broker.pending) == 1
    assert broker.send(body, m="true", i="WAIT\x01false\x02", flag=FLAG_ONEWAY) is None
    assert broker.send(body, m="true", flag=FLAG_ONEWAY) is None
    assert len(broker.pending) == 1
    broker.replicated()
    assert len(broker.peer.sent) == 1 and len(stored(broker)) == 8


@pytest.mark.parametrize("flag", ["0", "false", None])
def test_a_body_that_only_looks_like_a_batch(broker: Broker, flag: str | None) -> None:
    """clients pitfalls 4 and 18: without the flag the bytes are one message."""
    body = item(b"one") + item(b"two")
    ok(broker.send(body, m=flag))
    assert [record.body for record in stored(broker)] == [body]


@pytest.mark.parametrize(
    "body",
    [
        b"", b"x", item(b"one")[:-1], item(b"one") + b"\0", b"\0" * 22, item(b"one", b"k\x01\0v"),
        struct.pack(">iiiii", 1 << 30, 0, 0, 0, 1 << 29) + b"x" * 40,
        struct.pack(">iiiii", 30, 0, 0, 0, -1) + b"x" * 40,
        item(b"one") + struct.pack(">iiiii", 22, 0, 0, 0, 0) + b"\xff\xff", item(b"a", b"k" * 32_730),
    ],
)  # fmt: skip
def test_what_is_no_batch_stores_nothing(broker: Broker, body: bytes) -> None:
    reply = broker.send(body, m="true")
    assert reply is not None and reply.code == ResponseCode.MESSAGE_ILLEGAL
    assert broker.store.commit_log.max_offset == 0


def test_batches_that_are_refused(broker: Broker) -> None:
    """clients pitfall 5: a compressed batch is refused, never taken apart wrongly."""
    for changed in ({"f": "1"}, {"i": "DELAY\x013"}, {"b": "%RETRY%g"}):
        reply = broker.send(item(b"one"), m="true", **changed)  # type: ignore[arg-type]
        assert reply is not None and reply.code == ResponseCode.MESSAGE_ILLEGAL
    assert broker.store.commit_log.max_offset == 0


def test_a_batch_is_answered_when_its_last_message_is_safe(broker: Broker) -> None:
    broker.gate.wait = True
    assert broker.send(item(b"one") + item(b"two"), m="true") is None
    broker.pending.release(broker.store.commit_log.max_offset - 1)
    assert broker.answers() == []
    broker.replicated()
    assert [reply.code for reply in broker.answers()] == [0]


# -- delay levels ------------------------------------------------------------------------------------------


class Later:
    """A broker with its deliveries; `now` is the wall clock that they go by."""

    def __init__(self, broker: Broker, path: Path) -> None:
        self.broker, self.now = broker, wall_ms()
        self.metadata = Metadata(path / "config", broker.topics, broker.gate, StoreQueues(broker.store))
        self.metadata.delays.load()
        self.delivery = self.another()

    def another(self) -> ScheduleMessageService:
        writer = self.broker.writer
        return ScheduleMessageService(self.broker.store, self.metadata, writer, clock=lambda: self.now)

    def run(self, more_ms: int = 0) -> None:
        self.now += more_ms
        while self.delivery.round():
            pass
        self.broker.tick()
        self.broker.store.flush()
        self.delivery.round()


@pytest.fixture
def later(broker: Broker, tmp_path: Path) -> Later:
    return Later(broker, tmp_path)


def test_a_delayed_message(broker: Broker, later: Later) -> None:
    reply = ok(broker.send(b"later", e="2", i="TAGS\x01A\x02DELAY\x012\x02UNIQ_KEY\x01K"))
    assert reply.ext_fields["queueId"] == "2"
    (waiting,) = stored(broker, SCHEDULE_TOPIC, 1)
    assert parse_properties(waiting.properties)["REAL_TOPIC"] == "TopicA"
    queue = broker.store.find_queue(SCHEDULE_TOPIC, 1)
    assert queue is not None and queue.unit(0)[2] == waiting.store_timestamp + 5_000
    later.run(4_000)
    assert stored(broker, queue_id=2) == []
    later.run(2_000)
    (delivered,) = stored(broker, queue_id=2)
    assert (delivered.body, delivered.properties) == (b"later", waiting.properties)
    assert parse_properties(delivered.properties) == {
        "TAGS": "A", "DELAY": "2", "UNIQ_KEY": "K", "REAL_TOPIC": "TopicA", "REAL_QID": "2",
        "MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "c",
    }  # fmt: skip
    assert delivered.born_timestamp == waiting.born_timestamp
    later.run(60_000)
    assert len(stored(broker, queue_id=2)) == 1


def test_levels_above_the_last_and_below_the_first(broker: Broker) -> None:
    ok(broker.send(i="DELAY\x0199"))
    ok(broker.send(i="DELAY\x010"))
    ok(broker.send(i="DELAY\x01-3\x02TIMER_DELAY_SEC\x010"))
    assert len(stored(broker, SCHEDULE_TOPIC, 17)) == 1
    assert len(stored(broker)) == 2


def test_a_level_wins_over_a_timer(broker: Broker) -> None:
    ok(broker.send(i="DELAY\x011\x02TIMER_DELAY_SEC\x0130"))
    (waiting,) = stored(broker, SCHEDULE_TOPIC, 0)
    assert "TIMER_DELAY_SEC" not in parse_properties(waiting.properties)


def test_a_lost_entry_holds_its_level_not_back(broker: Broker, later: Later) -> None:
    for index in range(3):
        ok(broker.send(b"%d" % index, i="DELAY\x011"))
    broker.tick()
    with (broker.store.root / "consumequeue" / SCHEDULE_TOPIC / "0" / f"{0:020d}").open("r+b") as file:
        file.seek(UNIT_BYTES)
        file.write(bytes(UNIT_BYTES))
    later.run(2_000)
    assert [record.body for record in stored(broker)] == [b"0", b"2"]


def test_progress_is_the_next_offset_and_only_of_what_is_safe(broker: Broker, later: Later) -> None:
    """broker-ops pitfall 3: the offset behind the delivered message; never one whose copy could be lost."""
    for index in range(3):
        ok(broker.send(b"%d" % index, i="DELAY\x011"))
    broker.tick()
    later.now += 2_000
    later.delivery.round()
    assert later.metadata.delays.get(1) == 0  # delivered, not confirmed
    broker.tick()
    later.delivery.round()
    assert later.metadata.delays.get(1) == 0  # confirmed, not on disk
    broker.store.flush()
    later.delivery.round()
    assert later.metadata.delays.get(1) == 3
    assert [record.body for record in stored(broker)] == [b"0", b"1", b"2"]


def test_the_next_master_goes_on_and_loses_nothing(broker: Broker, later: Later) -> None:
    """broker-ops pitfall 3: what was delivered by the old master and not known to be safe comes again."""
    for index in range(3):
        ok(broker.send(b"%d" % index, i="DELAY\x011"))
    broker.tick()
    later.run(2_000)
    ok(broker.send(b"3", i="DELAY\x011"))
    broker.tick()
    later.now += 2_000
    later.delivery.round()  # its copy is stored, and its progress known to nobody
    later.delivery = later.another()
    later.run()
    assert [record.body for record in stored(broker)] == [b"0", b"1", b"2", b"3", b"3"]
    assert later.metadata.delays.get(1) == 4


def test_offsets_outside_of_their_queue_are_set_inside(broker: Broker, later: Later) -> None:
    """store pitfall 20: beyond or below the queue, delivery goes on."""
    later.metadata.delays.advance(1, 50)
    ok(broker.send(b"one", i="DELAY\x011"))
    broker.tick()
    later.run()
    ok(broker.send(b"two", i="DELAY\x011"))
    broker.tick()
    later.run(2_000)
    assert [record.body for record in stored(broker)] == [b"two"]
    assert later.metadata.delays.get(1) == 2


def test_only_a_master_delivers(broker: Broker, later: Later) -> None:
    ok(broker.send(i="DELAY\x011"))
    broker.tick()
    broker.gate.close("role", "slave")
    later.run(5_000)
    assert stored(broker) == []
    broker.gate.open("role")
    later.run()
    assert len(stored(broker)) == 1


def test_more_than_a_batch_is_due(broker: Broker, later: Later) -> None:
    for _ in range(BATCH_MAX + 5):
        ok(broker.send(b"x", i="DELAY\x011"))
    broker.tick()
    later.now += 2_000
    assert later.delivery.round()
    later.run()
    assert len(stored(broker)) == BATCH_MAX + 5


def test_a_round_delivers_a_bounded_number_of_all_levels_and_none_waits_for_another(
    broker: Broker, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new master may find messages of every level due, as many as the old one had no time for."""
    monkeypatch.setattr(schedule_message_service, "BATCH_MAX", 4)
    for level in (1, 2, 3):
        for _ in range(6):
            ok(broker.send(b"%d" % level, i=f"DELAY\x01{level}"))
    broker.tick()
    later.now += 60_000
    counts = [0]
    while later.delivery.round():
        counts.append(len(stored(broker)))
    assert [after - before for before, after in pairwise(counts)] == [4, 4, 4, 4]
    bodies = [record.body for record in stored(broker)]
    assert bodies[:12] == [b"1"] * 4 + [b"2"] * 4 + [b"3"] * 4 and len(bodies) == 18


def test_what_cannot_be_delivered_holds_up_nobody(
    broker: Broker, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An illegal message is passed over; one that has no room now is tried again."""
    ok(broker.send(b"bad", i="DELAY\x011"))
    ok(broker.send(b"good", i="DELAY\x011"))
    broker.tick()
    put, problems = broker.store.put, [OSError(28, "full"), ValueError("illegal")]

    def fails(*args: object, **more: object) -> tuple[int, int, int]:
        if problems:
            raise problems.pop(0)
        return put(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(broker.store, "put", fails)
    later.now += 2_000
    later.delivery.round()
    assert problems and stored(broker) == []
    later.run()
    assert [record.body for record in stored(broker)] == [b"good"]
    assert later.metadata.delays.get(1) == 2


def test_a_message_of_a_deleted_topic_stops_nobody(broker: Broker, later: Later) -> None:
    ok(broker.send(b="Gone", i="DELAY\x011"))
    ok(broker.send(b"stays", i="DELAY\x011"))
    broker.tick()
    broker.topics.delete(["Gone"], broker.store.commit_log.max_offset)
    later.run(2_000)
    assert [record.body for record in stored(broker)] == [b"stays"]


# -- consumers' retries ------------------------------------------------------------------------------------


async def send_back(
    broker: Broker, offset: int, *, language: str = "JAVA", **changed: object
) -> RemotingCommand:
    fields = {"offset": offset, "group": "g", "delayLevel": 0} | changed
    ext = {key: str(value) for key, value in fields.items()}
    command = RemotingCommand(36, 9, 0, None, ext, b"", language)
    raw = await broker.dispatcher.answer(command, FakePeer())
    return decode_frame(raw[4:]) if raw is not None else broker.answers()[-1]


def group(broker: Broker, **config: object) -> None:
    row = Group(SubscriptionGroupConfig(group_name="g", **config))  # type: ignore[arg-type]
    broker.context.find_group = lambda *_: row


async def test_a_message_sent_back_comes_again_later(broker: Broker, later: Later) -> None:
    """clients pitfall 2: with the three fields that C++ sends."""
    ok(broker.send(b"body", i="TAGS\x01A\x02KEYS\x01k\x02UNIQ_KEY\x01K", h="7"))
    (original,) = stored(broker)
    assert (await send_back(broker, original.offset)).code == 0
    assert broker.topics.topics["%RETRY%g"].perm == 6
    (waiting,) = stored(broker, SCHEDULE_TOPIC, 2)  # level 3 for the first retry
    later.run(11_000)
    (retry,) = stored(broker, "%RETRY%g")
    assert (retry.body, retry.flag, retry.reconsume_times) == (b"body", 7, 1)
    assert (retry.born_timestamp, retry.born_host) == (original.born_timestamp, original.born_host)
    properties = parse_properties(retry.properties)
    assert properties["RETRY_TOPIC"] == "TopicA" and properties["UNIQ_KEY"] == "K"
    assert properties["ORIGIN_MESSAGE_ID"] == f"7F00000100002A9F{original.offset:016X}"
    assert (await send_back(broker, retry.offset)).code == 0
    (again,) = stored(broker, SCHEDULE_TOPIC, 3)
    properties = parse_properties(again.properties)  # broker-ops pitfall 11: of the text that is stored
    assert (properties["RETRY_TOPIC"], properties["DELAY"], properties["REAL_TOPIC"]) == (
        "TopicA",
        "4",
        "%RETRY%g",
    )
    assert properties["ORIGIN_MESSAGE_ID"] == f"7F00000100002A9F{original.offset:016X}"
    assert waiting.size == retry.size + len(SCHEDULE_TOPIC) - len("%RETRY%g")


async def test_a_retry_has_the_size_of_the_peers(broker: Broker) -> None:
    """RocketMQ's own log: the same original, sent back, has the same properties and size."""
    seen = json.loads((FIXTURES / "store" / "messages.json").read_text())
    theirs = next(
        each for each in seen if each["topic"] == SCHEDULE_TOPIC and "RETRY_TOPIC" in each["properties"]
    )
    log = (FIXTURES / "store" / "commitlog" / ("0" * 20)).read_bytes()
    original = decode(log, 36_300)
    known = parse_properties(decode(log, theirs["commitLogOffset"]).properties)
    ok(broker.send(original.body, i=original.properties.decode()))
    broker.tick()
    own = ok(await send_back(broker, 0, group="FxGroup", delayLevel=1, maxReconsumeTimes=16))
    assert own.code == 0
    (ours,) = stored(broker, SCHEDULE_TOPIC, 0)
    properties = parse_properties(ours.properties)
    assert properties.keys() == known.keys()
    same = known.keys() - {"ORIGIN_MESSAGE_ID", "RETRY_TOPIC", "CLUSTER"}
    assert {key: properties[key] for key in same} == {key: known[key] for key in same}


@pytest.mark.parametrize(
    ("times", "changed", "language", "dead"),
    [
        (2, {}, "JAVA", False),
        (3, {}, "JAVA", True),
        (0, {"delayLevel": -1}, "JAVA", True),
        (3, {"maxReconsumeTimes": 5}, "JAVA", False),
        (3, {"maxReconsumeTimes": -1}, "JAVA", True),  # clients pitfall 19: the group's number counts
        (3, {"maxReconsumeTimes": 3000}, "CPP", True),  # clients pitfall 2: it is a timeout
        (1, {"maxReconsumeTimes": 1}, "CPP", True),
    ],
)
async def test_when_a_message_is_dead(
    broker: Broker, times: int, changed: dict[str, object], language: str, dead: bool
) -> None:
    group(broker, retry_max_times=3)
    ok(broker.send(b"body", j=str(times), i="DELAY\x010\x02TAGS\x01A"))
    broker.tick()
    assert (await send_back(broker, 0, language=language, **changed)).code == 0
    letters = stored(broker, "%DLQ%g")
    assert bool(letters) is dead
    if dead:
        properties = parse_properties(letters[0].properties)
        assert "DELAY" not in properties and properties["DLQ_ORIGIN_TOPIC"] == "TopicA"
        topic = broker.topics.topics["%DLQ%g"]
        assert (topic.perm, topic.queue_count) == (6, 1)  # broker-ops pitfall 25: it can be consumed


async def test_retries_of_a_group_with_a_long_name(broker: Broker, later: Later) -> None:
    """Its retry topic has more than 127 bytes, which other topics must not have."""
    name = "g" * 248
    ok(broker.send(b"body"))
    broker.tick()
    assert (await send_back(broker, 0, group=name)).code == 0
    later.run(11_000)
    (retry,) = stored(broker, "%RETRY%" + name)
    assert (retry.body, retry.topic) == (b"body", "%RETRY%" + name)
    assert (await send_back(broker, 0, group=name, delayLevel=-1)).code == 0
    assert [letter.body for letter in stored(broker, "%DLQ%" + name)] == [b"body"]
    assert (await send_back(broker, 0, group=name + "g")).code == ResponseCode.SYSTEM_ERROR


async def test_properties_without_room_for_those_of_a_retry(broker: Broker) -> None:
    """A consumer that could not send it back would get it again for ever."""
    properties = "p\x01" + "v" * 32_600
    ok(broker.send(b"body", i=properties))
    broker.tick()
    assert (await send_back(broker, 0)).code == 0
    (letter,) = stored(broker, "%DLQ%g")
    original = decode(broker.store.commit_log.view(0, 1 << 16))
    assert (letter.body, letter.properties) == (b"body", original.properties)


async def test_what_cannot_be_sent_back(broker: Broker) -> None:
    ok(broker.send(b"body"))
    broker.gate.wait = True
    ok_before = broker.store.commit_log.max_offset
    broker.tick()
    for offset in (-1, 1, 100, ok_before, 1 << 40):
        assert (await send_back(broker, offset)).code == ResponseCode.SYSTEM_ERROR
    broker.context.find_group = lambda *_: None
    assert (await send_back(broker, 0)).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    group(broker, retry_queue_nums=0)
    assert (await send_back(broker, 0)).code == 0  # nothing is to be done
    broker.gate.configure(permits_write=False, accept_from_ms=0)
    assert (await send_back(broker, 0)).code == ResponseCode.NO_PERMISSION
    assert broker.store.commit_log.max_offset == ok_before
    broker.gate.close("role", "slave")
    assert (await send_back(broker, 0)).code == ResponseCode.SERVICE_NOT_AVAILABLE


async def test_sending_back_in_a_hand_over(broker: Broker) -> None:
    """clients pitfall 1: it waits, goes to the new master, and is forwarded only once."""
    ok(broker.send(b"body"))
    broker.tick()
    answers: list[Outcome[Empty] | None] = [
        None,
        Failed(ResponseCode.SERVICE_NOT_AVAILABLE, "soon"),
        Ok(Empty()),
    ]
    asked: list[Wire] = []

    async def forward_to_master(operation: object, header: Wire, body: object) -> Outcome[Empty] | None:
        asked.append(header)
        return answers.pop(0)

    broker.context.forward_to_master = forward_to_master
    broker.gate.close(HAND_OVER, "moves")
    assert (await send_back(broker, 0)).code == 0
    assert len(asked) == 3 and all(isinstance(each, SendBackRequest) and each.forwarded for each in asked)
    reply = await send_back(broker, 0, forwarded="true")
    assert (reply.code, len(asked)) == (ResponseCode.SERVICE_NOT_AVAILABLE, 3)
    answers.append(Failed(ResponseCode.SYSTEM_ERROR, "no"))
    broker.gate.open(HAND_OVER)
    broker.gate.close("role", "slave")
    assert (await send_back(broker, 0)).code == ResponseCode.SERVICE_NOT_AVAILABLE
    broker.gate.open("role")
    assert (await send_back(broker, 0)).code == 0 and len(asked) == 4


async def test_sending_back_waits_for_replicas(broker: Broker) -> None:
    """clients pitfall 1: a client that is told 0 forgets the message."""
    ok(broker.send(b"body"))
    broker.tick()
    broker.gate.wait = True
    command = RemotingCommand(36, 9, 0, None, {"offset": "0", "group": "g", "delayLevel": "0"})
    assert await broker.dispatcher.answer(command, broker.peer) is None
    assert broker.answers() == []
    broker.replicated()
    assert [reply.code for reply in broker.answers()] == [0]


@pytest.mark.parametrize(
    ("times", "maximum", "dead"), [(3, None, False), (4, None, True), (4, "5", False), (4, "-1", True)]
)
def test_sends_to_a_retry_topic(broker: Broker, times: int, maximum: str | None, dead: bool) -> None:
    """broker-ops pitfalls 1 and 2: without a maximum the group's counts; the client has counted already."""
    group(broker, retry_max_times=3)
    ok(broker.send(b"body", b="%RETRY%g", j=str(times), l=maximum, i="DELAY\x016"))
    assert len(stored(broker, "%DLQ%g")) == dead
    assert len(stored(broker, SCHEDULE_TOPIC, 5)) == (not dead)


def test_what_an_ordered_group_gives_up_is_dead(broker: Broker) -> None:
    """broker-ops pitfall 2: its consumers have retried in place."""
    broker.context.locks.lock("g", "client", [Queue("T", 0)], now_ms=now_ms())
    ok(broker.send(b"body", b="%RETRY%g", j="1"))
    assert len(stored(broker, "%DLQ%g")) == 1


def test_a_retry_of_an_unknown_group(broker: Broker) -> None:
    broker.context.find_group = lambda *_: None
    reply = broker.send(b="%RETRY%g")
    assert reply is not None and reply.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


@pytest.mark.parametrize("end", ["", "\x02"], ids=["java", "others"])
@pytest.mark.parametrize("more", ["", "\x02DELAY\x013"], ids=["plain", "delayed"])
def test_stored_properties_end_without_a_separator(broker: Broker, more: str, end: str) -> None:
    """As in every record of RocketMQ, whatever the client sends: Java, C++ and Go differ."""
    reply = broker.send(b"x", i=f"UNIQ_KEY\x01K\x02a\x011{more}{end}")
    assert reply is not None and reply.code == 0, reply
    broker.tick()
    log = broker.store.commit_log
    stored = decode(log.view(log.min_offset, log.max_offset - log.min_offset)).properties
    assert stored.startswith(b"UNIQ_KEY\x01K\x02") and not stored.endswith(b"\x02"), stored
    assert b"" not in stored.split(b"\x02")
